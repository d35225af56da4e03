# SPDX-License-Identifier: Apache-2.0

"""What a rebuild in cell0 costs beside a create, and beside delete + create.

    python -m tools.benchmarks.rebuild [--rounds N] [--batch N] [--at-once N]
        [--holds N] [--creates N] [--together N] [--bare] [--claims N]
        [--part creates|holds]

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
and all at once. With --holds a rebuild for which room is held stands beside
one without, and others are created while held room is used: see holds.py.
Nothing is asserted.
"""

import argparse
import collections
from concurrent import futures
import contextlib
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time

from tools.benchmarks import holds
from tools.benchmarks import workload as workloads
from tools.cloud import settings
from tools.cloud import stack

_KINDS = ('sql', 'call', 'cast')


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
                with futures.ThreadPoolExecutor(workload.at_once) as pool:
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
    with futures.ThreadPoolExecutor(workload.at_once) as pool:
        servers = list(pool.map(lambda ask: ask(), asks))
    workload.wait_for_all(servers, 'ACTIVE')
    return servers


def show(measures, placement):
    """Print the medians of some ways to a server.

    The second is compared with each of the others.

    :param measures: lists of Measure by the name of the way
    :param placement: where Placement is, as host and port
    """
    others = [number for number in range(len(measures)) if number != 1]
    names = list(measures)

    def row(title, value, form):
        found = [statistics.median(value(each) for each in way)
                 for way in measures.values()]
        print('%-26s' % title + ''.join(
            ' %15s' % (form % each) for each in found) + ''.join(
            ' %9.2f' % (found[1] / found[other]) for other in others),
            flush=True)

    print('%-26s' % ('median of %d' % len(measures[names[0]])) + ''.join(
        ' %15s' % name for name in names) + ''.join(
        ' %9s' % ('/' + names[other])[:9] for other in others))
    row('seconds until the answer', lambda one: one.api, '%.3f')
    row('seconds until ACTIVE', lambda one: one.active, '%.3f')
    for kind, title in (
            *zip(_KINDS, ('SQL statements', 'RPC calls', 'RPC casts')),
            (placement, 'requests to Placement')):
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
    parser.add_argument('--part', choices=('creates', 'holds'),
                        help='what to do of it (default: all)')
    parser.add_argument('--at-once', type=int, default=16,
                        help='how many requests are made at a time where many '
                        'are made (default: 16)')
    parser.add_argument('--holds', type=int, default=100,
                        help='how many servers have room held for them while '
                        'others are created; 0 for none (default: 100)')
    parser.add_argument('--creates', type=float, default=20,
                        help='how many others a second (default: 20)')
    parser.add_argument('--together', type=int, default=1,
                        help='how many of them one request asks for '
                        '(default: 1)')
    parser.add_argument('--bare', action='store_true',
                        help='create them without a network, a keypair, tags '
                        'and metadata, which takes Nova less time')
    parser.add_argument('--claims', type=float, default=20,
                        help='how many claims of others in Placement a second '
                        '(default: 20)')
    parser.add_argument('--database-url', default=settings.DATABASE_URL)
    parser.add_argument('--bus-url', default=settings.BUS_URL)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        counts = pathlib.Path(folder, 'counts')
        with _cloud(arguments, counts) as cloud:
            workload = workloads.Workload(
                cloud.settings, counts, arguments.at_once)
            placement = '127.0.0.1:%d' % cloud.settings.ports['placement']
            if arguments.part != 'holds':
                if arguments.rounds:
                    show(compare(workload, arguments.rounds), placement)
                if arguments.batch:
                    show_rates(compare_batches(workload, arguments.batch),
                               arguments.batch)
            if arguments.part != 'creates':
                if arguments.rounds:
                    show(holds.compare(workload, arguments.rounds), placement)
                if arguments.holds:
                    holds.show(holds.contend(
                        workload, arguments.holds,
                        lambda: workload.create(
                            arguments.together, arguments.bare),
                        arguments.creates / arguments.together,
                        arguments.claims, is_held)
                        for is_held in (True, False))


if __name__ == '__main__':
    main()
