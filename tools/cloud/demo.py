# SPDX-License-Identifier: Apache-2.0

"""The demonstration: a server that found no room waits, and gets its room.

Every step shows what the openstack client answers, and is checked by what the
API itself says, so that the exit code can be trusted.
"""

import base64
import contextlib
import re
import time
import uuid

import nova_pending
import nova_pending_releases
from tools.cloud import client
from tools.cloud import configuration
from tools.cloud import errors
from tools.cloud import reaper

_IMAGE_BYTES = 1024 * 1024
# Neutron gives no address outside the pool to a server that names none.
_ADDRESS = '10.0.0.80'
_POOL = 'start=10.0.0.100,end=10.0.0.199'
_TAGS = ['blue']
#: A client that does not know PENDING asks to wait by metadata.
_METADATA = {'purpose': 'demo', 'reaper:wait': 'true'}
_KEY = 'key'
_USER_DATA = b'#cloud-config\nhostname: web\n'
_FAULT = 'No valid host was found'
# Of a server's metadata: when it will be ended, and for which server.
_NOTICE = 'reaper:terminate_at'
_FOR = 'reaper:for'

_ID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
_NO_IMAGE = str(uuid.UUID(int=1))

# Seconds from the notice to the end of a preemptible server, and in which
# what nobody is asked for has to happen.
_GRACE = 5
_PATIENCE = 180

_RELEASE = nova_pending.check_environment()
#: The last microversion of the release, and those in which a server is seen to
#: wait, can be rebuilt, and tells why it waits.
RELEASED = '2.%d' % nova_pending_releases.LAST_MICROVERSION[_RELEASE]
PENDING, REBUILD, _REASON = (
    nova_pending_releases.microversions(_RELEASE).values())

#: A client that knows that servers wait, one of the release, and one that
#: knows that they can be rebuilt.
AT_PENDING = '--os-compute-api-version ' + PENDING
_AT_RELEASED = '--os-compute-api-version ' + RELEASED
_AT_REBUILD = '--os-compute-api-version ' + REBUILD

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

    def make_samples(self):
        """Leave what a user tries the cloud with: the last server waits.

        :raises: StepFailed if a server is not as it should be
        """
        self._prepare()
        self._fill()
        self._client.run(
            '%s server create --image cirros --flavor whole-host --network '
            'net web -c name -c status' % AT_PENDING)
        self._wait_for(self._find()['web']['id'], 'PENDING')

    def _run_steps(self):
        with self._step('A tenant, and a reaper that only looks on'):
            self._let_reaper('observe')
            self._make_tenant()
            self._wait_for_reaper('observe')
        with self._step('An image, a network, a keypair, and two flavors'):
            self._prepare()
        with self._step('A full cloud, and one of its servers preemptible'):
            spot = self._fill()
        with self._step('No room: what Nova %d answers, microversion %s' % (
                _RELEASE, RELEASED)):
            web = self._create_in_vain()
        with self._step('The same server from %s on: it waits' % PENDING):
            self._look_at_waiting(web)
        with self._step('Why it waits, microversion ' + _REASON):
            self._ask_why(web)
        with self._step('The reaper may make room: the notice'):
            self._let_reaper('preempt')
            self._wait_for_reaper('preempt')
            self._look_at_notice(spot, web)
        with self._step('Nobody asked, and the server runs'):
            self._wait_for_room(spot, web)
        with self._step('Everything that its owner said still holds'):
            self._look_at_built(web)
        with self._step('Room again: the preemptible server comes back'):
            self._wait_for_return(spot)
        with self._step('By hand, microversion %s, without the reaper'
                        % REBUILD):
            second = self._create_second()
            self._try_in_vain(second)
            self._rebuild_given_up(second)

    def _make_tenant(self):
        admin, owner = '--os-cloud admin ', configuration.OWNER
        self._client.run_together(
            admin + 'project create %s -c name -c enabled' % owner,
            admin + 'user create --password %s %s -c name -c enabled' % (
                self._cloud.password, owner))
        self._client.run(admin + 'role add --project %s --user %s member' % (
            owner, owner))

    def _let_reaper(self, mode):
        """Set how far the reaper may go."""
        options = {'mode': mode, 'grace_period': _GRACE, 'min_run_time': 0}
        self._write('nova-reaper.conf, and a SIGHUP:\n\n[reaper]\n%s\n' % (
            '\n'.join('%s = %s' % item for item in options.items())))
        reaper.change(self._cloud, self._processes, **options)

    def _wait_for_reaper(self, mode):
        try:
            self._wait_until(
                'nova-reaper works in the mode ' + mode,
                lambda: reaper.is_ready(self._cloud, mode))
        except errors.StepFailed as failed:
            raise errors.StepFailed('%s Its health: %s' % (
                failed, reaper.health(self._cloud))) from failed

    def _prepare(self):
        # The client runs in the state directory.
        (self._cloud.var / 'user-data').write_bytes(_USER_DATA)
        image = self._cloud.var / 'image'
        with image.open('wb') as file:
            file.truncate(_IMAGE_BYTES)
        flavor = ('--os-cloud admin flavor create --vcpus %d --ram 512 '
                  '--disk 1 ' % self._cloud.host_vcpus)
        self._client.run_together(
            '--os-cloud admin image create --public --disk-format raw '
            '--file %s cirros -c name -c status'
            % image.relative_to(self._cloud.state),
            flavor + 'whole-host -c name -c vcpus',
            flavor + '--property reaper:preemptible=true '
            '--property reaper:action=shelve spot -c name -c vcpus '
            '-c properties',
            'network create net -c name -c status',
            'keypair create --private-key var/key %s -c name -c fingerprint'
            % _KEY)
        self._client.run(
            'subnet create --network net --subnet-range 10.0.0.0/24 '
            '--allocation-pool %s --no-dhcp subnet -c name -c cidr' % _POOL)

    def _fill(self):
        self._client.run_together(*(
            '%s server create --image cirros --flavor %s --network net %s '
            '-c name -c status' % (AT_PENDING, flavor, name)
            for flavor, name in (('whole-host', 'filler'), ('spot', 'spot'))))
        servers = self._find()
        for name in ('filler', 'spot'):
            self._wait_for(servers[name]['id'], 'ACTIVE')
        self._client.run('server list')
        return servers['spot']['id']

    def _create_in_vain(self):
        self._port = _ID.search(self._client.run(
            'port create --network net --fixed-ip ip-address=%s web '
            '-c id -c status' % _ADDRESS)).group()
        self._client.run(
            '%s server create --image cirros --flavor whole-host --port web '
            '--property purpose=demo --property reaper:wait=true '
            '--tag blue --key-name %s --user-data var/user-data --wait web' % (
                _AT_RELEASED, _KEY), fails=True)
        web = self._find()['web']['id']
        self._client.run('%s server show web %s' % (_AT_RELEASED, _SHOWN))
        for version in ('2.1', RELEASED):
            server = self._server(web, version)
            _expect('status at ' + version, server['status'], 'ERROR')
            _expect_fault(server)
        return web

    def _look_at_waiting(self, web):
        self._client.run_together(
            '%s server show web %s' % (AT_PENDING, _SHOWN),
            '%s server list' % AT_PENDING)
        server = self._server(web)
        _expect('status', server['status'], 'PENDING')
        _expect_fault(server)
        self._expect_kept(server)
        for version, status, found in (
                (RELEASED, 'ERROR', [web]), (PENDING, 'ERROR', []),
                (PENDING, 'PENDING', [web])):
            servers = self._api.get('/servers?status=' + status, version)
            _expect('servers in %s at %s' % (status, version),
                    [each['id'] for each in servers['servers']], found)

    def _ask_why(self, web):
        answer = self._api.show('/servers/%s/pending' % web, _REASON)
        _expect('reason', answer['pending']['reason'], 'no_room')

    def _look_at_notice(self, spot, web):
        notice = self._wait_until(
            'the server spot is under notice',
            lambda: self._notice(self._server(spot)))
        _expect('whom the notice is for', notice[_FOR], web)
        self._write(
            'A guest reads its notice from the metadata service of its cloud, '
            'below "meta".\nThis cloud has no guest and no such service, so '
            'the same metadata by the API:\n')
        self._api.show('/servers/%s/metadata' % spot, REBUILD)

    def _wait_for_room(self, spot, web):
        self._created = self._server(web)['created']
        self._wait_until_active(web)
        _expect('status of spot', self._server(spot)['status'],
                'SHELVED_OFFLOADED')
        self._client.run('%s server list' % _AT_REBUILD)

    def _look_at_built(self, web):
        self._client.run_together(
            '%s server show web %s' % (_AT_REBUILD, _SHOWN),
            '%s server event list web --long -c Action -c "User ID" '
            '-c "Start Time"' % _AT_REBUILD,
            '--os-cloud admin user show nova-reaper -c id -c name')
        server = self._server(web)
        self._expect_kept(server)
        _expect('creation', server['created'], self._created)
        _expect('addresses', [
            each['addr'] for each in server['addresses']['net']], [_ADDRESS])
        actions = self._api.get(
            '/servers/%s/os-instance-actions' % web,
            REBUILD)['instanceActions']
        _expect('actions', [each['action'] for each in actions],
                ['rebuild', 'create'])
        _expect('whether its owner asked for the rebuild',
                actions[0]['user_id'] == actions[1]['user_id'], False)
        ports = self._api.get('/servers/%s/os-interface' % web, REBUILD)
        _expect('ports', [each['port_id'] for each
                          in ports['interfaceAttachments']], [self._port])

    def _wait_for_return(self, spot):
        self._make_room('web')
        self._wait_until_active(spot)
        # The reaper takes its marks off when it sees that the server is back.
        self._wait_until(
            'nothing in the metadata of spot is of the notice',
            lambda: not self._server(spot)['metadata'])
        self._client.run('%s server list' % _AT_REBUILD)

    def _create_second(self):
        self._write('A preemptible server does not displace another of the '
                    'same priority:\nthis one waits.\n')
        self._client.run(
            '%s server create --image cirros --flavor spot --network net '
            'second -c name -c status' % AT_PENDING)
        second = self._find()['second']['id']
        self._wait_for(second, 'PENDING')
        return second

    def _try_in_vain(self, second):
        path = '/servers/%s/action' % second

        def refused(version, body, code):
            self._api.post(path, version, body, lambda answer: answer, code)
            _expect('status', self._server(second)['status'], 'PENDING')

        refused(PENDING, {'rebuild': {'imageRef': _NO_IMAGE}}, 409)
        refused(REBUILD, {'rebuild': {'imageRef': _NO_IMAGE}}, 400)
        refused(REBUILD, {'reboot': {'type': 'HARD'}}, 409)

    def _rebuild_given_up(self, second):
        path = '/servers/%s/action' % second
        self._write('An administrator gives it up, so that the reaper leaves '
                    'it alone:\n')
        self._admin.post(path, REBUILD, {'os-resetState': {'state': 'error'}},
                         lambda answer: answer)
        _expect('status', self._server(second)['status'], 'ERROR')
        self._make_room('filler')
        self._api.post(path, REBUILD, {'rebuild': {}}, lambda body: {
            'server': {name: body['server'][name]
                       for name in ('id', 'status')}})
        self._wait_for(second, 'ACTIVE')
        self._client.run('%s server list' % _AT_REBUILD)

    def _make_room(self, name):
        self._client.run('server delete --wait ' + name)
        _expect('servers of the name ' + name, name in self._find(), False)

    def _server(self, server, version=REBUILD):
        return self._api.get('/servers/' + server, version)['server']

    def _find(self):
        servers = self._api.get('/servers', REBUILD)['servers']
        return {server['name']: server for server in servers}

    @staticmethod
    def _notice(server):
        return server['metadata'] if _NOTICE in server['metadata'] else None

    def _wait_for(self, server, status):
        """Wait until a server is no longer built, and check its status."""
        def settled():
            found = self._server(server)['status']
            return found if found != 'BUILD' else None

        _expect('status of the server', self._wait_until(
            'the build of the server %s ends' % server, settled), status)

    def _wait_until_active(self, server):
        """Wait until a server is in ACTIVE, whatever it was in before."""
        def settled():
            found = self._server(server)['status']
            return found if found in ('ACTIVE', 'ERROR') else None

        _expect('status of the server', self._wait_until(
            'the server %s is in ACTIVE' % server, settled), 'ACTIVE')

    def _wait_until(self, what, ready, seconds=_PATIENCE):
        deadline = time.monotonic() + seconds

        def looked():
            if self._stopped:
                raise errors.Stopped('The demonstration was stopped.')
            found = ready()
            if not found and time.monotonic() > deadline:
                raise errors.StepFailed(
                    'Waited %d s in vain until %s.' % (seconds, what))
            return found

        return self._processes.wait_until(what, looked, None, 2 * seconds)

    def _expect_kept(self, server):
        _expect('tags', server['tags'], _TAGS)
        _expect('metadata', server['metadata'], _METADATA)
        _expect('keypair', server['key_name'], _KEY)
        seen = self._admin.get('/servers/' + server['id'], REBUILD)['server']
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
