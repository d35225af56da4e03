# SPDX-License-Identifier: Apache-2.0

"""Room that is held for servers with PCI devices."""

from unittest import mock

from nova.scheduler import held_room
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import test_pci_in_placement
from nova.tests.functional import shared_work


class _PciBase(test_pci_in_placement.PlacementPCIReportingTests):
    """One host with one device, which another server has had."""

    microversion = 'latest'
    #: Whether the scheduler asks placement for devices.
    in_placement = True

    def setUp(self):
        self.useFixture(shared_work.SharedWork())
        super().setUp()
        self.flags(use_pending_state=True)
        self.flags(group='filter_scheduler',
                   pci_in_placement=self.in_placement)
        self.flags(group='pci', report_in_placement=self.in_placement,
                   device_spec=self._to_list_of_json_str([{
                       'vendor_id': fakelibvirt.PCI_VEND_ID,
                       'product_id': fakelibvirt.PCI_PROD_ID}]))
        self.start_compute('compute1', pci_info=fakelibvirt.HostPCIDevicesInfo(
            num_pci=1, num_pfs=0, num_vfs=0))
        self.flavor = self._create_flavor(
            extra_spec={'pci_passthrough:alias': 'a-pci-dev:1'})
        first = self._create_server(flavor_id=self.flavor, networks='none')
        self.wanted = self.allocations(first)
        self.waiting = self._create_server(
            flavor_id=self.flavor, networks='none', expected_state='PENDING')
        self._delete_server(first)
        self.assertPCIDeviceCounts('compute1', total=1, free=1)

    def allocations(self, server):
        """Return by provider what a server has."""
        return {provider: {'resources': of['resources']}
                for provider, of in self.placement.get(
                    '/allocations/' + server['id'], version='1.38').body[
                        'allocations'].items()}

    def hold(self, allocations):
        self.assertEqual(204, self.placement.put(
            '/allocations/' + self.waiting['id'], {
                'allocations': allocations, 'consumer_generation': None,
                'consumer_type': 'NOVA_PENDING', 'project_id': 'service',
                'user_id': 'service'}, version='1.38').status)

    def rebuild(self):
        self.api.post_server_action(self.waiting['id'], {'rebuild': {}})

    def rebuild_held(self, allocations):
        """Rebuild into a hold, and return the mock of what drops holds."""
        self.hold(allocations)
        with mock.patch.object(
                held_room, 'drop', wraps=held_room.drop) as drop:
            self.rebuild()
            server = self._wait_for_state_change(self.waiting, 'ACTIVE')
        self.assertEqual(self.wanted, self.allocations(server))
        self.assertNotEqual('NOVA_PENDING', self.placement.get(
            '/allocations/' + server['id'], version='1.38').body[
                'consumer_type'])
        self.assertPCIDeviceCounts('compute1', total=1, free=0)
        self.assert_no_pci_healing('compute1')
        return drop


class PciInPlacementTestCase(_PciBase):
    """A device is a group of the request."""

    def test_held_with_the_device(self):
        self.rebuild_held(self.wanted).assert_not_called()

    def test_held_without_the_device(self):
        host = self.compute_rp_uuids['compute1']
        self.assertLess({host}, set(self.wanted))
        self.rebuild_held({host: self.wanted[host]}).assert_called_once()


class PciOutsidePlacementTestCase(_PciBase):
    """What placement does not know of is the filter's and the claim's."""

    in_placement = False

    def test_held(self):
        self.rebuild_held(self.wanted).assert_not_called()
        self.assertTrue(self.mock_filter.called)

    def test_the_device_is_gone_by_then(self):
        other = self._create_server(flavor_id=self.flavor, networks='none')
        self.hold(self.wanted)
        self.rebuild()
        self._wait_for_server_parameter(self.waiting, {
            'status': 'PENDING', 'OS-EXT-STS:task_state': None})
        self.assertEqual({}, self.allocations(self.waiting))
        self._delete_server(other)
        self.rebuild()
        self._wait_for_state_change(self.waiting, 'ACTIVE')
