# SPDX-License-Identifier: Apache-2.0
"""Which failure of a create leaves a server waiting, and which does not."""

import logging
from unittest import mock

from oslo_db import exception as db_exc
import oslo_messaging

from nova.compute import utils as compute_utils
from nova import context as nova_context
from nova.db.main import api as db_api
from nova import exception
from nova import objects
from nova.tests.functional.api import client as api_client
from nova.tests.functional import full_cloud
from nova.tests.functional import microversions

RELEASED = microversions.RELEASED

SCHEDULER = ('nova.scheduler.client.query.SchedulerQueryClient.'
             'select_destinations')


class PendingCell0TestCase(full_cloud.FullCloudTestCase):

    def setUp(self):
        super().setUp()
        self.records = []
        handler = logging.Handler()
        handler.emit = self.records.append
        logger = logging.getLogger('nova.conductor')
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)

    def cell_of(self, server):
        """Return the name of the cell that a server is mapped to, or None."""
        mapping = objects.InstanceMapping.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])
        return mapping.cell_mapping and mapping.cell_mapping.name

    def request(self, **server):
        server.setdefault('flavor_id', self.small)
        return {'server': self._build_server(networks='none', **server)}

    def create(self, status):
        return self.wait_for(self.api.post_server(self.request()), status)

    def fails_in_cell0(self, status):
        server = self.create(status)
        self.assertEqual('cell0', self.cell_of(server))
        return server

    def logged(self, server, words):
        """Wait for a line of the log about a server."""
        self._wait_for_assert(lambda: self.assertIn(
            server['id'], [getattr(record, 'instance_uuid', None)
                           for record in self.records
                           if words in record.getMessage()]), sleep=0.05)

    def test_by_what_the_scheduler_raises(self):
        remote = type('NoValidHost_Remote', (exception.NoValidHost,),
                      {'__module__': exception.__name__ + '_Remote'})
        for raised, status in (
                (exception.NoValidHost(reason=''), 'PENDING'),
                (remote(reason=''), 'PENDING'),
                (exception.MaxRetriesExceeded(reason=''), 'ERROR'),
                (exception.UnsupportedPolicyException(reason=''), 'ERROR'),
                (exception.RequestFilterFailed(reason=''), 'ERROR'),
                (oslo_messaging.MessagingTimeout(), 'ERROR'),
                (ValueError('unforeseen'), 'ERROR')):
            with mock.patch(SCHEDULER, side_effect=raised):
                server = self.fails_in_cell0(status)
            self.speak(RELEASED)
            self.assertEqual(
                'ERROR', self.api.get_server(server['id'])['status'])
            self.speak('latest')

    def test_host_without_mapping(self):
        with mock.patch.object(
                objects.HostMapping, 'get_by_host',
                side_effect=exception.HostMappingNotFound(name='compute')):
            self.fails_in_cell0('ERROR')

    def test_quota_that_was_used_up_meanwhile(self):
        original = compute_utils.check_num_instances_quota

        def check(*args, **kwargs):
            if kwargs.get('orig_num_req'):
                raise exception.TooManyInstances(
                    overs='instances', req=1, used=1, allowed=1)
            return original(*args, **kwargs)

        with mock.patch.object(
                compute_utils, 'check_num_instances_quota', check):
            server = self.create('ERROR')
        self.assertEqual('cell1', self.cell_of(server))

    def test_build_that_failed_on_every_host(self):
        with mock.patch.object(
                self.compute.driver, 'spawn',
                side_effect=exception.ComputeResourcesUnavailable(reason='')):
            server = self.create('ERROR')
        self.assertEqual('cell1', self.cell_of(server))
        self.assertIn('Exceeded maximum number of retries',
                      server['fault']['message'])

    def test_no_cell0(self):
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        cell0.destroy()
        server = self.api.post_server(self.request(flavor_id=self.large))
        self._wait_for_assert(lambda: self.assertTrue([
            record for record in self.records
            if 'No cell mapping found for cell0' in record.getMessage()]),
            sleep=0.05)
        # Without cell0 nothing could be deleted.
        objects.CellMapping(
            context, uuid=cell0.uuid, name=cell0.name,
            transport_url=cell0.transport_url,
            database_connection=cell0.database_connection).create()
        self._stays_in_build(server)

    def test_database_of_cell0_is_down(self):
        original = db_api.instance_create
        tried = []

        def create(context, values):
            if context.cell_uuid == objects.CellMapping.CELL0_UUID:
                tried.append(values['uuid'])
                raise db_exc.DBConnectionError('down')
            return original(context, values)

        with mock.patch.object(db_api, 'instance_create', create):
            server = self.api.post_server(self.request(flavor_id=self.large))
            self._wait_for_assert(lambda: self.assertEqual(
                [server['id']], tried), sleep=0.05)
        self._stays_in_build(server)

    def _stays_in_build(self, server):
        """A build request, mapped to no cell, that can be deleted."""
        self.assertEqual(
            'BUILD', self.api.get_server(server['id'])['status'])
        self.assertIsNone(self.cell_of(server))
        objects.BuildRequest.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])
        self.assertEqual([], self.api.get_servers(
            search_opts={'status': 'PENDING'}))
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)

    def test_deleted_while_it_was_scheduled(self):
        def delete(context, spec, instance_uuids, **kwargs):
            self.api.delete_server(instance_uuids[0])
            raise exception.NoValidHost(reason='')

        def gone():
            # The row that the conductor has made and deleted.
            self.assertEqual(
                [server['id']],
                [found['id'] for found in self.admin_api.get_servers(
                    search_opts={'deleted': True})])

        with mock.patch(SCHEDULER, side_effect=delete):
            server = self.api.post_server(self.request())
            self._wait_for_assert(gone, sleep=0.05)
        self.assertEqual([], self.api.get_servers())
        self.assertRaises(api_client.OpenStackApiNotFoundException,
                          self.api.get_server, server['id'])

    def test_moves_that_find_no_host(self):
        """A server that was built keeps the state ERROR."""
        server = self.create('ACTIVE')
        for action in {'resize': {'flavorRef': '5'}}, {'migrate': None}:
            self.admin_api.post_server_action(server['id'], action)
            self._wait_for_action_fail_completion(
                server, list(action)[0], 'conductor_migrate_server')
            self.assertEqual(
                'ACTIVE', self.api.get_server(server['id'])['status'])
        self.flags(shelved_offload_time=0)
        self.api.post_server_action(server['id'], {'shelve': None})
        self.wait_for(server, 'SHELVED_OFFLOADED')
        with mock.patch(SCHEDULER,
                        side_effect=exception.NoValidHost(reason='')):
            self.api.post_server_action(server['id'], {'unshelve': None})
            self._wait_for_action_fail_completion(
                server, 'unshelve', 'schedule_instances')
        self.wait_for(server, 'SHELVED_OFFLOADED')
        self.assertEqual([], self.api.get_servers(
            search_opts={'status': 'PENDING'}))
