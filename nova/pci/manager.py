# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)

#: The key in the extra_info of a device that a server has, and that the host
#: gives to no other server afterwards: the host does not have the device any
#: more, or [pci] device_spec does not name the device.
REMOVED_WHEN_FREED = 'removed_when_freed'


@nova_pending.over(released.PciDevTracker)
class PciDevTracker:

    def _set_hvdevs(self, devices):
        released.PciDevTracker._set_hvdevs(self, devices)
        # Only the host knows these devices: a scheduler has to read it.
        for device in self.pci_devs:
            is_leaving = device.address in self.to_be_removed_when_freed
            if is_leaving != (REMOVED_WHEN_FREED in device.extra_info):
                extra_info = dict(device.extra_info)
                extra_info.pop(REMOVED_WHEN_FREED, None)
                if is_leaving:
                    extra_info[REMOVED_WHEN_FREED] = 'true'
                device.extra_info = extra_info
