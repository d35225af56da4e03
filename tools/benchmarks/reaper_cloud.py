# SPDX-License-Identifier: Apache-2.0
"""Placement and nova-reaper of tools/benchmarks/reaper_service.py."""

import datetime
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

from prometheus_client import parser
import psutil
import sqlalchemy

from tools.benchmarks import names
from tools.cloud import configuration
from tools.cloud import plan
from tools.cloud import ports
from tools.cloud import stack
from tools.cloud import stack_plan

_CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB')
_ROWS = 5000
_LEFT_OVER = 700  # MiB of memory
_PATIENCE = 3600


class _PlacementPlan(stack_plan.StackPlan):
    def make(self, run):
        steps = plan.Plan()
        self._plan_placement(steps, run)
        return steps


class PlacementCloud(stack.Stack):
    """A cloud of which only Placement is started."""

    plan_class = _PlacementPlan

    def write_configuration(self):
        super().write_configuration()
        with (self.settings.etc / 'placement/placement.conf').open('a') as (
                file):
            file.write(configuration.render(
                {'api': {'auth_strategy': 'noauth2'}}))


def processor(*pids):
    """Return the seconds of processor time that processes have used."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(time.user + time.system for time in times)


def fill(url, hosts, per_host):
    """Write hosts, and servers that fill them, into Placement's tables.

    As on real hosts some memory is left over, too little for any server.
    """
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        tables = sqlalchemy.MetaData()
        tables.reflect(connection)

        # Placement cannot compare a time with one that is not there.
        now = datetime.datetime(2026, 1, 1)

        def insert(name, rows):
            rows = [{**row, 'created_at': now} for row in rows]
            for at in range(0, len(rows), _ROWS):
                connection.execute(
                    tables.tables[name].insert().values(rows[at:at + _ROWS]))

        kinds = dict(connection.execute(sqlalchemy.text(
            'SELECT name, id FROM resource_classes')).all())
        insert('projects', [{'id': 1, 'external_id': 'project'}])
        insert('users', [{'id': 1, 'external_id': 'user'}])
        insert('resource_providers', (
            {'id': host + 1, 'uuid': names.provider_id(host),
             'name': names.host_name(host), 'generation': 1,
             'root_provider_id': host + 1} for host in range(hosts)))
        insert('traits', ({'id': 10000 + at, 'name': name}
                          for at, name in enumerate(names.TRAITS)))
        insert('resource_provider_traits', (
            {'resource_provider_id': host + 1, 'trait_id': 10000 + at}
            for host in range(hosts) for at in range(len(names.TRAITS))
            if host % 10 != at))
        total = {name: per_host * names.SPOT[name] +
                 names.PLAIN[name] for name in _CLASSES}
        total['MEMORY_MB'] += _LEFT_OVER
        insert('inventories', (
            {'resource_provider_id': host + 1, 'resource_class_id':
             kinds[name], 'total': total[name], 'reserved': 0, 'min_unit': 1,
             'max_unit': total[name], 'step_size': 1, 'allocation_ratio': 1.0}
            for host in range(hosts) for name in _CLASSES))
        servers = [(host, names.plain_id(host), names.PLAIN)
                   for host in range(hosts)]
        servers += [(host, names.spot_id(host, number),
                     names.SPOT)
                    for host in range(hosts) for number in range(per_host)]
        insert('consumers', (
            {'uuid': uuid, 'project_id': 1, 'user_id': 1, 'generation': 1}
            for _host, uuid, _amounts in servers))
        insert('allocations', (
            {'resource_provider_id': host + 1, 'consumer_id': uuid,
             'resource_class_id': kinds[name], 'used': amounts[name]}
            for host, uuid, amounts in servers for name in _CLASSES))
    engine.dispose()


class Reaper:
    """A nova-reaper in a process of its own.

    :param folder: for its configuration and its log
    :param sections: what all of them have
    """

    def __init__(self, folder, name, sections, port):
        self._port = port
        self._path = path = folder / (name + '.conf')
        path.write_text(configuration.render({
            **sections, 'http': {'listen': ports.HOST, 'port': port}}))
        self._log = (folder / (name + '.log')).open('w')
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            self._command('run'), stdout=self._log, stderr=subprocess.STDOUT)

    def _command(self, word):
        return [pathlib.Path(sys.executable).with_name('nova-reaper'), word,
                '--config-file', self._path]

    def pause(self):
        """Let it decide, and do nothing."""
        self._switch('pause', 1)

    def resume(self):
        """Let it go on after a pause."""
        self._switch('resume', 0)

    def _switch(self, word, paused):
        subprocess.run(self._command(word), check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.metrics().get('nova_reaper_paused') != paused:
            time.sleep(0.1)

    def metrics(self):
        """Return metrics by name, and by name and label; {} without answer."""
        try:
            with urllib.request.urlopen('http://%s:%d/metrics' % (
                    ports.HOST, self._port), timeout=60) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found = {}
        for family in parser.text_string_to_metric_families(text):
            for sample in family.samples:
                for key in (sample.name, *(
                        (sample.name, value)
                        for value in sample.labels.values())):
                    found[key] = found.get(key, 0) + sample.value
        return found

    def wait_for(self, name, least=1, begun=None):
        """Wait until a metric has a value; return the seconds it took."""
        begun = begun or self.begun
        while self.metrics().get(name, 0) < least:
            if self.process.poll() is not None or (
                    time.monotonic() - begun > _PATIENCE):
                raise RuntimeError('No %s: see %s' % (name, self._log.name))
            # The reaper takes time from its work to answer.
            time.sleep(0.25)
        return time.monotonic() - begun

    def decided(self):
        """Return the IDs of the servers whose decision is in the log."""
        with open(self._log.name) as file:
            return set(re.findall(r' Server (\S{36}) \(', file.read()))

    def memory(self):
        """Return the MiB of memory that the reaper has."""
        return psutil.Process(self.process.pid).memory_info().rss >> 20

    def kill(self):
        """End it as a system does that has run out of memory."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


def requests_of(before, after):
    """Count the requests between two readings of metrics, by service."""
    name = 'nova_reaper_requests_total'
    return {service: int(after.get((name, service), 0) -
                         before.get((name, service), 0))
            for service in ('nova', 'placement', 'keystone')}
