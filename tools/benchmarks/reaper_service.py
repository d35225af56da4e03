# SPDX-License-Identifier: Apache-2.0
"""How nova-reaper does on a large cloud: its start, events, another's place.

    python -m tools.benchmarks.reaper_service [--hosts N] [--rate N]

The console script runs as it is, against a real Placement on MariaDB with
10,000 providers and a real RabbitMQ. Nova and Keystone are played by a process
that answers as they do (reaper_nova.py). 100,000 preemptible servers fill the
hosts, and 10,000 servers wait. In turn:

start     until the first decision: seconds, requests, memory
events    so many a second, of which a part frees room for a waiting server:
          from the room being free to the rebuild being asked for
standby   the active reaper is killed: until the other decides
thrash    100 servers wait for which others have to end, while somebody creates
          servers of the same shape all the time
new       1,000 servers begin to wait, each of a demand of its own and of 200
          projects; others have to end for them: until each has been decided,
          by a reaper that is paused; then how many land within a minute

Nothing is asserted.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from oslo_utils import uuidutils
import requests
import urllib3

from tools.benchmarks import names
from tools.benchmarks import output
from tools.benchmarks import reaper_cloud
from tools.cloud import ports
from tools.cloud import settings

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RIVALS = 4
_AFTER = 60


class Benchmark:
    """What is measured on one cloud.

    :param cloud: a PlacementCloud that is up
    """

    def __init__(self, args, cloud, folder):
        self._args = args
        self._cloud = cloud.settings
        self._folder = folder
        self._http = requests.Session()
        # Nova takes a moment before it listens.
        self._http.mount('http://', requests.adapters.HTTPAdapter(
            max_retries=urllib3.Retry(connect=8, backoff_factor=0.5)))
        self._random = random.Random(1)
        held = ports.Ports(('nova', 'first', 'second'), {})
        self._ports = dict(held.numbers)
        held.release_all()
        self._nova_url = 'http://%s:%d' % (ports.HOST, self._ports['nova'])
        self._placement = cloud.processes.running()['placement-api']
        # Hosts whose plain server is there, in the order of their end.
        self._hosts = self._random.sample(range(args.hosts), args.hosts)
        self.stack = contextlib.ExitStack()

    def prepare(self):
        begun = time.monotonic()
        reaper_cloud.fill(self._cloud.databases.url('placement'),
                          self._args.hosts, self._args.per_host)
        output.print_row('Placement is filled, s', '%.1f' % (
            time.monotonic() - begun))
        facts = self._folder / 'nova.json'
        facts.write_text(json.dumps({
            'port': self._ports['nova'], 'url': self._nova_url,
            'placement': self._cloud.url('placement'),
            'bus': self._cloud.bus.url, 'hosts': self._args.hosts,
            'per_host': self._args.per_host, 'waiting': self._args.waiting,
            'demands': self._args.demands}))
        process = subprocess.Popen(
            [sys.executable, '-m', 'tools.benchmarks.reaper_nova', facts],
            cwd=_ROOT)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self._notifier = names.Notifier(self._cloud.bus.url)

    def _reaper(self, name):
        unlimited = {'region_name': settings.REGION, 'rate_limit': 0,
                     'valid_interfaces': 'internal'}
        made = reaper_cloud.Reaper(self._folder, name, {
            'DEFAULT': {'use_stderr': True,
                        'transport_url': self._cloud.bus.url,
                        'state_path': self._folder},
            'reaper': {
                'mode': 'preempt', 'grace_period': 0, 'stop_timeout': 0,
                'max_rebuilds': 200, 'max_preemptions': 20,
                'max_ends_per_project_hour': 0, 'max_ends_per_hour': 0,
                'pending_list_interval': 3600, 'full_list_interval': 3600,
                'workers': self._args.workers},
            'coordination': {
                'backend_url': 'file://%s' % self._folder,
                'check_interval': 0.5},
            'nova': unlimited, 'placement': unlimited, 'keystone': unlimited,
            'nova_reaper': {
                'auth_type': 'password', 'auth_url': self._nova_url + '/v3',
                'username': 'reaper', 'password': 'x',
                'user_domain_id': 'default', 'project_name': 'service',
                'project_domain_id': 'default'},
            'keystone_authtoken': {'www_authenticate_uri': self._nova_url},
        }, self._ports[name])
        self.stack.callback(made.kill)
        return made

    def start(self, name='first'):
        """Start the reaper that is to act; others have to end for a server."""
        self._wait(1)
        reaper = self._reaper(name)
        seconds = reaper.wait_for('nova_reaper_decisions_total')
        counts = reaper_cloud.requests_of({}, reaper.metrics())
        output.print_row('Start: until the first decision, s',
                         '%.1f' % seconds)
        for service, count in counts.items():
            output.print_row('  requests to ' + service, count)
        output.print_row('  memory, MiB', reaper.memory())
        seconds = reaper.wait_for(('nova_reaper_notices_total', 'given'))
        output.print_row('Start: until the first notice, s',
                         '%.1f' % seconds)
        while not self._log()['running']:
            time.sleep(0.1)
        output.print_row('  until its server runs, s', '%.1f' % (
            time.monotonic() - reaper.begun))
        reaper.wait_for(('nova_reaper_list_seconds_count', 'full'))
        self._settle(reaper)
        output.print_row('  all 10,000 decided after, s'.replace(
            '10,000', str(self._args.waiting)),
            '%.1f' % (time.monotonic() - reaper.begun))
        return reaper

    def _settle(self, reaper):
        """Wait until nothing goes on."""
        before = None
        while (now := reaper.metrics().get(
                'nova_reaper_decisions_total')) != before:
            before = now
            time.sleep(1)

    def _log(self):
        return self._http.get(self._nova_url + '/bench/log').json()

    def events(self, reaper, rate, share, seconds):
        """Let things happen, and see how long room lies free."""
        before, seen = reaper.metrics(), len(self._log()['log'])
        spent = self._processor(reaper)
        freed, others = {}, 0
        begun, number = time.monotonic(), 0
        while (due := number / rate) < seconds:
            number += 1
            time.sleep(max(0, begun + due - time.monotonic()))
            if self._random.random() < share:
                host = self._hosts.pop()
                self._ask('DELETE', '/allocations/' +
                          names.plain_id(host))
                name = names.host_name(host)
                freed[name] = time.monotonic()
                self._notifier.tell(
                    'instance.delete.end', name, names.plain_id(host),
                    names.FLAVORS['plain'])
            else:
                others += 1
                name = names.host_name(self._random.choice(self._hosts))
                self._notifier.tell(
                    'instance.create.end', name, uuidutils.generate_uuid(),
                    names.FLAVORS['plain'])
        took = time.monotonic() - begun
        end = time.monotonic() + 60
        while time.monotonic() < end:
            issued = {host: at for _uuid, host, at
                      in self._log()['log'][seen:]}
            if freed.keys() <= issued.keys():
                break
            time.sleep(0.5)
        # What follows a rebuild is a part of its price.
        time.sleep(5)
        waits = [issued[host] - at for host, at in freed.items()
                 if host in issued]
        counts = reaper_cloud.requests_of(before, reaper.metrics())
        output.print_row('Events: %d in %.0f s, a second' % (number, took),
                         '%.1f' % (number / took))
        output.print_row('  that freed room, and were rebuilt for', len(freed),
                         len(waits))
        if waits:
            output.print_row('  free to asked for: median, 99 %, most; s', *(
                '%.2f' % value for value in (
                    statistics.median(waits), output.percentile(waits, 0.99),
                    max(waits))))
        for service in ('nova', 'placement'):
            output.print_row('  requests to %s for an event' % service,
                             '%.2f' % (counts[service] / number))
        spent = [now - then for now, then in zip(
            self._processor(reaper), spent)]
        output.print_row('  processor for an event, ms', '%.1f' % (
            1000 * spent[0] / number))
        output.print_row('  processor for a request to Placement, ms',
                         '%.1f' % (
                             1000 * spent[1] / max(1, counts['placement'])))

    def _processor(self, reaper):
        """Return the processor seconds of the reaper and of Placement."""
        return (reaper_cloud.processor(reaper.process.pid),
                reaper_cloud.processor(*self._placement.members()))

    def _ask(self, method, path, body=None):
        return names.ask(self._http, self._cloud.url('placement'),
                               method, path, body)

    def stand_by(self):
        """Start the reaper that waits for its turn."""
        reaper = self._reaper('second')
        reaper.wait_for(('nova_reaper_list_seconds_count', 'full'))
        return reaper

    def take_over(self, first, second):
        """Kill the active reaper."""
        before, begun = second.metrics(), time.monotonic()
        decisions = before.get('nova_reaper_decisions_total', 0)
        first.kill()
        seconds = second.wait_for('nova_reaper_decisions_total',
                                  decisions + 1, begun)
        output.print_row('Standby: kill to the first decision, s',
                         '%.1f' % seconds)
        for service, count in reaper_cloud.requests_of(
                before, second.metrics()).items():
            output.print_row('  requests to ' + service, count)
        output.print_row('  memory, MiB', second.memory())
        self._settle(second)

    def thrash(self, reaper):
        """Let 100 wait for others to end, and somebody be in the way."""
        stop, tried, taken = threading.Event(), [], []
        rivals = [threading.Thread(target=self._be_in_the_way, args=(
            stop, tried, taken)) for _ in range(_RIVALS)]
        before, log = reaper.metrics(), self._log()
        for rival in rivals:
            rival.start()
        begun = time.monotonic()
        self._wait(self._args.urgent, first=1)
        while (running := self._log()['running'] - log['running']
               ) < self._args.urgent and (
                time.monotonic() - begun < 600):
            time.sleep(0.5)
        seconds = time.monotonic() - begun
        stop.set()
        for rival in rivals:
            rival.join()
        after = reaper.metrics()
        output.print_row('Thrash: landed of %d, s' % self._args.urgent,
                         running, '%.1f' % seconds)
        needless = 'nova_reaper_needless_victims_total'
        output.print_row('  ended for them, needless',
                         self._log()['ended'] - log['ended'],
                         int(after.get(needless, 0) - before.get(needless, 0)))
        output.print_row('  tried by the other, taken', len(tried), len(taken))

    def _wait(self, count, projects=1, new=False, first=0):
        """Have servers wait for others to end.

        :param first: the number of the first server
        :param new: whether each is of a demand of its own
        """
        self._http.post(self._nova_url + '/bench/wait', json={
            'count': count, 'projects': projects, 'new': new,
            'first': first})

    def new(self, reaper):
        """Let servers wait, each of a demand that nobody knows.

        The reaper is paused until it has decided for each of them and has
        asked Nova about each decision; then it makes room.
        """
        reaper.pause()
        missing = set(map(names.new_id, range(self._args.new)))
        before, begun = reaper.metrics(), time.monotonic()
        spent = self._processor(reaper)
        self._wait(self._args.new, 200, new=True)
        last, ended = None, begun
        while time.monotonic() - begun < 600:
            time.sleep(0.5)
            missing -= reaper.decided()
            asked = reaper_cloud.requests_of({}, reaper.metrics())
            if asked != last:
                last, ended = asked, time.monotonic()
            elif not missing:
                break
        output.print_row('New: decided of %d demands, s' % self._args.new,
                         self._args.new - len(missing),
                         '%.1f' % (ended - begun))
        self._print_price(before, spent, reaper)
        before, spent = reaper.metrics(), self._processor(reaper)
        running = self._log()['running']
        reaper.resume()
        time.sleep(_AFTER)
        landed = self._log()['running'] - running
        output.print_row('  landed within %d s after that' % _AFTER, landed)
        self._print_price(before, spent, reaper)

    def _print_price(self, before, spent, reaper):
        for service, count in reaper_cloud.requests_of(
                before, reaper.metrics()).items():
            output.print_row('  requests to ' + service, count)
        output.print_row('  processor of reaper and Placement, s', *(
            '%.1f' % (now - then) for now, then in zip(
                self._processor(reaper), spent)))

    def _be_in_the_way(self, stop, tried, taken):
        """Create servers as a scheduler does, all the time."""
        query = ','.join('%s:%d' % item
                         for item in names.URGENT.items())
        http = requests.Session()
        while not stop.is_set():
            tried.append(1)
            answer = names.ask(
                http, self._cloud.url('placement'), 'GET',
                '/allocation_candidates?limit=1&resources=' + query)
            for candidate in answer['allocation_requests']:
                if not names.ask(
                        http, self._cloud.url('placement'), 'PUT',
                        '/allocations/' + uuidutils.generate_uuid(), {
                            'allocations': candidate['allocations'],
                            'project_id': 'other', 'user_id': 'other',
                            'consumer_type': 'INSTANCE',
                            'consumer_generation': None}):
                    taken.append(1)


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog='python -m tools.benchmarks.reaper_service',
        description='See how nova-reaper does on a large cloud.')
    parser.add_argument('--hosts', type=int, default=10000)
    parser.add_argument('--per-host', type=int, default=10,
                        help='preemptible servers on each (%(default)s)')
    parser.add_argument('--waiting', type=int, default=10000)
    parser.add_argument('--demands', type=int, default=40,
                        help='different demands of those (%(default)s)')
    parser.add_argument('--urgent', type=int, default=100,
                        help='servers that wait for others to end '
                        '(%(default)s)')
    parser.add_argument('--new', type=int, default=1000,
                        help='servers of demands of their own (%(default)s)')
    parser.add_argument('--rate', type=float, default=50,
                        help='events a second (%(default)s)')
    parser.add_argument('--share', type=float, default=0.1,
                        help='of them that free room (%(default)s)')
    parser.add_argument('--seconds', type=float, default=30,
                        help='for which there are events (%(default)s)')
    parser.add_argument('--workers', type=int, default=16,
                        help='threads of nova-reaper (%(default)s)')
    parser.add_argument('--placements', type=int, default=4,
                        help='processes of Placement (%(default)s)')
    parser.add_argument('--no-standby', dest='standby', action='store_false',
                        help='leave out what takes as long as the start')
    for what, name in (('database', 'MariaDB'), ('bus', 'RabbitMQ')):
        parser.add_argument(
            '--%s-url' % what, default=os.environ.get(
                'CLOUD_%s_URL' % what.upper()),
            help='a %s that is there already (one of its own)' % name)
    return parser.parse_args(argv)


def main(argv=None):
    args = _parse(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ['no_proxy'] = os.environ['NO_PROXY'] = ports.HOST
    begun = time.monotonic()
    cloud = reaper_cloud.PlacementCloud(
        args.database_url, args.bus_url, workers=args.placements)
    cloud.check()
    with contextlib.ExitStack() as undo:
        undo.callback(cloud.down)
        folder = pathlib.Path(undo.enter_context(
            tempfile.TemporaryDirectory()))
        cloud.up(lambda name, seconds: None)
        benchmark = Benchmark(args, cloud, folder)
        undo.callback(benchmark.stack.close)
        output.print_row('Load of the machine', *('%.1f' % load
                                                  for load in os.getloadavg()))
        benchmark.prepare()
        reaper = benchmark.start()
        benchmark.events(reaper, args.rate, args.share, args.seconds)
        if args.standby:
            second = benchmark.stand_by()
            benchmark.take_over(reaper, second)
            reaper = second
        benchmark.thrash(reaper)
        benchmark.new(reaper)
        output.print_row('Load of the machine', *('%.1f' % load
                                                  for load in os.getloadavg()))
    output.print_row('All of it, s', '%.0f' % (time.monotonic() - begun))


if __name__ == '__main__':
    main()
