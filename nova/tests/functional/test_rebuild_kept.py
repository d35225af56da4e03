# SPDX-License-Identifier: Apache-2.0

"""What the owner said at creation holds when the server is built later."""

import base64
import copy
from unittest import mock

import nova.conf
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import rebuild_twins
from nova.tests.unit import fake_crypto

CONF = nova.conf.CONF

NETWORK = neutron_fixture.NeutronFixture.network_1['id']
PORT = neutron_fixture.NeutronFixture.port_1['id']
OTHER_PORT = '66666666-0000-4000-8000-000000000001'
OTHER_NETWORK = '66666666-0000-4000-8000-000000000002'
OTHER_GROUP = '66666666-0000-4000-8000-000000000003'


class ServerTestCase(rebuild_twins.TwinsTestCase):

    def test_nothing_but_what_must_be_said(self):
        self.kept(self.request())

    def test_after_a_second_time(self):
        self.kept(self.request(
            tags=['blue'], metadata={'a': 'b'}, hostname='patient-host',
            networks=[{'uuid': NETWORK, 'tag': 'nic'}]), times=2)

    def post_keypair(self):
        self.api.post_keypair({'keypair': {
            'name': 'mine', 'type': 'ssh',
            'public_key': fake_crypto.get_ssh_public_key()}})

    def test_keypair(self):
        self.post_keypair()
        server, _twin = self.kept(self.request(key_name='mine'))
        self.assertEqual('mine', server['key_name'])

    def test_keypair_that_is_gone_stays_with_the_server(self):
        self.post_keypair()
        server = self.create_waiting(key_name='mine')
        self.api.api_delete('/os-keypairs/mine')
        self.make_room()
        self.rebuild(server)
        server = self.wait_for(server, 'ACTIVE')
        told = self.told[server['id']]['instance']['nova_object.data']
        self.assertEqual('mine', server['key_name'])
        self.assertEqual(fake_crypto.get_ssh_public_key(), told['key_data'])
        self.assertIn(fake_crypto.get_ssh_public_key(), str(told['keypairs']))

    def test_tags(self):
        server, _twin = self.kept(self.request(tags=['blue', 'red']))
        self.assertEqual(['blue', 'red'], sorted(server['tags']))

    def test_user_data(self):
        said = base64.b64encode(b'#!/bin/sh').decode()
        server, _twin = self.kept(self.request(user_data=said))
        self.assertEqual(said, server['OS-EXT-SRV-ATTR:user_data'])

    def test_metadata(self):
        server, _twin = self.kept(self.request(metadata={'a': 'b', 'c': ''}))
        self.assertEqual({'a': 'b', 'c': ''}, server['metadata'])

    def test_config_drive(self):
        server, _twin = self.kept(self.request(config_drive=True))
        self.assertEqual('True', server['config_drive'])

    def test_names(self):
        server, _twin = self.kept(self.request(
            hostname='patient-host', description='waits'))
        self.assertEqual('patient-host',
                         server['OS-EXT-SRV-ATTR:hostname'])
        self.assertEqual('waits', server['description'])

    def test_addresses_by_which_it_is_reached(self):
        server, _twin = self.kept(self.request(
            accessIPv4='192.0.2.1', accessIPv6='2001:db8::2'))
        self.assertEqual('192.0.2.1', server['accessIPv4'])
        self.assertEqual('2001:db8::2', server['accessIPv6'])

    def test_disk_configuration(self):
        server, _twin = self.kept(self.request(
            **{'OS-DCF:diskConfig': 'AUTO'}))
        self.assertEqual('AUTO', server['OS-DCF:diskConfig'])

    def test_disk_configuration_against_the_image(self):
        image = (glance_fixture.GlanceFixture
                 .auto_disk_config_enabled_image['id'])
        server, _twin = self.kept(self.request(
            imageRef=image, **{'OS-DCF:diskConfig': 'MANUAL'}))
        self.assertEqual('MANUAL', server['OS-DCF:diskConfig'])

    def test_trusted_image_certificates(self):
        server, _twin = self.kept(self.request(
            trusted_image_certificates=['one', 'two']))
        self.assertEqual(['one', 'two'],
                         server['trusted_image_certificates'])

    def test_security_groups(self):
        self.neutron._security_groups[OTHER_GROUP] = dict(
            self.neutron.security_group, id=OTHER_GROUP, name='other')
        patcher = mock.patch(
            'neutronclient.neutron.v2_0.find_resourceid_by_name_or_id',
            lambda neutron, kind, name, project: {
                'other': OTHER_GROUP, OTHER_GROUP: OTHER_GROUP}[name])
        patcher.start()
        self.addCleanup(patcher.stop)
        server, _twin = self.kept(self.request(
            networks=[{'uuid': NETWORK}],
            security_groups=[{'name': 'other'}, {'name': 'default'}]))
        self.assertEqual(
            {OTHER_GROUP, 'default'},
            set(self.told[server['id']]['security_groups']))

    def test_members_of_a_multi_create_one_by_one(self):
        request = self.request()
        request['server'].update(min_count=2)
        self.api.post_server(request)
        self._wait_for_assert(lambda: self.assertEqual(
            ['PENDING'] * 2, [s['status'] for s in self.api.get_servers()]))
        self.make_room()
        waited = {}
        for index, name in enumerate(('twin-1', 'twin-2')):
            [before] = self.admin_api.get_servers(search_opts={'name': name})
            self.assertEqual(
                index, before['OS-EXT-SRV-ATTR:launch_index'])
            self.rebuild_with(self.api, before, {})
            member = self.wait_for(before, 'ACTIVE')
            for key in ('OS-EXT-SRV-ATTR:launch_index',
                        'OS-EXT-SRV-ATTR:reservation_id'):
                self.assertEqual(before[key], member[key])
            waited[name] = self.all_of(member)
        # Scheduled one by one: that is told.
        self.api.post_server(request)
        self._wait_for_assert(lambda: self.assertEqual(
            ['ACTIVE'] * 4, [s['status'] for s in self.api.get_servers()]))
        others = [server for server in self.api.get_servers()
                  if server['id'] not in [
                      known['shown']['id'] for known in waited.values()]]
        for twin in others:
            self.same(waited[twin['name']], self.all_of(twin),
                      apart=('num_instances',))

    def test_lock_and_its_reason(self):
        server = self.create_waiting()
        self.api.post_server_action(
            server['id'], {'lock': {'locked_reason': 'mine'}})
        self.refused(409, server)
        # By the administrator, without room and with.
        for status in ('PENDING', 'ACTIVE'):
            self.locked(self.admin_api.post_server_action(
                server['id'], {'rebuild': {}})['server'])
            self.locked(self.wait_for(server, status))
            if status == 'PENDING':
                self.make_room()

    def locked(self, server):
        self.assertEqual((True, 'mine'),
                         (server['locked'], server['locked_reason']))

    def test_what_the_rebuild_says_replaces_it(self):
        keys = {}
        for name in ('mine', 'other'):
            keys[name] = fake_crypto.get_ssh_public_key()
            self.api.post_keypair({'keypair': {
                'name': name, 'type': 'ssh', 'public_key': keys[name]}})
        said = {'description': 'waits', 'metadata': {'a': 'b'},
                'user_data': base64.b64encode(b'one').decode(),
                'hostname': 'patient-host', 'key_name': 'mine',
                'trusted_image_certificates': ['one'],
                'accessIPv4': '192.0.2.1', 'accessIPv6': '2001:db8::1',
                'OS-DCF:diskConfig': 'AUTO', 'config_drive': True,
                'tags': ['blue']}
        replaced = {'description': 'still', 'metadata': {'c': 'd'},
                    'user_data': base64.b64encode(b'two').decode(),
                    'hostname': 'other-host', 'key_name': 'other',
                    'trusted_image_certificates': ['two', 'three'],
                    'accessIPv4': '192.0.2.2', 'accessIPv6': '2001:db8::2',
                    'OS-DCF:diskConfig': 'MANUAL', 'name': 'other',
                    'adminPass': 'other'}
        twin = self.request(**{**said, **replaced})
        twin['server']['adminPass'] = 'other'
        self.kept(self.request(**said), twin=twin,
                  preserve_ephemeral=True, **replaced)

    def test_what_the_rebuild_takes_away(self):
        self.post_keypair()
        said = {'description': 'waits', 'metadata': {'a': 'b'},
                'user_data': base64.b64encode(b'one').decode(),
                'key_name': 'mine', 'trusted_image_certificates': ['one']}
        nothing = dict.fromkeys(said)
        nothing['metadata'] = {}
        self.kept(self.request(**said), twin=self.request(), **nothing)

    def test_answer(self):
        server = self.create_waiting(
            user_data=base64.b64encode(b'one').decode(), tags=['blue'])
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0'):
            answer = self.rebuild(server, adminPass='mine', name='other')
            shown = self.api.get_server(server['id'])
        self.assertEqual('mine', answer.pop('adminPass'))
        self.assertEqual(server['OS-EXT-SRV-ATTR:user_data'],
                         answer.pop('user_data'))
        self.assertEqual(shown, answer)
        for key, value in (('status', 'BUILD'), ('name', 'other'),
                           ('id', server['id']), ('tags', ['blue']),
                           ('created', server['created'])):
            self.assertEqual(value, answer[key])

    def test_answer_without_a_password(self):
        self.flags(enable_instance_password=False, group='api')
        self.assertNotIn('adminPass', self.rebuild(self.create_waiting()))

    def test_time_of_creation(self):
        server = self.created_long_ago(self.create_waiting())
        self.rebuild(server)
        again = self.wait_for(server, 'PENDING')
        self.assertEqual('2020-01-02T00:00:00Z', again['created'])
        self.make_room()
        self.rebuild(server)
        active = self.wait_for(server, 'ACTIVE')
        self.assertEqual('2020-01-02T00:00:00Z', active['created'])


class HostTestCase(rebuild_twins.TwinsTestCase):
    """Where a server may be built is where it was to be built."""

    def setUp(self):
        super().setUp()
        self.fitting = self._create_flavor(
            vcpu=1, memory_mb=7000, disk=1, ephemeral=0)
        self.filler = self.wait_for(self.api.post_server(
            {'server': self._build_server(
                flavor_id=self.fitting, networks='none')}), 'ACTIVE')
        self.node = self.filler['OS-EXT-SRV-ATTR:hypervisor_hostname']

    def room_elsewhere_and_then_here(self, server):
        """Make room where the server may not go, look, then where it may."""
        self.make_room()
        for _try in range(2):
            self.rebuild_with(self.admin_api, server, {})
            self.wait_for(server, 'PENDING')
        self.delete(self.filler)

    def stays_on_the_host(self, request, **changes):
        server = self.create_at(None, self.admin_api, request, 'PENDING')
        self.room_elsewhere_and_then_here(server)
        self.rebuild_with(self.admin_api, server, {})
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual('compute', server['OS-EXT-SRV-ATTR:host'])
        known = self.all_of(server)
        self.delete(server)
        twin = self.create_at(None, self.admin_api, request, 'ACTIVE')
        self.same(known, self.all_of(twin), **changes)

    def test_forced_host(self):
        self.stays_on_the_host(self.request(
            self.fitting, availability_zone='nova:compute'))

    def test_forced_node(self):
        self.stays_on_the_host(self.request(
            self.fitting, availability_zone='nova:compute:' + self.node))

    def test_requested_host(self):
        self.stays_on_the_host(self.request(self.fitting, host='compute'))

    def test_requested_node(self):
        self.stays_on_the_host(self.request(
            self.fitting, hypervisor_hostname=self.node))

    def test_requested_host_does_not_bind_the_server_later(self):
        server = self.create_at(
            None, self.admin_api, self.request(self.fitting, host='compute'),
            'PENDING')
        self.delete(self.filler)
        self.rebuild_with(self.admin_api, server, {})
        server = self.wait_for(server, 'ACTIVE')
        self.make_room()
        self.admin_api.post_server_action(server['id'], {'migrate': None})
        server = self.wait_for(server, 'VERIFY_RESIZE')
        self.assertEqual('roomy', server['OS-EXT-SRV-ATTR:host'])

    def test_availability_zone(self):
        self.delete(self.filler)
        zone = self._create_aggregate('zone', availability_zone='zone')
        self.admin_api.add_host_to_aggregate(zone, 'compute')
        self.filler = self.wait_for(self.api.post_server(
            {'server': self._build_server(
                flavor_id=self.fitting, networks='none')}), 'ACTIVE')
        self.stays_on_the_host(self.request(
            self.fitting, availability_zone='zone'))

    def test_affinity(self):
        group = self.group('affinity')
        self.wait_for(self.api.post_server(
            self.request(self.small, name='first') |
            {'os:scheduler_hints': {'group': group['id']}}), 'ACTIVE')
        self.stays_on_the_host(
            self.request(self.fitting) |
            {'os:scheduler_hints': {'group': group['id']}},
            apart=('members', 'group_members'))

    def test_anti_affinity(self):
        group = self.group('anti-affinity')
        asked = self.request(self.small) | {
            'os:scheduler_hints': {'group': group['id']}}
        self.wait_for(self.api.post_server(asked), 'ACTIVE')
        # There is room for it, on the host of the first.
        server = self.create_at(None, self.api, asked, 'PENDING')
        self.rebuild(server)
        server = self.wait_for(server, 'PENDING')
        self.make_room()
        self.rebuild_with(self.api, server, {})
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual('roomy', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual([group['id']], server['server_groups'])
        known = self.all_of(server)
        self.delete(server)
        twin = self.create_at(None, self.api, asked, 'ACTIVE')
        # The group has one member more.
        self.same(known, self.all_of(twin),
                  apart=('members', 'group_members'))

    def group(self, policy):
        return self.api.post_server_groups({'name': policy, 'policy': policy})

    def test_scheduler_hints(self):
        hints = {'os:scheduler_hints': {
            'different_host': self.filler['id'], 'color': 'blue'}}
        asked = self.request(self.small) | hints
        server = self.create_at(None, self.api, asked, 'PENDING')
        self.rebuild(server)
        self.wait_for(server, 'PENDING')
        self.make_room()
        self.rebuild_with(self.api, server, {})
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual('roomy', server['OS-EXT-SRV-ATTR:host'])
        twin = self.create_at(None, self.api, asked, 'ACTIVE')
        self.same(self.all_of(server), self.all_of(twin))

    def _setup_scheduler_service(self):
        self.flags(enabled_filters=(
            CONF.filter_scheduler.enabled_filters + ['DifferentHostFilter']),
            group='filter_scheduler')
        return super()._setup_scheduler_service()


class NetworksTestCase(rebuild_twins.TwinsTestCase):

    def setUp(self):
        super().setUp()
        self.neutron._ports[OTHER_PORT] = dict(
            copy.deepcopy(self.neutron.port_1), id=OTHER_PORT,
            mac_address='fa:16:3e:4c:2c:31')

    def test_none_is_said_at_all(self):
        request = self.request()
        del request['server']['networks']
        server, _twin = self.kept(request, created_at='2.36')
        self.assertEqual(
            [NETWORK], [nic['net_id'] for nic in
                        self.api.get_port_interfaces(server['id'])])

    def test_automatic(self):
        server, _twin = self.kept(self.request(networks='auto'), times=2)
        self.assertEqual(
            [NETWORK], [nic['net_id'] for nic in
                        self.api.get_port_interfaces(server['id'])])

    def test_none(self):
        server, _twin = self.kept(self.request(networks='none'), times=2)
        self.assertEqual([], self.api.get_port_interfaces(server['id']))

    def test_network_with_a_tag(self):
        server, _twin = self.kept(self.request(
            networks=[{'uuid': NETWORK, 'tag': 'nic'}]))
        self.assertEqual(
            [(NETWORK, 'nic')],
            [(nic['net_id'], nic['tag']) for nic in
             self.api.get_port_interfaces(server['id'])])

    def test_port_with_a_tag(self):
        server, _twin = self.kept(
            self.request(networks=[{'port': PORT, 'tag': 'nic'}]),
            once={PORT: OTHER_PORT}, times=2)
        self.assertEqual(
            [(PORT, 'nic')], [(nic['port_id'], nic['tag']) for nic in
                              self.api.get_port_interfaces(server['id'])])

    def test_fixed_address(self):
        create = self.neutron.create_port
        asked = []

        def create_port(body):
            asked.append(body['port'].get('fixed_ips'))
            return create(body)

        with mock.patch.object(self.neutron, 'create_port', create_port):
            self.kept(self.request(networks=[
                {'uuid': NETWORK, 'fixed_ip': '192.168.1.77'}]), times=2)
        self.assertEqual([[{'ip_address': '192.168.1.77'}]] * 2, asked)

    def test_several_in_order(self):
        self.neutron._networks[OTHER_NETWORK] = dict(
            self.neutron.network_2, id=OTHER_NETWORK)
        server, _twin = self.kept(
            self.request(networks=[
                {'uuid': OTHER_NETWORK, 'tag': 'one'},
                {'port': PORT, 'tag': 'two'},
                {'uuid': NETWORK},
                {'uuid': OTHER_NETWORK, 'fixed_ip': '192.168.13.9'}]),
            once={PORT: OTHER_PORT}, times=2)
        told = self.told[server['id']]['requested_networks']
        self.assertEqual(
            [(OTHER_NETWORK, None, 'one'), (None, PORT, 'two'),
             (NETWORK, None, None), (OTHER_NETWORK, None, None)],
            [(net['nova_object.data']['network_id'],
              net['nova_object.data']['port_id'],
              net['nova_object.data']['tag']) for net in
             told['nova_object.data']['objects']])

    def test_what_networks_are_laid_over_is_asked_again(self):
        request = self.request(networks=[{'uuid': NETWORK}])
        server = self.create_waiting(networks=request['server']['networks'])
        self.neutron._networks[NETWORK] = dict(
            self.neutron._networks[NETWORK],
            **{'provider:physical_network': 'physnet4'})
        self.rebuild(server)
        self.wait_for(server, 'PENDING')
        server, _twin = self.kept(request, times=2)
        told = self.told[server['id']]['request_spec']['nova_object.data']
        self.assertEqual(
            ['physnet4'], told['network_metadata']['nova_object.data'][
                'physnets'])

    def test_what_the_network_of_a_port_is_laid_over_is_asked_again(self):
        server = self.create_waiting(
            networks=[{'uuid': NETWORK}, {'port': PORT}])
        with mock.patch.object(
                self.neutron, 'show_network',
                side_effect=self.neutron.show_network) as asked:
            self.rebuild(server)
            self.wait_for(server, 'PENDING')
        asked.assert_called()

    def test_networks_are_those_of_the_owner_whoever_rebuilds(self):
        asked = []
        networks = self.neutron.list_networks

        def list_networks(**params):
            asked.append(params.get('tenant_id'))
            return networks(**params)

        server = self.create_waiting(networks='auto')
        self.make_room()
        other = api_client.TestOpenStackClient(
            'admin', self.api.base_url, project_id='of-the-admin',
            roles=['admin', 'member', 'reader'])
        other.microversion = 'latest'
        with mock.patch.object(self.neutron, 'list_networks', list_networks):
            self.rebuild_with(other, server, {})
            server = self.wait_for(server, 'ACTIVE')
        self.assertEqual({self.api.project_id}, set(filter(None, asked)))
        self.assertEqual(self.api.project_id, server['tenant_id'])
