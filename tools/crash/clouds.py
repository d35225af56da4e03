# SPDX-License-Identifier: Apache-2.0

"""The cloud with faults, as those see it who use it and who run it."""

import concurrent.futures
import contextlib
import functools
import os
import time

from keystoneauth1 import exceptions
import sqlalchemy

import nova_pending
import nova_pending_releases
from tools.cloud import configuration
from tools.cloud import identity
from tools.cloud import ports
from tools.cloud import settings
from tools.crash import crashing
from tools.crash import faults

_VERSION = nova_pending_releases.microversions(
    nova_pending.check_environment())['rebuild']

_TRAIT = 'CUSTOM_CRASH_ROOM'
_CIDR = '10.0.0.0/16'
# Neutron gives no address outside the pool to a server that names none.
_POOL = {'start': '10.0.255.1', 'end': '10.0.255.254'}


class Cloud:
    """A cloud with faults, as its users and its operator see it.

    :param cloud: the crashing.Stack, which is not up yet; by default a Stack
        by the variables of the environment
    :param pci: the ``pci`` of settings.Settings of the default Stack, whose
        directory has a name that ends with this word
    """

    #: Of the flavor. A host has room for as many servers as there are.
    extra_specs = {'resources:VCPU': '0'}
    #: Of the flavor.
    vcpus = 1

    def __init__(self, cloud=None, pci=None):
        state = os.environ.get('CRASH_STATE_DIR')
        self._stack = cloud or crashing.Stack(
            os.environ.get('CLOUD_DATABASE_URL', settings.DATABASE_URL),
            os.environ.get('CLOUD_BUS_URL', settings.BUS_URL),
            '%s-%s' % (state, pci) if state and pci else state,
            keep=bool(state), reaper=True, pci=pci)
        self._numbers = iter(range(10, 60000))
        self.check = self._stack.check
        self.down = self._stack.down
        self.kill = self._stack.kill
        self.pause = self._stack.pause
        self.resume = self._stack.resume

    def up(self):
        """Bring it up, with what a server needs."""
        # No proxy stands between the services, nor between them and us.
        os.environ['no_proxy'] = os.environ['NO_PROXY'] = ports.HOST
        self._stack.up(lambda name, seconds: None)
        self.settings = self._stack.settings
        self.faults = self.settings.var / 'faults'
        self.owner = identity.connect(self.settings, configuration.OWNER)
        self.admin = identity.connect(self.settings, configuration.ADMIN)
        self._prepare()

    def _prepare(self):
        self.request('placement', 'PUT', '/traits/' + _TRAIT, admin=True)
        self.image = self.request('glance', 'POST', '/v2/images', {
            'name': 'crash', 'disk_format': 'raw', 'visibility': 'public',
            'container_format': 'bare'}, admin=True).json()['id']
        self.admin.put(
            '%s/v2/images/%s/file' % (self.settings.url('glance'), self.image),
            data=b'\0' * 1024,
            headers={'Content-Type': 'application/octet-stream'})
        flavor = self.make_flavor('crash', self.vcpus, **{
            'trait:' + _TRAIT: 'required', **self.extra_specs})
        self.network = self.request('neutron', 'POST', '/v2.0/networks', {
            'network': {'name': 'crash'}}).json()['network']['id']
        self.request('neutron', 'POST', '/v2.0/subnets', {'subnet': {
            'network_id': self.network, 'ip_version': 4,
            'enable_dhcp': False, 'cidr': _CIDR,
            'allocation_pools': [_POOL]}})
        # Later versions make no key.
        self.nova('POST', '/os-keypairs', {'keypair': {'name': 'crash'}},
                  version='2.91')
        self._body = {
            'name': 'crash', 'flavorRef': flavor,
            'key_name': 'crash', 'tags': ['blue'],
            'metadata': {'purpose': 'crash'}}

    # What anybody asks.

    def request(self, api, method, path, body=None, admin=False,
                version=_VERSION, fails=False):
        """Send a request, and return the answer.

        :param fails: whether to return an answer that says that it failed
        :raises: ConnectFailure, HttpError
        """
        return (self.admin if admin else self.owner).request(
            self.settings.url(api) + path, method, json=body,
            raise_exc=not fails, headers={'OpenStack-API-Version': {
                'nova': 'compute ' + version, 'cinder': 'volume 3.59',
                'placement': 'placement 1.39'}.get(api, 'none')})

    def nova(self, method, path, body=None, **kwargs):
        """Send a request to Nova, again for as long as it is not there."""
        def answer():
            # An answer that says that it failed is false.
            with contextlib.suppress(exceptions.ConnectFailure):
                return [self.request('nova', method, path, body, **kwargs)]

        return self.wait_for('an answer of nova-api', answer)[0]

    @staticmethod
    def wait_for(what, ready, seconds=150):
        """Wait until something is true, and return it."""
        deadline = time.monotonic() + seconds
        while True:
            # A last look, however long the look before has taken.
            late = time.monotonic() > deadline
            result = ready()
            if result:
                return result
            if late:
                raise AssertionError(
                    'Waited %d s in vain for %s.' % (seconds, what))
            time.sleep(0.25)

    # Servers.

    def set_room(self, room):
        """Say whether any host has room for a server."""
        for provider in self.request(
                'placement', 'GET', '/resource_providers', admin=True
        ).json()['resource_providers']:
            self.wait_for('the provider', functools.partial(
                self._set_trait, '/resource_providers/%s/traits'
                % provider['uuid'], room))

    def _set_trait(self, path, room):
        found = self.request('placement', 'GET', path, admin=True).json()
        traits = set(found['traits']) - {_TRAIT}
        return self.request('placement', 'PUT', path, {
            'traits': sorted(traits | ({_TRAIT} if room else set())),
            'resource_provider_generation':
                found['resource_provider_generation']},
            admin=True, fails=True).ok

    def make_flavor(self, name, vcpus=1, **extra_specs):
        """Return the ID of a flavor."""
        flavor = self.nova('POST', '/flavors', {'flavor': {
            'name': name, 'vcpus': vcpus, 'ram': 1, 'disk': 1}}, admin=True
        ).json()['flavor']['id']
        self.nova('POST', '/flavors/%s/os-extra_specs' % flavor, {
            'extra_specs': extra_specs}, admin=True)
        return flavor

    def make_port(self):
        """Return a port with an address of its own."""
        return self.request('neutron', 'POST', '/v2.0/ports', {'port': {
            'network_id': self.network, 'fixed_ips': [
                {'ip_address': '10.0.%d.%d' % divmod(
                    next(self._numbers), 250)}]}}).json()['port']

    def make_volume(self, **options):
        """Return the ID of a volume.

        :param options: what Cinder is asked for beside its size
        """
        volumes = '/%s/volumes' % self.owner.get_project_id()

        def status(volume):
            return self.request('cinder', 'GET', '%s/%s' % (
                volumes, volume)).json()['volume']['status']

        def make():
            volume = self.request('cinder', 'POST', volumes, {
                'volume': {'size': 1, **options}}).json()['volume']['id']
            if self.wait_for('the volume', lambda: status(volume) in (
                    'available', 'error') and status(volume)) == 'available':
                return volume
            # Cinder has no backend as long as none has told of itself.
            self.delete_volume(volume)

        return self.wait_for('a volume that is not in error', make)

    def delete_volume(self, volume):
        """Delete a volume, which no server must have."""
        self.request('cinder', 'DELETE', '/%s/volumes/%s' % (
            self.owner.get_project_id(), volume))

    def make_waiting(self, *asked_for):
        """Return the IDs of servers that wait.

        :param asked_for: of each server the network, the ID of a volume or
            None, and the block device that it boots from if not a local disk
        """
        self.set_room(False)
        servers = self.at_once(*(functools.partial(
            self._create, *each) for each in asked_for))
        for server in servers:
            self.wait_for('server %s to wait' % server, functools.partial(
                self.is_waiting, server))
        return servers

    def create(self, *volumes):
        """Create servers at the same time, each with a volume.

        :returns: their IDs
        """
        return self.at_once(*(functools.partial(
            self._create, {'uuid': self.network}, volume)
            for volume in volumes))

    def _create(self, *asked):
        return self.nova('POST', '/servers', self._request_for(*asked)
                         ).json()['server']['id']

    def _request_for(self, network, volume=None, root=None):
        """Return the body of a create."""
        devices = [
            {'boot_index': 0, **(root or {
                'uuid': self.image, 'source_type': 'image',
                'destination_type': 'local'})},
            *([{'boot_index': -1, 'uuid': volume, 'source_type': 'volume',
                'destination_type': 'volume'}] if volume else [])]
        return {'server': {
            **self._body, 'imageRef': '' if root else self.image,
            'networks': [network], 'block_device_mapping_v2': devices}}

    def show(self, server):
        """Return a server, None if there is none."""
        def answer():
            # An answer that nova-api failed says nothing of the server.
            answer = self.nova('GET', '/servers/' + server, fails=True)
            return answer.status_code < 500 and [answer]

        answer = self.wait_for('server %s to be shown' % server, answer)[0]
        return None if answer.status_code == 404 else answer.json()['server']

    def is_waiting(self, server):
        """Return a server if it waits without a task, else a false value."""
        shown = self.show(server)
        return (shown['status'] in ('PENDING', 'ERROR') and
                not shown['OS-EXT-STS:task_state'] and shown)

    def rebuild(self, server):
        """Ask for a rebuild.

        :returns: the status of the answer, None if there was none
        """
        try:
            return self.request(
                'nova', 'POST', '/servers/%s/action' % server,
                {'rebuild': {}}, fails=True).status_code
        except exceptions.ConnectFailure:
            return None

    def set_error(self, server):
        """Set a server to ERROR, as an administrator."""
        self.nova('POST', '/servers/%s/action' % server,
                  {'os-resetState': {'state': 'error'}}, admin=True)

    def delete(self, server):
        """Delete a server, and wait until it is gone."""
        answer = self.nova('DELETE', '/servers/' + server, fails=True)
        # A repeated request can find the server gone.
        if answer.status_code not in (204, 404):
            raise AssertionError('The delete of %s is answered with %d: %s' % (
                server, answer.status_code, answer.text))
        self.wait_for('the end of server %s' % server,
                      lambda: not self.show(server))

    @staticmethod
    def at_once(*functions):
        """Call functions at the same time, and return what they return."""
        with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
            return [future.result() for future in [
                pool.submit(function) for function in functions]]

    # The operator.

    def arm(self, where, how, count=1):
        """Tell the services to fail (faults.arm)."""
        faults.arm(self.faults, where, how, count)

    def disarm(self):
        """Forget all faults, and let processes go that a fault holds."""
        faults.disarm(self.faults)

    def wait_reached(self, where):
        """Wait until the services have failed there."""
        self.wait_for(where, lambda: faults.reached(self.faults, where))

    @contextlib.contextmanager
    def recovery(self):
        """Have the periodic recovery run within a with block."""
        path = self.faults / faults.RECOVERY
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    def recover_by_command(self):
        """Run ``nova-manage pending recover``."""
        self._stack.services.command(
            'nova-manage', 'nova-manage', '--config-file',
            self.settings.etc / 'nova/nova.conf', 'pending', 'recover',
            '--older-than', '0')

    def cut_connections(self):
        """End the connections to Nova's databases, as their server can."""
        with self._engine('nova').connect() as connection:
            for (number,) in connection.exec_driver_sql(
                    'SELECT id FROM information_schema.processlist '
                    'WHERE db IN (%s, %s, %s) AND id <> CONNECTION_ID()',
                    tuple(sqlalchemy.make_url(
                        self.settings.databases.url(name)).database
                        for name in ('nova', 'nova_api', 'nova_cell0'))
            ).all():
                # It can have ended by itself.
                with contextlib.suppress(sqlalchemy.exc.DBAPIError):
                    connection.exec_driver_sql('KILL %d' % number)

    # What is stored.

    @functools.cache
    def _engine(self, database):
        return sqlalchemy.create_engine(
            self.settings.databases.url(database),
            poolclass=sqlalchemy.NullPool)

    def rows(self, database, statement, server):
        """Return what a SELECT finds of a server."""
        with self._engine(database).connect() as connection:
            return [tuple(row) for row in connection.execute(
                sqlalchemy.text(statement), {'server': server})]

    def leftovers(self, server):
        """Return what a server has that nobody would miss.

        That is what a server that waits in cell0 or is deleted must not have.
        """
        instances = ('SELECT vm_state, task_state, host FROM instances '
                     'WHERE uuid = :server AND deleted = 0')
        found = {
            'allocations': self.request(
                'placement', 'GET', '/allocations/' + server, admin=True
            ).json()['allocations'],
            'ports': self.request(
                'neutron', 'GET', '/v2.0/ports?device_id=' + server,
                admin=True).json()['ports'],
            'build request': self.rows(
                'nova_api', 'SELECT id FROM build_requests '
                'WHERE instance_uuid = :server', server),
            'instance in a cell': self.rows('nova', instances, server)}
        if not self.show(server):
            found['attachments'] = self.attachments(server)
            found['instance in cell0'] = self.rows(
                'nova_cell0', instances, server)
        return {what: value for what, value in found.items() if value}

    def attachments(self, server):
        """Return the states of the attachments that a server has in Cinder."""
        return [row[0] for row in self.rows(
            'cinder', 'SELECT attach_status FROM volume_attachment '
            'WHERE instance_uuid = :server AND deleted = 0', server)]

    def log_of(self, host):
        """Return what the nova-compute of a host has logged."""
        return (self.settings.state / 'log' / (
            'nova-compute@%s.log' % host)).read_text(errors='replace')

    def builds(self, server):
        """Return how often a host has built a server.

        A host that was killed as soon as it had saved the server told only of
        the guest.
        """
        mark = '[instance: %s] Took' % server
        told = [line for host in self.settings.hosts
                for line in self.log_of(host).splitlines() if mark in line]
        built = sum('seconds to build instance' in line for line in told)
        return built or min(1, sum(
            'seconds to spawn the instance' in line for line in told))
