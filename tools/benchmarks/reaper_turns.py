# SPDX-License-Identifier: Apache-2.0

"""How long a turn of nova-reaper takes on a large cloud.

    python -m tools.benchmarks.reaper_turns [--hosts N] [--demands N]
                                            [--events N]

The engine runs as it is, with 10,000 hosts without room, 100,000 preemptible
servers and 100,000 servers of 10,000 demands that wait; nobody answers what
the engine asks, so that its attempts stay where they are. In turn:

list      the first list is taken, host by host and server by server
decided   each demand is decided; five attempts have all slots
full      nothing happens
freed     hosts have 4 or 16 VCPUs free, one after another
events    hosts change without room for anybody, and with each a server goes
          and another comes; shown after N, 5 N and 10 N events, with the
          memory of the process: what the reaper keeps of an event would show
again     the list of all servers that wait is taken once more, with events

Shown are turns, and milliseconds of the thread's processor time: the mean, the
99th percentile and the longest of a turn. Nothing is asserted.
"""

import argparse
import dataclasses
import datetime
import gc
import itertools
import math
import random
import statistics
import time
from unittest import mock

from oslo_config import cfg
from oslo_utils import timeutils
import psutil

from nova_reaper.clients import nova
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes
from nova_reaper.cloud import world
from nova_reaper import conf as reaper_conf
from nova_reaper import engine as engine_module
from nova_reaper.events import lists
from nova_reaper.events import reader
from nova_reaper.report import health
from tools.benchmarks import output
from tools.benchmarks import reaper_decision

NOW = timeutils.utcnow(True)


def make_waiting(number, demands):
    """A server that waits; its flavor is of its demand."""
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
        for name, value in {'mode': 'preempt', 'max_ends_per_hour': 0,
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
        self.engine._calendar = mock.Mock(next=math.inf)
        self.engine._calendar.due.return_value = None
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
        """A host as it is read, with so much free."""
        host, servers = self.hosts[name]
        used = {key: amount - free.get(key, 0)
                for key, amount in host.used.items()}
        return reader.HostView(
            dataclasses.replace(host, used=used, uuid=name,
                                generation=time.monotonic_ns()),
            servers, frozenset(server.id for server in servers),
            time.monotonic())

    def event(self, view):
        """A host has changed; a server that waits goes, another comes."""
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
                engine._reader.hypervisors,
                {name: self.view(name) for name in self.hosts},
                self.waiting_list(), NOW, 0.0)))
        self.until(lambda: not engine._lists_read)
        self.show('list')
        # As service.py does.
        gc.freeze()
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
            for _ in range(50):
                view = self.view(names.pop(), VCPU=vcpus, MEMORY_MB=8192,
                                 DISK_GB=100)
                self.turn(lambda: engine._put_host(view))
                self.until(lambda: not queue._helpers)
            self.show('freed, %d VCPUs: %d attempts' % (
                vcpus, len(engine.attempts.under_way)))
        made = 0
        for total in (self.events, 5 * self.events, 10 * self.events):
            while made < total:
                made += 1
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
    Bench(parser.parse_args()).run()


if __name__ == '__main__':
    main()
