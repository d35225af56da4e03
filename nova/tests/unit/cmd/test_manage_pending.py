# SPDX-License-Identifier: Apache-2.0

from io import StringIO
from unittest import mock

import fixtures
from oslo_db import exception as db_exc
from oslo_utils.fixture import uuidsentinel as uuids

from nova.cmd import manage
from nova.compute import pending_rollout
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import service as service_obj
from nova import test


class LowerServiceVersionsTestCase(test.TestCase):

    NUMBER_OF_CELLS = 2

    def setUp(self):
        super().setUp()
        self.output = StringIO()
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.output))
        self.context = nova_context.get_admin_context()

    def create(self, name, cell, **values):
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            if values:
                objects.Instance(
                    cctxt, uuid=getattr(uuids, name), project_id='project',
                    flavor=objects.Flavor(), **values).create()
            else:
                objects.Service(cctxt, host=name, binary='nova-compute',
                                topic='compute', report_count=0).create()

    def versions(self, cell):
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            return [found.version
                    for found in objects.ServiceList.get_all(cctxt)]

    def test_every_cell(self):
        for cell in 'cell1', 'cell2':
            self.create('host', cell)
            self.assertEqual([service_obj.KNOWS_PENDING], self.versions(cell))
        self.create('waiting', 'cell0', vm_state='pending')
        self.assertEqual(0, manage.PendingCommands().lower_service_versions())
        for cell in 'cell1', 'cell2':
            self.assertEqual(
                [service_obj.UNDOES_REIMAGE - 1], self.versions(cell))
        with nova_context.target_cell(
                self.context, self.cell_mappings['cell0']) as cctxt:
            self.assertEqual('pending', objects.Instance.get_by_uuid(
                cctxt, uuids.waiting).vm_state)
        self.assertEqual('', self.output.getvalue())

    def test_a_cell_fails(self):
        lower = pending_rollout.lower_service_versions
        down = self.cell_mappings['cell2'].database_connection

        def fail(context):
            if context.cell_uuid == self.cell_mappings['cell2'].uuid:
                raise db_exc.DBConnectionError(down)
            return lower(context)

        self.create('host', 'cell1')
        self.useFixture(fixtures.MockPatchObject(
            pending_rollout, 'lower_service_versions', side_effect=fail))
        self.assertEqual(1, manage.PendingCommands().lower_service_versions())
        self.assertIn('cell %s are as before'
                      % self.cell_mappings['cell2'].uuid,
                      self.output.getvalue())
        self.assertEqual(
            [service_obj.UNDOES_REIMAGE - 1], self.versions('cell1'))
        self.assertEqual(1, manage.PendingCommands().set_error())

    def test_the_api_database_fails(self):
        self.useFixture(fixtures.MockPatchObject(
            nova_context, 'load_cells',
            side_effect=db_exc.DBConnectionError('gone')))
        self.assertEqual(3, manage.PendingCommands().lower_service_versions())


class SetErrorTestCase(test.TestCase):

    NUMBER_OF_CELLS = 2

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.output = StringIO()
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.output))
        # Nothing is held, as Placement would say.
        self.useFixture(fixtures.MockPatch(
            'nova.scheduler.client.report.drop_held_room',
            return_value=True))

    def create_records(self, *names, cell='cell0', **values):
        """Create instances, by default in PENDING in cell0."""
        values.setdefault('vm_state', 'pending')
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            for name in names:
                objects.Instance(
                    cctxt, uuid=getattr(uuids, name), project_id='project',
                    flavor=objects.Flavor(), **values).create()

    def get(self, name, cell='cell0'):
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            return objects.Instance.get_by_uuid(cctxt, getattr(uuids, name))

    def states(self, *names):
        return [self.get(name).vm_state for name in names]

    def run_it(self, **kwargs):
        """Run the command; return the exit code and what it writes."""
        self.output.truncate(0)
        self.output.seek(0)
        code = manage.PendingCommands().set_error(**kwargs)
        return code, self.output.getvalue().splitlines()

    def change_before(self, name, **changes):
        """Let somebody change a server right before it is set to ERROR."""
        get = objects.Instance.get_by_uuid

        def changed(context, uuid, *args, **kwargs):
            instance = get(context, uuid, *args, **kwargs)
            if uuid == getattr(uuids, name):
                other = get(context, uuid)
                if changes:
                    for field, value in changes.items():
                        setattr(other, field, value)
                    other.save()
                else:
                    other.destroy()
            return instance

        self.useFixture(fixtures.MockPatchObject(
            objects.Instance, 'get_by_uuid', side_effect=changed))

    def test_it_is_a_command_of_nova_manage(self):
        self.assertIs(manage.PendingCommands, manage.CATEGORIES['pending'])

    def test_nothing_is_pending(self):
        self.create_records('failed', vm_state='error')
        self.assertEqual(
            (0, ['Servers set to ERROR: 0, left alone: 0']),
            self.run_it())
        self.assertEqual(['error'], self.states('failed'))

    def test_all_are_set_to_error(self):
        self.create_records('one', 'two', 'three')
        self.create_records('failed', vm_state='error')
        self.create_records('built', vm_state='active', cell='cell1')
        code, lines = self.run_it()
        self.assertEqual(0, code)
        self.assertEqual(
            ['Servers done: 3 of 3',
             'Servers set to ERROR: 3, left alone: 0'], lines)
        self.assertEqual(['error'] * 4,
                         self.states('one', 'two', 'three', 'failed'))
        self.assertEqual('active', self.get('built', 'cell1').vm_state)
        # Again there is nothing to do.
        self.assertEqual(
            (0, ['Servers set to ERROR: 0, left alone: 0']),
            self.run_it())

    def test_batches(self):
        self.create_records('one', 'two', 'three', 'four', 'five')
        code, lines = self.run_it(batch_size=2)
        self.assertEqual(0, code)
        self.assertEqual(
            ['Servers done: 2 of 5', 'Servers done: 4 of 5',
             'Servers done: 5 of 5',
             'Servers set to ERROR: 5, left alone: 0'], lines)

    def test_batches_go_past_what_is_left_alone(self):
        self.create_records('one', 'two', 'three', task_state='deleting')
        self.create_records('four')
        code, lines = self.run_it(batch_size=1)
        self.assertEqual(1, code)
        self.assertEqual(['pending'] * 3 + ['error'],
                         self.states('one', 'two', 'three', 'four'))
        self.assertIn('Servers set to ERROR: 1, left alone: 3', lines)

    def test_what_is_no_matter(self):
        self.create_records('elsewhere', cell='cell1')
        self.create_records('deleted')
        self.get('deleted').destroy()
        self.assertEqual(
            (0, ['Servers set to ERROR: 0, left alone: 0']),
            self.run_it())
        self.assertEqual('pending', self.get('elsewhere', 'cell1').vm_state)
        with nova_context.target_cell(
                self.context, self.cell_mappings['cell0']) as cctxt:
            cctxt = cctxt.elevated(read_deleted='yes')
            self.assertEqual('pending', objects.Instance.get_by_uuid(
                cctxt, uuids.deleted).vm_state)

    def test_dry_run(self):
        self.create_records('one', 'two')
        code, lines = self.run_it(dry_run=True)
        self.assertEqual(0, code)
        self.assertEqual(
            ['%s: would be set to ERROR' % uuids.one,
             '%s: would be set to ERROR' % uuids.two,
             'Servers looked at: 2 of 2',
             'Servers that would be set to ERROR: 2, left alone: 0'], lines)
        self.assertEqual(['pending'] * 2, self.states('one', 'two'))

    def test_dry_run_returns_what_the_run_would(self):
        self.create_records('one')
        self.create_records('claimed', task_state='rebuilding')
        code, lines = self.run_it(dry_run=True)
        self.assertEqual(1, code)
        self.assertIn('%s: left alone, its task state is rebuilding'
                      % uuids.claimed, lines)
        self.assertEqual(
            'Servers that would be set to ERROR: 1, left alone: 1',
            lines[-1])
        self.assertEqual(1, self.run_it()[0])

    def test_a_task_in_progress(self):
        self.create_records('one')
        self.create_records('claimed', task_state='rebuilding')
        self.create_records('going', task_state='deleting')
        code, lines = self.run_it()
        self.assertEqual(1, code)
        self.assertEqual(['error', 'pending', 'pending'],
                         self.states('one', 'claimed', 'going'))
        self.assertIn('%s: left alone, its task state is rebuilding'
                      % uuids.claimed, lines)
        self.assertIn('Servers set to ERROR: 1, left alone: 2', lines)
        self.assertIn('run this again', lines[-1])

    def test_race_with_the_claim_of_a_rebuild(self):
        self.create_records('one', 'claimed', 'two')
        self.change_before('claimed', task_state='rebuilding')
        code, lines = self.run_it()
        self.assertEqual(1, code)
        self.assertIn('%s: left alone, it was changed or deleted meanwhile'
                      % uuids.claimed, lines)
        self.assertIn('Servers set to ERROR: 2, left alone: 1', lines)
        claimed = self.get('claimed')
        self.assertEqual(('pending', 'rebuilding'),
                         (claimed.vm_state, claimed.task_state))

    def test_race_with_a_delete(self):
        self.create_records('one', 'going')
        self.change_before('going', task_state='deleting')
        self.assertEqual(1, self.run_it()[0])
        self.assertEqual(['error', 'pending'], self.states('one', 'going'))

    def test_race_with_a_delete_that_is_done(self):
        self.create_records('one', 'gone')
        self.change_before('gone')
        code, lines = self.run_it()
        # Nothing is left to be done.
        self.assertEqual(0, code)
        self.assertEqual('Servers set to ERROR: 1, left alone: 1',
                         lines[-1])
        self.assertRaises(exception.InstanceNotFound, self.get, 'gone')

    def test_race_with_somebody_who_does_the_same(self):
        self.create_records('one')
        self.change_before('one', vm_state='error')
        code, lines = self.run_it()
        self.assertEqual(0, code)
        self.assertEqual('Servers set to ERROR: 0, left alone: 1',
                         lines[-1])

    def test_changed_between_the_batch_and_the_server(self):
        self.create_records('one', 'two')
        save = objects.Instance.save

        def saved(instance, *args, **kwargs):
            save(instance, *args, **kwargs)
            other = self.get('two')
            if other.vm_state == 'pending':
                other.vm_state = 'error'
                save(other)

        with mock.patch.object(objects.Instance, 'save', saved):
            code, lines = self.run_it()
        self.assertEqual(0, code)
        self.assertEqual('Servers set to ERROR: 1, left alone: 1',
                         lines[-1])

    def test_put_into_cell0_meanwhile(self):
        self.create_records('one')
        batch = manage._batch

        def late(*args):
            found = batch(*args)
            if not found:
                self.create_records('late')
            return found

        with mock.patch.object(manage, '_batch', late):
            code, lines = self.run_it()
        self.assertEqual(1, code)
        self.assertIn('run this again', lines[-1])
        self.assertEqual(['error', 'pending'], self.states('one', 'late'))
        self.assertEqual(0, self.run_it()[0])
        self.assertEqual(['error'], self.states('late'))

    def test_the_option_is_on(self):
        self.flags(use_pending_state=True)
        self.create_records('one')
        code, lines = self.run_it()
        self.assertEqual(2, code)
        self.assertIn('use_pending_state is on', lines[0])
        self.assertEqual(1, len(lines))
        self.assertEqual(['pending'], self.states('one'))
        # Looking does no harm, and says what a run would return.
        code, lines = self.run_it(dry_run=True)
        self.assertEqual(2, code)
        self.assertIn('use_pending_state is on', lines[0])
        self.assertIn('%s: would be set to ERROR' % uuids.one, lines)

    def test_the_option_has_no_valid_value(self):
        with mock.patch.object(manage, 'CONF',
                               mock.NonCallableMock(spec_set=())) as conf:
            type(conf).use_pending_state = mock.PropertyMock(
                side_effect=ValueError('no boolean'))
            self.assertEqual((2, ['no boolean']), self.run_it())

    def test_the_batch_size_is_not_positive(self):
        self.create_records('one')
        for size in (0, -1):
            code, lines = self.run_it(batch_size=size)
            self.assertEqual(2, code)
            self.assertEqual(
                ['--batch-size must be a positive number.'], lines)
        self.assertEqual(['pending'], self.states('one'))

    def test_no_cell0(self):
        self.cell_mappings['cell0'].destroy()
        code, lines = self.run_it()
        self.assertEqual(3, code)
        self.assertEqual(1, len(lines))
        self.assertIn('There is no cell0', lines[0])

    def test_no_database(self):
        for error in (db_exc.DBConnectionError('no route to it'),
                      db_exc.CantStartEngineError('no route to it')):
            with mock.patch.object(objects.CellMapping, 'get_by_uuid',
                                   side_effect=error):
                code, lines = self.run_it()
            self.assertEqual(3, code)
            self.assertEqual(1, len(lines))
            self.assertIn('no route to it', lines[0])

    def test_the_database_fails_in_the_middle(self):
        self.create_records('one', 'two', 'three')
        save = objects.Instance.save
        calls = []

        def failing(*args, **kwargs):
            calls.append(args)
            if len(calls) == 2:
                raise db_exc.DBConnectionError('gone\nSELECT secret')
            return save(*args, **kwargs)

        with mock.patch.object(objects.Instance, 'save', failing):
            code, lines = self.run_it()
        self.assertEqual(3, code)
        self.assertEqual(
            ['The database failed, run this again when it is up: gone',
             'Servers set to ERROR: 1, left alone: 0'],
            [line.replace('(builtins.str) ', '') for line in lines])
        self.assertEqual(['error', 'pending', 'pending'],
                         self.states('one', 'two', 'three'))
        code, lines = self.run_it()
        self.assertEqual(0, code)
        self.assertEqual('Servers set to ERROR: 2, left alone: 0',
                         lines[-1])

    def test_interrupted(self):
        self.create_records('one', 'two')
        save = objects.Instance.save

        def interrupted(instance, *args, **kwargs):
            if instance.uuid == uuids.two:
                raise KeyboardInterrupt()
            return save(instance, *args, **kwargs)

        with mock.patch.object(objects.Instance, 'save', interrupted):
            code, lines = self.run_it()
        self.assertEqual(1, code)
        self.assertIn('Interrupted.', lines)
        self.assertIn('Servers set to ERROR: 1, left alone: 0', lines)
        self.assertEqual(['error', 'pending'], self.states('one', 'two'))
        self.assertEqual(0, self.run_it()[0])
