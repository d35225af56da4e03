# SPDX-License-Identifier: Apache-2.0

"""How long nova-reaper takes to decide, and how well it decides.

    python -m tools.benchmarks.reaper_decision [--hosts N] [--aardvark PATH]

On a cloud of 10,000 hosts without room and some 100,000 preemptible servers:
the time of a decision, the memory of the index, the time to refresh a host
and to find out which of 10,000 waiting servers a changed host could help.
Then, on the same cloud and on 1,000 small clouds, whether brute force finds
anything better: lower priorities, fewer victims, a victim that is needless.
At last the workload of kube-scheduler's scheduler_perf for preemption: 1,000
full hosts of ten servers of a lower priority each, and 100 servers that need
all of a host.

With the path of a checkout of Aardvark, the strategies of its tree decide
about the same hosts in the same run. Nothing is asserted.
"""

import argparse
import collections
import collections.abc
import datetime
import gc
import itertools
import logging
import os
import random
import statistics
import sys
import time
from unittest import mock

import psutil

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.queue import queue
from nova_reaper.tests import brute_force
from tools.benchmarks import output

NOW = brute_force.NOW
OPTIONS = model.Options(mode=model.Mode.PREEMPT)
NAMES = ('VCPU', 'MEMORY_MB', 'DISK_GB')
FLAVORS = ((1, 2048, 20), (2, 4096, 40), (4, 8192, 80), (8, 16384, 160),
           (2, 16384, 40))
ASKED = ((4, 8192, 80), (8, 32768, 160), (16, 32768, 320),
         (24, 65536, 480), (32, 98304, 640), (40, 120000, 800),
         (100, 262144, 900))


def milliseconds(seconds):
    return '%.2f ms' % (seconds * 1000)


def make_host(rand, number, per_host):
    """Make a host without a free VCPU, and its preemptible servers."""
    name = 'compute%05d' % number
    servers = []
    for at in range(min(2 * per_host, sum(
            rand.random() < 0.5 for _ in range(2 * per_host)))):
        servers.append(model.Server(
            '%08x-%04x-4000-8000-000000000000' % (number, at), name,
            dict(zip(NAMES, rand.choice(FLAVORS))),
            project='project%03d' % rand.randrange(200), preemptible=True,
            priority=rand.randrange(3), action=rand.choice(list(model.Action)),
            launched_at=NOW - datetime.timedelta(
                seconds=rand.randrange(1200, 10 ** 6))))
    used = {key: sum(server.resources[key] for server in servers)
            for key in NAMES}
    used['VCPU'] += 16
    inventory = {'VCPU': model.Inventory(used['VCPU']),
                 'MEMORY_MB': model.Inventory(
                     used['MEMORY_MB'] + rand.randrange(2000)),
                 'DISK_GB': model.Inventory(
                     used['DISK_GB'] + rand.randrange(40))}
    return model.Host(name, inventory, used, frozenset(
        {'zone%d' % (number % 2)})), servers


def make_index(hosts, per_host):
    rand = random.Random(1)
    index = index_module.Index(OPTIONS)
    for number in range(hosts):
        index.put(*make_host(rand, number, per_host))
    return index


def ask(resources, number=0, **others):
    return brute_force.waiting(dict(zip(NAMES, resources)), number, **others)


def measure_memory(hosts, per_host):
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    started = time.perf_counter()
    index = make_index(hosts, per_host)
    seconds = time.perf_counter() - started
    gc.collect()
    output.print_row('hosts, preemptible servers', len(index.rows),
                     len(index.slots))
    output.print_row('memory of the index', '%.0f MiB' % (
        (process.memory_info().rss - before) / 2 ** 20))
    output.print_row('made, servers and all', '%.1f s' % seconds)
    return index


class Times:
    """Seconds, and those of the processor: others may use the machine."""

    def __init__(self):
        self.wall, self.cpu = [], []

    def __iadd__(self, others):
        self.wall += others.wall
        self.cpu += others.cpu
        return self

    def measure(self, function, *arguments):
        started = time.perf_counter(), time.process_time()
        result = function(*arguments)
        self.cpu.append(time.process_time() - started[1])
        self.wall.append(time.perf_counter() - started[0])
        return result

    def print(self, what, *others):
        output.print_row(what, *(milliseconds(value) for value in (
            statistics.median(self.cpu), output.percentile(self.cpu, 0.99),
            statistics.median(self.wall), output.percentile(self.wall, 0.99))),
            *others)


def measure_decisions(index, rounds):
    output.print_row('', 'CPU, median', '99 %', 'wall, median', '99 %')
    every = Times()
    for resources in ASKED:
        for zone in ([], ['zone0']):
            times = Times()
            waiting = ask(resources, member_of=zone)
            for _ in range(rounds):
                decision = times.measure(choose.decide, index, waiting,
                                         OPTIONS, NOW)
            every += times
            times.print('  %s, %s' % (resources, 'one of two zones' if zone
                                      else 'all hosts'),
                        'victims: %d' % len(decision.victims))
    every.print('one decision, of all')


def measure_refresh(index, rounds):
    rand = random.Random(2)
    names = list(index.rows)
    times = Times()
    for _ in range(rounds):
        row = index.rows[rand.choice(names)]
        times.measure(index.put, index.hosts[row], index.slots.of_host(row))
    times.print('one host refreshed')


def measure_wake(index, count):
    rand = random.Random(3)
    waiters = queue.Queue(OPTIONS)
    for number in range(count):
        waiters.put(ask((rand.randrange(65, 1000),
                         rand.randrange(1, 10 ** 6), 1), number), NOW)
    while (waiting := waiters.pop(NOW)) is not None:
        waiters.sleep(waiting, model.Decision(
            waiting.id, model.Verdict.WAIT), index, index.version, NOW)
    times, woken = Times(), 0
    for row in range(0, len(index.rows), max(1, len(index.rows) // 200)):
        woken += times.measure(waiters.host_changed, index, row)
    times.print('one changed host, %d shapes that wait' % count,
                '%d woken' % woken)


def makes_room(host, victims, shape):
    return all(host.inventory[name].capacity - host.used.get(name, 0) +
               sum(server.resources.get(name, 0)
                   for server in victims) >= amount
               for name, amount in shape.resources)


def check_large(index, most):
    """Check whether fewer victims would do, and whether any is needless."""
    rand = random.Random(4)
    needless = fewer = checked = 0
    for number in range(most):
        waiting = ask((rand.randint(1, 40), rand.randint(1, 120) * 1024,
                       rand.randint(1, 800)), number)
        decision = choose.decide(index, waiting, OPTIONS, NOW)
        if decision.verdict is not model.Verdict.PREEMPT:
            continue
        host = index.hosts[index.rows[decision.host]]
        victims = [index.slots.find(victim) for victim in decision.victims]
        if not makes_room(host, victims, waiting.shape):
            raise RuntimeError('no room after %s' % decision)
        needless += sum(makes_room(host, [
            one for one in victims if one is not victim], waiting.shape)
            for victim in victims)
        if 1 < len(victims) < 4:
            checked += 1
            highest = max(victim.priority for victim in victims)
            fewer += any(
                makes_room(index.hosts[row], some, waiting.shape)
                for row in index.rows.values()
                for some in [*itertools.combinations(
                    [one for one in index.slots.of_host(row)
                     if one.priority <= highest], len(victims) - 1), [
                         one for one in index.slots.of_host(row)
                         if one.priority < highest]])
    output.print_row('needless victims of %d decisions' % most, needless)
    output.print_row('fewer or lower would do, of %d tried all over' % checked,
                     fewer)


def check_small(clouds):
    equal = needless = 0
    for seed in range(clouds):
        rand = random.Random(seed)
        world = brute_force.random_world(rand, 5, 8)
        waiting = brute_force.random_waiting(rand)
        index = world.index(OPTIONS)
        index.exclusions.refuse(waiting.shape, world.refused)
        decision = choose.decide(index, waiting, OPTIONS, NOW)
        best = brute_force.decide(world, waiting, OPTIONS)
        if best is None:
            equal += decision.verdict is model.Verdict.WAIT
            continue
        host = next(host for host in world.hosts if host.name == decision.host)
        victims = [server for server in world.servers
                   if server.id in decision.victims]
        equal += best == brute_force.cost(
            host, victims, waiting.shape, OPTIONS,
            world.refused.get(host.name))
        needless += sum(brute_force.makes_room(host, [
            one for one in victims if one is not victim], waiting.shape,
            world.refused.get(host.name)) for victim in victims)
    output.print_row('of %d small clouds as brute force' % clouds, equal,
                     'needless: %d' % needless)


def measure_kube(hosts=1000, per_host=10, count=100):
    """Run the preemption workload of kube-scheduler's scheduler_perf.

    :returns: the decisions, the victims, and those that could be left out
    """
    resources = dict(zip(NAMES, (1, 2048, 20)))
    full = {name: per_host * amount for name, amount in resources.items()}
    index = index_module.Index(OPTIONS)
    for number in range(hosts):
        name = 'node%04d' % number
        index.put(model.Host(name, {
            key: model.Inventory(amount) for key, amount in full.items()},
            full), [model.Server(
                '%s-%d' % (name, at), name, resources, preemptible=True,
                launched_at=NOW - datetime.timedelta(days=1, seconds=at))
                for at in range(per_host)])
    waiters = queue.Queue(OPTIONS)
    for number in range(count):
        waiters.put(brute_force.waiting(full, number), NOW)
    planner = choose.Planner(index, waiters, OPTIONS)
    times, decisions = Times(), []
    while (found := times.measure(planner.next, NOW)) is not None:
        decisions.append(found)
    victims = needless = 0
    for waiting, decision in decisions:
        ended = [index.slots.find(victim) for victim in decision.victims]
        victims += len(ended)
        needless += sum(makes_room(
            index.hosts[index.rows[decision.host]],
            [one for one in ended if one is not victim], waiting.shape)
            for victim in ended)
    times.print('scheduler_perf, preemption', '%d, %.0f a second' % (
        len(decisions), len(decisions) / sum(times.cpu)),
        'victims: %d' % victims, 'needless: %d' % needless)
    return len(decisions), victims, needless


class Aardvark:
    """The strategies of a checkout, with what makes them run today.

    It is from 2020: the abstract classes were still in collections then, and
    mock was a package of its own.
    """

    def __init__(self, path):
        os.environ.setdefault('PBR_VERSION', '1.0.0')
        collections.Iterable = collections.abc.Iterable
        sys.modules.setdefault('mock', mock)
        sys.path.insert(0, path)
        from aardvark import exception
        from aardvark.reaper.strategies import chance
        from aardvark.reaper.strategies import strict
        from aardvark.reaper.strategies import strict_time
        from aardvark.tests.unit.objects import fakes
        logging.getLogger('aardvark').setLevel(logging.ERROR)
        self.failure = exception.NotEnoughResources
        self.fakes = fakes
        self.strategies = {
            'strict': strict.StrictStrategy,
            'strict_time': strict_time.StrictTimeStrategy,
            'chance': chance.ChanceStrategy}

    def resources(self, amounts):
        return self.fakes.make_resources(*(amounts.get(name, 0)
                                           for name in NAMES))

    def hosts(self, hosts):
        """Make hosts for a single decision, which changes the hosts."""
        made = []
        for host, servers in hosts:
            one = self.fakes.make_resource_provider(
                host.name, host.name, self.fakes.make_capabilities(
                    self.resources(host.used),
                    self.resources({name: inventory.capacity
                                    for name, inventory
                                    in host.inventory.items()})))
            one.preemptible_servers = [self.fakes.make_server(
                self.resources(server.resources), server.id,
                flavor_name=str(sorted(server.resources.items())))
                for server in servers]
            made.append(one)
        return made

    def decide(self, name, hosts, asked):
        """Return seconds, and the number of victims or None."""
        made = self.hosts(hosts)
        strategy = self.strategies[name](watermark_mode=False)
        requested = self.resources(dict(zip(NAMES, asked)))
        started = time.perf_counter()
        try:
            _hosts, victims = strategy.get_preemptible_servers(
                requested, made, 1, [])
            count = len(victims)
        except self.failure:
            count = None
        return time.perf_counter() - started, count


def compare(path):
    aardvark = Aardvark(path)
    rand = random.Random(5)
    output.print_row('beside Aardvark, ask (8, 16384, 160)', 'nova-reaper',
                     *aardvark.strategies)
    asked = (8, 16384, 160)
    warm = [make_host(rand, 0, 2)]
    for name in aardvark.strategies:
        aardvark.decide(name, warm, asked)
    for count, per_host in ((1, 10), (1, 14), (10, 10), (100, 10),
                            (1000, 10)):
        hosts = []
        while len(hosts) < count:
            host, servers = make_host(rand, len(hosts), per_host)
            # All hosts have equally many servers, so that the columns can be
            # compared, and no server would do alone.
            servers = [server for server in servers
                       if server.resources['VCPU'] < 8]
            while len(servers) < per_host:
                number = len(servers)
                servers.append(model.Server(
                    '%s-%d' % (host.name, number), host.name,
                    dict(zip(NAMES, FLAVORS[number % 3])), preemptible=True))
            hosts.append((host, servers[:per_host]))
        index = index_module.Index(OPTIONS)
        for host, servers in hosts:
            index.put(host, servers)
        waiting = ask(asked)
        choose.decide(index, waiting, OPTIONS, NOW)
        started = time.perf_counter()
        decision = choose.decide(index, waiting, OPTIONS, NOW)
        cells = ['%s, %d' % (milliseconds(time.perf_counter() - started),
                             len(decision.victims))]
        for name in aardvark.strategies:
            if count * 2 ** per_host > 10 ** 6 and name != 'chance':
                cells.append('-')
                continue
            seconds, victims = aardvark.decide(name, hosts, asked)
            cells.append('%s, %s' % (milliseconds(seconds), victims))
        output.print_row('  %d x %d' % (count, per_host), *cells)


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError('%d is not 1 or more' % value)
    return value


def checkout(path):
    if not os.path.isdir(os.path.join(path, 'aardvark', 'reaper')):
        raise argparse.ArgumentTypeError(
            '%s is no checkout of Aardvark' % path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--hosts', type=positive, default=10000)
    parser.add_argument('--per-host', type=positive, default=10,
                        help='preemptible servers on a host, on average')
    parser.add_argument('--rounds', type=positive, default=50,
                        help='decisions of each kind')
    parser.add_argument('--clouds', type=int, default=1000,
                        help='small clouds to compare with brute force')
    parser.add_argument('--aardvark', type=checkout, metavar='PATH',
                        help='checkout of github.com/NeCTAR-RC/aardvark')
    arguments = parser.parse_args()
    index = measure_memory(arguments.hosts, arguments.per_host)
    measure_decisions(index, arguments.rounds)
    measure_refresh(index, 2000)
    measure_wake(index, 10000)
    check_large(index, 200)
    check_small(arguments.clouds)
    measure_kube()
    if arguments.aardvark:
        compare(arguments.aardvark)


if __name__ == '__main__':
    main()
