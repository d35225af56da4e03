# SPDX-License-Identifier: Apache-2.0

"""Room held for a waiting server, as a service holds it."""

import contextlib
from unittest import mock

from oslo_utils.fixture import uuidsentinel as uuids

from nova.scheduler.client import report
from nova.tests.functional import rebuild_base


class HeldRoomBase(rebuild_base.RebuildInCell0Base):
    """A waiting server, and a host whose last room can be held for it."""

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting()

    RESOURCES = {'VCPU': 1, 'MEMORY_MB': 128, 'DISK_GB': 2001}

    def provider(self, host='roomy'):
        """Return the UUID of the resource provider of a host."""
        return self.placement.get(
            '/resource_providers?name=%s' % host).body[
                'resource_providers'][0]['uuid']

    def held(self, server=None):
        """Return what placement has allocated to a server, at 1.38."""
        return self.placement.get(
            '/allocations/%s' % (server or self.server)['id'],
            version='1.38').body

    def hold(self, server=None, allocations=None, generation=None, host=None,
             project_id='service', user_id='service', resources=None):
        """Write a hold with plain HTTP; return the status of the answer."""
        server = server or self.server
        return self.placement.put(
            '/allocations/%s' % server['id'], {
                'allocations': allocations or {
                    self.provider(host or 'roomy'): {
                        'resources': resources or self.RESOURCES}},
                'consumer_generation': generation,
                'consumer_type': 'NOVA_PENDING',
                'project_id': project_id, 'user_id': user_id},
            version='1.38').status

    def fill(self, host='roomy', left=0):
        """Let nobody else have room on a host.

        :param left: how much disk to leave, in GiB
        """
        provider = self.provider(host)
        usages = self.placement.get(
            '/resource_providers/%s/usages' % provider).body['usages']
        disk = self.inventory(host)['DISK_GB']
        self.assertEqual(204, self.placement.put(
            '/allocations/%s' % uuids.filler, {
                'allocations': {provider: {'resources': {
                    'DISK_GB': int((disk['total'] - disk['reserved']) *
                                   disk['allocation_ratio']) -
                    usages['DISK_GB'] - left}}},
                'consumer_generation': None, 'consumer_type': 'FILLER',
                'project_id': 'filler', 'user_id': 'filler'},
            version='1.38').status)

    def create_waiting_full(self):
        self.fill()
        server = self.create_waiting()
        self.placement.delete('/allocations/%s' % uuids.filler)
        return server

    def inventory(self, host='roomy'):
        return self.placement.get(
            '/resource_providers/%s/inventories' % self.provider(host)
        ).body['inventories']

    def set_inventory(self, resource_class, host='roomy', **values):
        url = '/resource_providers/%s/inventories' % self.provider(host)
        body = self.placement.get(url).body
        body['inventories'][resource_class].update(values)
        self.assertEqual(200, self.placement.put(url, body).status)

    @contextlib.contextmanager
    def asked(self):
        """Note what the services ask placement, as method and URL."""
        noted = []

        def note(method):
            original = getattr(report.SchedulerReportClient, method)

            def noting(client, url, *args, **kwargs):
                noted.append((method, url.split('?')[0].replace(
                    self.server['id'], 'SERVER')))
                return original(client, url, *args, **kwargs)
            return mock.patch.object(
                report.SchedulerReportClient, method, noting)

        with note('get'), note('put'), note('post'), note('delete'):
            yield noted

    def is_built(self, host='roomy', resources=None, others=None):
        """The server runs where it was held, and has that and no more."""
        server = self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(host, server['OS-EXT-SRV-ATTR:host'])
        held = self.held()
        self.assertEqual(
            {self.provider(host): resources or self.RESOURCES,
             **(others or {})},
            {uuid: allocation['resources'] for uuid, allocation
             in held['allocations'].items()})
        self.assertNotEqual('NOVA_PENDING', held['consumer_type'])
        self.assertEqual(server['tenant_id'], held['project_id'])
        self.assertEqual(server['user_id'], held['user_id'])
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.held()['allocations'])

    def waits_again(self):
        """The server waits as it did, nothing is held, and it can be rebuilt.
        """
        self._wait_for_assert(lambda: self.assertEqual(
            ['rebuild', 'create'], [action['action'] for action in
            self.api.get_instance_actions(self.server['id'])]))
        self.wait_for(self.server, 'PENDING')
        self._wait_for_assert(lambda: self.assertEqual(
            {}, self.held()['allocations']))
