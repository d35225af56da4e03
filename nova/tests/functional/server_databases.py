# SPDX-License-Identifier: Apache-2.0

"""The functional harness on the databases that clouds have.

The fixtures of Nova hold the API database and that of each cell in memory.
Here each is a database of its own on a server, made for a test class and
dropped after it. How to log in is the convention of oslo.db.
"""

import contextlib
import functools
from unittest import mock

import fixtures
from oslo_db import exception as db_exc
from oslo_db.sqlalchemy import enginefacade
from oslo_db.sqlalchemy import provision
from oslo_db.sqlalchemy import test_fixtures
from oslo_utils import excutils
from oslo_utils import uuidutils
import psycopg2.extensions
import psycopg2.extras
import sqlalchemy as sa

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova.db import migration
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.unit import requirements_of_tests
from nova import utils

_METADATA = {'api': api_models.BASE.metadata,
             'cell0': main_models.BASE.metadata,
             'cell1': main_models.BASE.metadata}


class OnDatabaseServer:
    """Mixed into a functional test case, before it."""

    #: As oslo.db calls it: 'mysql' or 'postgresql'.
    database_type = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            backend = provision.Backend.backend_for_database_type(
                cls.database_type)
        except db_exc.BackendNotAvailable as exc:
            requirements_of_tests.lacks(cls, (
                '%s: the user openstack_citest, with the same word as '
                'password and database, must have all rights on localhost.'
                % exc))
        cls.databases = _Databases(backend)
        try:
            cls.databases.create()
        except Exception:
            with excutils.save_and_reraise_exception():
                cls.databases.drop()

    @classmethod
    def tearDownClass(cls):
        cls.databases.drop()
        super().tearDownClass()

    def setUp(self):
        if (self.database_type == 'postgresql' and
                not utils.concurrency_mode_threading()):
            # A greenthread that waits for a lock in libpq stops all others.
            # eventlet has put its own select() in the place of Python's.
            psycopg2.extensions.set_wait_callback(psycopg2.extras.wait_select)
            self.addCleanup(psycopg2.extensions.set_wait_callback, None)
        self.databases.empty()
        for name, fixture in (
                ('Database', functools.partial(_ApiDatabase, self.databases)),
                ('CellDatabases',
                 functools.partial(_CellDatabases, self.databases)),
                ('nova.DatabaseWriteLock', _DatabaseWriteLock)):
            self.useFixture(fixtures.MonkeyPatch(
                'nova.tests.fixtures.' + name, fixture))
        super().setUp()


class _Databases:
    """Three databases on a server: those of the API, cell0 and cell1."""

    def __init__(self, backend):
        self.backend = backend
        self.names = {}

    def create(self):
        for role, metadata in _METADATA.items():
            name = 'nova_tests_%s_%s' % (
                role, uuidutils.generate_uuid(dashed=False)[:12])
            self.backend.create_named_database(name)
            self.names[role] = name
            self._do(role, self._migrate, metadata)

    def drop(self):
        for name in self.names.values():
            self.backend.drop_named_database(name)

    def url(self, role):
        return self.backend.provisioned_database_url(
            self.names[role]).render_as_string(hide_password=False)

    def empty(self):
        """Delete all rows, which is faster than to make the tables."""
        for role, metadata in _METADATA.items():
            self._do(role, self._delete, metadata)

    @staticmethod
    def _delete(engine, metadata):
        with engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())

    @staticmethod
    def _migrate(engine, metadata):
        with mock.patch.object(migration, '_get_engine', return_value=engine):
            migration.db_sync(
                database='api' if metadata is _METADATA['api'] else 'main')

    def _do(self, role, function, metadata):
        engine = sa.create_engine(self.url(role))
        try:
            function(engine, metadata)
        finally:
            engine.dispose()


class _ApiDatabase(nova_fixtures.Database):
    """In the place of the fixture for the API database."""

    def __init__(self, databases, database):
        super().__init__(database=database)
        self.databases = databases

    def setUp(self):
        fixtures.Fixture.setUp(self)
        facade = enginefacade.transaction_context()
        facade.configure(connection=self.databases.url('api'))
        self.useFixture(test_fixtures.ReplaceEngineFacadeFixture(
            api_db_api.context_manager, facade))
        self.get_engine = api_db_api.get_engine
        self.addCleanup(self.cleanup)


class _CellDatabases(nova_fixtures.CellDatabases):
    """In the place of the fixture for those of the cells."""

    def __init__(self, databases):
        super().__init__()
        self.databases = databases

    def add_cell_database(self, connection_str, default=False):
        url = self.databases.url(
            'cell0' if connection_str == objects.CellMapping.CELL0_UUID
            else 'cell1')
        create = main_db_api.create_context_manager
        with fixtures.MonkeyPatch(
                'nova.db.main.api.create_context_manager',
                lambda connection=None: create(connection=url)):
            super().add_cell_database(connection_str, default=default)

    def _cache_schema(self, connection_str):
        """The tables are there."""


# Without this fixture there is no lock.
class _DatabaseWriteLock(getattr(
        nova_fixtures, 'DatabaseWriteLock', fixtures.Fixture)):
    """Lets native threads write to a server at the same time."""

    def _get_lock(self, db_url):
        # Placement's database still is in a file.
        if db_url.get_backend_name() == 'sqlite':
            return super()._get_lock(db_url)
        return contextlib.nullcontext()
