# SPDX-License-Identifier: Apache-2.0

"""nova-compute as it was released, with a fake driver that has PCI devices.

The released FakeDriverWithPciResources has IDs of vendors that no alias can
name, and its node has another UUID after each start. Run as a file.
"""

import json
import sys

from nova.cmd import compute
import nova.virt.fake


class FakeDriverWithDevices(nova.virt.fake.FakeDriverWithoutFakeNodes):
    """Has devices which belong to no NUMA node."""

    def get_available_resource(self, nodename):
        """Return what the host has, with three devices."""
        return {
            **super().get_available_resource(nodename),
            'pci_passthrough_devices': json.dumps([{
                'address': '0000:%02x:00.0' % (number + 1),
                'vendor_id': '8086', 'product_id': '0442',
                'status': 'available', 'dev_type': 'type-PCI',
                'parent_addr': None, 'numa_node': None, 'label': 'device'}
                for number in range(3)])}


if __name__ == '__main__':
    # A driver is looked for in nova.virt.
    nova.virt.fake.FakeDriverWithDevices = FakeDriverWithDevices
    sys.exit(compute.main())
