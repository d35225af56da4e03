# SPDX-License-Identifier: Apache-2.0

"""A cloud in this process: a real Placement, and a stand-in for Nova.

The Nova here does what the reaper sees of the real one: it answers the same
routes in the same form, and moves allocations in Placement as Nova does.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import datetime
from email import utils
import json
import pathlib
import re
import time
from typing import Any
from unittest import mock
from urllib import parse

import fixtures
from keystoneauth1 import plugin
from oslo_utils import timeutils
from oslo_utils import uuidutils
from placement import deploy
from placement.tests.functional.fixtures import placement as placement_fixture
import webob

from nova_reaper.act import holds
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper import conf as reaper_conf
from nova_reaper.report import journal

#: How to log in where nobody listens.
LOGIN = '''
[nova_reaper]
auth_type = password
auth_url = http://127.0.0.1:9/v3
username = reaper
password = secret
[database]
connection = sqlite://
'''

SERVICE = 'service-project'
# As Nova says it.
VOLUMES = (
    'Instance x has volumes that are made when it is built, and they would '
    'belong to the project of this request: rebuild it with a token of the '
    'project that it belongs to.')
# The metadata of a server that is under notice.
NOTICE = {'reaper:terminate_at', 'reaper:for'}
# The tasks that the API sets before it tells the host.
TASKS = {'os-stop': 'powering-off', 'forceDelete': 'deleting',
         'shelve': 'shelving'}
NOW = timeutils.utcnow(True).strftime('%Y-%m-%dT%H:%M:%SZ')


def new_id() -> str:
    return str(uuidutils.generate_uuid())


class Answer:
    """As much of a requests.Response as clients/rest.py looks at."""

    def __init__(self, status: int, content: bytes, reason: str = '') -> None:
        self.status_code = status
        self.content = content
        self.reason = reason
        self.headers: dict[str, str] = {}

    def json(self) -> Any:
        return json.loads(self.content)


class InProcess:
    """An adapter that calls a WSGI application.

    :ivar lost: status that is answered to a request with a method, after it
        has been done
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.log: list[tuple[str, str]] = []
        self.lost: dict[str, int] = {}

    def request(self, path: str, method: str, *, json: Any = None,
                microversion: str | None = None, **_: Any) -> Answer:
        self.log.append((method, path))
        request = webob.Request.blank(path, method=method)
        request.headers['X-Auth-Token'] = 'admin'
        request.headers['OpenStack-API-Version'] = f'placement {microversion}'
        if json is not None:
            request.json = json
            request.content_type = 'application/json'
        response = request.get_response(self.app)
        status = self.lost.pop(method, response.status_code)
        return Answer(status, response.body, response.status)


class Clock(fixtures.Fixture):
    """Lets time pass: both clocks are so many seconds ahead."""

    def __init__(self, offset: Callable[[], float]) -> None:
        self._offset = offset

    def _setUp(self) -> None:
        monotonic, utcnow = time.monotonic, timeutils.utcnow

        def ahead(with_timezone: bool = False) -> datetime.datetime:
            now: datetime.datetime = utcnow(with_timezone)
            return now + datetime.timedelta(seconds=self._offset())

        self.useFixture(fixtures.MockPatch(
            'time.monotonic', lambda: monotonic() + self._offset()))
        self.useFixture(fixtures.MockPatch(
            'oslo_utils.timeutils.utcnow', ahead))


class PlacementFixture(fixtures.Fixture):
    """A real Placement on SQLite, and a client of it."""

    def _setUp(self) -> None:
        fixture = self.useFixture(placement_fixture.PlacementFixture(
            use_intercept=False))
        self.adapter = InProcess(
            deploy.loadapp(fixture.conf_fixture.conf))
        self.client = placement.Client('placement', self.adapter)
        self.placement = placement.Placement(self.client)
        self.holds = holds.Holds(self.placement, SERVICE, 'reaper')

    def add_host(self, name: str, parent: str | None = None,
                 **inventory: int) -> str:
        provider = new_id()
        self.client.request('POST', '/resource_providers', json={
            'name': name, 'uuid': provider, 'parent_provider_uuid': parent})
        self.set_inventory(provider, **inventory)
        return provider

    def set_inventory(self, provider: str, **inventory: int) -> None:
        self._put(provider, 'inventories', {
            key: {'total': value} for key, value in inventory.items()})

    def add_sharing(self, *hosts: str, **inventory: int) -> str:
        """A provider that shares what it has with hosts."""
        provider, aggregate = self.add_host('shares'), new_id()
        self.set_inventory(provider, **inventory)
        self.set_traits(provider, placement.SHARES)
        for uuid in (provider, *hosts):
            self._put(uuid, 'aggregates', [aggregate])
        return provider

    def set_traits(self, provider: str, *traits: str) -> None:
        for trait in traits:
            if trait.startswith('CUSTOM_'):
                self.client.request('PUT', f'/traits/{trait}')
        self._put(provider, 'traits', list(traits))

    def _put(self, provider: str, what: str, value: Any) -> None:
        self.client.request(
            'PUT', f'/resource_providers/{provider}/{what}', json={
                'resource_provider_generation':
                    self.placement.provider(provider).generation,
                what: value})

    def allocate(self, consumer: str, provider: str, project: str,
                 **resources: int) -> None:
        # As Nova does: at a microversion that has no consumer types.
        self.client.request(
            'PUT', f'/allocations/{consumer}', microversion='1.36', json={
                'allocations': {provider: {'resources': resources}},
                'project_id': project, 'user_id': 'user',
                'consumer_generation': None})

    def has(self, consumer: str) -> dict[str, int]:
        """What a consumer has, of all providers together."""
        amounts = self.placement.consumer(consumer).amounts
        return dict(next(iter(amounts.values()), {}))


class Token(plugin.BaseAuthPlugin):
    """A token of a project."""

    def __init__(self, project: str) -> None:
        super().__init__()
        self.project = project


class Nova:
    """Answers the reaper's requests; servers are what the API shows.

    :ivar auth: the token that it is asked with; with_auth() sets another
    :ivar no_token_of: projects of which Keystone gives the reaper no token
    :ivar to_make: servers that volumes are made for when they are built; the
        answer for one that waits says so
    :ivar before: called before a request that matches; what it returns, if
        anything, is the answer
    :ivar access: the projects that may use a flavor, by the ID of one that is
        not for all
    :ivar zones: availability zones by the UUID of an aggregate
    :ivar refused_by: the filter that refuses a host, by its name
    :ivar nowhere: whether a request filter refuses every host to servers that
        are not created
    :ivar clock_off: by how many seconds its clock is ahead
    :ivar slow: what is asked to end does so only with finish()
    :ivar ends_on: the host that ends servers at once in spite of that
    :ivar disabled: names of the hosts that are
    :ivar pinned: by host, how many servers may be there for another to fit
        beside them; NUMATopologyFilter refuses the host while more are
    :ivar most: as pinned, for NumInstancesFilter
    :ivar devices: by host, how many PCI devices of each alias it has; other
        hosts have none
    :ivar cell_down: IDs of servers, and names of hosts, of a cell that Nova
        cannot reach; the hosts of these servers are of the cell, too
    :ivar has_reason: whether it has the last microversion of nova-pending
    :ivar no_bus: no host is told of what is asked for
    :ivar judged: how many hosts each question for a verdict was about
    """

    def __init__(self, room: PlacementFixture, has_reason: bool = True
                 ) -> None:
        self.room = room
        self.servers: dict[str, dict[str, Any]] = {}
        self.gone: list[dict[str, Any]] = []
        self._seen: dict[str, tuple[str, dict[str, Any]]] = {}
        self.hosts: dict[str, str] = {}
        self.flavors: dict[str, dict[str, Any]] = {}
        self.access: dict[str, list[str]] = {}
        self.zones: dict[str, str] = {}
        self.refused_by: dict[str, str] = {}
        self.nowhere = False
        self.reason: dict[str, str] = {}
        self.unavailable: dict[str, str] = {}
        self.message = 'No valid host was found. '
        self.before: list[tuple[str, str, Callable[[], Answer | None]]] = []
        self.calls: list[tuple[str, str]] = []
        self.slow = False
        self.ends_on = ''
        self.no_bus = False
        self.judged: list[int] = []
        self.cell_down: set[str] = set()
        self.disabled: set[str] = set()
        self.pinned: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.devices: dict[str, dict[str, int]] = {}
        self.clock_off = 0.0
        self.auth = Token(SERVICE)
        self.rebuilt_by: list[str] = []
        self.no_token_of: set[str] = set()
        self.to_make: set[str] = set()
        self.asks_also = ''
        self.builds = 'ACTIVE'
        self.adapter = self
        self.has_reason = has_reason
        self.client = nova.Client('nova', self)
        self.nova = nova.Nova(self.client)
        self.owners = nova.Owners(self.nova, SERVICE, self.log_in)

    def log_in(self, project: str) -> Token:
        if project in self.no_token_of:
            raise rest.Forbidden(
                'keystone', 'token', 'The user has no access to the project.',
                401)
        return Token(project)

    # What the adapter does.

    def request(self, path: str, method: str, **more: Any) -> Answer:
        answer = self._answered(path, method, **more)
        answer.headers['Date'] = utils.formatdate(
            timeutils.utcnow(True).timestamp() + self.clock_off, usegmt=True)
        return answer

    def _answered(self, path: str, method: str, *, json: Any = None,
                  **_: Any) -> Answer:
        if self.auth.project in self.no_token_of:
            return self.error(401, 'The request needs authentication.')
        self._note_changes()
        route, _sep, query = path.partition('?')
        what = next(iter(json)) if method == 'POST' and json else ''
        for index, (verb, pattern, call) in enumerate(self.before):
            if verb in (method, what) and re.search(pattern, path):
                del self.before[index]
                answer = call()
                if answer is not None:
                    return answer
                break
        if what and route.endswith('/action'):
            self.calls.append((what, route.split('/')[2]))
        return self._route(method, route, dict(parse.parse_qsl(query)) | {
            name + 's': parse.parse_qs(query).get(name)
            for name in ('host', 'without')}, json)

    def _note_changes(self) -> None:
        """Note when servers changed, or went; metadata are no change."""
        now = _now()
        for uuid in self._seen.keys() - self.servers.keys():
            self.gone.append(self._seen.pop(uuid)[1] | {
                'status': 'DELETED', 'updated': now})
        for uuid, server in self.servers.items():
            shown = json.dumps({
                key: value for key, value in server.items()
                if key not in ('metadata', 'updated')}, default=str)
            before, then = self._seen.get(uuid, (shown, {}))
            if shown != before and server['updated'] == then['updated']:
                server['updated'] = now
            self._seen[uuid] = shown, dict(server)

    def _route(self, method: str, route: str, query: dict[str, Any],
               body: Any) -> Answer:
        parts = route.strip('/').split('/')
        if parts == ['pending']:
            if not self.has_reason:
                return self.error(404, 'The resource could not be found.')
            if method == 'POST':
                return self._judge(**body['pending'])
            return self._answer(pending={'microversions': {
                'pending': '2.105', 'rebuild': '2.106', 'reason': '2.107'}})
        if 'changes-since' in query:
            # That of the servers which are gone is shown as well.
            return self._answer(servers=[
                self._shown(server)
                for server in [*self.servers.values(), *self.gone]
                if server['updated'] >= query['changes-since'] and
                query.get('status') in (None, server['status'])])
        if parts == ['servers']:
            return self._answer(servers=[
                {'id': server} for server in self.servers])
        if parts == ['servers', 'detail']:
            return self._answer(servers=[
                self._shown(server) for server in self.servers.values()
                if server['id'] in self.cell_down or
                query.get('status') in (None, server['status']) and
                query.get('project_id') in (None, server['tenant_id']) and
                (query.get('hosts') or [server['OS-EXT-SRV-ATTR:host']]) == [
                    server['OS-EXT-SRV-ATTR:host']] and
                query.get('flavor') in (
                    None, server['flavor']['original_name'])])
        if parts[0] == 'flavors' and parts[2:] == ['os-flavor-access']:
            return self._answer(flavor_access=[
                {'flavor_id': parts[1], 'tenant_id': project}
                for project in self.access[parts[1]]])
        if parts == ['flavors', 'detail']:
            return self._answer(flavors=[
                flavor | {'os-flavor-access:is_public':
                          flavor['id'] not in self.access}
                for flavor in self.flavors.values()])
        if parts == ['os-hypervisors', 'detail']:
            return self._answer(hypervisors=[
                {'id': provider, 'hypervisor_hostname': name, 'state': 'up',
                 'status': 'disabled' if name in self.disabled else 'enabled',
                 'service': {'host': name}}
                for name, provider in self.hosts.items()])
        server = self.servers.get(parts[1])
        if server is None:
            return self.error(404, 'Instance could not be found.')
        if len(parts) == 2:
            return self._answer(server=self._shown(server))
        if server['id'] in self.cell_down:
            return self.error(500, 'Unexpected API Error.')
        answer: Answer = getattr(self, '_' + parts[2].replace('-', '_'))(
            method, server, query if parts[2] == 'pending' else parts[3:],
            body)
        return answer

    def _shown(self, server: dict[str, Any]) -> dict[str, Any]:
        """What Nova knows of a server; of a cell that is down that is little.
        """
        if server['id'] in self.cell_down:
            return {'id': server['id'], 'status': 'UNKNOWN', 'links': [],
                    'tenant_id': server['tenant_id'],
                    'created': server['created']}
        if server['status'] not in (
                'PENDING', 'ERROR') or server['OS-EXT-SRV-ATTR:host']:
            return server
        return server | {'asked_to_wait': server['asked']}

    def _answer(self, **body: Any) -> Answer:
        return Answer(200, json.dumps(body).encode())

    def error(self, status: int, message: str = 'no') -> Answer:
        return Answer(status, json.dumps(
            {'error': {'code': status, 'message': message}}).encode())

    def _pending(self, method: str, server: dict[str, Any],
                 query: dict[str, Any], body: Any) -> Answer:
        if server['status'] != 'PENDING':
            return self.error(404, 'It does not wait.')
        asked = query['hosts'] or ([] if 'limit' in query else self.hosts)
        reason = self.reason.get(server['id'], 'no_room')
        if query['hosts'] and reason == 'nothing_fits':
            # For single hosts the reason of the last attempt has to do.
            reason = 'no_room'
        self.judged.append(len(asked))
        without = set(query['withouts'] or ())
        if not all(without <= self._servers_on(host) for host in asked):
            return self.error(409, 'The servers x are not on host h.')
        wanted = server['flavor']
        says = ({'rebuild_forbidden': 'Its volumes are of its project.'}
                if server['id'] in self.to_make else {})
        return self._answer(pending=says | {
            'since': NOW, 'attempts': 1 + len(server['actions']),
            'last_attempt': NOW,
            'reason': reason,
            'message': self.message, 'advice': 'Wait.',
            'unavailable': self.unavailable.get(server['id']),
            'requests': [parse.urlencode({'resources': ','.join([
                f'VCPU:{wanted["vcpus"]}', f'MEMORY_MB:{wanted["ram"]}',
                *(f'{name.removeprefix("resources:")}:{value}'
                  for name, value in wanted['extra_specs'].items()
                  if name.startswith('resources:'))])}) + self.asks_also],
            'hosts': [{'host': name, 'uuid': provider,
                       'refused_by': self.refused_by.get(name) or
                       self._by_usage(name, server, without)}
                      for name, provider in self.hosts.items()
                      if name in asked and self.cell_down.isdisjoint(
                          {name} | self._servers_on(name))]})

    def _judge(self, server: dict[str, Any], hosts: Sequence[str],
               without: Collection[str]) -> Answer:
        """What a server that is not created would ask for."""
        flavor, = (flavor for flavor in self.flavors.values()
                   if flavor['id'] == server['flavorRef'])
        zone = server.get('availability_zone')
        aggregates = [uuid for uuid, name in self.zones.items()
                      if name == zone]
        if zone not in (None, 'nova') and not aggregates:
            return self.error(
                400, 'No server can be created from this request: The '
                'requested availability zone is not available')
        there = set().union(*(self._servers_on(host) for host in hosts))
        if not there.issuperset(without):
            return self.error(409, 'The servers x are not on host h.')
        request = shapes.query(nova.NovaServer(
            '', '', server['project_id'], '', 'PENDING', None, '', nova.Flavor(
                flavor['name'], flavor['vcpus'], flavor['ram'],
                flavor['disk'], flavor['ephemeral'], flavor['swap'],
                flavor['extra_specs']), server.get('imageRef', ''),
            timeutils.utcnow(True), timeutils.utcnow(True), None, {}, False))
        if aggregates:
            request += '&' + parse.urlencode(
                {'member_of': f'in:{",".join(aggregates)}'})
        self.judged.append(len(hosts))
        return self._answer(pending={
            'reason': 'refused' if self.nowhere else None,
            'requests': [] if self.nowhere else [request + self.asks_also],
            'hosts': [{'host': name, 'uuid': self.hosts[name],
                       'refused_by': 'require_tenant_aggregate'
                       if self.nowhere else self.refused_by.get(name) or
                       self._by_usage(name, {'flavor': flavor}, without)}
                      for name in hosts if name in self.hosts and
                      name not in self.cell_down]})

    def _by_usage(self, host: str, server: dict[str, Any],
                  without: Collection[str] = ()) -> str | None:
        """The filter that refuses a host for what else is on the host."""
        there = self._servers_on(host).difference(without)
        if len(there) > self.pinned.get(host, len(there)):
            return 'NUMATopologyFilter'
        if len(there) > self.most.get(host, len(there)):
            return 'NumInstancesFilter'
        free = collections.Counter(self.devices.get(host, {}))
        for other in there:
            free.subtract(_devices(self.servers[other]))
        return 'PciPassthroughFilter' if any(
            free[alias] < number for alias, number
            in _devices(server).items()) else None

    def _servers_on(self, host: str) -> set[str]:
        return {uuid for uuid, server in self.servers.items()
                if server['OS-EXT-SRV-ATTR:host'] == host}

    def _os_instance_actions(self, method: str, server: dict[str, Any],
                             rest: list[str], body: Any) -> Answer:
        return self._answer(instanceActions=[
            *reversed(server['actions']), _entry('create', 'user', NOW)])

    def _metadata(self, method: str, server: dict[str, Any],
                  rest: list[str], body: Any) -> Answer:
        # A task is no reason to Nova.
        if server['status'] in ('PENDING', 'ERROR', 'SHELVED_OFFLOADED'):
            return self.error(409, 'Not in this state.')
        if method == 'DELETE':
            if server['metadata'].pop(rest[0], None) is None:
                return self.error(404, 'No such key.')
            return Answer(204, b'')
        server['metadata'].update(body['metadata'])
        return self._answer(metadata=server['metadata'])

    def _action(self, method: str, server: dict[str, Any],
                rest: list[str], body: Any) -> Answer:
        name, value = next(iter(body.items()))
        if name in TASKS and server['OS-EXT-STS:task_state']:
            # What the released API says to it.
            return (Answer(202, b'') if name == 'forceDelete' else
                    self.error(409, 'Not in this state.'))
        if name in TASKS and self.no_bus:
            server['OS-EXT-STS:task_state'] = TASKS[name]
            return self.error(500, 'Unexpected API Error.')
        return {'rebuild': self._rebuild, 'os-resetState': self._reset,
                'os-stop': self._stop, 'os-start': self._start,
                'forceDelete': self._end, 'shelve': self._end,
                'unshelve': self._unshelve}[name](server, value)

    # What becomes of servers.

    def _rebuild(self, server: dict[str, Any], value: Any) -> Answer:
        if server['status'] not in ('PENDING', 'ERROR'):
            return self.error(409, 'It does not wait.')
        if server['locked'] and self.auth.project != SERVICE:
            return self.error(409, 'Instance x is locked')
        if server['id'] in self.to_make and (
                self.auth.project != server['tenant_id']):
            return self.error(403, VOLUMES)
        self.rebuilt_by.append(self.auth.project)
        self._add_action(server, 'rebuild', 'reaper')
        return self._build(server)

    def _add_action(self, server: dict[str, Any], name: str, user: str
                    ) -> None:
        server['actions'].append(_entry(name, user, _now()) | (
            {'project_id': SERVICE} if user == 'reaper' else {}))

    def rebuild_in_vain(self, server: str) -> None:
        """The owner of a server that waits rebuilds it, and it waits on."""
        self._add_action(self.servers[server], 'rebuild', 'user')
        self.servers[server]['asked'] = True

    def _unshelve(self, server: dict[str, Any], value: Any) -> Answer:
        provider = self.hosts[value['host']]
        try:
            self.room.allocate(
                server['id'], provider, server['tenant_id'],
                VCPU=server['flavor']['vcpus'],
                MEMORY_MB=server['flavor']['ram'])
        except rest.Conflict:
            return Answer(202, b'')
        return self._build(server)

    def _build(self, server: dict[str, Any]) -> Answer:
        consumer = self.room.placement.consumer(server['id'])
        if self.builds == 'ERROR':
            # As in the cell of its host, which has given up what it had.
            if consumer.amounts:
                self.room.placement.write([consumer.with_amounts({})])
            server['fault'] = {'message': 'Exceeded maximum number of retries.'
                               ' Exhausted all hosts available.'}
        if self.builds != 'ACTIVE' or not consumer.amounts:
            server['status'] = self.builds.replace('ACTIVE', 'PENDING')
            return Answer(202, b'')
        host = next(name for name, item in self.hosts.items()
                    if item in consumer.amounts)
        if self._by_usage(host, server):
            # As the scheduler, whose filters judge the host of a hold, too.
            server['status'] = 'PENDING'
            return Answer(202, b'')
        # As claim_resources: the owner's name, the type as it was.
        self.room.placement.write([placement.Consumer(
            consumer.id, consumer.amounts, server['tenant_id'], 'user',
            'INSTANCE', consumer.generation)])
        server['status'] = 'ACTIVE'
        server['OS-EXT-SRV-ATTR:host'] = host
        return Answer(202, b'')

    def _reset(self, server: dict[str, Any], value: Any) -> Answer:
        server['status'] = value['state'].upper()
        server['OS-EXT-STS:task_state'] = None
        return Answer(202, b'')

    def _stop(self, server: dict[str, Any], value: Any) -> Answer:
        server['status'] = 'SHUTOFF'
        self._add_action(server, 'stop', 'reaper')
        return Answer(202, b'')

    def _start(self, server: dict[str, Any], value: Any) -> Answer:
        if server['status'] != 'SHUTOFF':
            return self.error(409, 'Not in this state.')
        server['status'] = 'ACTIVE'
        self._add_action(server, 'start', 'reaper')
        return Answer(202, b'')

    def _end(self, server: dict[str, Any], value: Any) -> Answer:
        name = self.calls[-1][0]
        server['ending'] = name
        server['OS-EXT-STS:task_state'] = TASKS[name]
        if not self.slow or server['OS-EXT-SRV-ATTR:host'] == self.ends_on:
            self.finish(server['id'])
        return Answer(202, b'')

    def finish(self, server: str) -> None:
        """A server leaves its host, and takes its allocation with it."""
        consumer = self.room.placement.consumer(server)
        if consumer.amounts:
            self.room.placement.write([consumer.with_amounts({})])
        item = self.servers[server]
        item['OS-EXT-STS:task_state'] = None
        if item.get('ending') == 'shelve':
            item['status'] = 'SHELVED_OFFLOADED'
            item['OS-EXT-SRV-ATTR:host'] = None
        else:
            del self.servers[server]

    def delete(self, server: str) -> None:
        """Its owner deletes a server."""
        self.finish(server)

    def add_host(self, name: str, vcpus: int, ram: int = 0) -> None:
        self.hosts[name] = self.room.add_host(
            name, VCPU=vcpus, MEMORY_MB=ram or vcpus * 1024)

    def add_server(self, name: str, vcpus: int, host: str | None = None, *,
                   status: str = '', preemptible: bool = False,
                   project: str = 'owner', image: bool = True,
                   metadata: dict[str, str] | None = None, asked: bool = True,
                   devices: str = '', **specs: str) -> str:
        """A server on a host, or a server that waits.

        :param devices: what its flavor says of PCI devices
        """
        if preemptible:
            specs['reaper:preemptible'] = 'true'
        if devices:
            specs['pci_passthrough:alias'] = devices
        called = f'm{vcpus}{"p" * preemptible}'
        flavor = {
            'vcpus': vcpus, 'ram': vcpus * 1024, 'disk': 0, 'ephemeral': 0,
            'swap': 0, 'extra_specs': specs,
            'original_name': called}
        self.flavors[called] = flavor | {'id': called, 'name': called}
        server = new_id()
        self.servers[server] = {
            'id': server, 'name': name, 'tenant_id': project,
            'user_id': 'user',
            'status': status or ('ACTIVE' if host else 'PENDING'),
            'OS-EXT-STS:vm_state': 'active', 'OS-EXT-STS:task_state': None,
            'OS-EXT-SRV-ATTR:host': host, 'flavor': flavor,
            'image': {'id': 'image'} if image else '', 'created': NOW,
            'updated': _now(), 'OS-SRV-USG:launched_at': None,
            'metadata': dict(metadata or {}), 'locked': False,
            'asked': asked, 'actions': []}
        if host:
            self.room.allocate(server, self.hosts[host], project,
                               VCPU=vcpus, MEMORY_MB=vcpus * 1024)
        return server


def _devices(server: dict[str, Any]) -> dict[str, int]:
    """The PCI devices that a server was given, or asks for, by alias."""
    said = server['flavor']['extra_specs'].get('pci_passthrough:alias', '')
    return {alias: int(number) for alias, number
            in re.findall(r'([^:,]+):(\d+)(?=,|$)', said)}


def _now() -> str:
    """The time as Nova writes it."""
    now: datetime.datetime = timeutils.utcnow(True)
    return now.strftime('%Y-%m-%dT%H:%M:%SZ')


def _entry(action: str, user: str, time: str) -> dict[str, Any]:
    return {'action': action, 'request_id': 'req', 'project_id': 'owner',
            'user_id': user, 'start_time': time, 'message': None}


def configuration(*files: pathlib.Path, **options: Any
                  ) -> reaper_conf.Configuration:
    """A configuration of files, with these options of the group reaper."""
    conf = reaper_conf.Configuration()
    conf([], project='nova-reaper', default_config_files=[*map(str, files)])
    for name, value in options.items():
        conf.set_override(name, value, group='reaper')
    conf.set_override('connection', 'sqlite://', group='database')
    return conf


def book(conf: reaper_conf.Configuration) -> journal.Journal:
    """A journal in which nothing is written, and nothing is found."""
    made = journal.Journal(conf, lambda record: None)
    made.store = mock.Mock(spec=journal.Store)
    made.asked.set()
    made.store.find.return_value = made.store.open.return_value = []
    made.store.switch.return_value = None
    return made
