# SPDX-License-Identifier: Apache-2.0


"""The rebuild in cell0 on MariaDB and PostgreSQL, each database its own."""

from unittest import mock

from nova.compute import rpcapi
from nova.conductor.tasks import rebuild_in_cell0
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.main import api as main_db_api
from nova.objects import build_request
from nova.objects import unbuilt_instance
from nova.tests.functional import rebuild_races
from nova.tests.functional import server_databases


class RebuildOnServer(server_databases.OnDatabaseServer, rebuild_races.Races,
                      rebuild_races.RacesBase):
    """The tests; each class below has them on one kind of server."""

    def test_each_database_is_one_of_the_server(self):
        engines = [api_db_api.get_engine()]
        for cell in self.cell_mappings.values():
            with nova_context.target_cell(
                    nova_context.get_admin_context(), cell) as cctxt:
                engines.append(main_db_api.get_engine(context=cctxt))
        self.assertEqual({self.database_type},
                         {engine.dialect.name for engine in engines})
        self.assertEqual(set(self.databases.names.values()),
                         {engine.url.database for engine in engines})

    def test_built(self):
        self.make_room()
        server = self.waiting(name='patient', tags=['blue'],
                              metadata={'a': 'b'})
        self.assertEqual(202, self.ask_rebuild(server))
        active = self.wait_for(server, 'ACTIVE')
        for key in ('name', 'created', 'tags', 'metadata'):
            self.assertEqual(server[key], active[key], key)
        self.until(self.exists, server)
        self.end(server)

    def test_in_cell0_again(self):
        server = self.waiting(tags=['blue'], metadata={'a': 'b'})
        for _try in range(2):
            self.assertEqual(202, self.ask_rebuild(server))
            again = self.until(self.exists, server)
            self.assertEqual('PENDING', again['status'])
            for key in ('name', 'created', 'tags', 'metadata'):
                self.assertEqual(server[key], again[key], key)
        self.end(server)

    def test_refused(self):
        server = self.waiting()
        self.api.post_server_action(server['id'], {'lock': None})
        before = self.stored(server)
        self.assertEqual(409, self.ask_rebuild(server))
        self.assertEqual(before, self.stored(server))

    def recover_until_settled(self, server):
        self.recover()
        return self.is_settled(server)

    def test_recovered(self):
        for where, name in (
                (build_request.BuildRequest, 'create_in_place_of_mapping'),
                (unbuilt_instance, 'destroy_unchanged'),
                (rebuild_in_cell0.RebuildInCell0Task, '_notify'),
                (build_request.BuildRequest, '_convert')):
            server = self.waiting(tags=['blue'])
            with mock.patch.object(where, name,
                                   side_effect=ZeroDivisionError()) as down:
                self.assertIn(self.ask_rebuild(server), (202, 500))
                self.until(down.assert_called)
            self.until(self.recover_until_settled, server)
            self.assertEqual(['blue'], self.exists(server)['tags'])
            self.end(server)

    def test_host_cannot_be_asked(self):
        server = self.waiting(tags=['blue'], metadata={'a': 'b'})
        self.make_room()
        with mock.patch.object(rpcapi.ComputeAPI, 'build_and_run_instance',
                               side_effect=ZeroDivisionError()):
            self.assertEqual(202, self.ask_rebuild(server))
            self.wait_for(server, 'ERROR')
        self.assertEqual(['cell1'], self.cells_of(server))
        self.assertEqual(202, self.ask_rebuild(server))
        again = self.wait_for(server, 'ACTIVE')
        for key in ('name', 'created', 'tags', 'metadata'):
            self.assertEqual(server[key], again[key], key)
        self.until(self.exists, server)
        self.end(server)


class RebuildOnMariaDBTestCase(RebuildOnServer):

    database_type = 'mysql'


class RebuildOnPostgreSQLTestCase(RebuildOnServer):

    database_type = 'postgresql'


# It has no kind of server itself.
del RebuildOnServer
