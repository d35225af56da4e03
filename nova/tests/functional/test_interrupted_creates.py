# SPDX-License-Identifier: Apache-2.0

"""Creates of which a nova-conductor dies, or is slower than recovery."""

import contextlib
import contextvars
from unittest import mock

import oslo_messaging as messaging

from nova.compute import api as compute_api
from nova.compute import rpcapi as compute_rpcapi
from nova.compute import utils as compute_utils
from nova.conductor import manager
from nova.conductor.tasks import recover_builds
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import build_request
from nova.tests.fixtures import notifications
from nova.tests.functional import stopped_builds

_Manager = manager.ComputeTaskManager


def _at_first(do):
    """Return a replacement of a step that fails at its first call.

    :param do: a function that raises what the first call raises
    """
    called = []

    def replacement(step, *args, **kwargs):
        if called:
            return step(*args, **kwargs)
        called.append(True)
        return do()

    return replacement


class InterruptedCreatesTestCase(stopped_builds.StoppedBuildsBase):

    def create(self, **server):
        """Ask for a server; return the message to the conductor."""
        request = self._build_server(
            name='new', flavor_id=self.small, networks='none')
        request.update(tags=['blue'], metadata={'a': 'b'}, **server)
        with self.message('schedule_and_build_instances') as messages:
            self.server = self.admin_api.get_server(
                self.api.post_server({'server': request})['id'])
        self.server['OS-EXT-AZ:availability_zone'] = ''
        return messages[0]

    def ends(self):
        """Recovery puts the server into cell0 in ERROR, where it can wait."""
        self.assertEqual((0, 0), self.recover())
        self.assertEqual((0, 0), self.recover(creates=60))
        self.assertEqual('BUILD', self.state()[0])
        self.assertEqual((1, 0), self.recover(creates=-1))
        self.is_back()
        self.assertIn('interrupted', self.api.get_server(self.server['id'])[
            'fault']['message'])

    def is_back(self, actions=()):
        super().is_back('ERROR', actions)

    def test_conductor_dies(self):
        for step in (('_schedule_instances', False),
                     ('_schedule_instances', True), ('_recheck_quota', False),
                     ('_create_block_device_mapping', True),
                     ('_create_tags', True)):
            self.stopped(_Manager, step[0], self.create().arrives,
                         after=step[1])
            self.ends()
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
            self.assertEqual(['rebuild'], self.actions())
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)

    def test_conductor_dies_before_it_maps_the_server(self):
        self.stopped(_Manager, '_delete_build_request', self.create().arrives)
        self.assertEqual((1, 0), self.recover(creates=-1))
        self.is_back()
        self.can_be_rebuilt()

    def test_message_is_lost(self):
        self.create()
        self.ends()
        self.can_be_rebuilt()

    def test_deleted(self):
        self.stopped(_Manager, '_create_tags', self.create().arrives,
                     after=True)
        # nova-api looks into its own database, which is that of cell0.
        with mock.patch.object(compute_api.API, '_lookup_instance',
                               return_value=(None, None)):
            self.api.delete_server(self.server['id'])
        self.assertTrue(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        self.assertEqual((0, 0), self.recover(creates=60))
        self.assertEqual((1, 0), self.recover(creates=-1))
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        self.is_gone()

    def test_cell_is_down(self):
        self.stopped(_Manager, '_create_tags', self.create().arrives,
                     after=True)
        with mock.patch.object(
                nova_context, 'scatter_gather_skip_cell0', return_value={
                    self.cell_mappings['cell1'].uuid:
                        nova_context.did_not_respond_sentinel}):
            # The cell cannot be asked, and the server not be returned.
            self.assertEqual((0, 2), self.recover(creates=-1))
        self.assertEqual('BUILD', self.state()[0])
        # The lease of a create has no time of its own.
        self.assertEqual((0, 0), self.recover(None, creates=60))
        self.assertEqual((1, 0), self.recover(None, creates=-1))
        self.is_back()

    def test_one_of_several_that_were_asked_for_together(self):
        message = self.create(min_count=2, max_count=2)
        self.stopped(_Manager, '_delete_build_request', message.arrives)
        self.assertEqual((2, 0), self.recover(creates=-1))
        servers = self.admin_api.get_servers()
        self.assertEqual(['ERROR', 'ERROR'], [s['status'] for s in servers])
        self.make_room()
        for self.server in servers:
            self.assertEqual({}, self.allocations())
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')

    # Slow conductors.

    def test_conductor_gets_the_message_after_the_server_has_returned(self):
        message = self.create()
        self.ends()
        with self.no_host_is_asked():
            self.assertRaises(build_request.LeaseLost, message.arrives)
        self.is_back()
        self.can_be_rebuilt()

    def test_scheduler_answers_after_the_server_has_returned(self):
        with self.no_host_is_asked():
            self.assertRaises(
                build_request.LeaseLost, self.meets, _Manager,
                '_schedule_instances', self.create().arrives, self.ends,
                after=True)
        self.is_back()
        self.can_be_rebuilt()

    def test_scheduler_answers_while_the_server_returns(self):
        message = self.create()

        def meanwhile():
            self.assertRaises(build_request.LeaseLost, message.arrives)

        with self.no_host_is_asked():
            self.meets(
                recover_builds, '_purge_everywhere',
                lambda: self.assertEqual((1, 0), self.recover(creates=-1)),
                meanwhile)
        self.is_back()

    def test_scheduler_answers_as_the_server_is_rebuilt(self):
        message = self.create()
        self.ends()
        rebuild = self.ask_for_rebuild()
        with self.no_host_is_asked():
            self.assertRaises(build_request.LeaseLost, message.arrives)
        rebuild.arrives()
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, len(self.allocations()))

    def test_scheduler_does_not_answer_until_the_server_is_rebuilt(self):
        message = self.create()
        rebuild = []

        def time_out(step, *args, **kwargs):
            self.ends()
            rebuild.append(self.ask_for_rebuild())
            raise messaging.MessagingTimeout()

        with stopped_builds.patched(_Manager, '_schedule_instances', time_out):
            message.arrives()
        self.assertFalse(self.in_cell(
            objects.CellMapping.CELL0_UUID, self.server))
        rebuild[0].arrives()
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, len(self.allocations()))

    def test_scheduler_does_not_answer_until_the_server_is_built(self):
        message = self.create()

        def time_out(step, *args, **kwargs):
            self.ends()
            with mock.patch.object(_Manager, '_schedule_instances', step):
                self.rebuild(self.server)
                self.wait_for(self.server, 'ACTIVE')
            raise messaging.MessagingTimeout()

        with stopped_builds.patched(_Manager, '_schedule_instances', time_out):
            message.arrives()
        self.assertEqual(('ACTIVE', None), self.state())
        self.assertEqual(1, len(self.allocations()))

    def finds_no_host(self, meanwhile):
        """Let a conductor find no host, and come late to cell0."""
        message = self.create()

        def find_none():
            raise exception.NoValidHost(reason='')

        with stopped_builds.patched(_Manager, '_schedule_instances',
                                    _at_first(find_none)):
            self.meets(objects.InstanceMapping, 'get_by_instance_uuid',
                       message.arrives, meanwhile, after=True)

    def returns_and_is_built(self):
        self.ends()
        self.can_be_rebuilt()
        self.built = self.written()

    def is_built_once(self):
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, len(self.allocations()))
        self.assertFalse(self.in_cell(
            objects.CellMapping.CELL0_UUID, self.server))

    def test_no_host_is_found_and_the_server_is_built_meanwhile(self):
        self.finds_no_host(self.returns_and_is_built)
        self.is_built_once()

    def test_no_host_is_found_and_the_server_is_to_be_rebuilt(self):
        rebuild = []

        def meanwhile():
            self.ends()
            self.make_room()
            rebuild.append(self.ask_for_rebuild())

        self.finds_no_host(meanwhile)
        self.assertEqual('BUILD', self.state()[0])
        rebuild[0].arrives()
        self.is_built_once()

    def test_no_host_is_found_and_the_record_is_replaced(self):
        """Recovery has returned the server as the conductor goes on."""
        message = self.create()

        def create(step, instance):
            step(instance)
            self.replace_record(instance._context)

        with stopped_builds.patched(
                _Manager, '_schedule_instances', mock.Mock(
                    side_effect=exception.NoValidHost(reason=''))), (
                stopped_builds.patched(objects.Instance, 'create', create)):
            message.arrives()
        self.has_only_a_record()

    def test_no_host_is_found_and_recovery_is_at_work(self):
        """Recovery has the server when the conductor has a record in cell0."""
        message = self.create()
        with stopped_builds.patched(
                _Manager, '_schedule_instances', mock.Mock(
                    side_effect=exception.NoValidHost(reason=''))):
            self.meets(objects.BuildRequest, 'destroy', message.arrives,
                       lambda: self.stopped(
                           return_to_cell0, '_create_record',
                           lambda: self.recover(creates=-1)))
        self.assertEqual('BUILD', self.state()[0])
        self.assertFalse(self.in_cell(
            objects.CellMapping.CELL0_UUID, self.server))
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def fails_the_quota(self, meanwhile):
        """Let a conductor be over the quota once, after something else."""
        message = self.create()

        def fail():
            contextvars.Context().run(meanwhile)
            raise exception.TooManyInstances(
                overs='cores', req=1, used=1, allowed=1)

        with stopped_builds.patched(
                compute_utils, 'check_num_instances_quota',
                _at_first(fail)):
            message.arrives()

    def test_built_again_while_the_quota_is_checked(self):
        """The writes of the create would go to the record of the rebuild."""
        self.assertRaises(
            build_request.LeaseLost, self.meets, _Manager, '_recheck_quota',
            self.create().arrives, self.returns_and_is_built)
        self.assertEqual(self.built, self.written())
        self.is_built_once()

    def test_record_is_replaced_before_devices_are_written(self):
        self.assertRaises(
            build_request.LeaseLost, self.meets, _Manager,
            '_create_block_device_mapping', self.create().arrives, self.lose)
        self.assertEqual([[], []], self.written())
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def test_record_is_replaced_before_tags_are_written(self):
        """The owner can have given the server other tags meanwhile."""
        with self.no_host_is_asked():
            self.meets(_Manager, '_create_tags', self.create().arrives,
                       self.lose)
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            self.assertEqual([], list(objects.TagList.get_by_resource_id(
                cctxt, self.server['id'])))
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def test_built_again_before_the_quota_fails(self):
        def meanwhile():
            self.ends()
            # SQLite gives the ID of its last row again, which others do not.
            self.make_room()
            self._create_server(flavor_id=self.small, networks='none')
            self.can_be_rebuilt()
            self.built = self.written()

        self.assertRaises(exception.TooManyInstances, self.fails_the_quota,
                          meanwhile)
        self.assertEqual(self.built, self.written())
        self.is_built_once()

    def test_record_is_replaced_before_the_conductor_sets_it_to_error(self):
        """An administrator has reset the state, and the owner rebuilt it."""
        written = []

        def meanwhile():
            self.replace_record_in_cell()
            written.extend(self.written())

        with mock.patch.object(
                _Manager, '_create_and_bind_arq_for_instance',
                side_effect=stopped_builds.Down()):
            self.assertRaises(
                stopped_builds.Down, self.meets, _Manager,
                '_cleanup_build_artifacts', self.create().arrives, meanwhile)
        self.assertEqual(('BUILD', 'scheduling'), self.state())
        self.assertEqual(written, self.written())

    def test_accelerators_fail(self):
        """The devices were written before."""
        def fail(*args):
            self.built = self.written()
            raise stopped_builds.Down()

        with stopped_builds.patched(
                _Manager, '_create_and_bind_arq_for_instance', fail):
            self.assertRaises(stopped_builds.Down, self.create().arrives)
        self.assertEqual(('ERROR', None), self.state())
        self.assertEqual(self.built, self.written())
        self.make_room()
        self.rebuild(self.server)
        self.is_built_once()

    def test_accelerators_of_the_second_server_fail(self):
        """The first server is built, and keeps the tags that it has got."""
        message = self.create(min_count=2, max_count=2)
        built = []

        def fail(step, conductor, context, instance, *args):
            if not built:
                built.append(instance.uuid)
                return step(conductor, context, instance, *args)
            self.server = self.wait_for({'id': built[0]}, 'ACTIVE')
            self.api.put_server_tags(built[0], ['red'])
            self.built = self.written()
            raise stopped_builds.Down()

        with stopped_builds.patched(
                _Manager, '_create_and_bind_arq_for_instance', fail):
            self.assertRaises(stopped_builds.Down, message.arrives)
        self.assertEqual(('ACTIVE', None), self.state())
        self.assertEqual(self.built, self.written())
        self.assertEqual(['red'], self.api.get_server_tags(built[0]))

    # A bus that hangs must not keep a record locked.

    def tells_once(self, function, task_state):
        """Each notification is sent once, and in no transaction."""
        self.flags(notify_on_state_change='vm_and_task_state',
                   notification_format='both', group='notifications')
        self.notifier.reset()
        told = []

        def tell(step, notifier, priority, context, event_type, payload):
            step(notifier, priority, context, event_type, payload)
            told.append((event_type, hasattr(context, 'session')))

        with contextlib.ExitStack() as stack:
            for notifier in (notifications.FakeNotifier,
                             notifications.FakeVersionedNotifier):
                stack.enter_context(
                    stopped_builds.patched(notifier, '_notify', tell))
            function()
        self.assertEqual([
            ('compute.instance.update', False), ('instance.update', False),
            ('compute_task.build_instances', False),
            ('compute_task.build_instances.error', False)],
            [sent for sent in told if not sent[0].startswith('scheduler.')])
        [update] = [sent['payload']['nova_object.data']
                    for sent in self.notifier.versioned_notifications
                    if sent['event_type'] == 'instance.update']
        self.assertEqual(
            {'old_state': 'building', 'state': 'error',
             'old_task_state': 'scheduling', 'new_task_state': task_state},
            update['state_update']['nova_object.data'])

    def test_quota_fails_and_the_bus_hangs(self):
        self.tells_once(lambda: self.assertRaises(
            exception.TooManyInstances, self.fails_the_quota, lambda: None),
            None)
        self.assertEqual(('ERROR', None), self.state())

    def test_no_host_began_and_the_bus_hangs(self):
        self.stopped(compute_rpcapi.ComputeAPI, 'build_and_run_instance',
                     self.create().arrives)
        self.tells_once(
            lambda: self.assertEqual((1, 0), self.recover(creates=-1)),
            'scheduling')
        self.assertEqual(('ERROR', 'scheduling'), self.state())

    def test_deleted_before_the_quota_fails(self):
        def delete():
            # nova-api looks into its own database, which is that of cell0.
            with mock.patch.object(compute_api.API, '_lookup_instance',
                                   return_value=(None, None)):
                self.api.delete_server(self.server['id'])

        self.assertRaises(exception.TooManyInstances, self.fails_the_quota,
                          delete)
        self.assertEqual([], self.admin_api.get_servers())
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))

    def test_one_of_several_returns_before_the_conductor_has_mapped_it(self):
        message = self.create(min_count=2, max_count=2)

        def return_it(step, conductor, context, mine, *args):
            if mine.instance_uuid == self.server['id']:
                with mock.patch.object(build_request, 'interrupted',
                                       return_value=[mine.instance_uuid]):
                    self.assertEqual((1, 0), self.recover(creates=-1))
            return step(conductor, context, mine, *args)

        with stopped_builds.patched(
                _Manager, '_delete_build_request', return_it):
            message.arrives()
        self.assertEqual(('ERROR', None), self.state())
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        self.assertEqual({}, self.allocations())
        self.server, = [server for server in self.admin_api.get_servers()
                        if server['id'] != self.server['id']]
        self.wait_for(self.server, 'ACTIVE')

    def test_built_again_after_the_conductor_has_looked(self):
        """The record that the conductor finds is that of the next build."""
        message = self.create()

        def meanwhile():
            self.ends()
            self.can_be_rebuilt()

        self.meets(_Manager, '_delete_build_request', message.arrives,
                   meanwhile)
        self.assertEqual(('ACTIVE', None), self.state())
        self.assertEqual(1, len(self.allocations()))

    def test_returned_after_the_conductor_has_looked_twice(self):
        """The conductor has a record, and finds no build request then."""
        with self.no_host_is_asked():
            self.meets(
                _Manager, '_delete_build_request', self.create().arrives,
                lambda: self.recover(creates=-1))
        self.assertEqual(('ERROR', None), self.state())
        self.assertEqual({}, self.allocations())
        self.can_be_rebuilt()
        self.assertEqual(1, len(self.allocations()))

    def test_host_builds_a_server_that_has_a_build_request(self):
        """Whatever has put the server on a host: recovery keeps off."""
        self.stopped(_Manager, '_create_tags', self.create().arrives,
                     after=True)
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, self.server['id'])
            instance.host = 'compute'
            instance.save()
        self.assertEqual((0, 1), self.recover(creates=-1))
        self.assertEqual('BUILD', self.state()[0])
        self.assertTrue(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))

    def test_recovery_takes_the_server_after_the_conductor_has_looked(self):
        """The conductor has a record; recovery dies before cell0 has one."""
        message = self.create()

        def meanwhile():
            self.stopped(return_to_cell0, '_create_record',
                         lambda: self.recover(creates=-1))

        with self.no_host_is_asked():
            self.meets(
                _Manager, '_delete_build_request', message.arrives, meanwhile)
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()
        self.assertEqual(1, len(self.allocations()))

    def test_rebuilt_after_the_conductor_has_looked(self):
        message = self.create()
        rebuild = []

        def meanwhile():
            self.ends()
            rebuild.append(self.ask_for_rebuild())

        with self.no_host_is_asked():
            self.meets(
                _Manager, '_delete_build_request', message.arrives, meanwhile)
        rebuild[0].arrives()
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, len(self.allocations()))

    def test_deleted_as_recovery_takes_the_server(self):
        self.stopped(_Manager, '_create_tags', self.create().arrives,
                     after=True)

        def meanwhile():
            self.stopped(return_to_cell0, '_create_record',
                         lambda: self.recover(creates=-1))

        self.meets(objects.BuildRequest, 'destroy', lambda: (
            self.api.delete_server(self.server['id'])), meanwhile)
        self.is_gone()
