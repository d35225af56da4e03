# SPDX-License-Identifier: Apache-2.0

"""Rebuilds that fail, or die, between the attachments of a volume."""

from unittest import mock

import fixtures

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.tests.functional import test_volume_reimage_refused
from nova.tests.functional import volume_reimage_base

OTHER_IMAGE = volume_reimage_base.OTHER_IMAGE
REFUSALS = volume_reimage_base.REFUSALS


class ExchangeTestCase(test_volume_reimage_refused.RefusedTestCase):
    """Point 4: a failure between the attachments leaves no wreck."""

    # Those of the base run there.
    locals().update({
        name: None for name in dir(test_volume_reimage_refused.RefusedTestCase)
        if name.startswith('test_')})

    def test_create_fails(self):
        for kind in ('bad state', 'policy', 'unreachable', 'broken'):
            exc = REFUSALS[kind]
            with self.subTest(kind):
                self.cinder.failures['attachment_create'] = [exc]
                self.assertEqual('ACTIVE', self.rebuild()['status'])
                self.assertAttached()

    def test_create_of_other_volume_fails(self):
        # The first is of the root.
        self.cinder.failures['attachment_create'] = [
            None, REFUSALS['broken']]
        self.as_before(lambda: None, 'could not comply')
        self.retried()

    def _detach_fails(self, exc, volume_id):
        detach = self.driver.detach_volume

        def fail(context, connection_info, *args, **kwargs):
            if connection_info['data']['volume_id'] == volume_id:
                raise exc
            return detach(context, connection_info, *args, **kwargs)
        with mock.patch.object(self.driver, 'detach_volume', fail):
            self.as_before(lambda: None, exc.format_message())
        self.retried()

    def test_detach_fails(self):
        self._detach_fails(exception.DeviceDetachFailed(
            device='vda', reason='busy'), self.root)

    def test_detach_of_other_volume_fails(self):
        self._detach_fails(exception.DeviceDetachFailed(
            device='vdb', reason='busy'), self.data)

    def test_delete_fails(self):
        # The first is of the other volume.
        self.cinder.failures['attachment_delete'] = [
            None, REFUSALS['broken']]
        self.as_before(lambda: None, 'could not comply')
        self.retried()

    def test_delete_fails_in_appearance(self):
        delete = self.cinder.fake_attachment_delete

        def lost(context, attachment_id):
            delete(context, attachment_id)
            if self.cinder.status(self.root) == 'reserved':
                lost_once.side_effect = delete
                raise exception.CinderConnectionFailed(reason='reset')
        with mock.patch('nova.volume.cinder.API.attachment_delete',
                        autospec=False, side_effect=lost) as lost_once:
            self.as_before(lambda: None, 'reset')
        self.retried()

    def test_destroy_fails(self):
        with mock.patch.object(
                self.driver, 'destroy',
                side_effect=exception.InstancePowerOffFailure(
                    reason='stuck')):
            self.as_before(lambda: None, 'stuck')

    def test_power_off_fails(self):
        with mock.patch.object(
                self.driver, 'power_off',
                side_effect=exception.InstancePowerOffFailure(
                    reason='stuck')):
            self.as_before(lambda: None, 'stuck')

    def test_create_is_done_and_the_answer_lost(self):
        # The first is of the root.
        for failures in ([REFUSALS['gateway']], [None, REFUSALS['broken']]):
            self.cinder.failures_after['attachment_create'] = failures
            self.assertEqual('ACTIVE', self.rebuild()['status'])
            self.assertAttached()

    def test_create_is_done_and_cinder_is_gone(self):
        """What could not be deleted then is deleted with the server."""
        def gone():
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.API.attachment_get_all',
                mock.Mock(side_effect=(
                    [REFUSALS['unreachable']] * 3 + [
                        [{'id': key, **attachment} for key, attachment in
                         self.cinder.attachments.items()]] * 9))))
            raise REFUSALS['unreachable']
        self.cinder.failures_after['attachment_create'] = [None, gone]
        self.assertEqual('ACTIVE', self.rebuild()['status'])
        self.assertEqual(2, len(self.cinder.attached(self.data)))
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)

    def _deleted(self, call, exc=None):
        """Delete the server while a call to Cinder is under way."""
        def delete():
            self.cinder.failures.pop(call)
            self.admin_api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            if exc:
                raise exc
        self.cinder.failures[call] = [delete]
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_until_deleted(self.server)
        # The host ends its rebuild after that.
        self._wait_for_assert(lambda: self.assertEqual(
            ({}, {}, 'available', 'available'),
            (self.compute.manager.driver.instances, self.cinder.attachments,
             self.cinder.status(self.root), self.cinder.status(self.data))))

    def test_deleted_during_the_reimage(self):
        self._deleted('reimage_volume')

    def test_deleted_during_the_first_create(self):
        self._deleted('attachment_create')

    def test_deleted_during_the_first_delete(self):
        self._deleted('attachment_delete')

    def test_deleted_and_refused(self):
        for call in ('reimage_volume', 'attachment_create'):
            self._deleted(call, REFUSALS['policy'])
            self.server = self.create()

    def _being_deleted(self, call):
        """Nothing is set on a server that is being deleted."""
        def delete():
            self.set_task_state('deleting')
            raise REFUSALS['policy']
        self.cinder.failures[call] = [delete]
        self.ask_and_wait()
        instance = self.in_database()['instance']
        self.assertEqual(('deleting', 'active'), (
            instance['task_state'], instance['vm_state']))

    def test_being_deleted_and_refused(self):
        self._being_deleted('reimage_volume')
        self.assertEqual({}, self.cinder.attachments)

    def test_being_deleted_and_refused_at_once(self):
        self._being_deleted('attachment_create')

    def ask_and_wait(self):
        """Ask for a rebuild and wait until nova-compute is done with it."""
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_for_assert(lambda: self.assertIsNotNone(
            self.event('compute_rebuild_instance')['finish_time']))

    def instance(self, context=None):
        context = context or nova_context.get_admin_context()
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, self.server['id']).cell_mapping
        nova_context.set_target_cell(context, cell)
        return objects.Instance.get_by_uuid(context, self.server['id'])

    def set_task_state(self, task_state):
        instance = self.instance()
        instance.task_state = task_state
        instance.save()


class Killed(BaseException):
    """What nothing catches, as nothing catches SIGKILL."""


class KilledTestCase(ExchangeTestCase):
    """A nova-compute that dies leaves nothing that its owner cannot mend."""

    locals().update({name: None for name in dir(ExchangeTestCase)
                     if name.startswith('test_')})

    def killed(self):
        raise Killed()

    def _test_killed(self):
        self.ask_and_wait()
        self.assertIn(self.in_database()['instance']['task_state'], (
            'rebuilding', 'rebuild_block_device_mapping'))
        self.compute.manager._init_instance(
            nova_context.get_admin_context(), self.instance())
        server = self.admin_api.get_server(self.server['id'])
        self.assertEqual('ERROR', server['status'])
        # The rebuild leaves one attachment to each volume.
        self.retried()

    def _test_call(self, when, call, times):
        for number in range(times):
            with self.subTest('%s %d' % (call, number)):
                getattr(self.cinder, when)[call] = (
                    [None] * number + [self.killed])
                self._test_killed()

    def test_before_create(self):
        self._test_call('failures', 'attachment_create', 2)

    def test_after_create(self):
        self._test_call('failures_after', 'attachment_create', 2)

    def test_before_delete(self):
        self._test_call('failures', 'attachment_delete', 2)

    def test_after_delete(self):
        self._test_call('failures_after', 'attachment_delete', 2)

    def test_before_reimage(self):
        self._test_call('failures', 'reimage_volume', 1)

    def test_after_reimage(self):
        self._test_call('failures_after', 'reimage_volume', 1)

    def test_after_update(self):
        self._test_call('failures_after', 'attachment_update', 2)

    def test_after_complete(self):
        self._test_call('failures_after', 'attachment_complete', 2)

    def test_in_the_retry(self):
        """Killed as it makes the attachment of a volume in error anew."""
        for when, call in (('failures_after', 'attachment_delete'),
                           ('failures_after', 'attachment_create')):
            self.cinder.outcome = 'error'
            self.assertEqual('ERROR', self.rebuild()['status'])
            getattr(self.cinder, when)[call] = [self.killed]
            self.ask_and_wait()
            self.set_task_state(None)
            self.retried()

    def test_deleted_afterwards(self):
        """The server is not started again, nor rebuilt, but deleted."""
        for number in range(2):
            self.cinder.failures_after['attachment_create'] = (
                [None] * number + [self.killed])
            self.ask_and_wait()
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            self.assertEqual({}, self.cinder.attachments)
            self.server = self.create()

    def test_by_the_drivers(self):
        for call in ('power_off', 'detach_volume', 'destroy', 'spawn'):
            with mock.patch.object(self.driver, call, side_effect=Killed), (
                    self.subTest(call)):
                self.ask_and_wait()
            self.compute.manager._init_instance(
                nova_context.get_admin_context(), self.instance())
            self.retried()
