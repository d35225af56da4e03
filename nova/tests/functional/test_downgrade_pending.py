# SPDX-License-Identifier: Apache-2.0

from io import StringIO
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exc

from nova.cmd import manage
from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report
from nova.tests.functional import full_cloud


class DowngradePendingTestCase(full_cloud.FullCloudTestCase):
    """nova-manage pending set_error as an operator and an owner see it."""

    def setUp(self):
        super().setUp()
        self.waiting = [self.create_waiting()['id'] for _number in range(3)]
        self.flags(use_pending_state=False)

    def set_error(self, **kwargs):
        """Run the command; return the exit code and what it writes."""
        output = StringIO()
        with fixtures.MonkeyPatch('sys.stdout', output):
            code = manage.PendingCommands().set_error(**kwargs)
        return code, output.getvalue()

    def statuses(self):
        return [self.admin_api.get_server(server)['status']
                for server in self.waiting]

    def claim(self, server, task_state):
        """Let a task be in progress on a server in cell0."""
        cell0 = objects.CellMapping.get_by_uuid(
            nova_context.get_admin_context(), objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(
                nova_context.get_admin_context(), cell0) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, server)
            instance.task_state = task_state
            instance.save()

    def test_the_owner_sees_error_and_why(self):
        faults = [self.api.get_server(server)['fault']
                  for server in self.waiting]
        code, output = self.set_error(batch_size=2)
        self.assertEqual(0, code)
        self.assertIn('Servers set to ERROR: 3, left alone: 0', output)
        self.assertEqual(['ERROR'] * 3, self.statuses())
        self.assertEqual(faults, [self.api.get_server(server)['fault']
                                  for server in self.waiting])
        for query, found in (('status=PENDING', 0), ('status=ERROR', 3)):
            servers = self.api.api_get('/servers?' + query).body['servers']
            self.assertEqual(found, len(servers))
        # And it can be deleted.
        self.api.delete_server(self.waiting[0])
        self._wait_until_deleted({'id': self.waiting[0]})

    def test_placement_cannot_be_reached(self):
        with mock.patch.object(report, 'report_client_singleton',
                               side_effect=ks_exc.ConnectFailure):
            code, output = self.set_error()
        self.assertEqual(1, code)
        self.assertIn('Servers set to ERROR: 0, left alone: 3', output)
        for server in self.waiting:
            self.assertIn(server + ': left alone, the room that may be held '
                          'for it cannot be given back', output)
        self.assertEqual(['PENDING'] * 3, self.statuses())
        self.assertEqual(0, self.set_error()[0])
        self.assertEqual(['ERROR'] * 3, self.statuses())

    def test_a_dry_run_changes_nothing(self):
        before = [self.admin_api.get_server(server)
                  for server in self.waiting]
        code, output = self.set_error(dry_run=True)
        self.assertEqual(0, code)
        for server in self.waiting:
            self.assertIn(server + ': would be set to ERROR', output)
        self.assertEqual(before, [self.admin_api.get_server(server)
                                  for server in self.waiting])

    def test_one_that_is_being_deleted_is_left_alone(self):
        self.claim(self.waiting[1], 'deleting')
        self.assertEqual(1, self.set_error()[0])
        self.assertEqual(['ERROR', 'PENDING', 'ERROR'], self.statuses())
        # The owner still gets rid of it.
        self.api.delete_server(self.waiting[1])
        self._wait_until_deleted({'id': self.waiting[1]})
        self.assertEqual(0, self.set_error()[0])

    def test_one_of_a_conductor_with_the_option_on(self):
        self.assertEqual(0, self.set_error()[0])
        self.flags(use_pending_state=True)
        self.waiting.append(self.create_waiting()['id'])
        self.assertEqual(2, self.set_error()[0])
        self.assertEqual('PENDING', self.statuses()[-1])
        self.flags(use_pending_state=False)
        self.assertEqual(0, self.set_error()[0])
        self.assertEqual(['ERROR'] * 4, self.statuses())

    def test_the_notification_of_each(self):
        self.flags(notify_on_state_change='vm_and_task_state',
                   group='notifications')
        self.notifier.reset()
        self.assertEqual(0, self.set_error()[0])
        updates = [
            one['payload'] for one in self.notifier.versioned_notifications
            if one['event_type'] == 'instance.update']
        self.assertEqual(['2.2'] * 3, [one['nova_object.version']
                                       for one in updates])
        self.assertEqual(
            [(server, 'pending', 'error') for server in self.waiting],
            [(one['uuid'], one['state_update']['nova_object.data'][
                'old_state'], one['state'])
             for one in (update['nova_object.data'] for update in updates)])
        legacy = [one.payload for one in self.notifier.notifications
                  if one.event_type == 'compute.instance.update']
        self.assertEqual([('pending', 'error')] * 3,
                         [(one['old_state'], one['state']) for one in legacy])

    def test_what_is_left_for_an_older_nova(self):
        self.assertEqual(0, self.set_error()[0])
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell0']) as cctxt:
            self.assertEqual(
                {'error'}, {one.vm_state for one in
                            objects.InstanceList.get_all(cctxt)})
