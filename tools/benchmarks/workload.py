# SPDX-License-Identifier: Apache-2.0

"""The servers of a benchmark on a local cloud, and what they are measured by.
"""

import collections
from concurrent import futures
import sys
import time

from tools.cloud import configuration
from tools.cloud import identity

_TRAIT = 'CUSTOM_BENCHMARK_ROOM'
POLL_SECONDS = 0.05

Measure = collections.namedtuple('Measure', 'api active counts')


class Workload:
    """The servers of the benchmark on one cloud.

    :param cloud: the settings.Settings of a cloud that is up
    :param counts: the file that the services note their work in
    :param at_once: how many requests are made at a time where many are made
    """

    def __init__(self, cloud, counts, at_once):
        self.at_once = at_once
        self._counts = counts
        self._cloud = cloud
        self.owner = identity.connect(cloud, configuration.OWNER)
        self.admin = identity.connect(cloud, configuration.ADMIN)
        self._server = self._prepare()

    def _prepare(self):
        """Make what a server needs, and return what its create asks for."""
        owner, admin = self.owner, self.admin
        project = owner.get_project_id()
        self.nova(admin, 'PUT', '/os-quota-sets/' + project, {'quota_set': {
            name: -1 for name in ('instances', 'cores', 'ram')}})
        self.request(admin, 'neutron', 'PUT', '/v2.0/quotas/' + project,
                      {'quota': {'port': -1}})
        self.request(admin, 'placement', 'PUT', '/traits/' + _TRAIT)
        image = self.request(admin, 'glance', 'POST', '/v2/images', {
            'name': 'benchmark', 'disk_format': 'raw', 'visibility': 'public',
            'container_format': 'bare'}).json()['id']
        admin.put(self._cloud.url('glance') + '/v2/images/%s/file' % image,
                  data=b'\0' * 1024, headers={
                      'Content-Type': 'application/octet-stream'})
        flavor = self.nova(admin, 'POST', '/flavors', {'flavor': {
            'name': 'benchmark', 'vcpus': 1, 'ram': 1, 'disk': 1}}
        ).json()['flavor']['id']
        self.nova(admin, 'POST', '/flavors/%s/os-extra_specs' % flavor, {
            'extra_specs': {'resources:VCPU': '0',
                            'trait:' + _TRAIT: 'required'}})
        network = self.request(owner, 'neutron', 'POST', '/v2.0/networks', {
            'network': {'name': 'benchmark'}}).json()['network']['id']
        self.request(owner, 'neutron', 'POST', '/v2.0/subnets', {'subnet': {
            'network_id': network, 'ip_version': 4, 'enable_dhcp': False,
            'cidr': '10.0.0.0/16'}})
        self.nova(owner, 'POST', '/os-keypairs', {'keypair': {
            'name': 'benchmark', 'type': 'ssh', 'public_key': _public_key()}})
        return {
            'name': 'benchmark', 'imageRef': image, 'flavorRef': flavor,
            'networks': [{'uuid': network}], 'key_name': 'benchmark',
            'tags': ['blue'], 'metadata': {'purpose': 'benchmark'}}

    def set_room(self, room):
        """Say whether any host has room for a server."""
        for provider in self.request(
                self.admin, 'placement', 'GET', '/resource_providers'
        ).json()['resource_providers']:
            path = '/resource_providers/%s/traits' % provider['uuid']
            found = self.request(
                self.admin, 'placement', 'GET', path).json()
            traits = set(found['traits']) - {_TRAIT}
            self.request(self.admin, 'placement', 'PUT', path, {
                'traits': sorted(traits | ({_TRAIT} if room else set())),
                'resource_provider_generation':
                    found['resource_provider_generation']})

    def create(self, count=1, bare=False):
        """Ask for servers.

        :param count: how many, in one request
        :param bare: whether without a network, a keypair, tags and metadata
        :returns: the first server, and the ID of the request
        """
        server = {**self._server, 'min_count': 1, 'max_count': count}
        if bare:
            server['networks'] = 'none'
            for name in ('key_name', 'tags', 'metadata'):
                del server[name]
        answer = self.nova(self.owner, 'POST', '/servers', {'server': server})
        return (answer.json()['server']['id'],
                answer.headers['x-openstack-request-id'])

    def rebuild(self, server):
        """Ask for the rebuild of a server.

        :returns: the server, and the ID of the request
        """
        answer = self.nova(self.owner, 'POST',
                            '/servers/%s/action' % server, {'rebuild': {}})
        return server, answer.headers['x-openstack-request-id']

    def delete(self, server):
        """Ask for the end of a server.

        :returns: the ID of the request
        """
        return self.nova(self.owner, 'DELETE', '/servers/' + server
                          ).headers['x-openstack-request-id']

    def make_waiting(self):
        """Return a server that waits in cell0, while there is no room."""
        return self.wait(self.create()[0], 'PENDING')

    def delete_and_wait(self, server):
        """Delete a server, and wait until it is gone, as clients do.

        :returns: the server, and the ID of the request
        """
        request = self.delete(server)
        while self.nova(self.owner, 'GET', '/servers/' + server,
                         fine=(404,)).ok:
            time.sleep(POLL_SECONDS)
        return server, request

    def wait(self, server, status):
        """Wait until a server has a status, and return the server."""
        while True:
            found = self.nova(self.owner, 'GET', '/servers/' + server
                               ).json()['server']['status']
            if found == status:
                return server
            if found != 'BUILD':
                sys.exit('A server is %s that should be %s.' % (
                    found, status))
            time.sleep(POLL_SECONDS)

    def wait_for_all(self, servers, status):
        """Wait until all of many servers have a status."""
        missing = set(servers)
        while missing:
            time.sleep(POLL_SECONDS)
            missing -= self.ids(status)

    def wait_for_builds(self, servers):
        """Wait until none of many servers is being built."""
        while self.ids('BUILD') & set(servers):
            time.sleep(10 * POLL_SECONDS)

    def ids(self, status=None):
        """Return the IDs of the servers, or of those that have a status."""
        found, page = set(), None
        query = '/servers?limit=1000'
        if status:
            query += '&status=' + status
        while page is None or page:
            marker = '&marker=' + page[-1]['id'] if page else ''
            page = self.nova(
                self.owner, 'GET', query + marker).json()['servers']
            found |= {server['id'] for server in page}
        return found

    def remove(self, servers):
        """Delete servers, and wait until they are gone."""
        with futures.ThreadPoolExecutor(self.at_once) as pool:
            list(pool.map(self.delete, servers))
        while self.nova(self.owner, 'GET', '/servers').json()['servers']:
            time.sleep(POLL_SECONDS)

    def measure(self, *requests):
        """Time requests until the server of the last request is ACTIVE.

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
                counts[detail] += 1
        self._counts.write_text('')
        return counts

    def nova(self, session, method, path, body=None, fine=()):
        return self.request(session, 'nova', method, path, body, fine)

    def request(self, session, api, method, path, body=None, fine=()):
        answer = session.request(
            self._cloud.url(api) + path, method, json=body, raise_exc=False,
            headers={'OpenStack-API-Version': {
                'nova': 'compute 2.107', 'placement': 'placement 1.39',
            }.get(api, 'none')})
        if not answer.ok and answer.status_code not in fine:
            sys.exit('%s %s is answered with %d: %s' % (
                method, path, answer.status_code, answer.text))
        return answer


def _public_key():
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives import serialization
    return ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(
        serialization.Encoding.OpenSSH,
        serialization.PublicFormat.OpenSSH).decode()
