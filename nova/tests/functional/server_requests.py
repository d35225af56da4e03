# SPDX-License-Identifier: Apache-2.0
"""Requests that name a server, of every kind that the API knows.

Needs nothing of the states that these tests are about: any Nova can be asked.
"""

import re

from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova.tests.fixtures import glance as glance_fixture
from nova.tests.fixtures import neutron as neutron_fixture

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
    ('GET', '/os-instance-actions/CREATE', None),
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

#: Lists that a server in cell0 is in or not.
LISTS = tuple(('GET', '/servers' + query, None) for query in (
    '', '/detail', '/detail?all_tenants=1', '?status=ERROR', '?status=error',
    '?status=PENDING', '?status=nonsense', '?status=ERROR&status=PENDING',
    '?status=BUILD&status=PENDING', '?vm_state=error', '?vm_state=pending',
    '?status=ERROR&status=ACTIVE&limit=1', '?limit=1',
    '?sort_key=vm_state&sort_dir=asc', '?marker=SERVER', '?marker=none',
    '/detail?status=ERROR&changes-since=2020-01-01T00:00:00Z',
    '?deleted=true', '?name=patient&locked=false'))

#: What is neither the server's own nor the same in two answers.
# By which functions an exception came is not told to users.
_PASSING = re.compile(
    r'req-[0-9a-f-]{36}|\d{4}-\d\d-\d\d[T ][\d:.]+Z?|'
    r'(?:(?<="Traceback \(most recent call last\):)|(?<="traceback": "))'
    r'(?:[^"\\]|\\.)*')


def ask(api, method, path, server, body=None):
    """Make a request about a server.

    SERVER in path and body stands for its ID, CREATE in the path for the ID
    of the request that created it.

    :param api: the client
    :param server: the server, as an administrator is shown it
    :returns: the code and the text of the answer, without what only this
        server has and what only this request has
    """
    kwargs = {}
    if body is not None:
        kwargs['body'] = jsonutils.dumps(body).replace('SERVER', server['id'])
    if 'CREATE' in path:
        create = api.get_instance_actions(server['id'])[-1]
        path = path.replace('CREATE', create['request_id'])
    response = api.api_request(
        path.replace('SERVER', server['id']), method=method, **kwargs)
    text = response.text
    for own in ('id', 'OS-EXT-SRV-ATTR:reservation_id',
                'OS-EXT-SRV-ATTR:instance_name'):
        text = text.replace(server[own], 'SERVER')
    return response.status_code, _PASSING.sub('*', text)
