# SPDX-License-Identifier: Apache-2.0

"""How long a turn of nova-reaper takes on a large cloud.

    python -m tools.benchmarks.reaper_turns [--hosts N] [--demands N]
                                            [--events N]
    python -m tools.benchmarks.reaper_turns --start

The engine runs as it is, with 10,000 hosts without room, 100,000 preemptible
servers and 100,000 servers of 10,000 demands that wait; nobody answers what
the engine asks, so that its attempts stay where they are. In turn:

list      the first list is taken, host by host and server by server
decided   each demand is decided; five attempts have all slots
full      nothing happens
freed     hosts have 4 or 16 VCPUs free, one after another; the turns until
          all that the room allows is decided, and their sum for a host
events    hosts change without room for anybody, and with each a server goes
          and another comes; after each 3,000 events, those of a minute, the
          list of a minute is taken, on which nothing else has changed. Shown
          after N, 5 N and 10 N events, with the memory of the process: what
          the reaper keeps of an event would show
again     the list of all servers that wait is taken once more, with events

With --start services are there that answer from memory, 200 requests a second
to Placement and 50 to Nova, as the options allow by default. --free of the
hosts have room for some of the servers, and 10,000 servers wait. Shown are the
seconds, the requests and the decisions from the start to the first turn with
decisions, and to the whole list.

Otherwise shown are turns, and milliseconds of the thread's processor time: the
mean, the 99th percentile and the longest of a turn. Nothing is asserted.
"""

import argparse
import collections
from concurrent import futures
import dataclasses
import datetime
import gc
import itertools
import math
import random
import statistics
import time
import types
from unittest import mock

from oslo_config import cfg
from oslo_utils import timeutils
import psutil

from nova_reaper.act import recovery
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import conf as reaper_conf
from nova_reaper import engine as engine_module
from nova_reaper.events import lists
from nova_reaper.events import reader
from nova_reaper.report import health
from nova_reaper.report import journal
from nova_reaper import service
from nova_reaper import world
from tools.benchmarks import output
from tools.benchmarks import reaper_decision

NOW = timeutils.utcnow(True)
MINUTE = 3000  # events


def make_waiting(number, demands):
    """Make a server that waits, with the flavor of its demand."""
    rand = random.Random(number % demands)
    created = NOW - datetime.timedelta(seconds=number)
    flavor = nova.Flavor(
        'flavor', rand.randint(1, 40), 1024 * rand.randint(1, 120),
        rand.randint(1, 800))
    return nova.NovaServer(
        '%08x-0000-4000-8000-000000000004' % number, 'name',
        'project%d' % (number % demands % 200), 'user', 'PENDING', None, '',
        flavor, 'image', created, created, None, {}, False,
        kind='demand %d' % (number % demands), asked=True)


def make_preemptible(server, flavor):
    """Make a server of the model as Nova shows it.

    :param flavor: the flavor, but for the sizes
    """
    flavor = dataclasses.replace(
        flavor, vcpus=server.resources['VCPU'],
        ram=server.resources['MEMORY_MB'], disk=server.resources['DISK_GB'])
    return nova.NovaServer(
        server.id, 'name', server.project, 'user', 'ACTIVE', None, server.host,
        flavor, 'image', NOW, NOW, server.launched_at, {}, False)


class Nova:
    """Answers what a start asks of Nova.

    :param hosts: a model.Host and its servers, by name
    :param waiting: the servers that wait
    """

    def __init__(self, hosts, waiting, counts, rate):
        self._hosts = hosts
        self._waiting = waiting
        self._counts = counts
        self._pace = rest.Pace(rate)
        self._flavor = nova.Flavor('p', 1, 1, 1, extra_specs={
            shapes.PREEMPTIBLE[0]: 'true'}, id='p')
        self.client = mock.Mock()

    def _count(self):
        self._counts['nova'] += 1
        self._pace.wait()

    def _pages(self, items):
        for number, item in enumerate(items):
            if number % 1000 == 0:
                self._count()
            yield item

    def hypervisors(self):
        return self._pages(nova.Hypervisor(name, name, True, True)
                           for name in self._hosts)

    def flavors(self):
        return self._pages([self._flavor])

    def servers(self, status='', flavor=''):
        if flavor:
            return self._pages(make_preemptible(server, self._flavor)
                               for _host, servers in self._hosts.values()
                               for server in servers)
        return self._pages(self._waiting if status == 'PENDING' else [])

    def count_not_placed(self, since):
        return 0

    def pending(self, uuid, hosts=None):
        self._count()
        number = int(uuid[:8], 16)
        return nova.Pending(model.Reason.NO_ROOM, '', '', (
            shapes.query(self._waiting[number]),))


class Placement:
    """Answers what a start asks of Placement.

    All hosts have some memory left.

    :param free: the names of the hosts with room
    """

    def __init__(self, hosts, free, counts, rate):
        self._hosts = hosts
        self._free = free
        self._counts = counts
        self._pace = rest.Pace(rate)

    def _count(self):
        self._counts['placement'] += 1
        self._pace.wait()

    def provider(self, uuid, inventory=None):
        host, servers = self._hosts[uuid]
        if inventory is None:
            self._count()
        self._count()
        shares = {server.id: placement.Share(server.resources, 1)
                  for server in servers}
        plain = dict(host.used)
        for server in servers:
            for name, amount in server.resources.items():
                plain[name] -= amount
        shares['plain ' + uuid] = placement.Share(plain, 1)
        return placement.Provider(uuid, 1, host.inventory, shares)

    def providers(self, **query):
        self._count()
        return set()

    beside = frozenset()

    def read_sharing(self, hosts):
        self._count()
        return []

    def consumer(self, uuid):
        self._count()
        return placement.Consumer(uuid, {})

    def first_offered(self, query, most):
        self._count()
        return self._free[:most]

    def having_left(self, name):
        self._count()
        return {uuid: model.Provider(uuid, host.inventory, host.used)
                for uuid, (host, _servers) in self._hosts.items()}


def run_start(args):
    """Start an engine, and see when it decides."""
    conf = cfg.ConfigOpts()
    reaper_conf.register_opts(conf)
    conf([], project='bench')
    conf.set_override('verdict_rate', 0, 'reaper')
    conf.set_override('max_rebuilds', 1000, 'reaper')
    conf.set_override('max_rebuilds_per_project', 1000, 'reaper')
    conf.set_override('pending_list_interval', 3600, 'reaper')
    conf.set_override('mode', 'preempt', 'reaper')
    rand, hosts = random.Random(1), {}
    for number in range(args.hosts):
        host, servers = reaper_decision.make_host(rand, number, 10)
        hosts[host.name] = host, servers
    waiting = [make_waiting(number, args.demands) for number in range(10000)]
    counts = collections.Counter()
    free = rand.sample(list(hosts), args.free)
    for name in free:
        host, servers = hosts[name]
        hosts[name] = dataclasses.replace(host, inventory={
            'VCPU': model.Inventory(host.used['VCPU'] + 64),
            'MEMORY_MB': model.Inventory(host.used['MEMORY_MB'] + 262144),
            'DISK_GB': model.Inventory(host.used['DISK_GB'] + 2000)}), servers
    compute = Nova(hosts, waiting, counts, 50)
    pool = futures.ThreadPoolExecutor(conf.reaper.workers)
    readers = futures.ThreadPoolExecutor(10)
    identity = mock.Mock()
    identity.project_properties.return_value = {}
    source = reader.Reader(compute, Placement(hosts, free, counts, 200),
                           identity, readers, conf)
    forms, meters = shapes.Shapes(compute), health.Metrics()
    actor, finder = mock.Mock(), mock.Mock()
    actor.advance.side_effect = lambda current: current.later(3600)
    finder.look.return_value = recovery.Found((), 0, 0.0, frozenset())
    finder.is_late = False
    guard = mock.Mock(active=True, mode=model.Mode.PREEMPT)
    engine = engine_module.Engine(
        conf, source, forms, actor, finder, guard,
        world.World(reaper_conf.options(conf), source, forms, meters),
        meters, pool, mock.Mock())
    engine._begun_at, engine._recall_at = NOW, math.inf
    engine._memory = journal.Memory(NOW, 0)
    output.print_row('', 'seconds', 'Placement', 'Nova', 'decisions')
    gc.freeze()
    begun, told, times = time.monotonic(), False, []

    def show(what):
        output.print_row(what, '%.1f' % (time.monotonic() - begun),
                         counts['placement'], counts['nova'],
                         len(engine.attempts.under_way))

    while not engine.recovered:
        started = time.thread_time()
        engine.turn()
        service.spare(engine)
        times.append(time.thread_time() - started)
        if engine.attempts.under_way and not told:
            told = True
            show('first decision')
    show('whole list')
    engine.turn()
    show('after it')
    output.print_row('longest turn, ms', '%.0f' % (1000 * max(times)))
    engine.jobs.stopping = True
    pool.shutdown(cancel_futures=True)
    readers.shutdown(cancel_futures=True)


class Bench:
    """An engine whose jobs nobody does.

    :ivar hosts: a model.Host and its servers, by name
    :ivar times: of the turns since show(), in seconds
    :ivar pauses: of the collector since show(), in seconds
    """

    def __init__(self, args):
        conf = cfg.ConfigOpts()
        reaper_conf.register_opts(conf)
        conf([], project='bench')
        for name, value in {'mode': 'preempt', 'max_rebuilds': 1000000,
                            'max_rebuilds_per_project': 1000000,
                            'max_ends_per_hour': 0,
                            'max_ends_per_project_hour': 0}.items():
            conf.set_override(name, value, 'reaper')
        rand = random.Random(1)
        self.hosts = {}
        for number in range(args.hosts):
            host, servers = reaper_decision.make_host(rand, number, 10)
            self.hosts[host.name] = host, tuple(servers)
        source = mock.Mock(spec=reader.Reader, hypervisors={
            name: nova.Hypervisor(name, name, True, True)
            for name in self.hosts}, properties={}, preemptible={})
        source.take_learned.return_value = []
        # A mock would keep each call, and grow with each event.
        source.with_traits = lambda view: view
        source.shelved.return_value = []
        forms = self.forms = shapes.Shapes(mock.Mock())
        self.waiting = {server.id: server for server in (
            make_waiting(number, args.demands)
            for number in range(args.waiting))}
        for server in self.waiting.values():
            key = forms.key(server)
            if key not in forms._answers:
                forms._answers[key] = shapes.Answer(
                    model.Shape.of(shapes.resources(server), key=key), ('x',))
        self.answers = {server.id: forms.known(server)
                        for server in self.waiting.values()}
        meters = health.Metrics()
        self.guard = mock.Mock(active=True, mode=model.Mode.PREEMPT)
        known = world.World(reaper_conf.options(conf), source, forms, meters)
        self.engine = engine_module.Engine(
            conf, source, forms, mock.Mock(), mock.Mock(), self.guard, known,
            meters, mock.Mock(), mock.Mock())
        self.engine._begun_at, self.engine._recall_at = NOW, math.inf
        # For the same reason no mock stands for the calendar.
        self.engine._calendar = types.SimpleNamespace(
            next=math.inf, due=lambda *_: None)
        self.rounds, self.times, self.pauses = args.rounds, [], []
        self.events, self.demands = args.events, args.demands
        self.numbers = itertools.count(args.waiting)
        gc.callbacks.append(self._collected)

    def _collected(self, phase, _info):
        if phase == 'start':
            self._began = time.thread_time()
        else:
            self.pauses.append(time.thread_time() - self._began)

    def turn(self, begin=lambda: None):
        started = time.thread_time()
        begin()
        self.engine.turn(0.0)
        service.spare(self.engine)
        self.times.append(time.thread_time() - started)

    def until(self, done):
        while not done():
            self.turn()

    def show(self, what):
        milliseconds = [1000 * value for value in self.times]
        output.print_row(
            what, len(self.times), *('%.1f' % value for value in (
                statistics.mean(milliseconds),
                output.percentile(milliseconds, 0.99), max(milliseconds))),
            '%.0f' % (1000 * max(self.pauses, default=0)),
            psutil.Process().memory_info().rss >> 20)
        self.times, self.pauses = [], []

    def view(self, name, **free):
        """Make a host as the reader gives it, with so much free."""
        host, servers = self.hosts[name]
        used = {key: amount - free.get(key, 0)
                for key, amount in host.used.items()}
        return reader.HostView(
            dataclasses.replace(host, used=used, uuid=name,
                                generation=time.monotonic_ns()),
            servers, frozenset(server.id for server in servers),
            time.monotonic())

    def event(self, view):
        """Change a host, and replace a server that waits with another."""
        self.engine._put_host(view)
        gone = next(iter(self.waiting))
        if gone not in self.engine.attempts.under_way:
            self.engine._forget(gone)
        del self.waiting[gone], self.answers[gone]
        server = make_waiting(next(self.numbers), self.demands)
        self.waiting[server.id] = server
        self.answers[server.id] = self.forms.known(server)
        self.engine.world.put_server(server, self.answers[server.id])

    def waiting_list(self):
        return lists.WaitingList(self.waiting, self.answers,
                                 timeutils.utcnow(True))

    def run(self):
        engine = self.engine
        output.print_row('', 'turns', 'mean', '99 %', 'most', 'collector',
                         'MiB')
        engine._lists_read.append(engine._take_full(
            lists.FULL, True, True, lists.FullList(
                engine.source.hypervisors,
                {name: self.view(name) for name in self.hosts},
                self.waiting_list(), NOW, 0.0)))
        while engine._lists_read:
            self.turn()
        self.show('list')
        engine.recovered = True
        queue = engine.world.queue
        self.until(lambda: queue._levels == {})
        self.show('decided: %d demands, %d attempts' % (
            len(queue._sleeping.sleeps), len(engine.attempts.under_way)))
        for _ in range(100):
            self.turn()
        self.show('full')
        rand = random.Random(2)
        names = rand.sample(list(self.hosts), 300)
        for vcpus in (4, 16):
            sums = []
            for _ in range(50):
                before = len(self.times)
                view = self.view(names.pop(), VCPU=vcpus, MEMORY_MB=8192,
                                 DISK_GB=100)
                self.turn(lambda: engine._put_host(view))
                self.until(lambda: not (queue._helpers or engine._undecided))
                sums.append(sum(self.times[before:]))
            self.show('freed, %d VCPUs: %d attempts' % (
                vcpus, len(engine.attempts.under_way)))
            self.times = sums
            self.show('  a host')
        made = 0
        for total in (self.events, 5 * self.events, 10 * self.events):
            while made < total:
                made += 1
                if made % MINUTE == 0:
                    engine._lists_read.append(engine._take_waiting(
                        lists.WaitingList({}, {}, NOW, frozenset())))
                self.turn(lambda: self.event(self.view(rand.choice(names))))
            self.show('events: %d' % made)
        for _ in range(self.rounds):
            engine._lists_read.append(
                engine._take_waiting(self.waiting_list()))
            while engine._lists_read:
                view = self.view(rand.choice(names))
                self.turn(lambda: engine._put_host(view))
            self.show('again')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--hosts', type=int, default=10000)
    parser.add_argument('--demands', type=int, default=10000)
    parser.add_argument('--waiting', type=int, default=100000)
    parser.add_argument('--events', type=int, default=2000)
    parser.add_argument('--rounds', type=int, default=3,
                        help='how often the list is taken again')
    parser.add_argument('--start', action='store_true',
                        help='measure a start')
    parser.add_argument('--free', type=int, default=20,
                        help='hosts that have room at the start')
    args = parser.parse_args()
    if args.start:
        run_start(args)
    else:
        Bench(args).run()


if __name__ == '__main__':
    main()
