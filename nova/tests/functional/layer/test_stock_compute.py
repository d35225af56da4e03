# SPDX-License-Identifier: Apache-2.0

"""What tests of volume-backed rebuilds see of the release as it is."""

from unittest import mock

import fixtures

from nova.compute import manager
from nova.compute import resource_tracker
from nova import exception
from nova.tests.functional.api import client as api_client
from nova.tests.functional import volume_reimage_base


class StockComputeTestCase(volume_reimage_base.VolumeReimageBase):
    """What the tests of volume-backed rebuilds see with a stock nova-compute.

    nova-api would refuse such a host: here its service version is another.
    """

    def setUp(self):
        super().setUp()
        for module, cls, names in (
                (manager, 'ComputeManager', (
                    '_do_rebuild_instance', '_rebuild_default_impl')),
                (resource_tracker, 'ResourceTracker', (
                    'delete_allocation_for_evacuated_instance',))):
            for name in names:
                self.useFixture(fixtures.MockPatchObject(
                    getattr(module, cls), name,
                    getattr(getattr(module.released, cls), name)))

    def test_good_path(self):
        self.rebuild()
        self.assertRebuilt()

    def test_refused(self):
        self.cinder.failures['reimage_volume'] = [
            volume_reimage_base.REFUSALS['policy']]
        self.assertTrue(self.allocations())
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertNotIn('Policy', server['fault']['message'])
        self.assertIsNone(self.guest_state())
        self.assertEqual({}, self.allocations())
        self.assertReserved(self.root, self.data)
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {
                'imageRef': volume_reimage_base.OTHER_IMAGE}})
        self.assertEqual(400, exc.response.status_code)

    def test_detach_fails(self):
        with mock.patch.object(
                self.driver, 'detach_volume',
                side_effect=[None, exception.DeviceDetachFailed(
                    device='vda', reason='busy')]):
            self.assertEqual('ERROR', self.rebuild()['status'])
        self.assertEqual(2, len(self.cinder.attached(self.root)))
