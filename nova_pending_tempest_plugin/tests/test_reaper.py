# SPDX-License-Identifier: Apache-2.0

"""What nova-reaper does for a waiting server, and nobody had to ask."""

from oslo_serialization import jsonutils
from oslo_utils import timeutils
from tempest import config
from tempest.lib.common import rest_client
from tempest.lib.common.utils import test_utils
from tempest.lib import decorators
from tempest.lib import exceptions

from nova_pending_tempest_plugin import base

CONF = config.CONF

# Of the service of the reaper in the catalogue.
_SERVICE_TYPE = 'compute-pending'
_TERMINATE_AT = 'reaper:terminate_at'


class BaseReaperTest(base.BasePendingTest):

    #: modes of the reaper that the tests are for
    modes = ('fill', 'preempt')

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if CONF.compute_feature_enabled.reaper_mode not in cls.modes:
            raise cls.skipException(
                'No nova-reaper of the mode %s is in this cloud' %
                ' or '.join(cls.modes))

    def look_until(self, what, look):
        """Wait until a look finds something, and return that.

        :param what: what is waited for, for the message
        """
        found = []

        def looked():
            found[:] = filter(None, [look()])
            return found

        if not test_utils.call_until_true(
                looked, CONF.compute.build_timeout, 1):
            raise exceptions.TimeoutException(
                'Waited %d s in vain for %s' % (
                    CONF.compute.build_timeout, what))
        return found[0]

    def actions(self, server_id):
        """Return the actions of a server, the latest first."""
        return self.servers_client.list_instance_actions(
            server_id)['instanceActions']


class ReaperFillTest(BaseReaperTest):

    @decorators.idempotent_id('1a1d7b7e-55d0-4ea5-bd31-8de1d0b9a4c3')
    def test_waiting_server_is_built_when_there_is_room(self):
        server = self.create_waiting_server(metadata={'purpose': 'test'})
        self.give_room()
        built = self.wait_until(server['id'], 'ACTIVE')
        for key in ('id', 'name', 'created', 'metadata', 'tags', 'user_id'):
            self.assertEqual(server[key], built[key])
        rebuild, create = self.actions(server['id'])
        self.assertEqual(('rebuild', 'create'),
                         (rebuild['action'], create['action']))
        self.assertNotEqual(create['user_id'], rebuild['user_id'])


class ReaperPreemptTest(BaseReaperTest):

    modes = ('preempt',)

    @decorators.idempotent_id('6f7a1bb4-0e0a-45ef-9fd2-f9d2d1b1f2ea')
    def test_preemptible_server_makes_room(self):
        disk = self.most_disk(self.give_room())
        victim = self.create_test_server(
            flavor=self._create_flavor(disk, **{
                'reaper:preemptible': 'true', 'reaper:action': 'shelve'}),
            wait_until='ACTIVE')['id']
        server = self.create_waiting_server_of(self._create_flavor(disk))

        def notice():
            metadata = self.servers_client.list_server_metadata(
                victim)['metadata']
            return metadata if _TERMINATE_AT in metadata else None

        given = self.look_until('the notice', notice)
        self.assertEqual(server, given['reaper:for'])
        timeutils.parse_isotime(given[_TERMINATE_AT])
        self.wait_until(server, 'ACTIVE')
        # Its room is the one that the server has now.
        self.wait_until(victim, 'SHELVED_OFFLOADED')
        # And it comes back by itself.
        self.delete_server(server)
        self.wait_until(victim, 'ACTIVE')

    def create_waiting_server_of(self, flavor):
        server = self.create_test_server(flavor=flavor)['id']

        def waits():
            return self.servers_client.show_server(
                server)['server']['status'] != 'BUILD'

        # The reaper may be faster than the one who looks.
        self.look_until('the end of the build', waits)
        self.assertIn('create', [
            action['action'] for action in self.actions(server)])
        return server


class ReaperListTest(BaseReaperTest):
    """What owners see at the reaper itself."""

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.reapers = {
            manager: rest_client.RestClient(
                manager.auth_provider, _SERVICE_TYPE, CONF.identity.region)
            for manager in (cls.os_primary, cls.os_alt, cls.os_admin)}

    @classmethod
    def resource_setup(cls):
        super().resource_setup()
        try:
            cls.os_primary.auth_provider.base_url(
                {'service': _SERVICE_TYPE})
        except exceptions.EndpointNotFound:
            raise cls.skipException('The catalogue has no ' + _SERVICE_TYPE)
        cls.server = cls.create_waiting_server()['id']

    def _get(self, manager, path):
        client = self.reapers[manager]
        response, body = client.get(path)
        client.expected_success(200, response.status)
        return jsonutils.loads(body)['pending']

    def _ids(self, manager, query=''):
        return [each['server'] for each
                in self._get(manager, '/v1/pending' + query)]

    def _wait_until_listed(self):
        self.look_until('the reaper to know the server', lambda: (
            self.server in self._ids(self.os_primary)))

    @decorators.idempotent_id('a8a29de0-0a0e-4f10-8d53-fb37d9a0c9b1')
    def test_owner_sees_own_servers(self):
        self._wait_until_listed()
        self.assertEqual([self.server], self._ids(self.os_primary))
        self.assertNotIn(self.server, self._ids(self.os_alt))
        self.assertIn(self.server,
                      self._ids(self.os_admin, '?all_projects=true'))
        shown = self._get(self.os_primary, '/v1/pending/' + self.server)
        self.assertEqual(self.server, shown['server'])
        for key in ('host', 'victims'):
            self.assertNotIn(key, shown)

    @decorators.idempotent_id('0f2a2b58-f1c3-4a6c-9ad4-7c9aa7d26a7e')
    def test_others_are_refused(self):
        self._wait_until_listed()
        self.assertRaises(exceptions.NotFound, self._get, self.os_alt,
                          '/v1/pending/' + self.server)
        for query in ('?all_projects=true',
                      '?project_id=' + self.servers_client.project_id):
            self.assertRaises(exceptions.Forbidden, self._ids, self.os_alt,
                              query)
