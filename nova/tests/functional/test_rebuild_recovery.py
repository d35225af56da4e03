# SPDX-License-Identifier: Apache-2.0

"""Rebuilds of which a process dies at one step, and what follows."""

import datetime
from unittest import mock

from oslo_db import exception as db_exc
import oslo_messaging as messaging
from oslo_utils import timeutils
from oslo_utils import uuidutils

from nova.compute import action_history
from nova.compute import rebuild_in_cell0
from nova.compute import utils as compute_utils
from nova.conductor import manager
from nova.conductor.tasks import rebuild_in_cell0 as task
from nova.conductor.tasks import recover_builds
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova import objects
from nova.objects import unbuilt_instance
from nova.scheduler import allocations
from nova.tests.functional import stopped_builds

_Manager = manager.ComputeTaskManager
_Task = task.RebuildInCell0Task

#: Steps of a nova-api, and whether it dies after the step.
API = (
    (objects.BuildRequest, 'create_in_place_of_mapping', True),
    (unbuilt_instance, '_destroy_row', False),
    (unbuilt_instance, 'destroy_unchanged', True),
)

#: Steps of a nova-conductor that builds the server.
BUILD = (
    (_Task, '_find_current', False),
    (_Task, '_notify', False),
    (_Task, 'select', False),
    (_Task, 'select', True),
    (_Manager, '_recheck_quota', False),
    (action_history, 'unpack', True),
    (_Manager, '_create_block_device_mapping', True),
    (_Manager, '_create_tags', True),
    (objects.BuildRequest, 'convert_to_mapping', False),
)

#: Steps of the process that returns the server to cell0.
RETURN = (
    (allocations, 'delete', False),
    (allocations, 'delete', True),
    (return_to_cell0, '_create_record', False),
    (objects.Instance, 'create', True),
    (objects.BlockDeviceMapping, 'create', True),
    (objects.TagList, 'create', True),
    (compute_utils, 'add_instance_fault_from_exc', True),
    (action_history, 'unpack', True),
    (objects.BuildRequest, 'convert_to_mapping', False),
)

# Other processes see these steps at once: the steps are in one transaction.
AT_ONCE = (
    (objects.BlockDeviceMapping, 'create'),
    (objects.TagList, 'create'),
    (compute_utils, 'add_instance_fault_from_exc'),
    (action_history, 'unpack'),
)


class RecoveryTestCase(stopped_builds.StoppedBuildsBase):

    def test_group_of_the_owner_is_the_only_security_group(self):
        """Recovery has no project: the record would make it a group."""
        cell0 = self.cell_mappings['cell0']

        def projects():
            with nova_context.target_cell(
                    nova_context.get_admin_context(), cell0) as cctxt:
                with main_db_api.get_context_manager(
                        cctxt).reader.using(cctxt) as session:
                    return [project for project, in session.query(
                        main_models.SecurityGroup.project_id)]

        self.make_room()
        self.stopped(_Task, 'select', self.ask_for_rebuild().arrives)
        before = projects()
        self.assertEqual((1, 0), self.recover())
        self.assertEqual(before, projects())
        self.assertEqual([self.server['tenant_id']], before)

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting(
            name='patient', tags=['blue'], metadata={'a': 'b'},
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'volume', 'destination_type': 'volume',
                'boot_index': 0, 'delete_on_termination': False,
                'uuid': stopped_builds.VOLUME}])

    def is_back(self, **expected):
        super().is_back(**expected)
        self.assertEqual(1, len(self.cinder.volume_to_attachment[
            stopped_builds.VOLUME]))

    def is_gone(self):
        super().is_gone()
        self.assertEqual({}, self.cinder.volume_to_attachment[
            stopped_builds.VOLUME])

    def is_in_no_cell(self):
        """The server is shown as a build request, and is young."""
        self.assertEqual('BUILD', self.state()[0])
        self.assertEqual([self.server['id']],
                         [s['id'] for s in self.api.get_servers()])
        self.assertEqual((0, 0), self.recover(60))

    # One process dies.

    def test_api_dies(self):
        for step in API:
            self.stopped(*step[:2], lambda: self.rebuild(self.server),
                         after=step[2])
            self.is_in_no_cell()
            self.assertEqual((1, 0), self.recover())
            self.is_back()
        self.can_be_rebuilt()
        self.assertEqual(['rebuild', 'create'], self.actions())

    def test_api_dies_before_it_asks_the_conductor(self):
        with mock.patch(stopped_builds.CAST + 'rebuild_instance_in_cell0',
                        side_effect=messaging.MessageDeliveryFailure()):
            self.refused(500, self.server)
        self.is_in_no_cell()
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    def test_conductor_dies(self):
        self.make_room()
        for step in BUILD:
            self.stopped(*step[:2], self.ask_for_rebuild().arrives,
                         after=step[2])
            self.is_in_no_cell()
            self.assertEqual((1, 0), self.recover())
            self.is_back()
        self.can_be_rebuilt()

    def test_conductor_dies_as_it_asks_the_host(self):
        self.make_room()
        self.stopped(
            objects.BuildRequest, 'convert_to_mapping',
            self.ask_for_rebuild().arrives, after=True)
        self.assertEqual('BUILD', self.state()[0])
        # The host may have been asked.
        self.assertEqual((0, 0), self.recover())
        self.assertEqual('BUILD', self.state()[0])
        self.assertEqual(['rebuild', 'create'], self.actions())
        self.admin_api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'error'}})
        self.can_be_rebuilt()
        self.assertEqual(1, len(self.allocations()))

    def test_conductor_dies_as_it_returns_the_server(self):
        for step in RETURN:
            self.stopped(*step[:2], self.ask_for_rebuild().arrives,
                         after=step[2])
            self.is_in_no_cell()
            self.assertEqual((1, 0), self.recover())
            self.is_back()
        self.stopped(return_to_cell0, '_tell', self.ask_for_rebuild().arrives)
        self.is_back(actions=('rebuild', 'create'))
        self.can_be_rebuilt()

    def test_recovery_dies(self):
        self.make_room()
        self.stopped(_Manager, '_recheck_quota',
                     self.ask_for_rebuild().arrives)
        for step in RETURN:
            self.stopped(*step[:2], self.recover, after=step[2])
            self.is_in_no_cell()
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    # A service is down.

    def test_service_is_down_as_the_server_returns(self):
        self.make_room()
        self.stopped(_Manager, '_recheck_quota',
                     self.ask_for_rebuild().arrives)
        for target, name in (
                (allocations, 'delete'), (unbuilt_instance, 'purge'),
                (objects.Instance, 'create')):
            with mock.patch.object(target, name,
                                   side_effect=stopped_builds.Down()):
                self.assertEqual((0, 1), self.recover())
            self.is_in_no_cell()
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def test_placement_is_down_as_no_host_is_found(self):
        message = self.ask_for_rebuild()
        with mock.patch.object(allocations, 'delete',
                               side_effect=stopped_builds.Down()):
            self.assertRaises(stopped_builds.Down, message.arrives)
        self.is_in_no_cell()
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def test_database_is_down_as_the_server_is_taken(self):
        with mock.patch.object(objects.BuildRequest, '_create_in_db',
                               side_effect=db_exc.DBConnectionError()):
            self.refused(503, self.server)
        self.is_back()
        self.can_be_rebuilt()

    def test_no_scheduler_answers(self):
        with mock.patch.object(_Manager, '_schedule_instances',
                               side_effect=messaging.MessagingTimeout()):
            self.ask_for_rebuild().arrives()
            self.is_in_no_cell()
            self.assertEqual((1, 0), self.recover())
            self.is_back()
            self.flags(rebuild_in_cell0_timeout=0, group='conductor')
            self.ask_for_rebuild().arrives()
        self.is_back(actions=('rebuild', 'create'))

    def test_quota_was_used_up_meanwhile(self):
        self.make_room()
        with mock.patch.object(
                _Manager, '_recheck_quota',
                side_effect=exception.TooManyInstances(
                    overs='cores', req=1, used=1, allowed=1)):
            self.assertRaises(exception.TooManyInstances,
                              self.ask_for_rebuild().arrives)
        self.is_back(actions=('rebuild', 'create'))
        self.can_be_rebuilt()

    # The owner does something meanwhile.

    def test_deleted_after_the_api_died(self):
        self.stopped(unbuilt_instance, 'destroy_unchanged',
                     lambda: self.rebuild(self.server))
        self.api.delete_server(self.server['id'])
        self.is_gone()

    def test_deleted_after_the_conductor_died(self):
        self.make_room()
        self.stopped(_Manager, '_create_tags', self.ask_for_rebuild().arrives,
                     after=True)
        self.api.delete_server(self.server['id'])
        self.is_gone()
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))

    def test_deleted_as_it_returns(self):
        for step in RETURN:
            if step[:2] in AT_ONCE:
                continue
            self.server = self.create_waiting(tags=['blue'])
            self.stopped(unbuilt_instance, 'destroy_unchanged',
                         lambda: self.rebuild(self.server), after=True)
            self.meets(*step[:2], self.recover, lambda: (
                self.api.delete_server(self.server['id'])), after=step[2])
            self.assertNotIn(self.server['id'], [
                s['id'] for s in self.api.get_servers()], step)
            self.recover()
            after = self.stored(self.server)
            self.assertEqual(
                ([], [], []),
                (after['build_requests'], after['instance_mappings'],
                 after['instances']), step)

    def test_renamed_as_it_returns(self):
        self.stopped(unbuilt_instance, 'destroy_unchanged',
                     lambda: self.rebuild(self.server), after=True)
        for step in RETURN:
            if step[:2] in AT_ONCE:
                continue
            self.server['name'] += '-'
            self.meets(*step[:2], self.recover, lambda: (
                self.api.put_server(self.server['id'], {'server': {
                    'name': self.server['name']}})), after=step[2])
            self.is_back()
            self.stopped(unbuilt_instance, 'destroy_unchanged',
                         lambda: self.rebuild(self.server), after=True)

    # Who recovers.

    def test_two_recoveries(self):
        self.stopped(unbuilt_instance, 'destroy_unchanged',
                     lambda: self.rebuild(self.server), after=True)
        self.meets(objects.BuildRequest, 'take', self.recover, lambda: (
            self.assertEqual((1, 0), self.recover())))
        self.is_back()
        # The first of them hangs for longer than the time.
        for step in [step for step in RETURN if step[:2] in (
                (allocations, 'delete'), (objects.Instance, 'create'),
                (objects.BuildRequest, 'convert_to_mapping'))]:
            self.stopped(unbuilt_instance, 'destroy_unchanged',
                         lambda: self.rebuild(self.server), after=True)
            self.meets(*step[:2], self.recover, self.recover_with_a_new_row,
                       after=step[2])
            self.is_back()

    def recover_with_a_new_row(self):
        # SQLite gives the ID of its last row again, which others do not.
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell0']) as cctxt:
            other = objects.Instance(
                cctxt, uuid=uuidutils.generate_uuid(),
                project_id=self.server['tenant_id'],
                user_id=self.server['user_id'])
            other.create()
            other.destroy()
        self.assertEqual((1, 0), self.recover())

    def test_older_conductors_may_be_running(self):
        self.stopped(unbuilt_instance, 'destroy_unchanged',
                     lambda: self.rebuild(self.server), after=True)
        self.flags(conductor='3.0', group='upgrade_levels')
        with mock.patch.object(recover_builds.LOG, 'warning') as warned:
            self.assertEqual((0, 0), self.recover())
        warned.assert_called_once()
        self.assertEqual('BUILD', self.state()[0])
        self.flags(conductor=None, group='upgrade_levels')
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def test_periodic_task(self):
        recovered = []
        conductor = self.conductor.manager
        self.assertIn('_recover_builds', [
            name for name, _task in conductor._periodic_tasks])

        def run(after=0, **options):
            for name, value in options.items():
                self.flags(group='conductor', **{name: value})
            recovered.clear()
            now = timeutils.utcnow() + datetime.timedelta(seconds=after)
            with mock.patch.object(timeutils, 'utcnow', return_value=now), \
                    mock.patch.object(
                        recover_builds, 'recover',
                        lambda *args: recovered.append(args[2:])):
                conductor._recover_builds(nova_context.get_admin_context())
            return recovered

        self.assertEqual([], run(rebuild_in_cell0_timeout=0,
                                 interrupted_create_timeout=0))
        self.assertEqual([(60, None)], run(rebuild_in_cell0_timeout=60))
        # Another worker, in the same minute.
        self.assertEqual([], run(interrupted_create_timeout=90))
        self.assertEqual([(60, 90)], run(after=60))
        # A conductor of a cell.
        self.flags(connection=None, group='api_database')
        self.assertEqual([], run(after=120))


class MovedBackTestCase(stopped_builds.StoppedBuildsBase):
    """The record changes as nova-api takes the server out of its cell."""

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting()

    def test_api_dies_as_it_moves_the_server_back(self):
        record = []

        def changed(step, instance, bdms):
            # As a request that has read the record before.
            row = objects.Instance.get_by_uuid(
                instance._context, instance.uuid)
            row.display_description = 'changed'
            row.save()
            record.append(row)
            return step(instance, bdms)

        with stopped_builds.patched(
                unbuilt_instance, 'destroy_unchanged', changed):
            self.stopped(rebuild_in_cell0, '_move_back',
                         lambda: self.rebuild(self.server))
            self.assertEqual((1, 0), self.recover())
            self.is_back()
            self.refused(409, self.server)
        self.is_back()
        self.assertEqual('changed', self.api.get_server(
            self.server['id'])['description'])
        self.can_be_rebuilt()

    def test_rebuilt_again_as_soon_as_it_is_moved_back(self):
        changed = []

        def change(step, instance, bdms):
            if not changed:
                changed.append(instance)
                raise unbuilt_instance.ChangedMeanwhile(
                    instance_uuid=instance.uuid)
            return step(instance, bdms)

        with stopped_builds.patched(
                unbuilt_instance, 'destroy_unchanged', change):
            self.meets(
                objects.BuildRequest, 'convert_to_mapping',
                lambda: self.refused(409, self.server),
                lambda: self.ask_for_rebuild(flavorRef=self.small),
                after=True)
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), self.server['id'])
        self.assertEqual(self.small, spec.flavor.flavorid)
