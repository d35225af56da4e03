# SPDX-License-Identifier: Apache-2.0

"""The cloud of the campaign, and what stands of a server in all of it."""

import collections
import contextlib
import functools
import os
import signal

from keystoneauth1 import exceptions
from oslo_utils import timeutils

from tools.cloud import reaper
from tools.cloud import settings
from tools.crash import clouds
from tools.crash import crashing
from tools.crash import faults

from tools.chaos import judge

#: Servers of the cloud's own, which may be killed.
PRIVATE = ('mariadb', 'rabbitmq')

#: These are not a service, but fail like a service.
CONNECTIONS = 'database-connections'

# For so long, in seconds, the bus keeps what a scheduler is asked for.
_LONG_RPC_TIMEOUT = 120

# Seconds between two runs of the recovery.
_SPACING = 4

# For so long, in seconds, a host waits for a volume that it makes.
_VOLUME_SECONDS = 60

_PROVIDERS = '/resource_providers'


class Cloud(clouds.Cloud):
    """The cloud, in which the recovery runs all the time.

    :param timeout: [conductor] rebuild_in_cell0_timeout
    :param rpc_timeout: [DEFAULT] rpc_response_timeout
    :param private: whether it has a database server and a bus of its own
    :param on_hosts: whether its hosts have nova-pending
    :param vcpus: how many VCPUs a server that waits needs
    :param state_dir: where its logs are to stay, or None
    :param choices: what settings.Settings has else
    """

    def __init__(self, timeout, rpc_timeout, private=False, on_hosts=False,
                 state_dir=None, vcpus=1, **choices):
        if 'host_vcpus' in choices:
            # There is no room but that.
            self.extra_specs = {}
        self.vcpus = vcpus
        self._on_hosts = on_hosts
        #: The Asked of the preemptible servers, which stay from round to
        #: round.
        self.victims = []
        urls = (None, None) if private else (
            os.environ.get('CLOUD_DATABASE_URL', settings.DATABASE_URL),
            os.environ.get('CLOUD_BUS_URL', settings.BUS_URL))
        stack = crashing.Stack(*urls, state_dir, keep=bool(state_dir),
                               conductors=2, **choices)
        stack.service_class = functools.partial(
            crashing.Services, timeout=timeout, rpc_timeout=rpc_timeout,
            long_rpc_timeout=_LONG_RPC_TIMEOUT, spacing=_SPACING,
            on_hosts=on_hosts)
        super().__init__(stack)

    @property
    def services(self):
        """Return the names of what can fail."""
        return sorted([*self._stack.names, CONNECTIONS])

    def fail(self, service, signum):
        """Kill a service, or send another signal to all its processes."""
        if service != CONNECTIONS:
            self.send(service, signum)
        elif signum != signal.SIGCONT:
            self.cut_connections()

    def _prepare(self):
        super()._prepare()
        (self.faults / faults.RECOVERY).touch()
        project = self.owner.get_project_id()
        self.nova('PUT', '/os-quota-sets/' + project, {'quota_set': {
            'instances': -1, 'cores': -1, 'ram': -1}}, admin=True)
        self.request('cinder', 'PUT', '/%s/os-quota-sets/%s' % (
            self.admin.get_project_id(), project), {'quota_set': {
                'volumes': -1, 'gigabytes': -1}}, admin=True)

    def send(self, service, signum):
        """Send a signal to all processes of a service, if it runs."""
        process = self._stack.processes.running().get(service)
        for pid in process.members() if process else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def journal(self, kind, since):
        """Return the records of a kind, as an administrator reads them.

        :param since: the time of the oldest, as text
        """
        return self.admin.get(
            '%s/v1/history?all_projects=true&limit=1000&kind=%s&since=%s' % (
                reaper.url(self.settings), kind, since)).json()['history']

    def set_reaper(self, mode, **options):
        """Let nova-reaper be in a mode, and have other options."""
        reaper.change(self.settings, self._stack.processes, mode=mode,
                      **options)
        self.wait_for('the reaper to be in the mode ' + mode,
                      lambda: reaper.is_ready(self.settings, mode))

    def wake_up(self):
        """Let all services go on that hang, and wait until all run."""
        for service in self._stack.names:
            self.send(service, signal.SIGCONT)
        self.wait_for('all services', lambda: all(
            process and process.alive for process in map(
                self._stack.processes.running().get, self._stack.names)), 300)

    # Servers.

    def make(self, *kinds):
        """Return an Asked of each of some servers that wait.

        :param kinds: what they are, each one of draw.KINDS
        """
        parts = self.at_once(*(functools.partial(self._parts, kind)
                               for kind in kinds))
        servers = self.make_waiting(*(asked for asked, _port, _vols in parts))
        return [judge.Asked(server, kind, port, volumes, self.show(server))
                for server, kind, (_, port, volumes) in zip(
                    servers, kinds, parts)]

    def _parts(self, kind):
        """Return what a server is asked for with, its port and its volumes."""
        port = self.make_port()['id'] if kind == 'port' else None
        asked = [{'port': port} if port else {'uuid': self.network}]
        if kind == 'volume':
            asked.append(self.make_volume())
            return asked, port, (asked[-1],)
        if kind == 'root volume':
            volume = self.make_volume(imageRef=self.image)
            return [*asked, None, {
                'uuid': volume, 'source_type': 'volume',
                'destination_type': 'volume'}], port, (volume,)
        if kind == 'image volume':
            asked += [None, {
                'uuid': self.image, 'source_type': 'image', 'volume_size': 1,
                'destination_type': 'volume', 'delete_on_termination': True}]
        return asked, port, ()

    def make_victims(self):
        """Fill the hosts with preemptible servers.

        Half of them are shelved when they are ended, the others are deleted.
        """
        number = len(self.settings.hosts) * self.settings.host_vcpus
        kinds = [judge.SHELVED if each % 2 else judge.DELETED
                 for each in range(number)]
        for victim in self.victims:
            kinds.remove(victim.kind)
        # Placement may let racing claims take more than a provider has: its
        # retry reads the new generation of the provider, and the usage in the
        # snapshot of a transaction that began before (REPEATABLE READ).
        for kind in kinds:
            server = self._make_victim(self._victim_flavors[kind])
            self.victims.append(
                judge.Asked(server, kind, None, (), self.show(server)))

    def _make_victim(self, flavor):
        server = self.nova('POST', '/servers', {'server': {
            'name': 'victim', 'imageRef': self.image, 'flavorRef': flavor,
            'networks': 'none'}}).json()['server']['id']
        self.wait_for('preemptible server %s' % server, lambda: self.show(
            server)['status'] == 'ACTIVE')
        return server

    @functools.cached_property
    def _victim_flavors(self):
        return {kind: self.make_flavor('victim-' + action, **{
            'reaper:preemptible': 'true', 'reaper:action': action})
            for kind, action in ((judge.SHELVED, 'shelve'),
                                 (judge.DELETED, 'delete'))}

    def create_another(self, name, kind):
        """Ask once for a server; whether it was created is found by its name.

        :param kind: one of draw.CREATED
        :returns: the status of the answer, None if there was none, and the ID
            of its owner's port or None
        """
        asked, port, _volumes = self._parts(kind)
        body = self._request_for(*asked)
        body['server']['name'] = name
        try:
            return self.request('nova', 'POST', '/servers', body,
                                fails=True).status_code, port
        except exceptions.ConnectFailure:
            return None, port

    def find_named(self, name):
        """Return the IDs of the servers of a name."""
        return [server['id'] for server in self.nova(
            'GET', '/servers?name=^%s$' % name).json()['servers']]

    def are_hosts_asked(self):
        """Say whether messages to a nova-compute have not been taken yet."""
        return any(self.settings.bus.messages('compute.' + host)
                   for host in self._hosts().values())

    def unmake(self, asked):
        """Delete what the owner had made for a server that is deleted.

        :returns: whether its port was there
        """
        for volume in asked.volumes:
            self.delete_volume(volume)
        return asked.port is None or self.delete_port(asked.port)

    def delete_port(self, port):
        """Delete a port; return whether it was there."""
        return self.request('neutron', 'DELETE', '/v2.0/ports/' + port,
                            fails=True).ok

    # What stands.

    def look(self, server):
        """Return a judge.Found of a server."""
        records = [
            (cell, *row) for cell, database in (
                ('cell0', 'nova_cell0'), ('cell1', 'nova'))
            for row in self.rows(
                database, 'SELECT task_state, host FROM instances '
                'WHERE uuid = :server AND deleted = 0', server)]
        shown = self.show(server)
        body = self.request(
            'placement', 'GET', '/allocations/' + server, admin=True).json()
        specs = self.rows(
            'nova_api', 'SELECT spec FROM request_specs '
            'WHERE instance_uuid = :server', server)
        allocations = tuple(sorted(
            self._hosts()[provider] for provider in body['allocations']))
        return judge.Found(
            shown=shown, records=tuple(records), allocations=allocations,
            is_stripped=not allocations and not self._on_hosts and any(
                'Deleted allocations for instance ' + server in
                self.log_of(host) for _cell, _state, host in records if host),
            cells=tuple(cell for cell, in self.rows(
                'nova_api', 'SELECT cell_mappings.name FROM instance_mappings '
                'LEFT JOIN cell_mappings ON cell_id = cell_mappings.id '
                'WHERE instance_uuid = :server AND queued_for_delete = 0',
                server)),
            build_requests=len(self.rows(
                'nova_api', 'SELECT id FROM build_requests '
                'WHERE instance_uuid = :server', server)),
            keeps_request=all('"nova_pending.rebuild_data"' in spec
                              for spec, in specs),
            held=body.get('consumer_type') == 'NOVA_PENDING',
            ports=tuple((port['id'], port['binding:host_id'])
                        for port in self.request(
                            'neutron', 'GET', '/v2.0/ports?device_id=%s' %
                            server, admin=True).json()['ports']),
            attachments=tuple(self.rows(
                'cinder', 'SELECT volume_id, attach_status '
                'FROM volume_attachment WHERE instance_uuid = :server '
                'AND deleted = 0', server)),
            builds=self.builds(server))

    @functools.cache
    def _hosts(self):
        return {provider['uuid']: provider['name'] for provider
                in self.request('placement', 'GET', _PROVIDERS, admin=True
                                ).json()['resource_providers']}

    def delete_orphans(self, known, killed_at):
        """Delete the volumes that a host was making as it was killed.

        The released nova-compute waits for a volume that it makes, and until
        then nobody else knows of it.

        :param known: the IDs of the volumes that are an owner's
        :param killed_at: when a nova-compute was killed, seconds of the epoch
        :returns: how many there were
        """
        orphans = [volume['id'] for volume in self.request(
            'cinder', 'GET', '/%s/volumes/detail' %
            self.owner.get_project_id()).json()['volumes']
            if volume['id'] not in known and not volume['attachments'] and any(
                0 < at - timeutils.parse_isotime(
                    volume['created_at']).timestamp() < _VOLUME_SECONDS
                for at in killed_at)]
        for volume in orphans:
            self.delete_volume(volume)
        return len(orphans)

    def leaks(self):
        """Return what no server has, as judge.left() does."""
        found = []
        victims = {victim.server for victim in self.victims}
        for provider, host in self._hosts().items():
            consumers, usages = (self.request(
                'placement', 'GET', '%s/%s/%s' % (_PROVIDERS, provider, what),
                admin=True).json()[what] for what in ('allocations', 'usages'))
            found += [('left behind', 'an allocation of %s' % consumer)
                      for consumer in consumers if consumer not in victims]
            # Placement can count what it does not show.
            known = collections.Counter()
            for consumer in consumers.values():
                known.update(consumer['resources'])
            if {name: used for name, used in usages.items() if used} != known:
                found.append(('left behind', '%s is used: %s' % (
                    host, usages)))
        for api, path, what in (
                ('neutron', '/v2.0/ports', 'ports'),
                ('cinder', '/%s/volumes' % self.owner.get_project_id(),
                 'volumes')):
            found += [('left behind', 'of the %s %s' % (what, each['id']))
                      for each in self.request(api, 'GET', path).json()[what]]
        return found
