# SPDX-License-Identifier: Apache-2.0

"""Rebuilds of volume-backed servers that Cinder re-images, or fails to."""

import time
from unittest import mock

from cinderclient import exceptions as cinder_exception
import fixtures

from nova.compute import power_state
from nova.compute import rpcapi
from nova.compute import volume_reimage
from nova import context as nova_context
from nova import objects
from nova.tests.functional.api import client as api_client
from nova.tests.functional import volume_reimage_base

IMAGE = volume_reimage_base.IMAGE
OTHER_IMAGE = volume_reimage_base.OTHER_IMAGE
REFUSALS = volume_reimage_base.REFUSALS


class GoodPathTestCase(volume_reimage_base.VolumeReimageBase):

    def test_rebuild(self):
        self.cinder.calls.clear()
        with mock.patch.object(self.driver, 'destroy',
                               wraps=self.driver.destroy) as destroy:
            self.rebuild()
        self.assertRebuilt()
        self.assertEqual(
            [{'destroy_disks': False}, {}],
            [{name: value for name, value in call.kwargs.items()
              if name == 'destroy_disks'} for call in destroy.mock_calls])
        self.assertEqual(
            'Success', self.event('compute_rebuild_instance')['result'])

    def test_stopped(self):
        self._stop_server(self.server)
        self.rebuild()
        self.assertRebuilt('SHUTOFF')
        self.assertEqual(power_state.SHUTDOWN, self.guest_state())

    def test_below_2_93(self):
        self.api.microversion = '2.92'
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self.assertEqual(400, exc.response.status_code)
        self.assertAttached()

    def test_below_2_93_after_a_failure(self):
        with self.in_cell() as cctxt:
            instance = objects.Instance.get_by_uuid(
                cctxt, self.server['id'], expected_attrs=['system_metadata'])
            instance.system_metadata[volume_reimage.UNFINISHED] = 'volume'
            instance.save()
        self.api.microversion = '2.92'
        for action, status in (('unlock', 400), ('lock', 409)):
            self.api.post_server_action(self.server['id'], {action: None})
            exc = self.assertRaises(
                api_client.OpenStackApiException, self.api.post_server_action,
                self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
            self.assertEqual(status, exc.response.status_code)
        self.assertAttached()

    def test_old_compute(self):
        """The conductor sends nothing to a host that does not know of it."""
        before = self.in_database()
        self.flags(compute='6.0', group='upgrade_levels')
        rpcapi.reset_globals()
        self.conductor.manager.compute_task_mgr.compute_rpcapi = (
            rpcapi.ComputeAPI())
        self.cinder.calls.clear()
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_for_assert(lambda: self.assertIn(
            'reimage_boot_volume',
            str(self.event('rebuild_server').get('details'))))
        self.assertEqual({'get'}, set(self.cinder.calls))
        self.assertAttached()
        self._wait_for_assert(lambda: self.assertUnchanged(before))

    def test_image_backed(self):
        """A server with its root on the host is rebuilt as ever."""
        self.server = self.api.post_server({'server': {
            'name': 'server', 'imageRef': IMAGE, 'networks': 'none',
            'flavorRef': self._create_flavor(
                vcpu=1, memory_mb=128, disk=1)}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        with mock.patch.object(volume_reimage, 'under_way') as under_way:
            self.rebuild()
        under_way.assert_not_called()
        self.assertEqual('ACTIVE', self.at_rest()['status'])

    def test_leftover_attachment(self):
        """What a nova-compute has left that died is deleted."""
        self.cinder.fake_attachment_create(
            nova_context.get_admin_context(), self.root, self.server['id'])
        self.assertEqual(2, len(self.cinder.attached(self.root)))
        self.rebuild()
        self.assertRebuilt()


class FailedTestCase(volume_reimage_base.VolumeReimageBase):
    """Point 2: the volume is not what it was."""

    def failed(self):
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn(self.root, server['fault']['message'])
        self.assertReserved(self.root, self.data)
        self.assertIsNone(self.guest_state())
        self.assertTrue(self.allocations())
        self.assertEqual(
            'Error', self.event('compute_rebuild_instance')['result'])
        return server

    def test_volume_in_error(self):
        self.cinder.outcome = 'error'
        calls = len(self.cinder.calls)
        server = self.failed()
        self.assertIn('error', server['fault']['message'])
        self.assertEqual('error', self.cinder.status(self.root))
        self.assertNotIn('attachment_update', self.cinder.calls[calls:])
        self.retried()

    def test_event_failed(self):
        """Should Cinder come to say that a re-image has failed."""
        self.cinder.outcome = 'error'
        reimage = self.cinder.fake_reimage_volume

        def fail(*args, **kwargs):
            reimage(*args, **kwargs)
            self.cinder.tell_nova(self.root, 'failed')
        self.flags(reimage_timeout_per_gb=600)
        with mock.patch('nova.volume.cinder.API.reimage_volume',
                        autospec=False, side_effect=fail):
            self.failed()
        self.retried()

    def test_fails_again_and_is_refused_then(self):
        self.cinder.outcome = 'error'
        self.failed()
        self.failed()
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn('Policy', server['fault']['message'])
        self.assertReserved(self.root, self.data)
        self.retried()

    def test_taken_by_another_before_the_retry(self):
        self.cinder.outcome = 'error'
        self.failed()
        delete = self.cinder.fake_attachment_delete

        def take(context, attachment_id):
            delete(context, attachment_id)
            self.cinder.fake_attachment_create(
                context, self.root, 'another server')
        with mock.patch('nova.volume.cinder.API.attachment_delete',
                        autospec=False, side_effect=take):
            server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertEqual([('another server', 'reserved', None)],
                         self.cinder.attached(self.root))
        self.refused('another')

    def refused(self, why):
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self.assertEqual(400, exc.response.status_code, why)
        self.assertIn('in-use', str(exc))

    def test_no_retry_while_cinder_is_writing(self):
        self.cinder.outcome = 'downloading'
        self.failed()
        self.refused('downloading')
        self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.retried()

    def test_volume_in_error_for_another_reason(self):
        """The check of the API is no weaker for other servers."""
        for status in ('error', 'reserved', 'available'):
            self.cinder.known[self.root]['status'] = status
            self.refused(status)
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'error'}})
            self.refused(status)
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'active'}})

    def test_not_rescued_after_failure(self):
        """No rescue makes up for volumes that are not attached."""
        self.cinder.outcome = 'error'
        self.failed()
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rescue': {}})
        self.assertEqual(409, exc.response.status_code)
        self.assertIn('in-use', str(exc))
        self.retried()

    def test_deleted_after_failure(self):
        self.cinder.outcome = 'error'
        self.failed()
        self.api.delete_server(self.server['id'])
        for _try in range(200):
            if not self.api.get_servers():
                break
            time.sleep(0.05)
        self.assertEqual([], self.api.get_servers())
        self.assertEqual({}, self.cinder.attachments)

    def test_not_attached_afterwards(self):
        """Nobody else can have a volume that could not be connected."""
        for calls in ('attachment_update', 'attachment_complete'):
            for failures in ([REFUSALS['bad state']],
                             [None, REFUSALS['bad state']]):
                self.cinder.failures[calls] = failures
                server = self.rebuild()
                self.assertEqual('ERROR', server['status'])
                self.assertIn('status is wrong', server['fault']['message'])
                for volume in (self.root, self.data):
                    self.assertEqual(
                        [self.server['id']],
                        [each[0] for each in self.cinder.attached(volume)])
                self.retried()

    def test_compute_stopped_in_the_middle(self):
        """The server is in ERROR after the restart, and can be rebuilt."""
        self.cinder.outcome = 'downloading'
        self.flags(reimage_timeout_per_gb=600)
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        for _try in range(200):
            if self.cinder.status(self.root) == 'downloading':
                break
            time.sleep(0.05)
        self.compute.manager.instance_events.cancel_all_events()
        self.assertEqual('ERROR', self.at_rest()['status'])
        self.compute.manager.instance_events._events = {}
        self.cinder.finish_reimage(self.root, IMAGE)
        self.retried()


class WaitTestCase(volume_reimage_base.VolumeReimageBase):
    """Point 3: the state of the volume decides."""

    def test_event_lost(self):
        self.cinder.outcome = 'lost'
        self.rebuild()
        self.assertRebuilt()

    def test_failure_is_noticed_before_the_time_is_over(self):
        self.flags(reimage_timeout_per_gb=600)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.volume_reimage._ASK_EVERY', 0.2))
        self.cinder.outcome = 'error'
        self.assertEqual('ERROR', self.rebuild()['status'])

    def test_still_working(self):
        """It is waited for longer, and it is done in the end."""
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'
        asked = []

        def get(*args, **kwargs):
            asked.append(self.cinder.status(self.root))
            if asked[-1] == 'downloading' and asked.count(asked[-1]) == 2:
                self.cinder.finish_reimage(self.root, OTHER_IMAGE)
                self.cinder.tell_nova(self.root)
            return self.cinder.fake_get(*args, **kwargs)
        with mock.patch('nova.volume.cinder.API.get', autospec=False,
                        side_effect=get):
            self.rebuild()
        self.assertRebuilt()

    def test_event_while_cinder_is_asked(self):
        """An event that comes between two waits ends the rebuild."""
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'
        events = self.compute.manager.instance_events

        def get(context, volume_id, **kwargs):
            volume = self.cinder.fake_get(context, volume_id, **kwargs)
            if volume['status'] == 'downloading':
                self.cinder.finish_reimage(self.root, OTHER_IMAGE)
                self.cinder.tell_nova(self.root)
                self._wait_for_assert(lambda: self.assertNotIn(
                    self.server['id'], events._events))
            return volume
        with mock.patch('nova.volume.cinder.API.get', autospec=False,
                        side_effect=get), mock.patch.object(
                            volume_reimage.LOG, 'warning') as warning:
            self.rebuild()
        self.assertRebuilt()
        warning.assert_not_called()

    def test_cinder_cannot_be_asked_for_a_while(self):
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'

        def done():
            self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.cinder.failures['reimage_volume'] = [
            lambda: self.cinder.failures.update(
                get=[REFUSALS['unreachable'], done])]
        self.rebuild()
        self.assertRebuilt()

    def test_volume_deleted(self):
        self.cinder.outcome = 'downloading'
        self.cinder.failures['reimage_volume'] = [
            lambda: self.cinder.failures.update(get=[
                cinder_exception.NotFound(404, 'gone')] * 3)]
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn('deleted', server['fault']['message'])

    def _timeout(self, **image):
        wait = self.compute.manager.virtapi.wait_for_instance_event
        self.flags(reimage_timeout_per_gb=10)
        with mock.patch.object(
                self.compute.manager.virtapi, 'wait_for_instance_event',
                side_effect=wait) as waited, mock.patch.object(
                    self.compute.manager.image_api, 'get',
                    side_effect=lambda *args, **kwargs: dict(
                        self.glance.show(None, OTHER_IMAGE), **image)):
            self.rebuild()
        self.assertRebuilt()
        return waited.mock_calls[0].kwargs['timeout']

    def test_timeout_of_small_image(self):
        self.assertEqual(10, self._timeout(size=1))

    def test_timeout_of_image(self):
        self.assertEqual(20, self._timeout(size=1 + 2 ** 30))

    def test_timeout_of_compressed_image(self):
        self.assertEqual(
            30, self._timeout(size=2 ** 20, virtual_size=3 * 2 ** 30))

    def test_timeout_of_snapshot(self):
        self.cinder.known[self.root]['size'] = 5
        self.assertEqual(50, self._timeout(size=0))

    def test_timeout_of_unknown_size(self):
        self.cinder.known[self.root]['size'] = 7
        self.assertEqual(volume_reimage._ASK_EVERY, self._timeout(size=None))
