# SPDX-License-Identifier: Apache-2.0

"""What a rebuild costs for which room is held, and whether the room is safe.

The holds are written as doc/source/reference/holds.rst says: an administrator
asks Nova for the query of the server, and Placement for what answers it.
"""

import collections
from concurrent import futures
import sys
import threading
import time

from oslo_utils import uuidutils

Contention = collections.namedtuple(
    'Contention', 'is_held size others rate claims claim_rate landed seconds')


def compare(workload, rounds):
    """Measure rebuilds without and with a hold, in turn.

    :param workload: the workload.Workload
    :param rounds: how often
    :returns: a list of Measure by the name of the way
    """
    measures = {'rebuild': [], 'with a hold': []}
    # The first round fills the caches and is dropped.
    for number in range(rounds + 1):
        for name, found in measures.items():
            workload.set_room(False)
            waiting = workload.make_waiting()
            workload.set_room(True)
            if name == 'with a hold':
                hold(workload, waiting)
            server, measure = workload.measure(
                lambda waiting=waiting: workload.rebuild(waiting))
            workload.remove([server])
            if number:
                found.append(measure)
        print('holds: round %d of %d' % (number, rounds), file=sys.stderr)
    return measures


def hold(workload, server):
    """Hold room for a server that waits.

    :returns: the allocations, as Placement has them
    """
    allocations = _candidates(workload, _query(workload, server))[0]
    _put(workload, server, allocations, 'NOVA_PENDING')
    return allocations


def _query(workload, server):
    """Return what Nova asks Placement for a server that waits."""
    return workload.nova(
        workload.admin, 'GET', '/servers/%s/pending' % server).json()[
            'pending']['requests'][0]


def _candidates(workload, query):
    return [each['allocations'] for each in _placement(
        workload, 'GET', '/allocation_candidates?limit=1&' + query).json()[
            'allocation_requests']]


def contend(workload, size, create, rate, claim_rate, is_held):
    """Rebuild servers while others that would fit into their room are created.

    There is room for the servers that wait and for nobody else.

    :param workload: the workload.Workload
    :param size: how many servers wait
    :param create: asks for others, with one request
    :param rate: how many such requests are made a second, at most
    :param claim_rate: how many others' claims are made a second, at most: what
        a scheduler does for a create, without the rest of Nova, which a small
        machine has no time for at such a rate
    :param is_held: whether room is held for those that wait
    :returns: a Contention
    """
    workload.set_room(False)
    with futures.ThreadPoolExecutor(workload.at_once) as pool:
        waiting = list(pool.map(
            lambda _: workload.create()[0], range(size)))
    workload.wait_for_all(waiting, 'PENDING')
    fillers = _fill(workload, size)
    workload.set_room(True)
    if is_held:
        for server in waiting:
            hold(workload, server)
    others = _AtRate(workload, rate, create)
    claims = _Claims(workload, claim_rate, _query(workload, waiting[0]))
    start = time.perf_counter()
    with others, claims:
        for server in waiting:
            workload.rebuild(server)
        workload.wait_for_builds(waiting)
    seconds = time.perf_counter() - start
    everybody = workload.ids()
    workload.wait_for_builds(everybody)
    active = workload.ids('ACTIVE')
    landed = len(active & set(waiting)), len(active - set(waiting))
    workload.remove(everybody)
    for consumer in [*fillers, *claims.taken]:
        _placement(workload, 'DELETE', '/allocations/' + consumer)
    created = len(everybody) - size
    return Contention(is_held, size, created, created / seconds,
                      claims.tried, claims.tried / seconds,
                      (landed[0], landed[1] + len(claims.taken)), seconds)


class _AtRate:
    """Does something at a rate, or as fast as it is answered, or never."""

    def __init__(self, workload, rate, do):
        self._workload = workload
        self._do = do
        self._every = 1 / rate if rate else 0.0
        self._ends = threading.Event()
        self._threads = futures.ThreadPoolExecutor(workload.at_once)

    def __enter__(self):
        self._next = time.perf_counter()
        self._lock = threading.Lock()
        self._running = [self._threads.submit(self._go_on)
                         for _ in range(self._workload.at_once)
                         if self._every]

    def __exit__(self, *_exc):
        self._ends.set()
        for each in self._running:
            each.result()
        self._threads.shutdown()

    def _go_on(self):
        while True:
            with self._lock:
                now = time.perf_counter()
                # What could not be asked for in time is not made up for.
                self._next = max(self._next + self._every, now)
                pause = self._next - now
            if self._ends.wait(pause):
                return
            self._do()


class _Claims(_AtRate):
    """Claims room in Placement for servers that are not there."""

    def __init__(self, workload, rate, query):
        super().__init__(workload, rate, self._claim)
        self._query = query
        self.tried = 0
        self.taken = []

    def _claim(self):
        for allocations in _candidates(self._workload, self._query):
            consumer = uuidutils.generate_uuid()
            if _put(self._workload, consumer, allocations, 'INSTANCE',
                    fine=(409,)).ok:
                self.taken.append(consumer)
        with self._lock:
            self.tried += 1


def _fill(workload, size):
    """Leave disk for some servers, which have one GiB each.

    :returns: the consumers that have the rest
    """
    fillers = []
    providers = _placement(
        workload, 'GET', '/resource_providers').json()['resource_providers']
    for number, provider in enumerate(providers):
        url = '/resource_providers/' + provider['uuid']
        inventory = _placement(workload, 'GET', url + '/inventories').json()[
            'inventories']['DISK_GB']
        room = int((inventory['total'] - inventory['reserved']) *
                   inventory['allocation_ratio'])
        room -= _placement(workload, 'GET', url + '/usages').json()[
            'usages']['DISK_GB']
        left = (size + number) // len(providers)
        while room > left:
            amount = min(room - left, inventory['max_unit'])
            fillers.append(uuidutils.generate_uuid())
            _put(workload, fillers[-1], {provider['uuid']: {
                'resources': {'DISK_GB': amount}}}, 'FILLER')
            room -= amount
    return fillers


def _put(workload, consumer, allocations, consumer_type, **kwargs):
    return _placement(workload, 'PUT', '/allocations/' + consumer, {
        'allocations': allocations, 'consumer_generation': None,
        'consumer_type': consumer_type, 'project_id': 'benchmark',
        'user_id': 'benchmark'}, **kwargs)


def _placement(workload, *args, **kwargs):
    return workload.request(workload.admin, 'placement', *args, **kwargs)


def show(contentions):
    """Print what became of servers that were rebuilt beside creates."""
    print('\n%-14s %8s %8s %9s %8s %9s %8s %14s %8s' % (
        'room is held', 'waiting', 'creates', 'a second', 'claims',
        'a second', 'rebuilt', 'room was taken', 'seconds'))
    for one in contentions:
        print('%-14s %8d %8d %9.1f %8d %9.1f %8d %14d %8.0f' % (
            'yes' if one.is_held else 'no', one.size, one.others, one.rate,
            one.claims, one.claim_rate, *one.landed, one.seconds), flush=True)
