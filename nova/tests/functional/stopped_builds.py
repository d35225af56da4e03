# SPDX-License-Identifier: Apache-2.0

"""Stops the processes that build a server, at any of their steps."""

import contextlib
import contextvars
import datetime
from unittest import mock

from oslo_utils import timeutils

from nova.compute import rpcapi as compute_rpcapi
from nova.conductor.tasks import recover_builds
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import objects
from nova.objects import base as objects_base
from nova.scheduler.client import report
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import rebuild_base

CAST = 'nova.conductor.rpcapi.ComputeTaskAPI.'
VOLUME = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL


class Killed(BaseException):
    """Ends what runs as a signal does: nothing catches it."""


class Down(Exception):
    """A service or a database is down."""


def patched(target, name, replacement):
    """Replace a function.

    :param replacement: called with the function and its arguments
    """
    function = getattr(target, name)

    def replaced(*args, **kwargs):
        return replacement(function, *args, **kwargs)

    if isinstance(vars(target)[name], staticmethod):
        replaced = staticmethod(replaced)
    return mock.patch.object(target, name, replaced)


class Message:
    """A message to a nova-conductor, as it crosses the bus."""

    def __init__(self, conductor, cast):
        """:param conductor: the service

        :param cast: the mock of the method of its RPC API
        """
        self.conductor = conductor
        self.method = cast._mock_name or cast._extract_mock_name()
        context, *self.args = cast.call_args.args
        self.context = context.to_dict()
        serializer = objects_base.NovaObjectSerializer()
        self.args, self.kwargs = serializer.serialize_entity(
            context, [self.args, cast.call_args.kwargs])

    def arrives(self):
        """Let the conductor do what it is asked for."""
        def work():
            context = nova_context.RequestContext.from_dict(self.context)
            args, kwargs = objects_base.NovaObjectSerializer(
            ).deserialize_entity(context, [self.args, self.kwargs])
            getattr(self.conductor.manager.compute_task_mgr, self.method)(
                context, *args, **kwargs)

        contextvars.Context().run(work)


class StoppedBuildsBase(rebuild_base.RebuildInCell0Base):

    def setUp(self):
        super().setUp()
        self.report_client = report.SchedulerReportClient()

    def recover(self, rebuilds=-1, creates=None):
        return tuple(recover_builds.recover(
            nova_context.get_admin_context(), self.report_client, rebuilds,
            creates))

    @contextlib.contextmanager
    def message(self, method='rebuild_instance_in_cell0'):
        """Let nova-api ask a conductor, and keep the message.

        :returns: a list that gets the Message
        """
        messages = []
        with mock.patch(CAST + method) as cast:
            cast._mock_name = method
            yield messages
        if cast.call_args:
            messages.append(Message(self.conductor, cast))

    def ask_for_rebuild(self, **body):
        with self.message() as messages:
            self.rebuild(self.server, **body)
        return messages[0]

    def stopped(self, target, name, function, after=False, error=Killed):
        """Call a function that is killed at a step.

        :param target: what has the step as an attribute
        :param name: the name of the step
        :param after: whether the step is made before
        """
        reached = []

        def kill(step, *args, **kwargs):
            if after:
                step(*args, **kwargs)
            reached.append(name)
            raise error()

        with patched(target, name, kill):
            try:
                function()
            except (Killed, api_client.OpenStackApiException):
                pass
        self.assertEqual([name], reached)

    def meets(self, target, name, function, meanwhile, after=False):
        """Call a function; something else happens when it comes to a step."""
        met = []

        def meet(step, *args, **kwargs):
            result = step(*args, **kwargs) if after else None
            if not met:
                met.append(name)
                contextvars.Context().run(meanwhile)
            return result if after else step(*args, **kwargs)

        with patched(target, name, meet):
            function()
        self.assertEqual([name], met)

    def lose(self):
        """Let another process take the server and have a record of it."""
        context = nova_context.get_admin_context()
        self.assertTrue(objects.BuildRequest.get_by_instance_uuid(
            context, self.server['id']).take(
                timeutils.utcnow() + datetime.timedelta(hours=1)))
        self.replace_record_in_cell()

    def written(self):
        """Return what the cell has of the server, but for its record."""
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            return [
                sorted(each.id for each in objects_of.get_by_instance_uuid(
                    cctxt, self.server['id']))
                for objects_of in (objects.BlockDeviceMappingList,
                                   objects.InstanceActionList)]

    @contextlib.contextmanager
    def no_host_is_asked(self):
        with mock.patch.object(compute_rpcapi.ComputeAPI,
                               'build_and_run_instance') as build:
            yield
        build.assert_not_called()

    def replace_record(self, cctxt):
        """Give the record of the server an ID as if another build made it.

        :param cctxt: a context that is targeted at the cell
        """
        row = main_models.Instance
        with main_db_api.get_context_manager(cctxt).writer.using(
                cctxt) as session:
            session.query(row).filter_by(uuid=self.server['id']).update(
                {'id': row.id + 1000})

    def replace_record_in_cell(self):
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            self.replace_record(cctxt)

    def has_only_a_record(self):
        """Nothing refers to the record that cell0 has of the server."""
        stored = self.stored(self.server)
        self.assertEqual(1, len(stored['instances']))
        for table in ('block_device_mapping', 'tags', 'instance_actions',
                      'instance_faults'):
            self.assertEqual([], stored[table], table)

    def state(self):
        server = self.admin_api.get_server(self.server['id'])
        return server['status'], server['OS-EXT-STS:task_state']

    def allocations(self):
        return self.report_client.get_allocations_for_consumer(
            nova_context.get_admin_context(), self.server['id'])

    def actions(self):
        return [action['action'] for action in
                self.api.get_instance_actions(self.server['id'])]

    def is_back(self, status='PENDING', actions=('create',)):
        """The server waits in cell0, and nothing is left anywhere else."""
        self.assertEqual((status, None), self.state())
        self.assertEqual([self.server['id']],
                         [s['id'] for s in self.api.get_servers()])
        shown = self.admin_api.get_server(self.server['id'])
        for key in ('name', 'tags', 'metadata', 'created', 'image', 'flavor',
                    'os-extended-volumes:volumes_attached'):
            self.assertEqual(self.server[key], shown[key], key)
        self.assertIsNone(shown['OS-EXT-SRV-ATTR:host'])
        self.assertEqual('', shown['OS-EXT-AZ:availability_zone'])
        after = self.stored(self.server)
        self.assertEqual([], after['build_requests'])
        self.assertEqual([self.cell_mappings['cell0'].id], [
            row['cell_id'] for row in after['instance_mappings']])
        self.assertEqual(1, len(after['instances']))
        self.assertEqual({}, self.allocations())
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        self.assertEqual(list(actions), self.actions())

    def can_be_rebuilt(self):
        if 'roomy' not in self.computes:
            self.make_room()
        self.rebuild(self.server)
        return self.wait_for(self.server, 'ACTIVE')

    def is_gone(self):
        """Nothing is left of the server."""
        self.assertEqual([], self.api.get_servers())
        self.recover(creates=-1)
        self.assertEqual([], self.api.get_servers())
        after = self.stored(self.server)
        self.assertEqual([], after['build_requests'])
        self.assertEqual([], [row for row in after['instance_mappings']
                              if not row['queued_for_delete']])
        self.assertEqual({}, self.allocations())
