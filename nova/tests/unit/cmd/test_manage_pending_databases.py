# SPDX-License-Identifier: Apache-2.0

"""nova-manage pending set_error on the databases that clouds have."""

from io import StringIO
from unittest import mock

import fixtures
from oslo_db.sqlalchemy import enginefacade
from oslo_db.sqlalchemy import test_fixtures
from oslo_utils.fixture import uuidsentinel as uuids
import sqlalchemy as sa

from nova.cmd import manage
from nova import context as nova_context
from nova.db import migration
from nova import exception
from nova import objects
from nova import test
from nova.tests import fixtures as nova_fixtures
from nova.tests.unit import requirements_of_tests

NAMES = ('one', 'two', 'three', 'four', 'five')


class SetErrorOnDatabase(requirements_of_tests.DatabaseServer,
                         test_fixtures.OpportunisticDBTestMixin):
    """The tests; cell0 is on the database of the class that has them."""

    #: Ends the other connections to the database.
    disconnect = None

    USES_DB_SELF = True

    def setUp(self):
        super().setUp()
        self.useFixture(nova_fixtures.Database(database='api'))
        self.engine = enginefacade.writer.get_engine()
        with mock.patch.object(migration, '_get_engine',
                               return_value=self.engine):
            migration.db_sync(database='main')
        self.context = nova_context.get_admin_context()
        self.cell0 = objects.CellMapping(
            self.context, uuid=objects.CellMapping.CELL0_UUID, name='cell0',
            transport_url='none:///', database_connection=(
                self.engine.url.render_as_string(hide_password=False)))
        self.cell0.create()
        self.addCleanup(self.forget_cells)
        # Nothing is held, as Placement would say.
        self.useFixture(fixtures.MockPatch(
            'nova.scheduler.client.report.drop_held_room',
            return_value=True))
        with self.target() as cctxt:
            for name in NAMES:
                objects.Instance(
                    cctxt, uuid=getattr(uuids, name), project_id='project',
                    flavor=objects.Flavor(), vm_state='pending').create()

    def target(self):
        return nova_context.target_cell(self.context, self.cell0)

    def forget_cells(self):
        """Close the connections, or the database could not be dropped."""
        with self.target() as cctxt:
            cctxt.db_connection.writer.get_engine().dispose()
        nova_context.CELL_CACHE = {}

    def get(self, name):
        with self.target() as cctxt:
            return objects.Instance.get_by_uuid(cctxt, getattr(uuids, name))

    def states(self):
        return [self.get(name).vm_state for name in NAMES]

    def set_error(self, **kwargs):
        output = StringIO()
        with fixtures.MonkeyPatch('sys.stdout', output):
            code = manage.PendingCommands().set_error(**kwargs)
        return code, output.getvalue().splitlines()

    def saving(self, before):
        """Call a function with the name of each server before it is saved."""
        save = objects.Instance.save
        names = {getattr(uuids, name): name for name in NAMES}

        def saved(instance, *args, **kwargs):
            with mock.patch.object(objects.Instance, 'save', save):
                before(names[instance.uuid])
            return save(instance, *args, **kwargs)

        return mock.patch.object(objects.Instance, 'save', saved)

    def test_batches(self):
        code, lines = self.set_error(batch_size=2)
        self.assertEqual(0, code)
        self.assertEqual(['error'] * 5, self.states())
        self.assertEqual(
            ['Servers done: 2 of 5', 'Servers done: 4 of 5',
             'Servers done: 5 of 5',
             'Servers set to ERROR: 5, left alone: 0'], lines)
        self.assertEqual((0, ['Servers set to ERROR: 0, left alone: 0']),
                         self.set_error())

    def test_dry_run(self):
        code, lines = self.set_error(dry_run=True)
        self.assertEqual(0, code)
        self.assertEqual(
            'Servers that would be set to ERROR: 5, left alone: 0', lines[-1])
        self.assertEqual(['pending'] * 5, self.states())

    def test_races(self):
        def race(name):
            server = self.get(name)
            if name == 'two':
                server.task_state = 'rebuilding'
                server.save(expected_task_state=[None])
            elif name == 'three':
                server.destroy()
            elif name == 'four':
                server.vm_state = 'error'
                server.save()

        with self.saving(race):
            code, lines = self.set_error()
        self.assertEqual(1, code)
        self.assertIn('Servers set to ERROR: 2, left alone: 3', lines)
        self.assertEqual(
            ['error', 'pending', 'error', 'error'],
            [self.get(name).vm_state for name in NAMES if name != 'three'])
        self.assertEqual('rebuilding', self.get('two').task_state)
        self.assertRaises(exception.InstanceNotFound, self.get, 'three')

    def test_the_connections_end_in_the_middle(self):
        def end(name):
            if name == 'three':
                with self.engine.connect() as conn:
                    self.disconnect(conn)

        with self.saving(end):
            code, lines = self.set_error()
        # The server that is being saved may be lost, what was done is not.
        self.assertIn(code, (0, 3))
        self.assertEqual(['error'] * 2, self.states()[:2])
        self.assertEqual(0, self.set_error()[0])
        self.assertEqual(['error'] * 5, self.states())


class SetErrorOnMySQLTestCase(SetErrorOnDatabase, test.NoDBTestCase):

    FIXTURE = test_fixtures.MySQLOpportunisticFixture

    def disconnect(self, conn):
        own = conn.execute(sa.text('SELECT CONNECTION_ID()')).scalar()
        for (number,) in conn.execute(sa.text(
                'SELECT id FROM information_schema.processlist '
                'WHERE db = DATABASE()')).all():
            if number != own:
                conn.execute(sa.text('KILL %d' % number))


class SetErrorOnPostgreSQLTestCase(SetErrorOnDatabase, test.NoDBTestCase):

    FIXTURE = test_fixtures.PostgresqlOpportunisticFixture

    def disconnect(self, conn):
        conn.execute(sa.text(
            'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
            'WHERE datname = current_database() '
            'AND pid <> pg_backend_pid()'))
