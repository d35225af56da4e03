#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Every request to a waiting server against the same one to ERROR in cell0."""

import re

from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional import full_cloud

IMAGE = glance_fixture.GlanceFixture.image1['id']
PORT = neutron_fixture.NeutronFixture.port_1['id']

#: Body of each action, by its name. Locks, and what ends the server's life in
#: its state, have tests of their own.
_BODIES = {
    'addFixedIp': {'networkId': uuids.network},
    'removeFixedIp': {'address': '10.0.0.1'},
    'addFloatingIp': {'address': '10.0.0.1'},
    'removeFloatingIp': {'address': '10.0.0.1'},
    'addSecurityGroup': {'name': 'default'},
    'removeSecurityGroup': {'name': 'default'},
    'changePassword': {'adminPass': 'secret'},
    'confirmResize': None,
    'createBackup': {'name': 'b', 'backup_type': 'daily', 'rotation': 1},
    'createImage': {'name': 'snapshot'},
    'evacuate': {},
    'injectNetworkInfo': None,
    'migrate': None,
    'os-getConsoleOutput': {},
    'os-getRDPConsole': {'type': 'rdp-html5'},
    'os-getSPICEConsole': {'type': 'spice-html5'},
    'os-getSerialConsole': {'type': 'serial'},
    'os-getVNCConsole': {'type': 'novnc'},
    'os-migrateLive': {'host': None, 'block_migration': 'auto'},
    'os-start': None,
    'os-stop': None,
    'pause': None,
    'reboot': {'type': 'SOFT'},
    'rebuild': {'imageRef': IMAGE},
    'rescue': None,
    'resetNetwork': None,
    'resize': {'flavorRef': '1'},
    'restore': None,
    'resume': None,
    'revertResize': None,
    'shelve': None,
    'shelveOffload': None,
    'suspend': None,
    'trigger_crash_dump': None,
    'unpause': None,
    'unrescue': None,
    'unshelve': None,
}

_OTHER_BODIES = (
    ('evacuate', {'onSharedStorage': 'False'}),
    ('os-migrateLive', {'host': None, 'block_migration': False,
                        'disk_over_commit': False}),
    ('reboot', {'type': 'HARD'}),
)

ACTIONS = tuple(
    ('POST', '/action', {name: body})
    for name, body in tuple(_BODIES.items()) + _OTHER_BODIES)

#: Method, path below the server, body.
REQUESTS = (
    ('GET', '', None),
    ('PUT', '', {'server': {'name': 'renamed'}}),
    ('PUT', '', {'server': {'description': 'described'}}),
    ('PUT', '', {'server': {'hostname': 'renamed-host'}}),
    ('GET', '/consoles', None),
    ('POST', '/consoles', {}),
    ('GET', '/diagnostics', None),
    ('GET', '/ips', None),
    ('GET', '/ips/private', None),
    ('POST', '/metadata', {'metadata': {'a': 'b'}}),
    ('GET', '/metadata', None),
    ('GET', '/metadata/a', None),
    ('PUT', '/metadata/a', {'meta': {'a': 'c'}}),
    ('PUT', '/metadata', {'metadata': {'d': 'e'}}),
    ('DELETE', '/metadata/a', None),
    ('DELETE', '/metadata/d', None),
    ('GET', '/migrations', None),
    ('GET', '/migrations/1', None),
    ('DELETE', '/migrations/1', None),
    ('POST', '/migrations/1/action', {'force_complete': None}),
    ('GET', '/os-instance-actions', None),
    ('GET', '/os-instance-actions/req-none', None),
    ('GET', '/os-interface', None),
    ('POST', '/os-interface', {'interfaceAttachment': {'port_id': PORT}}),
    ('GET', '/os-interface/' + PORT, None),
    ('DELETE', '/os-interface/' + PORT, None),
    ('GET', '/os-security-groups', None),
    ('GET', '/os-server-password', None),
    ('DELETE', '/os-server-password', None),
    ('GET', '/os-virtual-interfaces', None),
    ('GET', '/os-volume_attachments', None),
    ('POST', '/os-volume_attachments',
     {'volumeAttachment': {'volumeId': uuids.volume}}),
    ('GET', '/os-volume_attachments/' + uuids.volume, None),
    ('PUT', '/os-volume_attachments/' + uuids.volume,
     {'volumeAttachment': {'volumeId': uuids.other_volume}}),
    ('DELETE', '/os-volume_attachments/' + uuids.volume, None),
    ('POST', '/remote-consoles',
     {'remote_console': {'protocol': 'vnc', 'type': 'novnc'}}),
    ('GET', '/shares', None),
    ('POST', '/shares', {'share': {'share_id': uuids.share}}),
    ('GET', '/shares/' + uuids.share, None),
    ('DELETE', '/shares/' + uuids.share, None),
    ('GET', '/tags', None),
    ('PUT', '/tags', {'tags': ['x', 'y']}),
    ('PUT', '/tags/z', None),
    ('GET', '/tags/z', None),
    ('DELETE', '/tags/z', None),
    ('DELETE', '/tags', None),
    ('GET', '/topology', None),
)

#: Requests to other resources that name a server.
ELSEWHERE = (
    ('GET', '/os-migrations?instance_uuid=SERVER', None),
    ('POST', '/os-server-external-events', {'events': [
        {'name': 'network-changed', 'server_uuid': 'SERVER'},
        {'name': 'power-update', 'tag': 'POWER_ON',
         'server_uuid': 'SERVER'}]}),
    ('POST', '/os-assisted-volume-snapshots', {'snapshot': {
        'volume_id': uuids.volume, 'create_info': {
            'type': 'qcow2', 'new_file': 'f', 'snapshot_id': 's'}}}),
    ('GET', '/os-volumes_boot/SERVER', None),
    ('POST', '/os-volumes_boot/SERVER/action', {'os-stop': None}),
)


class SameRequestTestCase(full_cloud.FullCloudTestCase):

    def setUp(self):
        super().setUp()
        self.flags(use_pending_state=False)
        self.error = self.bury('ERROR', name='patient')
        self.flags(use_pending_state=True)
        self.pending = self.bury(name='patient')

    def ask(self, api, method, path, server, body):
        """Return code and text of an answer, without what is this server's."""
        kwargs = {}
        if body is not None:
            kwargs['body'] = jsonutils.dumps(body).replace(
                'SERVER', server['id'])
        response = api.api_request(
            path.replace('SERVER', server['id']), method=method, **kwargs)
        text = response.text
        for own in ('id', 'OS-EXT-SRV-ATTR:reservation_id',
                    'OS-EXT-SRV-ATTR:instance_name'):
            text = text.replace(server[own], 'SERVER')
        for passing in (r'req-[0-9a-f-]{36}',
                        r'\d{4}-\d\d-\d\d[T ][\d:.]+Z?'):
            text = re.sub(passing, '*', text)
        return response.status_code, text

    def compare(self, api, method, path, body=None, may_show=False):
        """Ask both servers for the same, expect the same.

        :param may_show: whether the answer may show the new state
        :returns: the code
        """
        expected = self.ask(api, method, path, self.error, body)
        code, text = self.ask(api, method, path, self.pending, body)
        if may_show:
            text = text.replace('PENDING', 'ERROR').replace('pending', 'error')
        self.assertEqual(expected, (code, text), (
            api.microversion, method, path, body, api is self.admin_api))
        return code

    def compare_all(self, requests, apis=None, may_show=False):
        for api in apis or (self.api, self.admin_api):
            for method, path, body in requests:
                self.compare(api, method, '/servers/SERVER' + path, body,
                             may_show=may_show)

    def both(self, change):
        """Change both servers in the database."""
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt:
            for server in (self.error, self.pending):
                instance = objects.Instance.get_by_uuid(cctxt, server['id'])
                change(instance)
                instance.save()

    def test_released_microversions(self):
        for version in ('2.1', '2.104'):
            self.speak(version)
            self.compare_all(REQUESTS + ACTIONS)

    def test_from_2_105(self):
        self.speak('2.105')
        self.compare_all(REQUESTS + ACTIONS, may_show=True)

    def test_locked(self):
        self.assertEqual(202, self.compare(
            self.admin_api, 'POST', '/servers/SERVER/action',
            {'lock': {'locked_reason': 'because'}}))
        self.speak('2.104')
        self.compare_all(ACTIONS, apis=[self.api])
        self.assertEqual(202, self.compare(
            self.admin_api, 'POST', '/servers/SERVER/action',
            {'unlock': None}))

    def test_task_in_progress(self):
        self.both(lambda instance: setattr(
            instance, 'task_state', 'deleting'))
        self.speak('2.104')
        self.compare_all(ACTIONS, apis=[self.admin_api])

    def test_other_resources(self):
        for version in ('2.1', '2.104', '2.105'):
            self.speak(version)
            for method, path, body in ELSEWHERE:
                self.compare(self.admin_api, method, path, body,
                             may_show=version == '2.105')

    def test_words(self):
        """Nothing says at a released microversion that the server waits."""
        self.speak('2.104')
        for method, path, body in REQUESTS + ACTIONS:
            _code, text = self.ask(
                self.admin_api, method, '/servers/SERVER' + path,
                self.pending, body)
            self.assertNotIn('pending', text.lower(), (method, path, body))
