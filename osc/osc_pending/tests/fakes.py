# SPDX-License-Identifier: Apache-2.0

"""A cloud that answers the requests of the client."""

import contextlib
import io
import json
import logging
import re
import urllib.parse

import fixtures
from keystoneauth1 import fixture as ksa_fixture
from openstackclient import shell
from osc_lib import clientmanager
from oslo_utils import uuidutils
import requests
import requests_mock

IMAGE = uuidutils.generate_uuid()
PROJECT = uuidutils.generate_uuid(dashed=False)
_KEYSTONE = 'http://keystone/v3'
_NOVA = 'http://nova/v2.1'
_GLANCE = 'http://glance'
_PLACEMENT = 'http://placement'
REAPER = 'http://reaper:8782'
# The client 8.0 writes this line for every microversion.
_WARNING = re.compile(
    r'compute API version \S+ is not in supported versions: 2, 2\.1\n')
_SINCE = '2026-11-22T11:30:00Z'


class Cloud(fixtures.Fixture):
    """Keystone, Glance, Nova and a reaper, and a user of the client there.

    :param offered: the highest microversion of Nova
    :param numbers: the microversion of each feature, as Nova tells them; by
        default those of Nova 34 that it has
    :param reaper: whether the catalog has nova-reaper
    :param disabled: whether the endpoint of nova-reaper is disabled there
    :param admin: whether the user may see servers of all projects
    """

    def __init__(self, offered='2.107', numbers=None, reaper=False,
                 disabled=False, admin=True):
        self.offered = offered
        self.numbers = numbers or {
            feature: number for feature, number in (
                ('pending', '2.105'), ('rebuild', '2.106'),
                ('reason', '2.107')) if number <= offered}
        self._admin = admin
        self._has_reaper = reaper
        #: what GET /pending answers where Nova refuses it, a status
        self.refusal = 404 if not self.numbers else None
        self._disabled = disabled
        #: the servers as the highest microversion shows them, by ID
        self.servers = {}
        #: called with a server after each rebuild and each create
        self.after_build = lambda server: server.update(status='BUILD')
        #: what GET /servers/{id}/pending answers, a status or a dictionary
        self.reasons = {}
        #: what Placement answers, by path: a status and a dictionary
        self.placement = {}
        #: what the reaper answers, by path: a status and a dictionary; None
        #: if it cannot be reached
        self.reaper = {}
        #: what the reaper says of each server that waits, in the order of its
        #: queue; None if self.reaper has the answer about its queue
        self.queue = None
        #: the query of each request for the queue, and the bytes of the answer
        self.asked = []
        #: of each request to Nova the method, the path, the microversion and
        #: the body
        self.requests = []

    def _setUp(self):
        for name, value in {
                'OS_AUTH_URL': _KEYSTONE, 'OS_USERNAME': 'tenant',
                'OS_PASSWORD': 'secret', 'OS_PROJECT_NAME': 'project',
                'OS_USER_DOMAIN_ID': 'default',
                'OS_PROJECT_DOMAIN_ID': 'default',
                'OS_IDENTITY_API_VERSION': '3', 'OS_CLOUD': None,
                'OS_COMPUTE_API_VERSION': None,
                'OS_CLIENT_CONFIG_FILE': '/nonexistent',
                'COLUMNS': '200'}.items():
            self.useFixture(fixtures.EnvironmentVariable(name, value))
        self._http = self.useFixture(_Http()).http
        self._serve_keystone()
        self._serve_glance()
        any_path = re.compile('^%s(/.*)?$' % re.escape(_NOVA))
        self._http.register_uri('GET', any_path, json=self._get)
        self._http.register_uri('POST', any_path, json=self._post)
        self._http.register_uri(
            'GET', re.compile('^' + re.escape(_PLACEMENT)),
            json=self._ask_placement)
        self._http.register_uri(
            requests_mock.ANY, re.compile('^' + re.escape(REAPER)),
            json=self._ask_reaper)

    def add(self, name, status='PENDING', **more):
        """Add a server, and return it."""
        server = {
            'id': uuidutils.generate_uuid(), 'name': name, 'status': status,
            'tenant_id': PROJECT, 'user_id': 'user', 'metadata': {},
            'created': _SINCE, 'updated': _SINCE, 'addresses': {},
            'image': {'id': IMAGE}, 'flavor': {'original_name': 'm1.small'},
            'OS-EXT-STS:vm_state': status.lower(),
            'OS-EXT-STS:task_state': None, 'OS-EXT-STS:power_state': 0,
            'OS-SRV-USG:launched_at': (
                None if status in ('PENDING', 'ERROR', 'BUILD') else _SINCE),
            **more}
        if status in ('PENDING', 'ERROR'):
            server['fault'] = {'message': 'No valid host was found. ',
                               'code': 500, 'created': _SINCE}
        self.servers[server['id']] = server
        return server

    def run(self, *words):
        """Run the openstack client.

        :returns: its exit code, and what it wrote to both streams
        """
        # The process keeps these clients. In 8.0 it cannot make the client of
        # volumes twice.
        for name, each in vars(clientmanager.ClientManager).items():
            if isinstance(each, clientmanager.ClientCache):
                each._handle = object() if name == 'volume' else None
        out, err = io.StringIO(), io.StringIO()
        root = logging.getLogger('')
        handlers, level = list(root.handlers), root.level
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = shell.OpenStackShell().run(
                    [str(word) for word in words])
            except SystemExit as error:
                code = error.code
            finally:
                root.handlers[:], root.level = handlers, level
        return code, out.getvalue(), _WARNING.sub('', err.getvalue())

    def sent(self, method, path):
        """Return the microversion and the body of each such request."""
        return [(version, body) for m, p, version, body in self.requests
                if (m, p) == (method, path)]

    def _serve_keystone(self):
        token = ksa_fixture.V3Token(
            user_name='tenant', project_id=PROJECT, project_name='project')
        services = [('compute', _NOVA), ('image', _GLANCE),
                    ('identity', _KEYSTONE), ('placement', _PLACEMENT)]
        if self._has_reaper:
            services.append(('compute-pending', REAPER))
        if self._disabled:
            token.add_service('compute-pending')
        for kind, url in services:
            token.add_service(kind).add_standard_endpoints(public=url)
        self._http.get(_KEYSTONE, json={
            'version': ksa_fixture.V3Discovery(_KEYSTONE)})
        self._http.post(_KEYSTONE + '/auth/tokens', json=token,
                        headers={'X-Subject-Token': 'token'})
        self._http.get(_KEYSTONE + '/projects/demo', json={
            'project': {'id': PROJECT, 'name': 'demo'}})

    def _serve_glance(self):
        image = {'id': IMAGE, 'name': 'cirros', 'status': 'active'}
        discovery = {'versions': [{
            'id': 'v2.9', 'status': 'CURRENT',
            'links': [{'rel': 'self', 'href': _GLANCE + '/v2/'}]}]}
        self._http.get(_GLANCE, json=discovery)
        self._http.get(_GLANCE + '/', json=discovery)
        self._http.get('%s/v2/images' % _GLANCE, json={'images': [image]})
        self._http.get('%s/v2/images/%s' % (_GLANCE, IMAGE), json=image)
        self._http.get('%s/v2/images/cirros' % _GLANCE, status_code=404)

    def _note(self, request):
        version = request.headers.get('OpenStack-API-Version', 'compute 2.1')
        path = urllib.parse.urlsplit(request.url).path[len('/v2.1'):]
        version = version.split()[1]
        self.requests.append((
            request.method, path, version,
            json.loads(request.text) if request.text else None))
        return path, _version(version)

    def _get(self, request, context):
        if not urllib.parse.urlsplit(request.url).path[len('/v2.1'):].strip(
                '/'):
            return {'version': {
                'id': 'v2.1', 'status': 'CURRENT', 'min_version': '2.1',
                'version': self.offered,
                'links': [{'rel': 'self', 'href': _NOVA}]}}
        if request.path == '/v2.1/pending':
            return self._say_numbers(request, context)
        path, version = self._note(request)
        if version > _version(self.offered):
            return self._refuse(context, 406, 'no such version')
        if path.startswith('/flavors'):
            flavor = {'id': '2', 'name': 'm1.large', 'ram': 1, 'disk': 1,
                      'vcpus': 1}
            return {'flavors': [flavor], 'flavor': flavor}
        if path in ('/servers', '/servers/detail'):
            return self._list(request, context, version)
        server_id, _, rest = path[len('/servers/'):].partition('/')
        if server_id not in self.servers:
            return self._refuse(context, 404, 'Instance not found')
        if rest == 'pending':
            return self._reason(request, context, server_id, version)
        return {'server': self._seen(self.servers[server_id], version)}

    def _say_numbers(self, request, context):
        # The plugin asks at the newest microversion, whatever the numbers are.
        if request.headers['OpenStack-API-Version'] != 'compute latest':
            return self._refuse(context, 404, 'Not found')
        if self.refusal:
            return self._refuse(context, self.refusal, 'Not found')
        return {'pending': {'microversions': {
            **self.numbers, 'something later': '2.999'}}}

    def _knows(self, feature, version):
        number = self.numbers.get(feature)
        return number is not None and version >= _version(number)

    def _list(self, request, context, version):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.url).query)
        everywhere = 'all_tenants' in query
        if everywhere and not self._admin:
            return self._refuse(context, 403, 'for administrators')
        seen = [self._seen(server, version)
                for server in self.servers.values()
                if everywhere or server['tenant_id'] == PROJECT]
        if 'status' in query:
            seen = [each for each in seen
                    if each['status'] == query['status'][0]]
        if 'name' in query:
            seen = [each for each in seen if each['name'] == query['name'][0]]
        # Nova lists the newest server first by default.
        seen.sort(key=lambda each: each['created'],
                  reverse=query.get('sort_dir') != ['asc'])
        if 'marker' in query:
            ids = [each['id'] for each in seen]
            seen = seen[ids.index(query['marker'][0]) + 1:]
        return {'servers': seen[:int(query.get('limit', ['1000'])[0])]}

    def _reason(self, request, context, server_id, version):
        answer = self.reasons.get(server_id, 404)
        if not self._knows('reason', version):
            answer = 404
        if isinstance(answer, int):
            return self._refuse(context, answer, 'it is being rebuilt')
        if callable(answer):
            return answer(request)
        return {'pending': answer}

    def _post(self, request, context):
        path, version = self._note(request)
        context.status_code = 202
        if path == '/servers':
            body = json.loads(request.text)['server']
            server = self.add(body['name'], 'BUILD')
            self.after_build(server)
            return {'server': {'id': server['id'], 'adminPass': 'pass',
                               'links': []}}
        server = self.servers[path.split('/')[2]]
        if not server['OS-SRV-USG:launched_at'] and not self._knows(
                'rebuild', version):
            return self._refuse(context, 409, 'Cannot rebuild')
        server['status'] = 'BUILD'
        answer = {'server': dict(self._seen(server, version),
                                 adminPass='pass')}
        self.after_build(server)
        return answer

    def _ask_placement(self, request, context):
        path = urllib.parse.urlsplit(request.url).path
        context.status_code, answer = self.placement.get(path, (404, {}))
        return answer

    def _ask_reaper(self, request, context):
        if self.reaper is None:
            raise requests.exceptions.ConnectionError('HTTPConnectionPool')
        parts = urllib.parse.urlsplit(request.url)
        path = parts.path + ('?' + parts.query if parts.query else '')
        if parts.path == '/v1/pending' and self.queue is not None:
            query = urllib.parse.parse_qs(parts.query)
            context.status_code, answer = self._list_queue(query)
            self.asked.append((query, len(json.dumps(answer))))
            return answer
        if request.method != 'GET':
            path = '%s %s' % (request.method, path)
            self.requests.append((request.method, parts.path, None,
                                  request.text and request.json()))
        context.status_code, answer = self.reaper.get(
            path, (404, {'error': {'message': 'does not wait'}}))
        return answer

    def _list_queue(self, query):
        wanted = [each for each in self.queue
                  if each['server'] in query.get('server', [each['server']])]
        if 'marker' in query:
            ids = [each['server'] for each in wanted]
            if query['marker'][0] not in ids:
                return 400, {'error': {'message': 'no such marker'}}
            wanted = wanted[ids.index(query['marker'][0]) + 1:]
        limit = int(query.get('limit', ['1000'])[0])
        answer = {'pending': wanted[:limit]}
        if len(wanted) > limit:
            following = urllib.parse.urlencode(
                query | {'marker': wanted[limit - 1]['server']}, doseq=True)
            answer['pending_links'] = [{
                'rel': 'next',
                'href': 'http://another.name/v1/pending?' + following}]
        return 200, answer

    def _seen(self, server, version):
        server = dict(server)
        if server['status'] == 'PENDING' and not self._knows(
                'pending', version):
            server['status'] = 'ERROR'
            server['OS-EXT-STS:vm_state'] = 'error'
        if version < (2, 47):
            server['flavor'] = {'id': '2'}
        return server

    @staticmethod
    def _refuse(context, code, message):
        context.status_code = code
        return {'error': {'code': code, 'message': message}}


def _version(text):
    return tuple(int(part) for part in text.split('.'))


class _Http(fixtures.Fixture):
    """Uses requests-mock's Mocker until the end of the test."""

    def _setUp(self):
        self.http = requests_mock.Mocker()
        self.http.start()
        self.addCleanup(self.http.stop)
