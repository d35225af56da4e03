# SPDX-License-Identifier: Apache-2.0

"""Tests of the files for Prometheus and Grafana.

They are beside the package in a checkout, and in no wheel.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any
import unittest
from unittest import mock

import fixtures
import yaml

from nova_reaper.cloud import model
from nova_reaper.report import health
from nova_reaper import tests

_ROOT = pathlib.Path(__file__).resolve().parents[4]
_PROMETHEUS = _ROOT / 'reaper/etc/prometheus'
_RULES = _PROMETHEUS / 'nova-reaper.rules.yaml'
_TESTS = _PROMETHEUS / 'nova-reaper.test.yaml'
_BOARD = _ROOT / 'reaper/etc/grafana/nova-reaper.json'
_METRICS = _ROOT / 'doc/source/reference/reaper-metrics.rst'
_ALARMS = _ROOT / 'doc/source/admin/alarms.rst'

# What a histogram has behind its name, and what the client adds by itself.
_SUFFIX = re.compile('_(bucket|sum|count)$')
_PROCESS = {'process_resident_memory_bytes'}


class AlarmsTestCase(tests.TestCase):

    def setUp(self) -> None:
        super().setUp()
        if not _RULES.exists():
            self.skipTest('This is no checkout: %s is missing.' % _RULES)
        self.rules = [
            rule for group in yaml.safe_load(_RULES.read_text())['groups']
            for rule in group['rules']]
        self.names = [rule['alert'] for rule in self.rules]
        self.board = json.loads(_BOARD.read_text())
        self.queries = [
            target['expr'] for panel in self.board['panels']
            for target in panel.get('targets', ())]

    def _run_promtool(self, *words: object) -> None:
        promtool = shutil.which('promtool') or ''
        if not promtool:
            self.do_without('promtool is missing; it is in the package '
                            '"prometheus" of Debian.')
        done = subprocess.run(
            [promtool, *map(str, words)], cwd=_PROMETHEUS, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(0, done.returncode, done.stdout)

    @mock.patch.object(shutil, 'which', return_value=None)
    def test_promtool_is_missing(self, _which: mock.Mock) -> None:
        outcomes = []
        for value in (None, '1'):
            self.useFixture(fixtures.EnvironmentVariable(
                tests.REQUIRE_ALL, value))
            try:
                self._run_promtool()
            except (unittest.SkipTest, self.failureException) as error:
                outcomes.append(type(error))
        self.assertEqual([unittest.SkipTest, self.failureException],
                         outcomes)

    def test_rules(self) -> None:
        self._run_promtool('test', 'rules', _TESTS.name)

    def test_each_comes_and_does_not(self) -> None:
        found: dict[str, set[bool]] = {}
        for test in yaml.safe_load(_TESTS.read_text())['tests']:
            for case in test['alert_rule_test']:
                found.setdefault(case['alertname'], set()).add(
                    bool(case['exp_alerts']))
        self.assertEqual(
            dict.fromkeys(self.names, {True, False}), found)

    def test_each_is_documented(self) -> None:
        self.assertEqual(
            self.names, re.findall(r'^(NovaReaper\w+)\n-+$',
                                   _ALARMS.read_text(), re.MULTILINE))

    def test_severities(self) -> None:
        self.assertEqual(
            {'critical', 'warning', 'info'},
            {rule['labels']['severity'] for rule in self.rules})

    def test_metrics_are_known(self) -> None:
        known = set(re.findall('nova_reaper_[a-z_]+', _METRICS.read_text()))
        for query in [*(rule['expr'] for rule in self.rules), *self.queries]:
            used = {
                name if name in known else _SUFFIX.sub('', name)
                for name in re.findall(
                    r'\b(?:nova_reaper|process)_[a-z_]+', query)}
            self.assertEqual(set(), used - known - _PROCESS, query)

    def test_all_that_is_counted_begins_at_0(self) -> None:
        meters = health.Metrics()
        for metric in meters.registry.collect():
            if metric.type in ('counter', 'histogram') and (
                    metric.name.startswith('nova_reaper')):
                self.assertTrue(metric.samples, metric.name)
        for result in model.Result:
            self.assertEqual(0, meters.registry.get_sample_value(
                'nova_reaper_rebuilds_total', {'result': result.value}))

    def test_lists_have_an_age_before_one_is_read(self) -> None:
        before = time.time()
        meters = health.Metrics()
        for name in ('pending', 'full'):
            self.assertLessEqual(before, meters.registry.get_sample_value(
                'nova_reaper_last_list_timestamp_seconds',
                {'list': name}) or 0)

    def test_board_shows_all_metrics(self) -> None:
        shown = ' '.join(self.queries)
        missing = {name for name in re.findall(
            'nova_reaper_[a-z_]+', _METRICS.read_text()) if name not in shown}
        # These are for alarms, or are shown as a share of something else.
        self.assertEqual({'nova_reaper_repeated_victims_total',
                          'nova_reaper_last_event_timestamp_seconds',
                          'nova_reaper_list_seconds'}, missing)

    def test_queries_of_the_board(self) -> None:
        rules: dict[str, Any] = {'groups': [{'name': 'board', 'rules': [
            {'record': 'board:query%d' % number,
             'expr': query.replace('$job', '.*')}
            for number, query in enumerate(self.queries)]}]}
        with tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
            yaml.safe_dump(rules, file)
            file.flush()
            self._run_promtool('check', 'rules', file.name)

    def test_panels(self) -> None:
        panels = self.board['panels']
        self.assertEqual(len(panels), len({each['id'] for each in panels}))
        places = {(each['gridPos']['x'], each['gridPos']['y'])
                  for each in panels}
        self.assertEqual(len(panels), len(places))
        for each in panels:
            self.assertLessEqual(
                each['gridPos']['x'] + each['gridPos']['w'], 24)
