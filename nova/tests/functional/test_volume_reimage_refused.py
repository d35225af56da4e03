# SPDX-License-Identifier: Apache-2.0

"""Rebuilds whose re-image is refused: nothing has changed on the volume."""

from unittest import mock

import fixtures
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import power_state
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.tests.functional.api import client as api_client
from nova.tests.functional import volume_reimage_base

IMAGE = volume_reimage_base.IMAGE
OTHER_IMAGE = volume_reimage_base.OTHER_IMAGE
REFUSALS = volume_reimage_base.REFUSALS


class RefusedTestCase(volume_reimage_base.VolumeReimageBase):
    """Point 1: nothing has changed on the volume."""

    def as_before(self, refuse, said, status='ACTIVE', state=None):
        """Check that a rebuild that fails has changed nothing."""
        state = state or (power_state.RUNNING if status == 'ACTIVE'
                          else power_state.SHUTDOWN)
        before = self.in_database()
        allocations = self.allocations()
        refuse()
        key = self.api.post_keypair({'keypair': {
            'name': 'another', 'type': 'ssh', 'public_key': (
                'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDx8nkQv/zgGgB4rMYmIf'
                '+6A4l6Rr+o/6lHBQdW5aYd44bd8JttDCE/F/pNRr0lRE+PiqSPO8nDPHw0'
                '010JeMH9gYgnnFlyY3/OcJ02RhIPyyxYpv9FhY+2YiUkpwFOcLImyrxEsY'
                'XpD/0d3ac30bNH6Sw9JD9UZHYcpSxsIbECHw== fake@example')}})
        server = self.rebuild(
            name='renamed', metadata={'a': 'b'}, user_data='aGVsbG8=',
            key_name=key['name'], accessIPv4='192.0.2.1')
        # What the request itself names stays, as after each rebuild.
        self.assertEqual((status, 'renamed', {'a': 'b'}), (
            server['status'], server['name'], server['metadata']))
        after = self.assertUnchanged(
            before, 'display_name', 'metadata', 'user_data', 'key_name',
            'key_data', 'access_ip_v4')
        self.assertAttached()
        self.assertEqual(state, self.guest_state())
        self.assertEqual(allocations, self.allocations())
        self.assertEqual(IMAGE, self.cinder.known[self.root][
            'volume_image_metadata']['image_id'])
        self.assertIn(said, after['fault'].message)
        event = self.event('compute_rebuild_instance')
        self.assertEqual('Error', event['result'])
        self.assertIn(said, event['details'])

    def refuse(self, exc, call='reimage_volume', times=1):
        def refuse():
            self.cinder.failures[call] = [exc] * times
        return refuse

    def _test_refused(self, kind):
        exc = REFUSALS[kind]
        self.as_before(self.refuse(exc), getattr(exc, 'message', 'Unable to'))
        self.assertIn('reimage_volume', self.cinder.calls)
        self.retried()

    def test_bad_state(self):
        self._test_refused('bad state')

    def test_policy(self):
        self._test_refused('policy')

    def test_no_such_image(self):
        """Cinder leaves a volume that it does not write to downloading."""
        def refuse():
            self.cinder.outcome = 'no image'
        self.as_before(refuse, 'Image could not be found')
        self.retried()

    def test_conflict(self):
        self._test_refused('conflict')

    def test_over_its_limits(self):
        self._test_refused('over its limits')

    def test_broken(self):
        self._test_refused('broken')

    def test_unreachable(self):
        self._test_refused('unreachable')

    def test_gateway(self):
        self._test_refused('gateway')

    def test_stopped(self):
        self._stop_server(self.server)
        self.as_before(self.refuse(REFUSALS['policy']), 'Policy', 'SHUTOFF')

    def test_image_deleted(self):
        def refuse():
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.is_microversion_supported',
                lambda *args: self.useFixture(fixtures.MonkeyPatch(
                    'nova.image.glance.API.get', mock.Mock(
                        side_effect=exception.ImageNotFound(
                            image_id=OTHER_IMAGE))))))
        with mock.patch.object(self.driver, 'power_off') as power_off:
            self.as_before(refuse, OTHER_IMAGE)
        power_off.assert_not_called()

    def test_no_host_for_the_image(self):
        """The server is in ERROR, and nothing else changes."""
        image = dict(self.glance.show(None, OTHER_IMAGE), id=uuids.image)
        image['properties'] = {'trait:HW_CPU_X86_SGX': 'required'}
        self.glance.create(None, image)
        before = self.in_database()
        self.api.post_server_action(self.server['id'], {
            'rebuild': {'imageRef': uuids.image, 'name': 'renamed'}})
        server = self._wait_for_state_change(self.server, 'ERROR')
        self._wait_for_assert(lambda: self.assertEqual(
            before['system_metadata'], self.in_database()['system_metadata']))
        self.assertUnchanged(before, 'vm_state', 'display_name')
        self.assertIn('traits', server['fault']['message'])
        self.assertAttached()
        self.assertEqual(power_state.RUNNING, self.guest_state())
        self.retried()

    def test_asked_for_twice(self):
        """A request that is refused does not touch what the first needs."""
        def second():
            exc = self.assertRaises(
                api_client.OpenStackApiException, self.api.post_server_action,
                self.server['id'], {'rebuild': {
                    'imageRef': IMAGE, 'name': 'other', 'metadata': {}}})
            self.assertEqual(409, exc.response.status_code)
            raise REFUSALS['policy']
        self.as_before(self.refuse(second), 'Policy')

    def test_asked_for_again(self):
        """What the last rebuild has changed is brought back, no more."""
        self.rebuild(IMAGE, name='renamed')
        self.as_before(self.refuse(REFUSALS['policy']), 'Policy')

    def test_stopped_before_cinder_is_asked(self):
        """Who is being stopped waits for no event."""
        def refuse():
            # The first is of the other volume.
            self.cinder.failures_after['attachment_delete'] = [
                None, self.compute.manager.instance_events.cancel_all_events]
        self.as_before(refuse, 'is being stopped')
        self.assertNotIn('reimage_volume', self.cinder.calls)
        self.compute.manager.instance_events._events = {}
        self.retried()

    def test_without_a_guest(self):
        """A guest that was not there is not started."""
        del self.driver.instances[self.server['id']]
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        self.assertEqual('ACTIVE', self.rebuild()['status'])
        self.assertAttached()
        self.assertIsNone(self.guest_state())
        self.retried()

    def test_old_cinder(self):
        def refuse():
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.is_microversion_supported',
                mock.Mock(side_effect=exception.CinderAPIVersionNotAvailable(
                    version='3.68'))))
        self.as_before(refuse, '3.68')
        self.assertNotIn('reimage_volume', self.cinder.calls)

    def test_attached_to_another_server(self):
        def refuse():
            self.cinder.attachments['other'] = {
                'id': 'other', 'volume_id': self.root, 'instance': 'other',
                'status': 'attached', 'connector': {'host': 'other'}}
            self.addCleanup(self.cinder.attachments.pop, 'other', None)
        with mock.patch.object(self, 'assertAttached'):
            self.as_before(refuse, 'other servers')
        del self.cinder.attachments['other']
        self.assertAttached()
        self.retried()

    def test_guest_was_not_touched(self):
        with mock.patch.object(self.driver, 'power_off') as power_off:
            self.as_before(
                self.refuse(REFUSALS['policy'], 'attachment_create'),
                'Policy')
        power_off.assert_not_called()

    def test_migration_record(self):
        context = nova_context.get_admin_context()
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, self.server['id']).cell_mapping
        with nova_context.target_cell(context, cell) as cctxt:
            migration = objects.Migration(
                cctxt, instance_uuid=self.server['id'], status='accepted',
                migration_type='evacuation', source_compute=self.host)
            migration.create()
        self.as_before(self.refuse(REFUSALS['policy']), 'Policy')
        with nova_context.target_cell(context, cell) as cctxt:
            self.assertEqual('failed', objects.Migration.get_by_id(
                cctxt, migration.id).status)

    def test_unreachable_for_long(self):
        """The way back needs Cinder, too, and tries again."""
        def refuse():
            self.cinder.failures.update(
                reimage_volume=[REFUSALS['unreachable']],
                attachment_update=[REFUSALS['unreachable']])
        self.as_before(refuse, 'Unable to')

    def test_unreachable_for_too_long(self):
        self.cinder.failures.update(
            reimage_volume=[REFUSALS['unreachable']],
            attachment_update=[REFUSALS['unreachable']] * 10)
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn(self.root, server['fault']['message'])
        self.assertReserved(self.root)
        self.retried()

    def test_completing_fails_once(self):
        """nova-compute deletes the attachment that it cannot complete."""
        def refuse():
            self.cinder.failures.update(
                reimage_volume=[REFUSALS['policy']],
                attachment_complete=[REFUSALS['broken']])
        self.as_before(refuse, 'Policy')

    def test_guest_does_not_start_again(self):
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        with mock.patch.object(
                self.driver, 'spawn',
                side_effect=exception.VirtualInterfaceCreateException):
            server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertAttached()
        self.retried()

    def test_accepted_and_the_answer_was_lost(self):
        """What was refused in appearance only is not undone."""
        for outcome in ('downloading', 'lost'):
            self.cinder.outcome = outcome
            self._lose_answer([])
            server = self.rebuild()
            if outcome == 'downloading':
                self.assertEqual('ERROR', server['status'])
                self.cinder.finish_reimage(self.root, IMAGE)
            else:
                self.assertRebuilt()

    def test_accepted_and_cinder_is_gone(self):
        """As long as it is not known what Cinder does, nothing is started."""
        self.cinder.outcome = 'downloading'
        self._lose_answer([REFUSALS['unreachable']] * 3)
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn('not known', server['fault']['message'])
        self.assertReserved(self.root, self.data)
        self.assertIsNone(self.guest_state())
        self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.retried()

    def test_accepted_and_cinder_is_gone_for_a_while(self):
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'

        def back():
            self.cinder.finish_reimage(self.root, OTHER_IMAGE)
            self.cinder.tell_nova(self.root)
        self._lose_answer([REFUSALS['unreachable'], None, back])
        self.rebuild()
        self.assertRebuilt()

    def test_accepted_and_asked_again(self):
        """What stands between may repeat a request that Cinder has."""
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'

        def refuse():
            self.cinder.failures['get'] = [
                None, lambda: self.cinder.finish_reimage(
                    self.root, OTHER_IMAGE)]
            raise REFUSALS['bad state']
        self.cinder.failures_after['reimage_volume'] = [refuse]
        self.rebuild()
        self.assertRebuilt()

    def test_only_the_other_volume_is_not_attached_again(self):
        """The root volume stays connected as it is recorded."""
        self.cinder.failures.update(
            reimage_volume=[REFUSALS['policy']],
            attachment_update=[None] + [REFUSALS['unreachable']] * 10)
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertEqual('in-use', self.cinder.status(self.root))
        root = self.in_database()['bdms'].root_bdm()
        self.assertEqual(root.attachment_id, jsonutils.loads(
            root.connection_info)['data']['attachment_id'])
        self.assertReserved(self.data)
        self.retried()

    def _lose_answer(self, failures):
        """Let Cinder do a re-image and fail to say so."""
        def lose():
            self.cinder.failures['get'] = failures
            raise REFUSALS['unreachable']
        self.cinder.failures_after['reimage_volume'] = [lose]
