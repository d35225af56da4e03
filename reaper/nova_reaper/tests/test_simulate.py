# SPDX-License-Identifier: Apache-2.0

import contextlib
import datetime
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies
from oslo_config import cfg
import yaml

from nova_reaper.cli import main
from nova_reaper.cloud import model
from nova_reaper import conf
from nova_reaper import simulate
from nova_reaper import tests
from nova_reaper.tests import brute_force

NOW = brute_force.NOW
SEEDS = strategies.integers(min_value=0, max_value=2 ** 32)


def document() -> dict[str, Any]:
    """The example of the reference, with a little more of everything."""
    return {
        'now': '2026-11-22T12:00:00Z',
        'options': {'mode': 'preempt', 'min_run_time': 600},
        'hosts': [{
            'name': 'h1', 'aggregates': ['az1'], 'traits': ['CUSTOM_X'],
            'disabled': False,
            'inventory': {
                'VCPU': {'total': 8, 'reserved': 0, 'allocation_ratio': 1.0},
                'MEMORY_MB': {'total': 2048}, 'DISK_GB': {'total': 20}}}],
        'servers': [{
            'id': 's1', 'host': 'h1', 'project': 'p1',
            'resources': {'VCPU': 8, 'MEMORY_MB': 256, 'DISK_GB': 1},
            'preemptible': True, 'priority': 0,
            'launched_at': '2026-11-22T11:00:00Z', 'action': 'delete'}],
        'waiting': [{
            'id': 'w1', 'project': 'p2', 'resources': {'VCPU': 2},
            'required': ['CUSTOM_X', '!CUSTOM_Y'], 'member_of': ['az1'],
            'host': None, 'preemptible': False, 'priority': 0,
            'created_at': '2026-11-22T11:30:00Z', 'attempts': 0}]}


def decide(given: Any) -> list[dict[str, Any]]:
    return [decision.to_dict() for decision in simulate.simulate(
        simulate.parse(given, NOW))]


class CommandTestCase(tests.TestCase):
    """The command line."""

    def run_command(self, *arguments: str, text: str | None = None
                    ) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with mock.patch.object(sys, 'stdin', io.TextIOWrapper(
                    io.BytesIO((text or '').encode()))):
                code = main.main(['simulate', *arguments])
        return code, out.getvalue(), err.getvalue()

    def file(self, content: bytes) -> str:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = pathlib.Path(directory.name) / 'cloud'
        path.write_bytes(content)
        return str(path)

    def test_json(self) -> None:
        path = self.file(json.dumps(document()).encode())
        code, out, err = self.run_command('--json', path)
        self.assertEqual((0, ''), (code, err))
        self.assertEqual({'decisions': [{
            'server': 'w1', 'verdict': 'preempt', 'host': 'h1',
            'victims': ['s1'], 'reason': 'no_room', 'hindrance': None,
            'detail': '1 preemptible server on one host would have '
                      'to go.'}]},
            json.loads(out))

    def test_who_has_not_asked(self) -> None:
        given = document()
        first = given['waiting'][0]
        given['waiting'] = [
            first | {'id': 'all', 'asked': False, 'wait': 'all'},
            first | {'id': 'not', 'asked': False},
            first | {'id': 'never', 'wait': 'never'},
            first | {'id': 'asked', 'asked': True}]
        for option, waits in ({}, ['not', 'never']), (
                {'wait': 'all'}, ['never']):
            given['options'] |= option
            self.assertEqual(waits, [
                decision['server'] for decision in decide(given)
                if decision['hindrance'] == 'not_asked'])
        given['options']['wait'] = 'never'
        self.assertRaisesRegex(
            simulate.BadInput, 'options.wait: has to be one of "asked", "all"',
            decide, given)

    def test_yaml_says_the_same(self) -> None:
        text = yaml.safe_dump(document()).replace(
            "'2026-11-22T12:00:00Z'", '2026-11-22T12:00:00Z')
        expected = self.run_command(self.file(json.dumps(document()).encode()))
        self.assertEqual(expected, self.run_command('-', text=text))
        self.assertIn('preempt', expected[1])

    def test_yaml_that_merges(self) -> None:
        text = ("""
            hosts:
            - &small {name: h0, inventory: {VCPU: {total: 4}}}
            - &large {<<: *small, name: h1, inventory: {VCPU: {total: 8}}}
            - {<<: *large, name: h2}
            waiting: [{id: w, resources: {VCPU: 8}, host: h2}]""")
        code, out, _err = self.run_command('--json', '-', text=text)
        self.assertEqual(0, code)
        self.assertEqual('h2', json.loads(out)['decisions'][0]['host'])

    def test_nothing_waits(self) -> None:
        self.assertEqual((0, '{\n  "decisions": []\n}\n', ''),
                         self.run_command('--json', '-', text='{}'))

    def test_the_table_tells_a_terminal_nothing(self) -> None:
        given = document()
        given['waiting'][0]['id'] = 'w\x1b[2J\ny'
        code, out, _err = self.run_command('-', text=json.dumps(given))
        self.assertEqual(0, code)
        self.assertIn(r'w\x1b[2J\ny', out)
        self.assertNotIn('\x1b', out)

    def test_no_file(self) -> None:
        code, out, err = self.run_command('/nowhere/cloud')
        self.assertEqual((2, ''), (code, out))
        self.assertIn('/nowhere/cloud: No such file', err)

    def test_no_text(self) -> None:
        code, _out, err = self.run_command(self.file(b'\xff\xfe{}'))
        self.assertEqual(2, code)
        self.assertIn('UTF-8', err)

    def test_neither_json_nor_yaml(self) -> None:
        for text in ('{', 'a: [', '\0', '{"hosts": [' * 10 ** 5, '? [a]\n: 1',
                     '- ' * 30000, '{a: ' * 20000, '[{' * 50,
                     'hosts: &a [*a]', '{"now": ' + '9' * 5000 + '}',
                     '{"hosts": [], "hosts": []}', 'hosts: []\nhosts: []',
                     '!!python/object/apply:os.getcwd []',
                     'x: !!timestamp foo', 'x: !!bool foo', 'x: !!int ""',
                     'hosts: !!map [a]', 'hosts: !!map a', '!!map [a]',
                     'a: &a {b: 1}\nc: {<<: *a, b: 1, b: 2}',
                     f'x: 1{":59" * 300}.5'):
            code, out, err = self.run_command('-', text=text)
            self.assertEqual((2, ''), (code, out), text[:20])
            self.assertIn('nova-reaper simulate: the document: ', err)

    def test_wrong_value(self) -> None:
        given = document()
        given['hosts'][0]['inventory']['VCPU']['total'] = -1
        code, out, err = self.run_command('-', text=json.dumps(given))
        self.assertEqual((2, ''), (code, out))
        self.assertEqual(
            'nova-reaper simulate: hosts[0].inventory.VCPU.total: has to be a '
            'whole number from 0 to 2147483647, not -1\n', err)

    def test_what_is_said_is_one_line_of_some_length(self) -> None:
        for text in ('{"servers": [{"id": "s", "host": "x\\n\\u2028y", '
                     '"resources": {}}]}',
                     '{"a\\nb": 1}', json.dumps({'a' * 10 ** 5: 1}),
                     '{"%s": 1, "%s": 2}' % (('a' * 10 ** 5,) * 2),
                     '!!int "%s"' % ('a' * 10 ** 5), '"\\ud800": 1',
                     json.dumps({'options': {'notice_url': 'x\n' * 10 ** 5}}),
                     json.dumps({'options': {'mode': 'x\n' * 10 ** 5}})):
            code, out, err = self.run_command('-', text=text)
            self.assertEqual((2, '', 1), (code, out, len(err.splitlines())))
            self.assertLess(len(err), 700)


class OutputTestCase(tests.TestCase):
    """Where it comes from and goes to, in a process of its own."""

    def run_process(self, stdout: Any = subprocess.PIPE,
                    redirect: str = '', **environment: str
                    ) -> tuple[int, str, str]:
        given = document()
        given['waiting'][0]['id'] = 'w\xe9'
        done = subprocess.run(
            ['sh', '-c', f'exec "$@" {redirect}', 'sh', sys.executable, '-m',
             'nova_reaper.cli.main', 'simulate', '-'], stdout=stdout,
            stderr=subprocess.PIPE, text=True, input=json.dumps(given),
            env={**os.environ, **environment}, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_a_terminal_that_cannot_show_it(self) -> None:
        code, out, err = self.run_process(PYTHONIOENCODING='ascii')
        self.assertEqual((0, ''), (code, err))
        self.assertIn('w\\xe9', out)

    def test_nobody_reads_it(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        self.assertEqual((2, None, ''), self.run_process(stdout=writer))

    def test_it_is_full(self) -> None:
        self.assertEqual(
            (2, '', 'nova-reaper: No space left on device\n'),
            self.run_process(redirect='>/dev/full'))

    def test_closed(self) -> None:
        self.assertEqual(
            (2, '', 'nova-reaper simulate: there is no standard output\n'),
            self.run_process(redirect='>&-'))
        self.assertEqual((0, ''), self.run_process(redirect='2>&-')[::2])
        self.assertEqual(
            (2, '', ''), self.run_process(redirect='<&- 2>&-'))
        self.assertEqual(
            (2, '', ''), self.run_process(redirect='<&- 2>/dev/full'))
        self.assertEqual(
            (2, '', 'nova-reaper simulate: the document: there is no standard '
             'input\n'), self.run_process(redirect='<&-'))


class BadInputTestCase(tests.TestCase):
    """What is wrong is refused, with its path."""

    def check(self, path: str, *changes: Any) -> None:
        for change in changes:
            given = document()
            change(given)
            error = self.assertRaises(simulate.BadInput, simulate.parse, given,
                                      NOW)
            self.assertEqual(path, error.path, str(error))

    def check_values(self, path: str, *values: Any) -> None:
        *parents, key = path.replace('[', '.').replace(']', '').split('.')
        for value in values:
            def change(given: Any, value: Any = value) -> None:
                for parent in parents:
                    given = given[int(parent) if parent.isdigit() else parent]
                given[int(key) if key.isdigit() else key] = value
            self.check(path, change)

    def test_whole_numbers(self) -> None:
        for path in ('hosts[0].inventory.VCPU.total',
                     'hosts[0].inventory.VCPU.reserved',
                     'hosts[0].inventory.VCPU.min_unit',
                     'hosts[0].inventory.VCPU.max_unit',
                     'hosts[0].inventory.VCPU.step_size',
                     'servers[0].resources.VCPU', 'servers[0].priority',
                     'waiting[0].resources.VCPU', 'waiting[0].priority',
                     'waiting[0].attempts', 'options.min_run_time',
                     'options.pending_timeout'):
            self.check_values(path, True, '1', 1.0, 1.5, None, [], {},
                              float('nan'), float('inf'), 2 ** 63, 10 ** 5000,
                              -2 ** 31 - 1)

    def test_options_of_the_service_decide_nothing(self) -> None:
        given = document()
        wanted = simulate.parse(given, NOW)
        given['options'] |= {
            'grace_period': 60, 'strict_accounting': True, 'workers': 4,
            'notice_url': 'https://example.com/notice'}
        self.assertEqual(wanted, simulate.parse(given, NOW))
        for option in conf.reaper_opts:
            given['options'][option.dest] = option.default
        simulate.parse(given, NOW)
        self.check_values('options.grace_period', -1, '60', True, None)
        self.check_values('options.safeguard_shrink_percent', 101)
        self.check_values('options.strict_accounting', 1, 'true')
        self.check_values('options.notice_url', 5, 'nowhere')

    def test_options_have_the_limits_of_the_configuration(self) -> None:
        given = document()
        given['waiting'][0] |= {
            'attempts': model.MAX_INT, 'last_attempt': '3000-01-01T00:00:00Z'}
        for at in ('min', 'max'):
            for option in conf.reaper_opts:
                if isinstance(option, cfg.IntOpt):
                    limit = getattr(option.type, at)
                    given['options'][option.dest] = limit
                    self.check_values(f'options.{option.dest}',
                                      limit + (1 if at == 'max' else -1))
            self.assertEqual(1, len(decide(given)))

    def test_created_at_null_is_now(self) -> None:
        given = document()
        given['waiting'][0]['created_at'] = None
        self.assertEqual(simulate.parse(given, NOW).now, simulate.parse(
            given, NOW).waiting[0].created_at)

    def test_ratio(self) -> None:
        self.check_values('hosts[0].inventory.VCPU.allocation_ratio', -0.1,
                          True, '1', None, float('nan'), float('inf'), 1e300,
                          10 ** 400, -10 ** 400)

    def test_more_reserved_than_there_is(self) -> None:
        self.check_values('hosts[0].inventory.VCPU.reserved', 9)

    def test_zero_units(self) -> None:
        for name in ('min_unit', 'max_unit', 'step_size'):
            self.check_values(f'hosts[0].inventory.VCPU.{name}', 0, -1)

    def test_flags(self) -> None:
        for path in ('hosts[0].disabled', 'servers[0].preemptible',
                     'waiting[0].preemptible', 'options.reserve'):
            self.check_values(path, 0, 1, 'true', None, [])

    def test_names(self) -> None:
        for path in ('hosts[0].name', 'servers[0].id', 'servers[0].host',
                     'waiting[0].id', 'waiting[0].host'):
            self.check_values(path, '', ' ', 1, True, [], '\ud800')

    def test_lists_and_objects(self) -> None:
        for path in ('hosts', 'servers', 'waiting', 'hosts[0].traits',
                     'hosts[0].aggregates', 'waiting[0].required',
                     'waiting[0].member_of', 'options.scorers'):
            self.check_values(path, {}, 'CUSTOM_X', None, 1)
        for path in ('options', 'hosts[0]', 'hosts[0].inventory',
                     'hosts[0].inventory.VCPU', 'servers[0]',
                     'servers[0].resources', 'waiting[0]',
                     'waiting[0].resources'):
            self.check_values(path, [], 'x', None, 1)
        wrong: list[Any] = [[], None, 1, 'x']
        for value in wrong:
            self.assertRaises(simulate.BadInput, simulate.parse, value, NOW)

    def test_providers(self) -> None:
        def given() -> dict[str, Any]:
            result = document()
            result['hosts'][0]['providers'] = {'g': {
                'inventory': {'VGPU': {'total': 2}}, 'traits': ['CUSTOM_X']}}
            result['servers'][0]['providers'] = {'g': {'VGPU': 1}}
            result['waiting'][0] |= {'group_policy': 'isolate', 'groups': [
                {'resources': {'VGPU': 1}, 'required': ['!CUSTOM_Y']}]}
            return result

        simulate.parse(given(), NOW)
        none: list[Any] = [None, 1, 'x', True]
        for path, values in (
                ('hosts[0].providers', [*none, []]),
                ('hosts[0].providers.', [{}]),
                ('hosts[0].providers.g', [*none, []]),
                ('hosts[0].providers.g.inventory', [*none, []]),
                ('hosts[0].providers.g.inventory.VGPU.total', [
                    None, 'x', -1, 1.0, True]),
                ('hosts[0].providers.g.traits', [*none, {}]),
                ('hosts[0].providers.g.traits[0]', [1, '', 'A,B', '!A']),
                ('hosts[0].providers.g.parent', ['h1']),
                ('servers[0].providers', [*none, []]),
                ('servers[0].providers.other', [{}, {'VGPU': 1}]),
                ('servers[0].providers.g', [*none, []]),
                ('servers[0].providers.g.VGPU', [None, 'x', -1, 1.0, True]),
                ('waiting[0].groups', [*none, {}]),
                ('waiting[0].groups[0]', [*none, []]),
                ('waiting[0].groups[0].resources', [*none, [], {}, {
                    'VGPU': 0}]),
                ('waiting[0].groups[0].resources.VGPU', [None, -1, 1.0]),
                ('waiting[0].groups[0].required', [*none, {}]),
                ('waiting[0].groups[0].suffix', ['1']),
                ('waiting[0].group_policy', [*none, 'all', []])):
            *parents, key = path.replace('[', '.').replace(']', '').split('.')
            for value in values:
                wrong: Any = given()
                inner = wrong
                for parent in parents:
                    inner = inner[int(parent) if parent.isdigit() else parent]
                inner[int(key) if key.isdigit() else key] = value
                error = self.assertRaises(
                    simulate.BadInput, simulate.parse, wrong, NOW)
                self.assertEqual(path, error.path, str(error))

    def test_times(self) -> None:
        for path in ('now', 'servers[0].launched_at',
                     'waiting[0].created_at'):
            self.check_values(
                path, '2026-11-22T12:00:00', '2026-11-22', 'yesterday', 5,
                True, '2026-13-22T12:00:00Z', '9999-12-31T23:59:59-12:00')

    def test_words(self) -> None:
        self.check_values('options.mode', 'x', None, True, 'Fill')
        self.check_values('servers[0].action', 'stop', None)
        self.check('options.scorers[0]',
                   lambda given: given['options'].update(scorers=['x']))

    def test_traits_and_aggregates(self) -> None:
        for path in ('waiting[0].required[0]', 'waiting[0].member_of[0]'):
            self.check_values(path, '', '!', 'in:', 'A,B', 'in:A,', '!!A',
                              'in:!A', 1, None)
        for path in ('hosts[0].traits[0]', 'hosts[0].aggregates[0]'):
            self.check_values(path, '', '!A', 'in:A', 'A,B', 1)

    def test_missing(self) -> None:
        for path in ('hosts[0].name', 'hosts[0].inventory',
                     'servers[0].id', 'servers[0].host',
                     'servers[0].resources', 'waiting[0].id',
                     'waiting[0].resources'):
            parent, key = path.split('[0].')
            self.check(path, lambda given: given[parent][0].pop(key))
        self.check('hosts[0].inventory.VCPU.total', lambda given: given[
            'hosts'][0]['inventory']['VCPU'].pop('total'))

    def test_twice(self) -> None:
        for path in ('hosts[1].name', 'servers[1].id', 'waiting[1].id'):
            key = path.split('[')[0]
            self.check(path, lambda given: given[key].append(given[key][0]))
        self.check_values('waiting[0].id', 's1')

    def test_unknown(self) -> None:
        self.check_values('servers[0].host', 'h9')
        self.check('hosts[0].inventry',
                   lambda given: given['hosts'][0].update(inventry={}))
        self.check('option', lambda given: given.update(option={}))
        self.check('options.mod',
                   lambda given: given['options'].update(mod='fill'))

    def test_says_what_may_be_meant(self) -> None:
        given = document()
        given['servers'][0]['preemptable'] = True
        error = self.assertRaises(simulate.BadInput, simulate.parse, given,
                                  NOW)
        self.assertEqual('servers[0].preemptable: is not known here; is '
                         '"preemptible" meant?', str(error))


class SimulateTestCase(tests.TestCase):
    """What is decided."""

    def test_defaults(self) -> None:
        given = {'hosts': [{'name': 'h1', 'inventory': {
            'VCPU': {'total': 2}}}],
            'servers': [{'id': 's1', 'host': 'h1', 'resources': {'VCPU': 2},
                         'preemptible': True}],
            'waiting': [{'id': 'w1', 'resources': {'VCPU': 1}}]}
        cloud = simulate.parse(given, NOW)
        self.assertEqual(model.Mode.OBSERVE, cloud.options.mode)
        self.assertEqual(NOW, cloud.waiting[0].created_at)
        self.assertEqual(['s1'], decide(given)[0]['victims'])

    def test_capacity_is_placements(self) -> None:
        given = document()
        given['servers'] = []
        given['hosts'][0]['inventory']['VCPU'] = {
            'total': 5, 'reserved': 1, 'allocation_ratio': 1.5}
        for asked, verdict in ((6, 'room'), (7, 'wait')):
            given['waiting'][0]['resources'] = {'VCPU': asked}
            self.assertEqual(verdict, decide(given)[0]['verdict'])

    def test_the_first_of_equal_hosts_is_kept(self) -> None:
        # 10/6 is 4/6 + 6/6, but not as a sum of floats.
        given: dict[str, Any] = {
            'options': {'reserve': True},
            'hosts': [{'name': 'h1', 'inventory': {
                'VCPU': {'total': 8}, 'MEMORY_MB': {'total': 14}}},
                {'name': 'h2', 'inventory': {
                    'VCPU': {'total': 7}, 'MEMORY_MB': {'total': 8}}}],
            'servers': [
                {'id': 'a', 'host': 'h1', 'resources': {'VCPU': 12}},
                {'id': 'b', 'host': 'h2', 'resources': {
                    'VCPU': 5, 'MEMORY_MB': 8}}],
            'waiting': [
                {'id': 'w1', 'resources': {'VCPU': 6, 'MEMORY_MB': 6}},
                {'id': 'w2', 'resources': {'MEMORY_MB': 5}}]}
        self.assertEqual(['wait', 'wait'],
                         [one['verdict'] for one in decide(given)])
        given['hosts'].reverse()
        self.assertEqual(['wait', 'room'],
                         [one['verdict'] for one in decide(given)])

    def test_those_given_up_are_in_the_order_of_the_queue(self) -> None:
        given = document()
        given['options']['pending_timeout'] = 60
        given['waiting'] = [
            {'id': name, 'resources': {'VCPU': 1}, 'priority': priority,
             'created_at': f'2026-11-22T{hour}:00:00Z'}
            for name, priority, hour in (
                ('third', 0, 11), ('second', 0, 10), ('first', 1, 11))]
        self.assertEqual(['first', 'second', 'third'],
                         [one['server'] for one in decide(given)])

    def test_those_not_tried_come_last(self) -> None:
        given = document()
        given['options']['pending_timeout'] = 3600
        given['waiting'] = [
            {'id': 'late', 'resources': {'VCPU': 1},
             'created_at': '2026-11-22T11:00:00Z', 'priority': 9},
            {'id': 'back', 'resources': {'VCPU': 1}, 'attempts': 3,
             'priority': 8, 'last_attempt': '2026-11-22T11:59:50Z',
             'reason': 'build_failed'},
            {'id': 'w1', 'resources': {'VCPU': 1}}]
        self.assertEqual(
            [('w1', 'preempt', 'no_room'), ('back', 'wait', 'build_failed'),
             ('late', 'wait', 'unknown')],
            [(one['server'], one['verdict'], one['reason'])
             for one in decide(given)])

    def test_each_is_decided_once(self) -> None:
        # What is left over of s1 would do for the first, which may not end
        # it; it was decided before.
        given = document()
        given['servers'][0]['priority'] = 5
        given['waiting'] = [
            {'id': 'w1', 'resources': {'VCPU': 2}, 'preemptible': True,
             'priority': 1},
            {'id': 'w2', 'resources': {'VCPU': 2}}]
        self.assertEqual([('w1', 'wait'), ('w2', 'preempt')],
                         [(one['server'], one['verdict'])
                          for one in decide(given)])

    def test_each_is_told_why_as_things_are_then(self) -> None:
        # The last asks for the same as the first; what was free or could be
        # freed then is taken by the second.
        given = document()
        given['options'] = {'mode': 'fill'}
        given['servers'][0]['resources'] = {'VCPU': 4}
        given['waiting'] = [
            {'id': 'w1', 'resources': {'VCPU': 6}, 'priority': 2},
            {'id': 'w2', 'resources': {'VCPU': 4}, 'priority': 1},
            {'id': 'w3', 'resources': {'VCPU': 6}}]
        decisions = decide(given)
        self.assertEqual(['wait', 'room', 'wait'],
                         [one['verdict'] for one in decisions])
        self.assertIn('would have to go', decisions[0]['detail'])
        self.assertIn('No preemptible servers', decisions[2]['detail'])
        del given['servers']
        refused = {'resources': {'VCPU': 8}, 'refused_by': {'h1': 'AFilter'}}
        given['waiting'] = [
            {'id': 'w1', 'priority': 2, **refused},
            {'id': 'w2', 'priority': 1, 'resources': {'VCPU': 8}},
            {'id': 'w3', **refused}]
        decisions = decide(given)
        self.assertEqual(['refused', None, 'refused'],
                         [one['reason'] for one in decisions])
        self.assertIn('those with room are refused', decisions[0]['detail'])
        self.assertIn('those that are enabled and up are refused',
                      decisions[2]['detail'])

    def test_each_gets_a_provider_that_is_left(self) -> None:
        given = document()
        own = {'VCPU': {'total': 64}}
        given['hosts'] = [{'name': 'h1', 'inventory': own, 'providers': {
            name: {'inventory': {'VGPU': {'total': 2}}} for name in 'abc'}}]
        given['servers'] = [
            {'id': f's{name}', 'host': 'h1', 'resources': {'VCPU': 1},
             'providers': {name: {'VGPU': 1}}, 'preemptible': True}
            for name in 'ab'] + [
            {'id': 'without', 'host': 'h1', 'resources': {'VCPU': 1},
             'preemptible': True, 'priority': -9}]
        one = {'resources': {'VGPU': 1}}
        two = {'resources': {'VGPU': 2}}
        given['waiting'] = [
            {'id': f'w{at}', 'resources': {'VCPU': 1}, 'groups': groups}
            for at, groups in enumerate(([two], [one, two], [one], [one]))]
        decisions = decide(given)
        # Two are free on c. The pair that is needed next has to be on a or b,
        # and what is free of the other is taken, too. There is one left to
        # end, and nobody is ended who has none.
        self.assertEqual(
            [('room', 0), ('preempt', 1), ('preempt', 1), ('wait', 0)],
            [(one['verdict'], len(one['victims'])) for one in decisions])
        self.assertNotIn('without', [
            victim for one in decisions for victim in one['victims']])

    def test_the_cap_of_the_cloud_makes_no_other_choice(self) -> None:
        given = document()
        host = {'inventory': {'VCPU': {'total': 4}}}
        given['hosts'] = [{'name': 'h1', **host}, {'name': 'h2', **host}]
        given['waiting'] = [{'id': 'w1', 'resources': {'VCPU': 4}}]
        given['options']['max_ends_per_hour'] = 1
        # A server of a high priority is not ended since two others may not.
        for project in ('p1', 'p2'):
            given['servers'] = [
                {'id': name, 'host': host, 'project': owner, 'priority': level,
                 'resources': {'VCPU': amount}, 'preemptible': True}
                for name, host, owner, level, amount in (
                    ('s1', 'h1', 'p1', -1000, 2),
                    ('s2', 'h1', project, -1000, 2),
                    ('s3', 'h2', 'p1', 1000, 4))]
            decision, = decide(given)
            self.assertEqual(('wait', 'protected'), (
                decision['verdict'], decision['hindrance']))
        given['options']['max_ends_per_hour'] = 2
        self.assertEqual({'s1', 's2'}, {*decide(given)[0]['victims']})

    def test_a_filter_that_no_end_would_satisfy(self) -> None:
        given = document()
        given['waiting'][0]['resources'] = {'VCPU': 2, 'MEMORY_MB': 1}
        given['servers'][0]['resources'] = {'VCPU': 2, 'MEMORY_MB': 1}
        for name, resources, verdict in (
                ('NumInstancesFilter', {'VCPU': 2, 'MEMORY_MB': 1}, 'preempt'),
                # Nothing that it asks for tells that a server has to end.
                ('NumInstancesFilter', {'VCPU': 2}, 'wait'),
                ('NUMATopologyFilter', {'VCPU': 2}, 'preempt'),
                ('NUMATopologyFilter', {}, 'wait')):
            given['waiting'][0] |= {'resources': resources,
                                    'refused_by': {'h1': name}}
            decision, = decide(given)
            self.assertEqual((verdict, 'refused'), (
                decision['verdict'], decision['reason']))

    def decide_on(self, hosts: dict[str, Any], servers: list[dict[str, Any]],
                  waiting: list[dict[str, Any]], **options: Any
                  ) -> list[tuple[Any, ...]]:
        """Decide in a small cloud.

        :param hosts: the amounts of each host, and of providers below it
        :returns: of each decision the verdict, the host, the victims, the
            reason and the hindrance
        """
        def inventory(amounts: dict[str, int]) -> dict[str, Any]:
            return {name: {'total': total} for name, total in amounts.items()}

        return [(one['verdict'], one['host'], sorted(one['victims']),
                 one['reason'], one['hindrance']) for one in decide({
                     'options': {'mode': 'preempt', **options},
                     'hosts': [{
                         'name': name, 'disabled': amounts.get('off', False),
                         'inventory': inventory(amounts['own']),
                         'providers': {below: {'inventory': inventory(some)}
                                       for below, some in amounts.get(
                                           'below', {}).items()}}
                         for name, amounts in hosts.items()],
                     'servers': servers, 'waiting': waiting})]

    def test_the_count_decides_between_hosts_of_providers(self) -> None:
        gpu = {'VGPU': 2}
        hosts = {'h0': {'own': {'VCPU': 2}, 'below': {'a': gpu}},
                 'h1': {'own': {'VCPU': 2}, 'below': {'a': gpu, 'b': gpu}}}
        servers = [{'id': name, 'host': host, 'resources': {'VCPU': vcpus},
                    'preemptible': True} for name, host, vcpus in (
                        ('a', 'h0', 1), ('b', 'h0', 1), ('c', 'h1', 2))]
        for scorers in [], ['priority']:
            self.assertEqual(
                [('preempt', 'h1', ['c'], 'no_room', None)],
                self.decide_on(hosts, servers, [
                    {'id': 'w', 'resources': {'VCPU': 2},
                     'groups': [{'resources': {'VGPU': 1}}]}],
                    scorers=scorers))

    def test_nobody_is_needless_in_another_way(self) -> None:
        gpu = {'VGPU': 1}
        servers = [
            {'id': 'y', 'host': 'h', 'resources': {'VCPU': 1},
             'preemptible': True, 'providers': {'b': gpu}},
            {'id': 'x', 'host': 'h', 'resources': {}, 'preemptible': True,
             'action': 'shelve', 'providers': {'a': gpu}}]
        for scorers in ['deletes'], ['priority', 'deletes']:
            self.assertEqual(
                [('preempt', 'h', ['y'], 'no_room', None)],
                self.decide_on(
                    {'h': {'own': {'VCPU': 1}, 'below': {'a': gpu, 'b': gpu}}},
                    servers, [{'id': 'w', 'resources': {'VCPU': 1},
                               'groups': [{'resources': gpu}]}],
                    scorers=scorers))

    def test_servers_of_a_kept_host_are_not_called_protected(self) -> None:
        self.assertEqual(
            [('wait', None, [], 'no_room', None),
             ('wait', None, [], 'no_room', 'reserved')],
            self.decide_on({'h': {'own': {'VCPU': 4}}}, [
                {'id': 's', 'host': 'h', 'resources': {'VCPU': 2},
                 'preemptible': True},
                {'id': 't', 'host': 'h', 'resources': {'VCPU': 2}}], [
                    {'id': 'v', 'resources': {'VCPU': 4}},
                    {'id': 'w', 'resources': {'VCPU': 2}}], reserve=True))

    def test_no_host_is_kept_that_a_filter_refuses(self) -> None:
        self.assertEqual(
            [('wait', None, [], 'refused', None),
             ('room', 'h', [], None, None)],
            self.decide_on({'h': {'own': {'MEMORY_MB': 9}}}, [], [
                {'id': 'v', 'resources': {'MEMORY_MB': 1},
                 'refused_by': {'h': 'PciPassthroughFilter'}},
                {'id': 'w', 'resources': {'MEMORY_MB': 1}}], reserve=True))

    def test_a_host_is_kept_only_from_servers_behind(self) -> None:
        """Room for its project has put the first server behind another."""
        self.assertEqual(
            [('wait', None, [], 'no_room', None),
             ('room', 'h4', [], None, None),
             ('room', 'h2', [], None, None)],
            self.decide_on({
                'h2': {'own': {'DISK_GB': 18, 'CUSTOM_GPU': 13}},
                'h4': {'own': {'MEMORY_MB': 20}}}, [
                    {'id': 's', 'host': 'h2', 'resources': {'DISK_GB': 15}}], [
                    {'id': 'w0', 'project': 'p', 'resources': {'DISK_GB': 6},
                     'created_at': '2026-11-22T11:00:00Z'},
                    {'id': 'w5', 'project': 'p', 'resources': {
                        'MEMORY_MB': 4},
                     'created_at': '2026-11-22T11:01:00Z'},
                    {'id': 'w1', 'resources': {'CUSTOM_GPU': 2},
                     'created_at': '2026-11-22T11:02:00Z'}], reserve=True))

    def test_a_filter_refuses_a_host_with_providers(self) -> None:
        """What is free on its providers is of no use, or is not enough."""
        gpu, group = {'VGPU': 2}, [{'resources': {'VGPU': 2}}]
        half = {'a': {'VGPU': 1}, 'b': {'VGPU': 1}}
        hosts = {'h': {'own': {'VCPU': 9, 'MEMORY_MB': 9},
                       'below': {'a': gpu, 'b': gpu}}}
        for preemptible, name, asked in (
                (True, 'NUMATopologyFilter', {'VCPU': 1}),
                (False, 'NUMATopologyFilter', {'MEMORY_MB': 1}),
                (False, 'PciPassthroughFilter', {'MEMORY_MB': 1}),
                (False, 'NumInstancesFilter', {'MEMORY_MB': 1})):
            self.assertEqual(
                [('wait', None, [], 'no_room', None)],
                self.decide_on(hosts, [
                    {'id': 's', 'host': 'h', 'resources': {'VCPU': 4},
                     'providers': half, 'preemptible': preemptible}], [
                        {'id': 'w', 'resources': asked, 'groups': group,
                         'refused_by': {'h': name}}]))

    def test_a_cap_does_not_change_why_there_is_no_room(self) -> None:
        servers = [{'id': f's{number}', 'host': 'h3', 'preemptible': True,
                    'resources': {'VCPU': 1}} for number in range(4)]
        for cap, verdict, hindrance in ((2, 'preempt', None),
                                        (1, 'wait', 'protected')):
            decision, = self.decide_on(
                {'h1': {'own': {'VCPU': 6}}, 'h3': {'own': {'VCPU': 4}}},
                servers, [{'id': 'w', 'resources': {'VCPU': 2},
                           'refused_by': {'h1': 'ComputeFilter'}}],
                max_ends_per_hour=cap)
            self.assertEqual((verdict, 'refused', hindrance),
                             (decision[0], *decision[3:]))

    def test_the_only_host_with_room_is_disabled(self) -> None:
        for name in ('ComputeFilter', 'NumInstancesFilter',
                     'NUMATopologyFilter', 'PciPassthroughFilter'):
            self.assertEqual(
                [('wait', None, [], 'refused', None)],
                self.decide_on({'h': {'own': {'DISK_GB': 22}, 'off': True}},
                               [], [{'id': 'w', 'resources': {'DISK_GB': 1},
                                     'refused_by': {'h': name}}]))

    def test_devices_that_are_not_lacking_are_left_alone(self) -> None:
        servers: list[dict[str, Any]] = [
            {'id': 'plain', 'host': 'h', 'resources': {'VCPU': 2},
             'preemptible': True},
            {'id': 'gpu', 'host': 'h', 'resources': {'VCPU': 1},
             'devices': {'a': 1}, 'preemptible': True},
            {'id': 'other', 'host': 'h', 'resources': {'VCPU': 1}}]
        waiting: dict[str, Any] = {
            'id': 'w', 'resources': {'VCPU': 1}, 'devices': {'a': 1}}
        for refused, victim in (({}, 'plain'),
                                ({'h': 'PciPassthroughFilter'}, 'gpu')):
            decision, = self.decide_on(
                {'h': {'own': {'VCPU': 4}}}, servers,
                [waiting | {'refused_by': refused}])
            self.assertEqual([victim], decision[2])

    def test_one_that_was_placed_is_no_victim(self) -> None:
        given = document()
        given['options']['min_run_time'] = 0
        given['servers'] = []
        given['waiting'] = [
            {'id': 'w1', 'resources': {'VCPU': 8}, 'preemptible': True,
             'priority': 1},
            {'id': 'w2', 'resources': {'VCPU': 8}}]
        self.assertEqual(['room', 'wait'],
                         [one['verdict'] for one in decide(given)])

    @hypothesis.settings(max_examples=120)
    @hypothesis.given(SEEDS)
    def test_replayed_with_brute_force(self, seed: int) -> None:
        rand = random.Random(seed)
        world = brute_force.random_world(rand, 3, 6)
        waiting = [brute_force.random_waiting(rand, number)
                   for number in range(rand.randint(1, 8))]
        options = model.Options(mode=rand.choice(
            (model.Mode.PREEMPT, model.Mode.OBSERVE)))
        decisions = simulate.simulate(simulate.Snapshot(
            NOW, options, world.hosts, world.servers, waiting,
            {one.shape: world.refused for one in waiting}))
        self.assertEqual({one.id for one in waiting},
                         {decision.server for decision in decisions})
        self.assertEqual(len(waiting), len(decisions))
        by_id = {one.id: one for one in waiting}
        priorities = [by_id[decision.server].priority
                      for decision in decisions]
        self.assertEqual(sorted(priorities, reverse=True), priorities)
        for decision in decisions:
            one = by_id[decision.server]
            best = brute_force.decide(world, one, options)
            if best is None:
                self.assertEqual(model.Verdict.WAIT, decision.verdict)
                continue
            host = next(host for host in world.hosts
                        if host.name == decision.host)
            victims = [server for server in world.servers
                       if server.id in decision.victims]
            self.assertEqual(best, brute_force.cost(
                host, victims, one.shape, options,
                world.refused.get(host.name)))
            world = brute_force.carried_out(world, decision, one)


class SnapshotTestCase(tests.TestCase):
    """What is written is what is read."""

    def cloud(self, seed: int) -> simulate.Snapshot:
        rand = random.Random(seed)
        world = brute_force.random_world(rand)
        waiting = [brute_force.random_waiting(rand, number)
                   for number in range(5)]
        return simulate.Snapshot(
            NOW, model.Options(mode=model.Mode.PREEMPT, reserve=True),
            world.hosts, world.servers, waiting)

    @hypothesis.settings(max_examples=50)
    @hypothesis.given(SEEDS)
    def test_read_again(self, seed: int) -> None:
        cloud = self.cloud(seed)
        written = json.loads(json.dumps(simulate.to_document(cloud)))
        again = simulate.parse(written, NOW)
        self.assertEqual(cloud.waiting, again.waiting)
        self.assertEqual(cloud.servers, again.servers)
        self.assertEqual(cloud.options, again.options)
        self.assertEqual([host.inventory for host in cloud.hosts],
                         [host.inventory for host in again.hosts])
        self.assertEqual(simulate.simulate(cloud), simulate.simulate(again))

    @hypothesis.settings(max_examples=50)
    @hypothesis.given(SEEDS)
    def test_hashed_decides_the_same(self, seed: int) -> None:
        cloud = self.cloud(seed)
        plain = simulate.to_document(cloud)
        hashed = simulate.hashed(plain, b'secret')
        self.assertEqual(hashed, simulate.hashed(plain, b'secret'))
        self.assertNotEqual(simulate.hashed(plain, b'other'), hashed)
        written = json.dumps(hashed)
        for name in ('"h0"', '"w1"', '"az1"', '"a"', '-s0'):
            self.assertNotIn(name, written)

        def known(decision: model.Decision) -> tuple[Any, ...]:
            return (decision.verdict, len(decision.victims), decision.reason,
                    decision.hindrance)
        self.assertEqual(
            [known(one) for one in simulate.simulate(cloud)],
            [known(one) for one in simulate.simulate(
                simulate.parse(json.loads(written), NOW))])

    def test_each_name_is_hashed(self) -> None:
        names: dict[str, Any] = {key: f'{key}!' for key in (
            'id', 'name', 'project', 'user', 'flavor')}
        plain = simulate.to_document(simulate.Snapshot(
            NOW, hosts=[model.Host('h', {'VCPU': model.Inventory(8)},
                                   {'VCPU': 5}, frozenset({'az', 'AZ'}))],
            servers=[model.Server(host='h', resources={'VCPU': 2}, **names)],
            waiting=[model.Waiting(
                shape=(shape := model.Shape.of(
                    {'VCPU': 4}, host='h', required=frozenset({'T', '!U'}),
                    member_of=frozenset({'az', '!az', 'in:az,AZ',
                                         '!in:az,x'}))),
                created_at=NOW, **names)],
            refusals={shape: {'h': 'AFilter'}}))
        hashed = simulate.hashed(plain, b'secret')
        host, = hashed['hosts']
        server, rest = hashed['servers']
        waiting, = hashed['waiting']
        az, = set(host['aggregates']) & set(waiting['member_of'])
        other, = set(host['aggregates']) - {az}
        self.assertEqual(f'others-on-{host["name"]}', rest['id'])
        self.assertEqual({host['name']},
                         {server['host'], rest['host'], waiting['host'],
                          *waiting['refused_by']})
        self.assertEqual(['AFilter'], list(waiting['refused_by'].values()))
        self.assertEqual(['!U', 'T'], waiting['required'])
        self.assertLessEqual({az, f'!{az}', f'in:{az},{other}'},
                             set(waiting['member_of']))
        for key in names:
            self.assertRegex(server[key], '^[0-9a-f]{16}$')
            self.assertEqual(server[key], waiting[key])

    @hypothesis.settings(max_examples=100)
    @hypothesis.given(SEEDS, strategies.booleans())
    def test_providers(self, seed: int, shared: bool) -> None:
        rand = random.Random(seed)
        world = brute_force.with_providers(rand, brute_force.random_world(
            rand, 3, 5))
        if shared:
            world = brute_force.with_shares(rand, world)
        cloud = simulate.Snapshot(
            NOW, model.Options(mode=model.Mode.PREEMPT), world.hosts,
            world.servers, [one for number in range(5) if (
                one := brute_force.random_groups(rand, number)).shape.groups])
        document = simulate.to_document(cloud)
        again = simulate.parse(json.loads(json.dumps(document)), NOW)
        for mine, others in zip(cloud.waiting, again.waiting, strict=True):
            self.assertEqual(mine, others)
        self.assertEqual(
            [[(one.name, one.inventory, one.traits, {
                name: amount for name, amount in one.used.items() if amount})
                for one in host.providers] for host in cloud.hosts],
            [[(one.name, one.inventory, one.traits, dict(one.used))
              for one in host.providers] for host in again.hosts])
        decisions = simulate.simulate(cloud)
        self.assertEqual(decisions, simulate.simulate(again))
        hashed = simulate.hashed(document, b'secret')
        self.assertNotRegex(json.dumps(hashed), '"(g|pool)[0-9]"')
        self.assertEqual(
            [(one.verdict, len(one.victims)) for one in decisions],
            [(one.verdict, len(one.victims)) for one in simulate.simulate(
                simulate.parse(hashed, NOW))])

    def test_shared(self) -> None:
        given = document()
        given['hosts'] = [{'name': name, 'inventory': {'VCPU': {'total': 4}}}
                          for name in ('h1', 'h2')]
        given['shared'] = {'pool': {
            'inventory': {'DISK_GB': {'total': 20}}, 'hosts': ['h1', 'h2'],
            'aggregates': ['a']}}
        given['servers'] = [
            {'id': f's{number}', 'host': f'h{number}', 'preemptible': True,
             'resources': {'VCPU': 4}, 'providers': {'pool': {
                 'DISK_GB': disk}}} for number, disk in ((1, 3), (2, 9))]
        given['waiting'] = [{'id': f'w{disk}', 'resources': {
            'VCPU': 2, 'DISK_GB': disk}} for disk in (17, 9)]
        cloud = simulate.parse(given, NOW)
        self.assertEqual([{'DISK_GB': 12}] * 2, [
            dict(host.providers[0].used) for host in cloud.hosts])
        # After the first the pool has nothing left for the second, though the
        # host has two VCPUs.
        self.assertEqual([('h2', ('s2',)), (None, ())], [
            (one.host, one.victims) for one in simulate.simulate(cloud)])
        written = simulate.to_document(cloud)
        self.assertEqual(given['shared'], written['shared'])
        self.assertEqual({}, written['hosts'][0].get('providers', {}))
        for path, change in (
                ('shared.pool.hosts[1]', {'hosts': ['h1', 'h3']}),
                ('shared.pool.hosts[1]', {'hosts': ['h1', 'h1']}),
                ('shared.pool.hosts', {'hosts': 'h1'}),
                ('shared.pool.inventory.DISK_GB.total', {
                    'inventory': {'DISK_GB': {'total': -1}}})):
            error = self.assertRaises(
                simulate.BadInput, simulate.parse, given | {'shared': {
                    'pool': given['shared']['pool'] | change}}, NOW)
            self.assertEqual(path, error.path)
        error = self.assertRaises(
            simulate.BadInput, simulate.parse, given | {'shared': {
                'pool': given['shared']['pool'] | {'hosts': ['h1']}}}, NOW)
        self.assertEqual('servers[1].providers.pool', error.path)

    def test_what_others_use_of_a_provider_that_shares(self) -> None:
        pool = model.Provider('pool', {'DISK_GB': model.Inventory(20)},
                              {'DISK_GB': 12}, shared=True)
        hosts = [model.Host(name, {'VCPU': model.Inventory(4)},
                            providers=(pool,)) for name in ('h1', 'h2')]
        server = model.Server('s1', 'h2', {}, providers={
            'pool': {'DISK_GB': 5}})
        written = simulate.to_document(simulate.Snapshot(
            NOW, hosts=hosts, servers=[server]))
        self.assertEqual([{'pool': {'DISK_GB': 5}}, {'pool': {'DISK_GB': 7}}],
                         [one['providers'] for one in written['servers']])
        self.assertEqual([{'DISK_GB': 12}] * 2, [
            dict(host.providers[0].used)
            for host in simulate.parse(written, NOW).hosts])

    def test_others_and_refusals(self) -> None:
        host = model.Host('h1', {'VCPU': model.Inventory(8)}, {'VCPU': 5})
        server = model.Server('s1', 'h1', {'VCPU': 2}, preemptible=True)
        waiting = brute_force.waiting({'VCPU': 4})
        cloud = simulate.Snapshot(
            NOW, hosts=[host], servers=[server], waiting=[waiting],
            refusals={waiting.shape: {'h1': 'AFilter'}})
        written = simulate.to_document(cloud)
        self.assertEqual(
            {'id': 'others-on-h1', 'host': 'h1', 'resources': {'VCPU': 3}},
            written['servers'][1])
        self.assertEqual({'h1': 'AFilter'},
                         written['waiting'][0]['refused_by'])
        again = simulate.parse(written, NOW)
        self.assertEqual({'VCPU': 5}, again.hosts[0].used)
        self.assertEqual(model.Verdict.WAIT,
                         simulate.simulate(again)[0].verdict)

    def test_devices(self) -> None:
        given = document()
        given['hosts'] = [{'name': 'h1', 'inventory': {'VCPU': {'total': 8}}}]
        given['servers'] = [
            {'id': 's1', 'host': 'h1', 'resources': {'VCPU': 1},
             'preemptible': True},
            {'id': 's2', 'host': 'h1', 'resources': {'VCPU': 2},
             'devices': {'gpu': 1}, 'preemptible': True}]
        given['waiting'] = [
            {'id': 'w1', 'resources': {'VCPU': 1}, 'devices': {'gpu': 1},
             'refused_by': {'h1': 'PciPassthroughFilter'}}]
        cloud = simulate.parse(given, NOW)
        self.assertEqual(('s2',), simulate.simulate(cloud)[0].victims)
        self.assertEqual((('gpu', 1),), cloud.waiting[0].shape.devices)
        written = simulate.to_document(cloud)
        self.assertEqual(
            [{}, {'gpu': 1}, {'gpu': 1}],
            [item.get('devices', {}) for item
             in (*written['servers'], *written['waiting'])])
        for wrong in ({'gpu': 0}, {'': 1}, ['gpu'], {'gpu': '1'}):
            given['servers'][1]['devices'] = wrong
            error = self.assertRaises(simulate.BadInput, simulate.parse, given,
                                      NOW)
            self.assertIn('servers[1].devices', str(error))

    def test_times_keep_their_moment(self) -> None:
        given = document()
        given['waiting'][0]['created_at'] = '2026-11-22T12:30:00+01:00'
        cloud = simulate.parse(given, NOW)
        self.assertEqual(NOW - datetime.timedelta(minutes=30),
                         cloud.waiting[0].created_at)
        self.assertEqual(
            '2026-11-22T11:30:00Z',
            simulate.to_document(cloud)['waiting'][0]['created_at'])
