# SPDX-License-Identifier: Apache-2.0

"""Lets requests meet a rebuild in cell0, and looks at what they leave."""

import functools
import threading
from unittest import mock

from oslo_utils import timeutils

from nova.compute import rebuild_request
from nova.conductor import manager
from nova.conductor import rpcapi as conductor_rpcapi
from nova.conductor.tasks import rebuild_in_cell0
from nova.conductor.tasks import recover_builds
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova import objects
from nova.objects import build_request
from nova.objects import unbuilt_instance
from nova.scheduler.client import report
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import rebuild_base

NETWORK = neutron_fixture.NeutronFixture.network_1['id']
PORT = neutron_fixture.NeutronFixture.port_1['id']

#: Where a rebuild of a server that finds a host comes by, in this order.
STEPS = (
    (rebuild_request.Request, 'check'),
    (build_request.BuildRequest, 'create_in_place_of_mapping'),
    (unbuilt_instance, 'destroy_unchanged'),
    (conductor_rpcapi.ComputeTaskAPI, 'rebuild_instance_in_cell0'),
    (rebuild_in_cell0.RebuildInCell0Task, '_notify'),
    (manager._RebuildTaskManager, '_schedule_instances'),
    (manager.ComputeTaskManager, '_recheck_quota'),
    (manager._RebuildTaskManager, '_delete_build_request'),
    (build_request.BuildRequest, '_convert'),
    (manager._RebuildTaskManager, '_create_and_bind_arq_for_instance'),
)

#: The same for one that finds none.
STEPS_INTO_CELL0 = STEPS[:6] + (
    (return_to_cell0, 'return_to_cell0'),
    (build_request.BuildRequest, '_convert'),
)


class RacesBase(rebuild_base.RebuildInCell0Base):

    def setUp(self):
        super().setUp()
        self.report_client = report.SchedulerReportClient()

    # The requests. Each returns the code of its answer.

    def ask(self, function, *args):
        try:
            return function(*args).status
        except api_client.OpenStackApiException as exc:
            return exc.response.status_code

    def ask_rebuild(self, server):
        return self.ask(self.api.api_post,
                        '/servers/%s/action' % server['id'],
                        {'rebuild': {}})

    def ask_delete(self, server):
        return self.ask(self.api.api_delete, '/servers/%s' % server['id'])

    def ask_reset(self, server):
        return self.ask(self.admin_api.api_post,
                        '/servers/%s/action' % server['id'],
                        {'os-resetState': {'state': 'error'}})

    def ask_rename(self, server, name='renamed'):
        return self.ask(self.api.api_put, '/servers/%s' % server['id'],
                        {'server': {'name': name}})

    def recover(self, server=None):
        return recover_builds.recover(
            nova_context.get_admin_context(), self.report_client, -1, None)

    def together(self, *requests):
        """Make requests at the same time; return their answers in order."""
        answers = [None] * len(requests)
        start = threading.Barrier(len(requests))

        def make(number, request):
            start.wait()
            answers[number] = request()

        threads = [threading.Thread(target=make, args=numbered)
                   for numbered in enumerate(requests)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive(), 'A request hangs')
        return answers

    def meeting(self, step, request, after=False):
        """Make a request when a rebuild comes to a step, or has made it.

        :returns: a list that gets the answer, and what ends it
        """
        where, name = step
        original = vars(where)[name]
        function = getattr(where, name)
        answers = []

        def met(*args, **kwargs):
            if after:
                result = function(*args, **kwargs)
            if not answers:
                answers.append(None)
                answers[:] = self.together(request)
            return result if after else function(*args, **kwargs)

        if isinstance(original, staticmethod):
            met = staticmethod(met)
        patch = mock.patch.object(where, name, met)
        patch.start()
        self.addCleanup(patch.stop)
        return answers, patch

    # What they leave.

    def waiting(self, **server):
        """Create a waiting server with a port, though there may be room."""
        with mock.patch.object(manager.ComputeTaskManager,
                               '_schedule_instances',
                               side_effect=exception.NoValidHost(reason='')):
            return self.create_waiting(networks=[{'port': PORT}], **server)

    def rows(self, model, server):
        context = nova_context.get_admin_context()
        with api_db_api.context_manager.reader.using(context):
            return context.session.query(model).filter_by(
                instance_uuid=server['id']).all()

    def cells_of(self, server):
        """Return the names of the cells that have the server."""
        names = []
        for name, cell in self.cell_mappings.items():
            with nova_context.target_cell(
                    nova_context.get_admin_context(), cell) as cctxt:
                names += [name] * len(objects.InstanceList.get_by_filters(
                    cctxt, {'uuid': server['id'], 'deleted': False}))
        return names

    def until(self, check, *args):
        """Repeat a check until it holds; a loaded machine has its time."""
        watch = timeutils.StopWatch(30)
        watch.start()
        while True:
            try:
                return check(*args)
            except AssertionError:
                if watch.expired():
                    raise
                threading.Event().wait(0.05)

    def is_settled(self, server):
        """The server is at rest and exists once, or is gone entirely.

        :returns: the server as shown, or None
        """
        mappings = self.rows(api_models.InstanceMapping, server)
        self.assertEqual([], self.rows(api_models.BuildRequest, server))
        cells = self.cells_of(server)
        alive = [m for m in mappings if not m.queued_for_delete]
        # A list that reads a record as that record goes is not valid.
        self.assertTrue(alive or not cells)
        shown = [s for s in self.admin_api.get_servers()
                 if s['id'] == server['id']]
        allocations = self.report_client.get_allocations_for_consumer(
            nova_context.get_admin_context(), server['id'])
        port = self.neutron._ports[PORT].get('device_id')
        if not shown:
            self.assertEqual([], cells)
            self.assertEqual({}, allocations)
            self.assertFalse(port)
            self.assertEqual([], alive)
            self.assertEqual(404, self.ask(
                self.api.api_get, '/servers/%s' % server['id']))
            return None
        [shown] = shown
        self.assertIn(shown['status'], ('ACTIVE', 'PENDING', 'ERROR'))
        self.assertIsNone(shown['OS-EXT-STS:task_state'])
        [mapping] = mappings
        [cell] = cells
        self.assertEqual(self.cell_mappings[cell].id, mapping.cell_id)
        self.assertIsNotNone(objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id']).rebuild_data)
        if cell == 'cell0':
            self.assertEqual({}, allocations)
            self.assertFalse(port)
        else:
            self.assertEqual('ACTIVE', shown['status'])
            self.assertEqual(1, len(allocations))
            self.assertEqual(server['id'], port)
        # Not in which order: those of one second have none that is sure.
        self.assertIn('create', [
            action['action'] for action in
            self.admin_api.get_instance_actions(server['id'])])
        return shown

    def is_gone(self, server):
        self.assertIsNone(self.is_settled(server))

    def exists(self, server):
        # A rebuild that has lost the server deletes what it has claimed last.
        shown = self.until(self.is_settled, server)
        self.assertIsNotNone(shown)
        return shown

    def end(self, server):
        """Delete what a round has left, and see that nothing is left."""
        self.assertIn(self.ask_delete(server), (204, 404))
        self.until(self.is_gone, server)

    # Races that threads run.

    def race(self, rounds, requests, expect):
        """Let requests race again and again.

        :param rounds: how often
        :param requests: functions of a server
        :param expect: a function that gets the server and the answers
        """
        self.make_room()
        for number in range(rounds):
            server = self.waiting(name='before')
            answers = self.together(*[
                functools.partial(request, server) for request in requests])
            try:
                self.until(self.is_settled, server)
                expect(server, *answers)
            except Exception as exc:
                raise AssertionError('Round %d: %s: %s' % (
                    number, answers, exc)) from exc
            self.end(server)

    def race_of_rebuilds(self, rounds):
        answered = threading.Event()
        build = manager.ComputeTaskManager.rebuild_instance_in_cell0

        def wait(*args, **kwargs):
            # Or the second would be the rebuild of a server that runs.
            answered.wait(60)
            return build(*args, **kwargs)

        self.make_room()
        with mock.patch.object(manager.ComputeTaskManager,
                               'rebuild_instance_in_cell0', wait):
            for _number in range(rounds):
                answered.clear()
                server = self.waiting()
                rebuild = functools.partial(self.ask_rebuild, server)
                answers = self.together(rebuild, rebuild, rebuild)
                answered.set()
                self.assertEqual([202, 409, 409], sorted(answers))
                self.assertEqual(
                    'ACTIVE', self.until(self.exists, server)['status'])
                self.end(server)

    # What is to come out.

    def deleted(self, server, rebuilt, deleted):
        self.assertIn(rebuilt, (202, 404, 409))
        self.assertEqual(204, deleted)
        self.until(self.is_gone, server)

    def renamed(self, server, rebuilt, renamed):
        self.assertIn(rebuilt, (202, 409))
        self.assertIn(renamed, (200, 409))
        self.assertEqual('renamed' if renamed == 200 else 'before',
                         self.exists(server)['name'])

    def reset(self, server, rebuilt, reset):
        self.assertIn(rebuilt, (202, 409))
        # nova-api answers 500 while a server is in no cell.
        self.assertIn(reset, (202, 404, 500))
        self.exists(server)

    def recovered(self, server, rebuilt, recovered):
        self.assertIn(rebuilt, (202, 409))
        self.exists(server)


class Races:
    """Mixed into a test case for requests that come at the same time."""

    #: How often each race is run.
    rounds = 10

    def test_rebuilds_race(self):
        self.race_of_rebuilds(self.rounds)

    def test_delete_races(self):
        self.race(self.rounds, (self.ask_rebuild, self.ask_delete),
                  self.deleted)

    def test_rename_races(self):
        self.race(self.rounds, (self.ask_rebuild, self.ask_rename),
                  self.renamed)

    def test_reset_state_races(self):
        self.race(self.rounds, (self.ask_rebuild, self.ask_reset), self.reset)

    def test_recovery_races(self):
        self.race(self.rounds, (self.ask_rebuild, self.recover),
                  self.recovered)
