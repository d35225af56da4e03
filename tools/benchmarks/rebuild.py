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

"""What a rebuild in cell0 costs beside a create, and beside delete + create.

    python -m tools.benchmarks.rebuild [--rounds N] [--batch N]

It brings up the local cloud (tools/cloud: each service a process of its own,
MariaDB, RabbitMQ) and does three things in turn, so that a busy machine slows
all of them down alike:

create           a server is created, until it is ACTIVE
rebuild          a server that waits in cell0 is rebuilt, until it is ACTIVE
delete + create  a server that waits in cell0 is deleted, and created anew as
                 soon as it is gone

All three make the same server, with a port, a keypair, a tag and metadata.
Printed are the medians of the seconds, in the API alone and until ACTIVE, and
of the SQL statements and RPC messages of the requests, in Nova as well as in
what it calls; then how many servers a second a batch makes, one after another
and all at once. Nothing is asserted.
"""

import argparse
import collections
from concurrent import futures
import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
import time

from tools.cloud import configuration
from tools.cloud import identity
from tools.cloud import settings
from tools.cloud import stack

_TRAIT = 'CUSTOM_BENCHMARK_ROOM'
_POLL_SECONDS = 0.05
_AT_ONCE = 16
_KINDS = ('sql', 'call', 'cast')

Measure = collections.namedtuple('Measure', 'api active counts')


class Workload:
    """The servers of the benchmark on one cloud.

    :param cloud: the settings.Settings of a cloud that is up
    :param counts: the file that the services note their work in
    """

    def __init__(self, cloud, counts):
        self._counts = counts
        self._cloud = cloud
        self._owner = identity.connect(cloud, configuration.OWNER)
        self._admin = identity.connect(cloud, configuration.ADMIN)
        self._body = self._prepare()

    def _prepare(self):
        """Make what a server needs, and return the body of its create."""
        owner, admin = self._owner, self._admin
        project = owner.get_project_id()
        self._nova(admin, 'PUT', '/os-quota-sets/' + project, {'quota_set': {
            name: -1 for name in ('instances', 'cores', 'ram')}})
        self._request(admin, 'neutron', 'PUT', '/v2.0/quotas/' + project,
                      {'quota': {'port': -1}})
        self._request(admin, 'placement', 'PUT', '/traits/' + _TRAIT)
        image = self._request(admin, 'glance', 'POST', '/v2/images', {
            'name': 'benchmark', 'disk_format': 'raw', 'visibility': 'public',
            'container_format': 'bare'}).json()['id']
        admin.put(self._cloud.url('glance') + '/v2/images/%s/file' % image,
                  data=b'\0' * 1024, headers={
                      'Content-Type': 'application/octet-stream'})
        flavor = self._nova(admin, 'POST', '/flavors', {'flavor': {
            'name': 'benchmark', 'vcpus': 1, 'ram': 1, 'disk': 1}}
        ).json()['flavor']['id']
        self._nova(admin, 'POST', '/flavors/%s/os-extra_specs' % flavor, {
            'extra_specs': {'resources:VCPU': '0',
                            'trait:' + _TRAIT: 'required'}})
        network = self._request(owner, 'neutron', 'POST', '/v2.0/networks', {
            'network': {'name': 'benchmark'}}).json()['network']['id']
        self._request(owner, 'neutron', 'POST', '/v2.0/subnets', {'subnet': {
            'network_id': network, 'ip_version': 4, 'enable_dhcp': False,
            'cidr': '10.0.0.0/16'}})
        self._nova(owner, 'POST', '/os-keypairs', {'keypair': {
            'name': 'benchmark', 'type': 'ssh', 'public_key': _public_key()}})
        return {'server': {
            'name': 'benchmark', 'imageRef': image, 'flavorRef': flavor,
            'networks': [{'uuid': network}], 'key_name': 'benchmark',
            'tags': ['blue'], 'metadata': {'purpose': 'benchmark'}}}

    def set_room(self, room):
        """Say whether any host has room for a server."""
        for provider in self._request(
                self._admin, 'placement', 'GET', '/resource_providers'
        ).json()['resource_providers']:
            path = '/resource_providers/%s/traits' % provider['uuid']
            found = self._request(
                self._admin, 'placement', 'GET', path).json()
            traits = set(found['traits']) - {_TRAIT}
            self._request(self._admin, 'placement', 'PUT', path, {
                'traits': sorted(traits | ({_TRAIT} if room else set())),
                'resource_provider_generation':
                    found['resource_provider_generation']})

    def create(self):
        """Ask for a server.

        :returns: the server, and the ID of the request
        """
        answer = self._nova(self._owner, 'POST', '/servers', self._body)
        return (answer.json()['server']['id'],
                answer.headers['x-openstack-request-id'])

    def rebuild(self, server):
        """Ask for the rebuild of a server.

        :returns: the server, and the ID of the request
        """
        answer = self._nova(self._owner, 'POST',
                            '/servers/%s/action' % server, {'rebuild': {}})
        return server, answer.headers['x-openstack-request-id']

    def delete(self, server):
        """Ask for the end of a server.

        :returns: the ID of the request
        """
        return self._nova(self._owner, 'DELETE', '/servers/' + server
                          ).headers['x-openstack-request-id']

    def make_waiting(self):
        """Return a server that waits in cell0, while there is no room."""
        return self.wait(self.create()[0], 'PENDING')

    def delete_and_wait(self, server):
        """Delete a server, and wait until it is gone, as clients do.

        :returns: the server, and the ID of the request
        """
        request = self.delete(server)
        while self._nova(self._owner, 'GET', '/servers/' + server,
                         gone=True).ok:
            time.sleep(_POLL_SECONDS)
        return server, request

    def wait(self, server, status):
        """Wait until a server has a status, and return the server."""
        while True:
            found = self._nova(self._owner, 'GET', '/servers/' + server
                               ).json()['server']['status']
            if found == status:
                return server
            if found != 'BUILD':
                sys.exit('A server is %s that should be %s.' % (
                    found, status))
            time.sleep(_POLL_SECONDS)

    def wait_for_all(self, servers, status):
        """Wait until all of many servers have a status."""
        missing = set(servers)
        while missing:
            time.sleep(_POLL_SECONDS)
            missing -= {server['id'] for server in self._nova(
                self._owner, 'GET', '/servers?limit=1000&status=' + status
            ).json()['servers']}

    def remove(self, servers):
        """Delete servers, and wait until they are gone."""
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.delete, servers))
        while self._nova(self._owner, 'GET', '/servers').json()['servers']:
            time.sleep(_POLL_SECONDS)

    def measure(self, *requests):
        """Time requests until the server of the last one is ACTIVE.

        :param requests: callables that return a server and a request's ID
        :returns: the server and a Measure
        """
        start = time.perf_counter()
        done = [request() for request in requests]
        api = time.perf_counter() - start
        server = self.wait(done[-1][0], 'ACTIVE')
        return server, Measure(api, time.perf_counter() - start,
                               self._count({each[1] for each in done}))

    def _count(self, ids):
        # What follows the answer of the API is noted when it is sent.
        time.sleep(0.5)
        counts = collections.Counter()
        for line in self._counts.read_text().splitlines():
            request, outer, kind, detail = line.split()
            if {request, outer} & ids:
                counts[kind] += 1
        self._counts.write_text('')
        return counts

    def _nova(self, session, method, path, body=None, gone=False):
        return self._request(session, 'nova', method, path, body, gone)

    def _request(self, session, api, method, path, body=None, gone=False):
        answer = session.request(
            self._cloud.url(api) + path, method, json=body, raise_exc=False,
            headers={'OpenStack-API-Version': {
                'nova': 'compute 2.106', 'placement': 'placement 1.39',
            }.get(api, 'none')})
        if not answer.ok and not (gone and answer.status_code == 404):
            sys.exit('%s %s is answered with %d: %s' % (
                method, path, answer.status_code, answer.text))
        return answer


def _public_key():
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives import serialization
    return ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(
        serialization.Encoding.OpenSSH,
        serialization.PublicFormat.OpenSSH).decode()


def compare(workload, rounds):
    """Measure the three ways to a server, in turn.

    :returns: a list of Measure by the name of the way
    """
    measures = collections.defaultdict(list)

    def create():
        return workload.measure(workload.create)

    def rebuild(waiting):
        return workload.measure(lambda: workload.rebuild(waiting))

    def delete_and_create(waiting):
        return workload.measure(
            lambda: workload.delete_and_wait(waiting), workload.create)

    # The first round fills the caches and is dropped.
    for number in range(rounds + 1):
        for name, way in (('create', create), ('rebuild', rebuild),
                          ('delete + create', delete_and_create)):
            waiting = []
            if way is not create:
                workload.set_room(False)
                waiting.append(workload.make_waiting())
            workload.set_room(True)
            server, measure = way(*waiting)
            workload.remove([server])
            if number:
                measures[name].append(measure)
        print('round %d of %d' % (number, rounds), file=sys.stderr)
    return measures


def compare_batches(workload, size):
    """Measure how fast many servers are created, and rebuilt.

    :returns: servers a second, by what was done and how
    """
    rates = {}
    for how, run in (('one after another', _one_by_one),
                     ('all at once', _at_once)):
        for what in ('create', 'rebuild'):
            waiting = None
            if what == 'rebuild':
                workload.set_room(False)
                with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
                    made = list(pool.map(
                        lambda _: workload.create()[0], range(size)))
                workload.wait_for_all(made, 'PENDING')
                waiting = iter(made)
            workload.set_room(True)
            asks = [
                (lambda server=next(waiting): workload.rebuild(server)[0])
                if waiting else (lambda: workload.create()[0])
                for _ in range(size)]
            start = time.perf_counter()
            servers = run(workload, asks)
            rates[what, how] = size / (time.perf_counter() - start)
            workload.remove(servers)
    return rates


def _one_by_one(workload, asks):
    return [workload.wait(ask(), 'ACTIVE') for ask in asks]


def _at_once(workload, asks):
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        servers = list(pool.map(lambda ask: ask(), asks))
    workload.wait_for_all(servers, 'ACTIVE')
    return servers


def show(measures):
    """Print the medians of the three ways to a server."""
    def row(title, value, form):
        found = [statistics.median(value(each) for each in way)
                 for way in measures.values()]
        print(('%-26s' + ' %15s' * 3 + ' %9.2f %9.2f') % (
            title, *(form % each for each in found),
            found[1] / found[0], found[1] / found[2]), flush=True)

    print(('%-26s' + ' %15s' * 3 + ' %9s %9s') % (
        'median of %d' % len(measures['create']), *measures,
        '/create', '/del.+cr.'))
    row('seconds until the answer', lambda one: one.api, '%.3f')
    row('seconds until ACTIVE', lambda one: one.active, '%.3f')
    for kind, title in zip(_KINDS, (
            'SQL statements', 'RPC calls', 'RPC casts')):
        row(title, lambda one, kind=kind: one.counts[kind], '%d')


def show_rates(rates, size):
    """Print how fast the batches were."""
    print('\n%-26s %15s %15s %9s' % (
        'servers a second, %d' % size, 'create', 'rebuild', 'ratio'))
    for how in dict.fromkeys(how for _, how in rates):
        create, rebuild = rates['create', how], rates['rebuild', how]
        print('%-26s %15.2f %15.2f %9.2f' % (
            how, create, rebuild, rebuild / create))


@contextlib.contextmanager
def _cloud(arguments, counts):
    os.environ['no_proxy'] = os.environ['NO_PROXY'] = '127.0.0.1'
    os.environ['PYTHONPATH'] = str(
        pathlib.Path(__file__).with_name('counting'))
    os.environ['BENCHMARK_COUNTS'] = str(counts)
    cloud = stack.Stack(arguments.database_url, arguments.bus_url)
    cloud.check()
    try:
        cloud.up(lambda name, seconds: print(
            '%7.1f s  %s' % (seconds, name), file=sys.stderr))
        yield cloud
    finally:
        cloud.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=20,
                        help='how often each is measured (default: 20)')
    parser.add_argument('--batch', type=int, default=200,
                        help='how many servers a batch has; 0 for no batches '
                        '(default: 200)')
    parser.add_argument('--database-url', default=settings.DATABASE_URL)
    parser.add_argument('--bus-url', default=settings.BUS_URL)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = pathlib.Path(folder, 'counts')
        with _cloud(arguments, counts) as cloud:
            workload = Workload(cloud.settings, counts)
            if arguments.rounds:
                show(compare(workload, arguments.rounds))
            if arguments.batch:
                show_rates(compare_batches(workload, arguments.batch),
                           arguments.batch)


if __name__ == '__main__':
    main()
