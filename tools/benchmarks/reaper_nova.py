# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Nova, for tools/benchmarks/reaper_service.py.

    python -m tools.benchmarks.reaper_nova FILE

It answers what nova-reaper asks Nova and Keystone, in their form and from
memory, and moves allocations in a real Placement as Nova does.
For each demand one of its filters refuses another tenth of the hosts, by
aggregate, capabilities, affinity, NUMA or usage, or the tenth lacks a trait
that the demand requires of Placement. The filters for NUMA and usage accept a
host without servers that are to end. A verdict takes as long as that of
nova-scheduler (tools/benchmarks/pending_verdict.py).
It tells on a real bus what its servers do. The paths below /bench are for the
benchmark: which servers are to wait, and when a rebuild of each was asked for.
"""

import concurrent.futures
import datetime
import json
import re
import sys
import threading
import time
from urllib import parse

from cheroot import wsgi
from oslo_utils import timeutils
import requests

from tools.benchmarks import names

PAGE = 1000
# Seconds that a build and the end of a server take.
BUILD = 0.5
END = 0.2
# Seconds that a verdict takes, for each question and for each of its hosts.
QUESTION, OF_HOST = 0.01, 0.00068
# The demand tells which of these, or a trait, refuses a tenth of the hosts.
FILTERS = ('AggregateInstanceExtraSpecsFilter', 'ComputeCapabilitiesFilter',
           'ServerGroupAntiAffinityFilter', 'NUMATopologyFilter',
           'NumInstancesFilter')
BY_USAGE = FILTERS[-2:]
_THREADS = 32
_LAUNCHED = '2026-01-01T00:00:00Z'


def _filter(demand):
    """Return which filter refuses hosts for a demand, None for a trait."""
    return (*FILTERS, None)[demand // 10 % (len(FILTERS) + 1)]


def _request(flavor, demand):
    """Return the query to Placement for a server of a demand."""
    return {'resources': 'DISK_GB:%(disk)d,MEMORY_MB:%(ram)d,'
                         'VCPU:%(vcpus)d' % flavor} | (
        {} if _filter(demand) else {'required': names.TRAITS[demand % 10]})


def _verdict(host, demand, without):
    name = _filter(demand)
    return {'host': names.host_name(host), 'uuid': names.provider_id(host),
            'refused_by': name if host % 10 == demand % 10 and not (
                without and name in BY_USAGE) else None}


class Nova:
    """What the servers are, and what is done with them."""

    def __init__(self, facts):
        self._facts = facts
        self._placement = facts['placement']
        self._http = requests.Session()
        self._notifier = names.Notifier(facts['bus'])
        self._lock = threading.Lock()
        # The servers of the last list by status and flavor.
        self._listed = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(8)
        self._host_of = {names.provider_id(host): names.host_name(host)
                         for host in range(facts['hosts'])}
        #: what a rebuild was asked for: ID, host, time
        self.log = []
        self.ended = 0
        now = timeutils.utcnow()
        self.servers = {}
        for number in range(facts['waiting']):
            self._add(names.waiting_id(number), 'PENDING',
                      'batch-%d' % (number % names.BATCHES),
                      number // names.BATCHES % names.PROJECTS,
                      created=now - datetime.timedelta(seconds=number))
        for host in range(facts['hosts']):
            for number in range(facts['per_host']):
                self._add(names.spot_id(host, number), 'ACTIVE', 'spot',
                          number % names.PROJECTS, names.host_name(host))

    def _add(self, uuid, status, flavor, project, host='', created=None):
        self.servers[uuid] = (status, flavor, project, host, {}, created and
                              created.strftime('%Y-%m-%dT%H:%M:%SZ'))

    def _put(self, uuid, **changed):
        with self._lock:
            status, flavor, project, host, metadata, created = (
                self.servers[uuid])
            self.servers[uuid] = (
                changed.get('status', status), flavor, project,
                changed.get('host', host),
                changed.get('metadata', metadata), created)

    def _show(self, uuid):
        status, flavor, project, host, metadata, created = self.servers[uuid]
        time = created or _LAUNCHED
        return {
            'id': uuid, 'name': 'server-' + uuid[:8], 'status': status,
            'tenant_id': 'project%d' % project, 'user_id': 'user',
            'OS-EXT-STS:vm_state': status.lower(),
            'OS-EXT-STS:task_state': None, 'OS-EXT-SRV-ATTR:host': host,
            'flavor': names.FLAVORS[flavor], 'image': {'id': 'image'},
            'created': time, 'updated': time,
            'OS-SRV-USG:launched_at': _LAUNCHED if host else None,
            'metadata': metadata, 'locked': False, 'asked_to_wait': True,
            'scheduler_hints': {'demand': self._demand(uuid)},
            'pinned_availability_zone': None}

    def _demand(self, uuid):
        """Return the number that tells servers of different demands apart."""
        number = int(uuid[:8], 16)
        return (number if uuid == names.new_id(number)
                else number % self._facts['demands'])

    # Requests.

    def get_servers(self, query):
        if 'changes-since' in query:
            found = [uuid for uuid, *_ in self.log.copy()
                     if uuid in self.servers]
        else:
            status, flavor = query.get('status'), query.get('flavor')
            # Nova has an index: only the first page looks at all servers.
            if 'marker' not in query or (status, flavor) not in self._listed:
                self._listed[status, flavor] = [
                    uuid for uuid, server in self.servers.copy().items()
                    if status in (None, server[0]) and
                    flavor in (None, server[1])]
            found = self._listed[status, flavor]
        at = found.index(query['marker']) + 1 if 'marker' in query else 0
        page = found[at:at + PAGE]
        answer = {'servers': [self._show(uuid) for uuid in page
                              if uuid in self.servers]}
        if len(found) > at + PAGE:
            answer['servers_links'] = [{'rel': 'next', 'href': (
                'http://nova/servers/detail?' + parse.urlencode(
                    {key: value for key, value in query.items() if value} |
                    {'marker': page[-1]}))}]
        return answer

    def get_server(self, query, uuid):
        return {'server': self._show(uuid)} if uuid in self.servers else None

    def get_pending(self, query, uuid):
        if self.servers.get(uuid, [''])[0] != 'PENDING':
            return None
        flavor = names.FLAVORS[self.servers[uuid][1]]
        at, hosts = int(query.get('marker', 0)), query['hosts']
        links = []
        if 'limit' in query:
            found = []
        elif hosts:
            found = [int(host.removeprefix('compute')) for host in hosts]
        else:
            found = range(at, min(at + PAGE, self._facts['hosts']))
            if found.stop < self._facts['hosts']:
                links = [{'rel': 'next',
                          'href': 'http://nova/?marker=%d' % found.stop}]
        time.sleep(QUESTION + OF_HOST * len(found))
        return {'pending': {
            'since': _LAUNCHED, 'attempts': 1, 'last_attempt': None,
            'reason': 'no_room', 'message': 'No valid host was found. ',
            'advice': 'Wait.', 'requests': [
                parse.urlencode(_request(flavor, self._demand(uuid)))],
            'hosts': [_verdict(host, self._demand(uuid), query['without'])
                      for host in found],
            'hosts_links': links}}

    def get_microversions(self, query):
        return {'pending': {'microversions': {
            'pending': '2.105', 'rebuild': '2.106', 'reason': '2.107'}}}

    def get_hypervisors(self, query):
        at = int(query.get('marker', 0))
        answer = {'hypervisors': [{
            'id': names.provider_id(host),
            'hypervisor_hostname': names.host_name(host),
            'service': {'host': names.host_name(host)}, 'state': 'up',
            'status': 'enabled'} for host in range(
                at, min(at + PAGE, self._facts['hosts']))]}
        if at + PAGE < self._facts['hosts']:
            answer['hypervisors_links'] = [{
                'rel': 'next', 'href': 'http://nova/?marker=%d' % (at + PAGE)}]
        return answer

    def get_flavors(self, query):
        return {'flavors': list(names.FLAVORS.values())}

    def get_projects(self, query):
        return {'projects': [], 'links': {'next': None}}

    def get_version(self, query):
        return {'version': {
            'id': 'v2.1', 'status': 'CURRENT', 'version': '2.107',
            'min_version': '2.1', 'links': [
                {'rel': 'self', 'href': self._facts['url'] + '/v2.1/'}]}}

    def get_identity(self, query):
        return {'version': {'id': 'v3.14', 'status': 'stable', 'links': [
            {'rel': 'self', 'href': self._facts['url'] + '/v3/'}]}}

    def post_token(self, body):
        urls = {'compute': self._facts['url'] + '/v2.1',
                'identity': self._facts['url'] + '/v3',
                'placement': self._placement}
        return {'token': {
            'methods': ['password'], 'expires_at': '2099-01-01T00:00:00Z',
            'issued_at': _LAUNCHED, 'audit_ids': ['x'],
            'user': {'id': 'reaper', 'name': 'reaper', 'domain': {
                'id': 'default', 'name': 'Default'}},
            'project': {'id': names.PROJECT, 'name': 'service', 'domain': {
                'id': 'default', 'name': 'Default'}},
            'roles': [{'id': 'admin', 'name': 'admin'}],
            'catalog': [{'type': kind, 'name': kind, 'id': kind, 'endpoints': [
                {'interface': interface, 'region': 'RegionOne',
                 'region_id': 'RegionOne', 'url': url, 'id': kind}
                for interface in ('internal', 'public')]}
                for kind, url in urls.items()]}}

    def post_action(self, body, uuid):
        [action] = body
        if uuid not in self.servers:
            return None
        if action == 'rebuild':
            self._put(uuid, status='BUILD')
            self._pool.submit(self._build, uuid, time.monotonic())
        elif action == 'forceDelete':
            self._pool.submit(self._end, uuid)
        return {}

    def post_metadata(self, body, uuid):
        self._put(uuid, metadata={**self.servers[uuid][4],
                                  **body['metadata']})
        return {'metadata': {}}

    def delete_metadata(self, uuid, key):
        metadata = dict(self.servers[uuid][4])
        metadata.pop(key, None)
        self._put(uuid, metadata=metadata)
        return {}

    # What follows.

    def _build(self, uuid, asked_at):
        held = self._ask('GET', '/allocations/' + uuid)['allocations']
        host = self._host_of.get(next(iter(held), None), '')
        self.log.append((uuid, host, asked_at))
        time.sleep(BUILD)
        flavor = names.FLAVORS[self.servers[uuid][1]]
        if not host:
            self._put(uuid, status='PENDING')
            self._notifier.tell_waits(uuid)
            return
        # The claim: the room that is held, in the owner's name.
        now = self._ask('GET', '/allocations/' + uuid)
        self._ask('PUT', '/allocations/' + uuid, {
            'allocations': {provider: {'resources': item['resources']}
                            for provider, item in held.items()},
            'project_id': 'project', 'user_id': 'user',
            'consumer_type': 'INSTANCE',
            'consumer_generation': now['consumer_generation']})
        self._put(uuid, status='ACTIVE', host=host)
        self._notifier.tell('instance.create.end', host, uuid, flavor)

    def _end(self, uuid):
        time.sleep(END)
        _status, flavor, _project, host, _metadata, _created = (
            self.servers[uuid])
        self._ask('DELETE', '/allocations/' + uuid)
        with self._lock:
            del self.servers[uuid]
            self.ended += 1
        self._notifier.tell('instance.delete.end', host, uuid,
                            names.FLAVORS[flavor])

    def _ask(self, method, path, body=None):
        return names.ask(self._http, self._placement, method, path, body)

    # For the benchmark.

    def post_wait(self, body):
        for number in range(body['first'], body['first'] + body['count']):
            uuid = (names.new_id if body['new'] else names.urgent_id)(number)
            self._add(uuid, 'PENDING', 'urgent', number % body['projects'],
                      created=timeutils.utcnow())
            self._notifier.tell_waits(uuid)
        return {}

    def get_log(self, query):
        return {'log': self.log, 'ended': self.ended, 'running': sum(
            server[0] == 'ACTIVE' and server[1] == 'urgent'
            for server in list(self.servers.values()))}


_UUID = '([0-9a-f-]{36})'
_ROUTES = [(method, re.compile(path + '/?$'), name) for method, path, name in (
    ('GET', '/v2.1/servers/detail', 'get_servers'),
    ('GET', '/v2.1/servers/' + _UUID, 'get_server'),
    ('GET', '/v2.1/servers/%s/pending' % _UUID, 'get_pending'),
    ('POST', '/v2.1/servers/%s/action' % _UUID, 'post_action'),
    ('POST', '/v2.1/servers/%s/metadata' % _UUID, 'post_metadata'),
    ('DELETE', '/v2.1/servers/%s/metadata/(.*)' % _UUID, 'delete_metadata'),
    ('GET', '/v2.1/pending', 'get_microversions'),
    ('GET', '/v2.1/flavors/detail', 'get_flavors'),
    ('GET', '/v2.1/os-hypervisors/detail', 'get_hypervisors'),
    ('GET', '/v2.1', 'get_version'),
    ('GET', '/v3/projects', 'get_projects'),
    ('POST', '/v3/auth/tokens', 'post_token'),
    ('GET', '/v3', 'get_identity'),
    ('POST', '/bench/wait', 'post_wait'),
    ('GET', '/bench/log', 'get_log'))]


def application(nova):
    """Return the WSGI application."""

    def answer(environ, start_response):
        method, path = environ['REQUEST_METHOD'], environ['PATH_INFO']
        for wanted, pattern, name in _ROUTES:
            match = wanted == method and pattern.match(path)
            if match:
                break
        else:
            start_response('404 Not Found', [('Content-Length', '0')])
            return []
        given = []
        if method == 'GET':
            query = parse.parse_qs(environ['QUERY_STRING'])
            given = [{key: values[-1] for key, values in query.items()} | {
                'hosts': query.get('host'),
                'without': query.get('without')}]
        elif method == 'POST':
            given = [json.loads(environ['wsgi.input'].read(
                int(environ['CONTENT_LENGTH'])))]
        found = getattr(nova, name)(*given, *match.groups())
        body = b'{}' if found is None else (
            found if isinstance(found, str) else json.dumps(found)).encode()
        start_response('404 Not Found' if found is None else '200 OK', [
            ('Content-Type', 'application/json'),
            ('Content-Length', str(len(body))), ('X-Subject-Token', 'admin')])
        return [body]

    return answer


def main():
    with open(sys.argv[1]) as file:
        facts = json.load(file)
    server = wsgi.Server(('127.0.0.1', facts['port']), application(
        Nova(facts)), numthreads=_THREADS)
    server.safe_start()


if __name__ == '__main__':
    main()
