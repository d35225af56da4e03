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

"""The demonstration: a server that found no room waits and is rebuilt.

Every step shows what the openstack client answers, and is checked by what the
API itself says, so that the exit code can be trusted.
"""

import base64
import contextlib
import time
import uuid

from tools.cloud import client
from tools.cloud import configuration
from tools.cloud import errors

_IMAGE_BYTES = 1024 * 1024
# Neutron gives no address outside the pool to a server that names none.
_ADDRESS = '10.0.0.80'
_POOL = 'start=10.0.0.100,end=10.0.0.199'
_TAGS = ['blue']
_METADATA = {'purpose': 'demo'}
_KEY = 'key'
_USER_DATA = b'#cloud-config\nhostname: web\n'
_FAULT = 'No valid host was found'

_NO_IMAGE = str(uuid.UUID(int=1))

#: A client that knows that servers wait, one of the release, and one that
#: knows that they can be rebuilt.
PENDING = '--os-compute-api-version 2.105'
_BEFORE = '--os-compute-api-version 2.104'
_REBUILD = '--os-compute-api-version 2.106'

_SHOWN = ('-c id -c name -c status -c fault -c created -c addresses '
          '-c properties -c tags -c key_name')


class Demo:
    """The demonstration on one cloud.

    :param cloud: the settings.Settings of a cloud that is up
    :param running: its processes.Processes
    :param write: called with each text to be shown
    """

    def __init__(self, cloud, running, write):
        self._cloud = cloud
        self._processes = running
        self._write = write
        self._client = client.Client(cloud, running, write)
        self._api = client.Api(cloud, write)
        # Who may see the user data.
        self._admin = client.Api(cloud, write, configuration.ADMIN)
        self._stopped = False
        #: triples of the title, the time of the start and the seconds of each
        #: step
        self.timeline = []

    def stop(self):
        """End the demonstration that another thread shows."""
        self._stopped = True
        self._client.stop()

    def run(self):
        """Show all steps.

        :raises: StepFailed at the first that is not as it should be,
            CloudError if a service ended
        """
        try:
            self._run_steps()
        except Exception:
            # It is the service that failed then, and not the step.
            self._processes.check()
            raise

    def _run_steps(self):
        with self._step('A tenant'):
            self._make_tenant()
        with self._step('An image, a flavor, a network, a keypair'):
            self._prepare()
        with self._step('Two servers fill both hosts'):
            self._fill()
        with self._step('No room: what Nova 34 answers, microversion 2.104'):
            web = self._create_in_vain()
        with self._step('The same server from 2.105 on: it waits'):
            self._look_at_waiting(web)
        with self._step('What is refused, and that the server waits on'):
            self._try_in_vain(web)
        with self._step('A second server waits'):
            second = self._create_second()
        with self._step('Room is made, and the server rebuilt'):
            self._make_room('filler-1')
            self._rebuild(web)
        with self._step('Everything that its owner said still holds'):
            self._look_at_rebuilt(web)
        with self._step('Given up by the administrator, rebuilt all the same'):
            self._rebuild_given_up(second)

    def _make_tenant(self):
        admin, owner = '--os-cloud admin ', configuration.OWNER
        self._client.run_together(
            admin + 'project create %s -c name -c enabled' % owner,
            admin + 'user create --password %s %s -c name -c enabled' % (
                self._cloud.password, owner))
        self._client.run(admin + 'role add --project %s --user %s member' % (
            owner, owner))

    def _prepare(self):
        # The client runs in the state directory.
        (self._cloud.var / 'user-data').write_bytes(_USER_DATA)
        image = self._cloud.var / 'image'
        with image.open('wb') as file:
            file.truncate(_IMAGE_BYTES)
        self._client.run_together(
            '--os-cloud admin image create --public --disk-format raw '
            '--file %s cirros -c name -c status'
            % image.relative_to(self._cloud.state),
            '--os-cloud admin flavor create --vcpus %d --ram 512 --disk 1 '
            'whole-host -c name -c vcpus' % self._cloud.host_vcpus,
            'network create net -c name -c status',
            'keypair create --private-key var/key %s -c name -c fingerprint'
            % _KEY)
        self._client.run(
            'subnet create --network net --subnet-range 10.0.0.0/24 '
            '--allocation-pool %s --no-dhcp subnet -c name -c cidr' % _POOL)

    def _fill(self):
        hosts = len(self._cloud.hosts)
        self._client.run(
            '%s server create --image cirros --flavor whole-host '
            '--network net --min %d --max %d filler -c name -c status'
            % (PENDING, hosts, hosts))
        fillers = self._find()
        _expect('servers', len(fillers), hosts)
        for server in fillers.values():
            self._wait_for(server['id'], 'ACTIVE')
        self._client.run('server list')

    def _create_in_vain(self):
        self._client.run(
            'port create --network net --fixed-ip ip-address=%s web '
            '-c id -c status' % _ADDRESS)
        self._client.run(
            '%s server create --image cirros --flavor whole-host --port web '
            '--property purpose=demo --tag blue --key-name %s '
            '--user-data var/user-data --wait web' % (_BEFORE, _KEY),
            fails=True)
        web = self._find()['web']['id']
        self._port = self._client.ask('port show web -c id -f value').strip()
        self._client.run('%s server show web %s' % (_BEFORE, _SHOWN))
        for version in ('2.1', '2.104'):
            server = self._server(web, version)
            _expect('status at ' + version, server['status'], 'ERROR')
            _expect_fault(server)
        return web

    def _look_at_waiting(self, web):
        self._client.run_together(
            '%s server show web %s' % (PENDING, _SHOWN),
            '%s server list' % PENDING,
            '%s server list --status ERROR' % _BEFORE,
            '%s server list --status ERROR' % PENDING)
        server = self._server(web)
        _expect('status', server['status'], 'PENDING')
        _expect_fault(server)
        self._expect_kept(server)
        for version, status, found in (
                ('2.104', 'ERROR', [web]), ('2.105', 'ERROR', []),
                ('2.105', 'PENDING', [web])):
            servers = self._api.get('/servers?status=' + status, version)
            _expect('servers in %s at %s' % (status, version),
                    [each['id'] for each in servers['servers']], found)

    def _try_in_vain(self, web):
        path = '/servers/%s/action' % web

        def refused(version, body, code):
            self._api.post(path, version, body, lambda answer: answer, code)
            _expect('status', self._server(web)['status'], 'PENDING')

        refused('2.105', {'rebuild': {'imageRef': _NO_IMAGE}}, 409)
        refused('2.106', {'rebuild': {'imageRef': _NO_IMAGE}}, 400)
        refused('2.106', {'reboot': {'type': 'HARD'}}, 409)
        self._api.post(path, '2.106', {'lock': None}, lambda answer: answer)
        refused('2.106', {'rebuild': {}}, 409)
        self._api.post(path, '2.106', {'unlock': None}, lambda answer: answer)
        self._write('And as long as there is no room, a rebuild ends where it '
                    'began:\n')
        self._ask_for_rebuild(web)
        self._wait_for(web, 'PENDING')
        self._expect_kept(self._server(web))

    def _create_second(self):
        self._client.run(
            '%s server create --image cirros --flavor whole-host '
            '--network net second -c name -c status' % PENDING)
        second = self._find()['second']['id']
        self._wait_for(second, 'PENDING')
        self._client.run('%s server list' % PENDING)
        return second

    def _make_room(self, name):
        self._client.run('server delete --wait ' + name)
        _expect('servers of the name ' + name, name in self._find(), False)

    def _rebuild(self, web):
        self._write(
            'The openstack client knows no status PENDING, and rebuilds no '
            'server in a status\nthat it does not know. The API takes the '
            'request; no image is named, so it is\nthe one that the server '
            'was created with.\n')
        self._created = self._server(web)['created']
        self._ask_for_rebuild(web)
        self._wait_for(web, 'ACTIVE')

    def _ask_for_rebuild(self, web):
        self._api.post(
            '/servers/%s/action' % web, '2.106', {'rebuild': {}},
            lambda body: {'server': {
                name: body['server'][name] for name in ('id', 'status')}})

    def _look_at_rebuilt(self, web):
        self._client.run_together(
            '%s server show web %s' % (_REBUILD, _SHOWN),
            'port list --server web -c Name -c Status '
            '-c "Fixed IP Addresses"',
            '%s server event list web -c Action -c "Start Time"' % _REBUILD,
            '%s server list' % _REBUILD)
        server = self._server(web)
        self._expect_kept(server)
        _expect('creation', server['created'], self._created)
        _expect('addresses', [
            each['addr'] for each in server['addresses']['net']], [_ADDRESS])
        actions = self._api.get(
            '/servers/%s/os-instance-actions' % web, '2.106')
        _expect('actions', [
            each['action'] for each in actions['instanceActions']],
            ['rebuild', 'rebuild', 'unlock', 'lock', 'create'])
        ports = self._api.get('/servers/%s/os-interface' % web, '2.106')
        _expect('ports', [each['port_id'] for each
                          in ports['interfaceAttachments']], [self._port])

    def _rebuild_given_up(self, second):
        self._client.run(
            '--os-cloud admin server set --state error --auto-approve %s'
            % second)
        _expect('status', self._server(second)['status'], 'ERROR')
        self._make_room('filler-2')
        self._client.run(
            '%s server rebuild --image cirros second -c id -c status'
            % _REBUILD)
        self._wait_for(second, 'ACTIVE')
        self._client.run('%s server list' % _REBUILD)

    def _server(self, server, version='2.106'):
        return self._api.get('/servers/' + server, version)['server']

    def _find(self):
        servers = self._api.get('/servers', '2.106')['servers']
        return {server['name']: server for server in servers}

    def _wait_for(self, server, status):
        def settled():
            if self._stopped:
                raise errors.Stopped('The demonstration was stopped.')
            found = self._server(server)['status']
            return found if found != 'BUILD' else None

        _expect('status of the server', self._processes.wait_until(
            'server %s in %s' % (server, status), settled, None), status)

    def _expect_kept(self, server):
        _expect('tags', server['tags'], _TAGS)
        _expect('metadata', server['metadata'], _METADATA)
        _expect('keypair', server['key_name'], _KEY)
        seen = self._admin.get('/servers/' + server['id'], '2.106')['server']
        _expect('user data', base64.b64decode(
            seen['OS-EXT-SRV-ATTR:user_data'] or b''), _USER_DATA)

    @contextlib.contextmanager
    def _step(self, title):
        self._write('\n## %s\n' % title)
        start = time.time()
        yield
        self.timeline.append((title, start, time.time() - start))


def _expect(what, found, wanted):
    if found != wanted:
        raise errors.StepFailed('Not as it should be: %s: %r, not %r.' % (
            what, found, wanted))


def _expect_fault(server):
    message = server.get('fault', {}).get('message', 'none')
    if not message.startswith(_FAULT):
        raise errors.StepFailed(
            'Not as it should be: the fault of the server: ' + message)
