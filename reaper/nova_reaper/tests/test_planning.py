# SPDX-License-Identifier: Apache-2.0

import contextlib
import datetime
import io
import json
import pathlib
import random
import re
import shlex
import sys
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies

from nova_reaper.cli import main
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper import planning
from nova_reaper import simulate
from nova_reaper import tests
from nova_reaper.tests import brute_force

NOW = brute_force.NOW
SEEDS = strategies.integers(min_value=0, max_value=2 ** 32)
_PAGE = (pathlib.Path(__file__).resolve().parents[3] /
         'doc/source/admin/planning.rst')


def clock(text: str) -> str:
    """A time of the day on which the clouds of these tests are."""
    return f'2026-11-22T{text}:00Z'


def document(**others: Any) -> dict[str, Any]:
    """A host that is full until one o'clock."""
    return {
        'now': clock('12:00'),
        'options': {'mode': 'preempt', 'min_run_time': 0},
        'hosts': [{'name': 'h1', 'inventory': {'VCPU': {'total': 4}}}],
        'servers': [{'id': 's1', 'host': 'h1', 'resources': {'VCPU': 4},
                     'run_time': 3600}],
        'waiting': [], **others}


def run(given: Any, until: str = '15:00') -> dict[str, Any]:
    return planning.run(simulate.parse(given, NOW),
                        simulate.time_of(clock(until), 'until'))


class RunTestCase(tests.TestCase):
    """What becomes of small clouds, calculated by hand."""

    def check(self, report: dict[str, Any], waits: list[int | None],
              never: int = 0, **counts: int) -> None:
        """Compare the median, the 90 % and the longest wait, and counts."""
        self.assertEqual([*waits, never], [report['waits'][name] for name in (
            'median', 'p90', 'longest', 'never')])
        self.assertEqual(counts, {name: number for name, number
                                  in report['servers'].items() if number})

    def test_a_cap_does_not_make_dearer_victims_the_best(self) -> None:
        # A host that changes is looked at alone, and the cap spares the best
        # victims, which are on another host.
        def servers(*some: tuple[str, str, int, int]) -> list[dict[str, Any]]:
            return [{'id': name, 'host': host, 'resources': {'VCPU': vcpus},
                     'preemptible': name != 'n', 'priority': priority}
                    for name, host, vcpus, priority in some]

        report = run(document(
            options={'mode': 'preempt', 'min_run_time': 0,
                     'max_ends_per_hour': 1},
            hosts=[{'name': name, 'inventory': {'VCPU': {'total': total}}}
                   for name, total in (('h0', 6), ('h1', 10))],
            servers=servers(('n', 'h0', 3, 0), ('s1', 'h0', 1, -2),
                            ('s2', 'h0', 1, -2), ('s6', 'h1', 5, 0)),
            waiting=[{'id': name, 'resources': {'VCPU': 3}}
                     for name in ('w1', 'w2')]))
        self.check(report, [0] * 3, 1, came=2, built=1, waiting=1)

    def test_a_host_is_kept_no_longer_than_its_server_waits(self) -> None:
        report = run(document(
            options={'mode': 'preempt', 'reserve': True},
            servers=[{'id': 'n', 'host': 'h1', 'resources': {'VCPU': 2}}],
            waiting=[{'id': 'big', 'resources': {'VCPU': 4},
                      'pending_timeout': 60},
                     {'id': 's0', 'resources': {'VCPU': 1}}]))
        self.check(report, [60] * 3, 1, came=2, built=1, given_up=1)

    def test_a_host_is_not_kept_from_a_server_that_comes_before(self) -> None:
        # A server behind has the same demand, and sleeps.
        for who in {'priority': 1}, {'project': 'p'}:
            report = run(document(
                options={'mode': 'preempt', 'reserve': True},
                servers=[{'id': 'n', 'host': 'h1', 'resources': {'VCPU': 1}}],
                waiting=[
                    {'id': 'given', 'resources': {'VCPU': 1}},
                    {'id': 'big', 'resources': {'VCPU': 4}},
                    {'id': 's0', 'resources': {'VCPU': 1}}],
                arrivals=[{'id': 'first', 'resources': {'VCPU': 1},
                           'at': clock('12:10'), **who}]))
            self.check(report, [0] * 3, 2, came=4, built=2, waiting=2)

    def test_disk_that_another_host_frees(self) -> None:
        # 13:00 s1 ends on one host, and leaves disk to both: w1 is built on
        # the other, and w2 waits until w1 ends at 13:30.
        report = run(document(
            hosts=[{'name': name, 'inventory': {'VCPU': {'total': total}}}
                   for name, total in (('h1', 4), ('h2', 2))],
            shared={'pool': {'inventory': {'DISK_GB': {'total': 10}},
                             'hosts': ['h1', 'h2']}},
            servers=[{'id': 's1', 'host': 'h1', 'resources': {'VCPU': 2},
                      'providers': {'pool': {'DISK_GB': 8}},
                      'run_time': 3600},
                     {'id': 's2', 'host': 'h1', 'resources': {'VCPU': 2}}],
            waiting=[{'id': name, 'run_time': 1800, 'created_at': clock(
                '12:00'), 'resources': {'VCPU': 1, 'DISK_GB': 6}}
                for name in ('w1', 'w2')]))
        self.check(report, [3600, 5400, 5400], came=2, built=2, finished=3)
        self.assertEqual({'DISK_GB': 10, 'VCPU': 6}, report['capacity'])

    def test_waits_and_utilisation(self) -> None:
        # 12:00 s1 has all; 13:00 it ends: w and b-1; 13:30 w ends, b-2
        # comes; 14:30 b-1 ends; 15:00 b-2 ends.
        report = run(document(
            waiting=[{'id': 'w', 'project': 'a', 'resources': {'VCPU': 2},
                      'created_at': clock('11:30'), 'run_time': 1800}],
            arrivals=[{'id': 'b', 'project': 'b', 'resources': {'VCPU': 2},
                       'at': clock('12:30'), 'every': 3600, 'count': 2,
                       'run_time': 5400}]))
        self.check(report, [1800, 5400, 5400], came=3, built=3, finished=4)
        self.assertEqual({'VCPU': 4}, report['capacity'])
        self.assertEqual(
            {'from': clock('12:00'), 'until': clock('15:00'),
             'mean': {'VCPU': round(11 / 12, 4)}, 'peak': {'VCPU': 1.0}},
            report['utilisation'])
        self.assertEqual(
            [1.0] * 10 + [0.5] * 2,
            [part['mean']['VCPU'] for part in report['utilisation_by_time']])
        self.assertEqual(
            [clock('14:30'), clock('14:45')],
            [part['from'] for part in report['utilisation_by_time'][-2:]])
        self.assertEqual(
            [{'project': 'a', 'servers': 1, 'median': 5400, 'p90': 5400,
              'longest': 5400, 'never': 0},
             {'project': 'b', 'servers': 2, 'median': 0, 'p90': 1800,
              'longest': 1800, 'never': 0}], report['waits_by_project'])
        self.assertEqual(
            [{'shape': {'resources': {'VCPU': 2}}, 'servers': 3,
              'median': 1800, 'p90': 5400, 'longest': 5400, 'never': 0}],
            report['waits_by_shape'])

    def test_a_peak_within_a_part(self) -> None:
        report = run(document(servers=[], arrivals=[
            {'id': 'a', 'resources': {'VCPU': 4}, 'at': clock('12:05'),
             'run_time': 180}]))
        self.assertEqual(
            {'mean': {'VCPU': 0.2}, 'peak': {'VCPU': 1.0}},
            {name: report['utilisation_by_time'][0][name]
             for name in ('mean', 'peak')})
        self.assertEqual({'VCPU': 0.0},
                         report['utilisation_by_time'][1]['peak'])

    def test_nine_in_ten(self) -> None:
        # Each takes the host for a minute, the eleventh comes too late.
        report = run(document(servers=[], waiting=[
            {'id': f'w{number}', 'resources': {'VCPU': 4}, 'run_time': 60}
            for number in range(12)]), '12:10')
        self.check(report, [300, 540, 600], 1, came=12, built=11, finished=10,
                   waiting=1)

    def test_a_server_that_was_launched_ends_by_its_run_time(self) -> None:
        given = document(waiting=[{'id': 'w', 'resources': {'VCPU': 1}}])
        given['servers'][0] |= {'launched_at': clock('11:15')}
        self.check(run(given), [900] * 3, came=1, built=1, finished=1)
        given['servers'][0] |= {'launched_at': clock('10:00')}
        self.check(run(given), [0] * 3, came=1, built=1, finished=1)
        del given['servers'][0]['run_time']
        self.check(run(given), [None] * 3, 1, came=1, waiting=1)

    def test_deleted_for_another(self) -> None:
        given = document(waiting=[
            {'id': 'w', 'resources': {'VCPU': 4}, 'run_time': 3600}])
        given['servers'][0] |= {'preemptible': True, 'run_time': 7200}
        report = run(given)
        # Its run time is nobody's any more.
        self.check(report, [0] * 3, came=1, built=1, ended=1, finished=1)
        self.assertEqual(0.3333, report['utilisation']['mean']['VCPU'])

    def test_shelved_for_another_and_brought_back(self) -> None:
        given = document(waiting=[
            {'id': 'w', 'resources': {'VCPU': 4}, 'run_time': 3600}])
        given['servers'][0] |= {
            'preemptible': True, 'action': 'shelve', 'run_time': 7200,
            'launched_at': clock('11:00'), 'project': 'p'}
        # The shelved server has an hour left when w ends at 13:00.
        report = run(given)
        self.check(report, [0, 3600, 3600], came=1, built=2, ended=1,
                   finished=2)
        self.assertEqual(0.6667, report['utilisation']['mean']['VCPU'])
        self.assertEqual(
            [{'resources': {'VCPU': 4}},
             {'resources': {'VCPU': 4}, 'fill_only': True}],
            [one['shape'] for one in report['waits_by_shape']])
        # The shelved server does not come back before w has ended.
        self.check(run(given, '12:59'), [0] * 3, 1, came=1, built=1, ended=1,
                   waiting=1)

    def test_one_that_was_built_is_shelved_by_its_action(self) -> None:
        for action, built in ('shelve', 3), ('delete', 2):
            report = run(document(servers=[], waiting=[
                {'id': 'w', 'resources': {'VCPU': 4}, 'preemptible': True,
                 'action': action}], arrivals=[
                {'id': 'a', 'resources': {'VCPU': 4}, 'at': clock('13:00'),
                 'run_time': 60}]))
            self.assertEqual((built, 1), (report['servers']['built'],
                                          report['servers']['ended']))

    def test_it_comes_back_to_what_it_asked_for(self) -> None:
        given = document(waiting=[{'id': 'w', 'host': 'h1', 'resources': {
            'VCPU': 1}, 'groups': [{'resources': {'VGPU': 1}}]}])
        given['hosts'] = [{
            'name': name, 'inventory': {'VCPU': {'total': 9}}, 'providers': {
                'g': {'inventory': {'VGPU': {'total': total}}}}}
            for name, total in (('h1', 1), ('h2', 0), ('h3', 1))]
        given['servers'] = [
            {'id': name, 'host': host, 'resources': {'VCPU': 1},
             'providers': {'g': {'VGPU': 1}}, 'preemptible': name == 's1',
             'action': 'shelve', 'run_time': 3600}
            for name, host in (('s1', 'h1'), ('s3', 'h3'))]
        # It needs a GPU, and there is one on h3 at 13:00.
        self.check(run(given, '13:59'), [0, 3600, 3600], came=1, built=2,
                   ended=1, finished=1)
        self.check(run(given, '14:00'), [0, 3600, 3600], came=1, built=2,
                   ended=1, finished=2)

    def test_protection_ends(self) -> None:
        given = document(waiting=[{'id': 'w', 'resources': {'VCPU': 4}}])
        given['options']['min_run_time'] = 600
        given['servers'][0] |= {'preemptible': True,
                                'launched_at': clock('11:55')}
        self.check(run(given), [300] * 3, came=1, built=1, ended=1)
        given['options']['mode'] = 'fill'
        self.check(run(given), [55 * 60] * 3, came=1, built=1, finished=1)

    def test_one_that_was_built_is_protected_for_a_time(self) -> None:
        given = document(servers=[], waiting=[
            {'id': 'w', 'resources': {'VCPU': 4}, 'preemptible': True}],
            arrivals=[{'id': 'a', 'resources': {'VCPU': 4},
                       'at': clock('12:05')}])
        given['options']['min_run_time'] = 600
        self.check(run(given), [0, 300, 300], came=2, built=2, ended=1)

    def test_one_that_came_back_is_protected_for_a_time(self) -> None:
        given = document(
            waiting=[{'id': 'w', 'resources': {'VCPU': 4}, 'run_time': 1800}],
            arrivals=[{'id': 'a', 'resources': {'VCPU': 4},
                       'at': clock('12:40'), 'run_time': 1800}])
        given['servers'][0] |= {'preemptible': True, 'action': 'shelve',
                                'run_time': 36000}
        # Server s1 was ended at 12:00, came back at 12:30, and is ended at
        # 13:30.
        self.check(run(given, '13:29'), [0, 1800, 1800], 1, came=2, built=2,
                   ended=1, finished=1, waiting=1)
        # The waits are those of w, of a, and of s1 from 12:00 on.
        self.check(run(given, '13:30'), [1800, 3000, 3000], 1, came=2,
                   built=3, ended=2, finished=1, waiting=1)

    def test_so_many_ends_in_an_hour(self) -> None:
        given = document(waiting=[
            {'id': f'w{number}', 'resources': {'VCPU': 2}}
            for number in range(2)])
        given['options']['max_ends_per_hour'] = 1
        given['servers'] = [
            {'id': f's{number}', 'host': 'h1', 'resources': {'VCPU': 2},
             'preemptible': True} for number in range(2)]
        self.check(run(given), [0, 3600, 3600], came=2, built=2, ended=2)

    def test_back_off_and_deadlines(self) -> None:
        given = document(servers=[], waiting=[
            {'id': 'back', 'resources': {'VCPU': 1}, 'attempts': 2,
             'last_attempt': clock('11:59'), 'reason': 'build_failed'},
            {'id': 'large', 'resources': {'VCPU': 9}, 'pending_timeout': 900},
            {'id': 'late', 'resources': {'VCPU': 1}, 'pending_timeout': 60,
             'created_at': clock('11:00')},
            {'id': 'never', 'resources': {'VCPU': 1}, 'wait': 'never'},
            {'id': 'both', 'resources': {'VCPU': 1}, 'wait': 'never',
             'pending_timeout': 60, 'created_at': clock('11:00')}])
        self.check(run(given, '12:14'), [240] * 3, 1, came=5, built=1,
                   given_up=2, not_asked=1, waiting=1)
        self.check(run(given, '12:15'), [240] * 3, 1, came=5, built=1,
                   given_up=3, not_asked=1)

    def test_one_that_is_given_up_takes_no_room(self) -> None:
        given = document(waiting=[{
            'id': 'w', 'resources': {'VCPU': 4}, 'pending_timeout': 3600}])
        # Exactly at its deadline it is past it.
        self.check(run(given), [None] * 3, 1, came=1, finished=1, given_up=1)
        given['waiting'][0]['pending_timeout'] = 3601
        self.check(run(given), [3600] * 3, came=1, built=1, finished=1)

    def test_what_a_filter_refuses_stays_refused(self) -> None:
        for name in 'ComputeFilter', 'NUMATopologyFilter':
            given = document(waiting=[
                {'id': 'w', 'resources': {'VCPU': 1},
                 'refused_by': {'h1': name}}])
            self.check(run(given), [None] * 3, 1, came=1, finished=1,
                       waiting=1)

    def test_what_a_filter_refuses_is_not_where_it_comes_back(self) -> None:
        given = document(servers=[], waiting=[
            {'id': 'w', 'resources': {'VCPU': 4}, 'preemptible': True,
             'action': 'shelve', 'refused_by': {'h2': 'ComputeFilter'}}],
            arrivals=[{'id': 'a', 'resources': {'VCPU': 4}, 'host': 'h1',
                       'at': clock('13:00')}])
        given['hosts'].append(given['hosts'][0] | {'name': 'h2'})
        self.check(run(given), [0] * 3, 1, came=2, built=2, ended=1,
                   waiting=1)

    def test_arrivals_are_in_the_order_of_the_file(self) -> None:
        report = run(document(servers=[], arrivals=[
            {'id': 'a', 'project': 'a', 'resources': {'VCPU': 4},
             'every': 1800, 'run_time': 1800},
            {'id': 'b', 'project': 'b', 'resources': {'VCPU': 4},
             'every': 3600, 'run_time': 1800}]), '12:59')
        # Both come at 12:00; b waits until a-1 has ended.
        self.assertEqual([[0, 1], [1800, 0]], [
            [one['longest'], one['never']]
            for one in report['waits_by_project']])

    def test_count(self) -> None:
        for arrival, came in (({}, 1), ({'count': 3}, 3),
                              ({'every': 3600}, 4),
                              ({'every': 3600, 'count': None}, 4),
                              ({'every': 3600, 'count': 9}, 4),
                              ({'every': 3600, 'count': 2}, 2),
                              ({'every': None, 'count': None}, 1),
                              ({'at': clock('15:00')}, 1),
                              ({'at': '2026-11-22T15:00:01Z'}, 0),
                              ({'at': None}, 1)):
            report = run(document(arrivals=[
                {'id': 'a', 'resources': {'VCPU': 1}, **arrival}]))
            self.assertEqual(came, report['servers']['came'], arrival)

    def test_nothing_happens_between_two_events(self) -> None:
        given = document(waiting=[{'id': 'w', 'resources': {'VCPU': 1}}])
        with mock.patch.object(
                choose.Planner, 'next', autospec=True,
                side_effect=choose.Planner.next) as decide:
            planning.run(simulate.parse(given, NOW),
                         NOW + datetime.timedelta(days=36500))
        # Twelve parts, the end of s1, and once more after each decision.
        self.assertLess(decide.call_count, 20)

    def test_without_the_time_nothing_is_to_come(self) -> None:
        given = document(waiting=[{'id': 'w', 'resources': {'VCPU': 1}}])
        before = simulate.simulate(simulate.parse(given, NOW))
        given['waiting'][0] |= {'run_time': 60, 'action': 'shelve'}
        del given['servers'][0]['run_time']
        given['arrivals'] = [{'id': 'a', 'resources': {'VCPU': 1}}]
        self.assertEqual(before, simulate.simulate(
            simulate.parse(given, NOW)))


class HostsTestCase(tests.TestCase):
    """More hosts."""

    def clear(self, given: Any, until: str | None = None) -> int | None:
        cloud = simulate.parse(given, NOW)
        found = planning.hosts_to_clear(
            cloud, 'h1',
            None if until is None else simulate.time_of(clock(until), ''))
        self.assertEqual('h1', found['like'])
        hosts: int | None = found['hosts']
        return hosts

    def test_what_is_added(self) -> None:
        given = document(waiting=[
            {'id': f'w{number}', 'resources': {'VCPU': 1}, 'refused_by': {
                'h1': name}} for number, name in enumerate(
                    ('ComputeFilter', 'NUMATopologyFilter'))])
        given['hosts'] = [
            {'name': 'h1', 'aggregates': ['az'], 'traits': ['T'],
             'disabled': True, 'inventory': {'VCPU': {'total': 4}},
             'providers': {'g': {'inventory': {'VGPU': {'total': 1}}}}},
            {'name': 'h1+1', 'inventory': {}}]
        given['servers'][0]['providers'] = {'g': {'VGPU': 1}}
        cloud = planning.add_hosts(simulate.parse(given, NOW), 'h1', 2)
        added = cloud.hosts[2:]
        self.assertEqual(['h1+2', 'h1+3'], [host.name for host in added])
        for host in added:
            self.assertEqual(
                (cloud.hosts[0].inventory, {'az'}, {'T'}, False, {}),
                (host.inventory, host.aggregates, host.traits, host.disabled,
                 host.used))
            self.assertEqual({}, host.providers[0].used)
        self.assertEqual({'VGPU': 1}, cloud.hosts[0].providers[0].used)
        # What does not depend on what is on a host is said of all like it.
        self.assertEqual(
            [{'h1', 'h1+2', 'h1+3'}, {'h1'}],
            [set(cloud.refusals[one.shape]) for one in cloud.waiting])

    def test_no_such_host(self) -> None:
        error = self.assertRaises(
            simulate.BadInput, planning.add_hosts,
            simulate.parse(document(), NOW), 'h9', 1)
        self.assertEqual('--like: there is no host "h9"', str(error))

    def test_now(self) -> None:
        given = document(waiting=[
            {'id': f'w{number}', 'resources': {'VCPU': 3}}
            for number in range(5)])
        self.assertEqual(5, self.clear(given))
        given['servers'] = []
        self.assertEqual(4, self.clear(given))
        given['waiting'] = given['waiting'][:1]
        self.assertEqual(0, self.clear(given))
        given['waiting'] = []
        self.assertEqual(0, self.clear(given))

    def test_ends_clear_as_well_but_not_in_fill(self) -> None:
        given = document(waiting=[{'id': 'w', 'resources': {'VCPU': 3}}])
        given['servers'][0]['preemptible'] = True
        self.assertEqual(0, self.clear(given))
        given['options']['mode'] = 'fill'
        self.assertEqual(1, self.clear(given))

    def test_who_is_not_tried_needs_none(self) -> None:
        given = document(waiting=[
            {'id': 'back', 'resources': {'VCPU': 1}, 'attempts': 2,
             'last_attempt': clock('12:00')},
            {'id': 'late', 'resources': {'VCPU': 1}, 'pending_timeout': 60,
             'created_at': clock('11:00')},
            {'id': 'never', 'resources': {'VCPU': 1}, 'asked': False}])
        self.assertEqual(0, self.clear(given))
        # The server that backs off is tried when its time has come.
        self.assertEqual(1, self.clear(given, '12:30'))
        self.assertEqual(0, self.clear(given, '13:00'))

    def test_no_number_does(self) -> None:
        given = document(waiting=[{'id': 'w', 'resources': {'VCPU': 5}}])
        self.assertIsNone(self.clear(given))
        self.assertIsNone(self.clear(given, '13:00'))

    def test_over_time(self) -> None:
        given = document(arrivals=[
            {'id': 'a', 'resources': {'VCPU': 4}, 'every': 600, 'count': 6,
             'run_time': 1800}])
        # Three run at once, or two and the last two at 13:00.
        self.assertEqual(3, self.clear(given, '12:50'))
        self.assertEqual(2, self.clear(given, '13:00'))

    def test_those_that_come_back_count(self) -> None:
        given = document(waiting=[
            {'id': 'w', 'resources': {'VCPU': 4}, 'host': 'h2'}])
        given['hosts'] = [
            {'name': name, 'inventory': {'VCPU': {'total': total}}}
            for name, total in (('h1', 2), ('h2', 4))]
        given['hosts'][0]['disabled'] = True
        given['servers'] = [
            {'id': f's{number}', 'host': 'h2', 'resources': {'VCPU': 2},
             'preemptible': True, 'action': 'shelve'} for number in range(2)]
        self.assertEqual(2, self.clear(given, '13:00'))
        # For as long as nobody comes back there is no need of more hosts.
        self.assertEqual(0, self.clear(given))

    def test_so_many_are_tried_at_most(self) -> None:
        given = document(waiting=[
            {'id': f'w{number}', 'resources': {'VCPU': 4}}
            for number in range(9)])
        with mock.patch.object(planning, 'MOST_HOSTS', 8):
            self.assertIsNone(self.clear(given))
        with mock.patch.object(planning, 'MOST_HOSTS', 9):
            self.assertEqual(9, self.clear(given))


class BadInputTestCase(tests.TestCase):
    """What is wrong with what is to come is refused, with its path."""

    def check(self, path: str, given: Any) -> str:
        error = self.assertRaises(simulate.BadInput, simulate.parse, given,
                                  NOW)
        self.assertEqual(path, error.path, str(error))
        return str(error)

    def test_values(self) -> None:
        seconds = [0, -1, 1.5, True, '60', [], model.MAX_SECONDS + 1]
        for items, key, values in (
                ('servers', 'run_time', seconds),
                ('waiting', 'run_time', seconds),
                ('waiting', 'action', ['stop', None, 1]),
                ('arrivals', 'run_time', seconds),
                ('arrivals', 'action', ['stop', None, 1]),
                ('arrivals', 'every', seconds),
                ('arrivals', 'count', [0, -1, 1.5, True, '1', 2 ** 40]),
                ('arrivals', 'at', ['12:00', 5, True, clock('11:59')]),
                ('arrivals', 'id', ['', None, 5]),
                ('arrivals', 'resources', [None, [], {'VCPU': -1}]),
                ('arrivals', 'required', ['X', None]),
                ('arrivals', 'created_at', [clock('12:00')]),
                ('arrivals', 'attempts', [1]),
                ('arrivals', 'shelved', [True])):
            for value in values:
                item: dict[str, Any] = {'id': 'x', 'resources': {'VCPU': 1}}
                if items == 'servers':
                    item['host'] = 'h1'
                given = document(**{items: [item | {key: value}]})
                path = f'{items}[0].{key}'
                if value == {'VCPU': -1}:
                    path += '.VCPU'
                self.check(path, given)
        for key in 'id', 'resources':
            item = {'id': 'x', 'resources': {'VCPU': 1}}
            del item[key]
            self.check(f'arrivals[0].{key}', document(arrivals=[item]))
        for value in None, {}, 'x', 1:
            self.check('arrivals', document(arrivals=value))

    def test_a_run_time_that_is_null_is_none(self) -> None:
        given = document()
        given['servers'][0]['run_time'] = None
        self.assertEqual({}, simulate.parse(given, NOW).run_times)

    def test_names_that_are_there_twice(self) -> None:
        one = {'id': 'a', 'resources': {'VCPU': 1}}
        self.check('arrivals[1].id', document(arrivals=[one, one]))
        self.check('arrivals[0].id', document(waiting=[one], arrivals=[one]))
        self.check('arrivals[0].id', document(arrivals=[one | {'id': 's1'}]))
        said = self.check('arrivals[0].id', document(
            waiting=[one | {'id': 'a-12'}], arrivals=[one]))
        self.assertEqual(
            'arrivals[0].id: the ID of a server that comes may be "a-12", '
            'which is that of waiting[0].id already', said)
        for name in 'a-', 'a-b', 'b-1', 'a-01', 'a-1-1':
            simulate.parse(document(waiting=[one | {'id': name}],
                                    arrivals=[one]), NOW)

    def test_too_many_come(self) -> None:
        one = {'resources': {'VCPU': 1}}
        given = document(arrivals=[
            one | {'id': 'a', 'every': 3600},
            one | {'id': 'b', 'count': planning.MOST_ARRIVALS - 3}])
        error = self.assertRaises(simulate.BadInput, run, given)
        self.assertEqual('arrivals[1]', error.path)
        self.assertIn('no more than 1000000 servers', str(error))

    def test_what_is_to_come_is_not_written(self) -> None:
        given = document(arrivals=[{'id': 'a', 'resources': {'VCPU': 1}}])
        cloud = simulate.parse(given, NOW)
        self.assertEqual({'s1': 3600}, cloud.run_times)
        self.assertEqual(
            {'now', 'options', 'hosts', 'servers', 'waiting'},
            set(simulate.to_document(cloud)))


class NaiveTestCase(tests.TestCase):
    """A naive loop over all seconds comes to the same."""

    def world(self, rand: random.Random) -> dict[str, Any]:
        def asked() -> dict[str, Any]:
            item: dict[str, Any] = {
                'resources': {'VCPU': rand.randint(1, 4),
                              'MEMORY_MB': rand.randint(1, 6)},
                'project': rand.choice('abc'),
                'priority': rand.choice((0, 0, 0, 1))}
            if rand.random() < 0.8:
                item['run_time'] = rand.randint(1, 40)
            if rand.random() < 0.2:
                item['pending_timeout'] = rand.randint(1, 60)
            return item

        hosts = [{'name': f'h{number}', 'disabled': rand.random() < 0.1,
                  'inventory': {
                      'VCPU': {'total': rand.randint(2, 8)},
                      'MEMORY_MB': {'total': rand.randint(2, 12)}}}
                 for number in range(rand.randint(1, 3))]
        servers = [{'id': f's{number}', 'host': rand.choice(hosts)['name'],
                    'resources': {'VCPU': rand.randint(1, 2)},
                    'run_time': rand.randint(1, 60)}
                   for number in range(rand.randint(0, 4))]
        waiting = [asked() | {'id': f'w{number}', 'created_at': (
            NOW - datetime.timedelta(seconds=rand.randint(0, 50))).isoformat()}
            for number in range(rand.randint(0, 5))]
        arrivals = [asked() | {
            'id': f'a{number}', 'every': rand.randint(1, 20),
            'count': rand.choice((None, 1, 5)),
            'at': (NOW + datetime.timedelta(
                seconds=rand.randint(0, 30))).isoformat()}
            for number in range(rand.randint(0, 3))]
        return {'now': NOW.isoformat(), 'hosts': hosts, 'servers': servers,
                'waiting': waiting, 'arrivals': arrivals,
                'options': {'mode': 'fill', 'fair_share_half_life': 0}}

    def naive(self, given: dict[str, Any], length: int) -> dict[str, Any]:
        """The waits by ID (None: never) and sums of what is used."""
        capacity = {name: sum(host['inventory'][name]['total']
                              for host in given['hosts'])
                    for name in ('VCPU', 'MEMORY_MB')}
        running = [(server['host'], server['resources'], server['run_time'])
                   for server in given['servers']]
        share = {name: {'VCPU': 0, 'MEMORY_MB': 0} for name in 'abc'}
        queue: list[dict[str, Any]] = []
        waits: dict[str, int | None] = {}
        sums = {'VCPU': 0, 'MEMORY_MB': 0}

        def since(item: dict[str, Any], key: str) -> int:
            return int((datetime.datetime.fromisoformat(item[key]) -
                        NOW).total_seconds())

        def left(host: dict[str, Any], name: str) -> int:
            used: int = sum(one[1].get(name, 0) for one in running
                            if one[0] == host['name'])
            total: int = host['inventory'][name]['total']
            return total - used

        def rank(item: dict[str, Any]) -> tuple[Any, ...]:
            return (-item['priority'], max(
                share[item['project']][name] / capacity[name]
                for name in capacity), item['since'])

        for second in range(length + 1):
            running = [one for one in running
                       if one[2] is None or one[2] > second]
            if not second:
                queue += [item | {'since': since(item, 'created_at')}
                          for item in given['waiting']]
            for item in given['arrivals']:
                number, rest = divmod(second - since(item, 'at'),
                                      item['every'])
                if number >= 0 and not rest and (
                        item['count'] is None or number < item['count']):
                    queue.append(item | {'id': f'{item["id"]}-{number + 1}',
                                         'since': second})
            for item in list(queue):
                if item['id'] not in waits:
                    waits[item['id']] = None
                if second >= item['since'] + item.get(
                        'pending_timeout', 10 ** 9):
                    queue.remove(item)
                    if not second:
                        del waits[item['id']]
            placed = True
            while placed:
                placed = False
                for item in sorted(queue, key=rank):
                    hosts = [
                        host for host in given['hosts']
                        if not host['disabled'] and all(
                            left(host, name) >= amount
                            for name, amount in item['resources'].items())]
                    if hosts:
                        best = min(hosts, key=lambda host: (
                            left(host, 'MEMORY_MB'), left(host, 'VCPU')))
                        ends = item.get('run_time')
                        running.append((best['name'], item['resources'],
                                        ends and second + ends))
                        for name, amount in item['resources'].items():
                            share[item['project']][name] += amount
                        waits[item['id']] = second - item['since']
                        queue.remove(item)
                        placed = True
                        break
            if second < length:
                for one in running:
                    for name, amount in one[1].items():
                        sums[name] += amount
        return {'waits': waits, 'mean': {
            name: round(sums[name] / length / capacity[name], 4)
            for name in sums}}

    @hypothesis.settings(max_examples=200)
    @hypothesis.given(SEEDS)
    def test_the_same(self, seed: int) -> None:
        given = self.world(random.Random(seed))
        length = 120
        wanted = self.naive(given, length)
        course = planning._Course(simulate.parse(given, NOW),
                                  NOW + datetime.timedelta(seconds=length))
        report = course.run()
        self.assertEqual(wanted['waits'], {
            wait.waiting.id: wait.seconds for wait in course.waits})
        self.assertEqual(wanted['mean'], report['utilisation']['mean'])
        found = sorted(wait for wait in wanted['waits'].values()
                       if wait is not None)
        self.assertEqual(
            (len(wanted['waits']) - len(found), max(found, default=None)),
            (report['waits']['never'], report['waits']['longest']))


class CommandTestCase(tests.TestCase):
    """The options of the command, and what it prints."""

    def run_command(self, given: Any, *arguments: str
                    ) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with mock.patch.object(sys, 'stdin', io.TextIOWrapper(
                    io.BytesIO(json.dumps(given).encode()))):
                code = main.main(['simulate', '-', *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_refused(self) -> None:
        for arguments, said in (
                (('--until', 'tomorrow'), '--until: has to be a time'),
                (('--until', '2026-11-22T13:00:00'), '--until: has to be a'),
                (('--until', clock('12:00')),
                 '--until: has to be a second after 2026-11-22T12:00:00Z'),
                (('--until', clock('11:00')), '--until: has to be a second'),
                (('--like', 'h1'), '--like: has to be there with'),
                (('--add-hosts', '1'), '--like: has to be there with'),
                (('--hosts-to-clear',), '--like: has to be there with'),
                (('--add-hosts', '1', '--like', 'h9'),
                 '--like: there is no host "h9"'),
                (('--hosts-to-clear', '--like', ''),
                 '--like: there is no host ""'),
                *((('--add-hosts', wrong, '--like', 'h1'),
                   '--add-hosts: has to be a whole number from 0 to 10000')
                  for wrong in ('-1', 'x', '', '1.5', '10001', '9' * 5000,
                                '\u0663'))):
            code, out, err = self.run_command(document(), *arguments)
            self.assertEqual((2, '', 1), (code, out, len(err.splitlines())))
            self.assertIn(f'nova-reaper simulate: {said}', err)

    def test_the_tables_say_what_json_says(self) -> None:
        given = document(
            waiting=[{'id': 'w', 'project': 'a', 'resources': {'VCPU': 2},
                      'required': ['X'], 'created_at': clock('11:30')}],
            arrivals=[{'id': 'b', 'project': 'b', 'resources': {'VCPU': 2},
                       'every': 1700, 'run_time': 5000}])
        arguments = ('--until', clock('15:00'), '--hosts-to-clear',
                     '--like', 'h1', '--add-hosts', '1')
        code, text, err = self.run_command(given, *arguments)
        self.assertEqual((0, ''), (code, err))
        report = json.loads(self.run_command(given, *arguments, '--json')[1])
        numbers = re.findall(r'Servers: (.*)', text)[0].split(', ')
        self.assertEqual(report['servers'], {
            name.replace(' ', '_'): int(number) for number, name in (
                part.split(' ', 1) for part in numbers)})
        self.assertIn(f'Hosts: {report["hosts"]}\n', text)
        rows = [[cell.strip() for cell in line.strip('|').split('|')]
                for line in text.splitlines() if line.startswith('|')]
        used = [row for row in rows if row[0].startswith('2026')]
        self.assertIn(['From', 'Until', 'VCPU of 8, mean / peak'], rows)
        self.assertEqual([
            [part['from'], part['until'], part['mean']['VCPU'],
             part['peak']['VCPU']] for part in (
                 *report['utilisation_by_time'], report['utilisation'])], [
            [*row[:2], *(round(float(part.rstrip('%')) / 100, 4)
                         for part in row[2].split(' / '))] for row in used])

        def seconds(cell: str) -> int | None:
            if not cell:
                return None
            hours, minutes, rest = map(int, cell.split(':'))
            return hours * 3600 + minutes * 60 + rest

        said = [[row[0], row[1], int(row[2]), *map(seconds, row[3:6]),
                 int(row[6])] for row in rows
                if len(row) == 7 and row[0] != 'Project']
        names = ('servers', 'median', 'p90', 'longest', 'never')
        shapes = ['{required: [X], resources: {VCPU: 2}}',
                  '{resources: {VCPU: 2}}']
        self.assertEqual([
            *([one['project'], '*', *(one[name] for name in names)]
              for one in report['waits_by_project']),
            *(['*', shape, *(one[name] for name in names)]
              for shape, one in zip(shapes, report['waits_by_shape'])),
            ['*', '*', *(report['waits'][name] for name in names)]], said)
        self.assertEqual([{'required': ['X'], 'resources': {'VCPU': 2}},
                          {'resources': {'VCPU': 2}}],
                         [one['shape'] for one in report['waits_by_shape']])
        self.assertEqual(
            {'hosts', 'capacity', 'servers', 'utilisation',
             'utilisation_by_time', 'waits', 'waits_by_project',
             'waits_by_shape', 'hosts_to_clear'}, set(report))
        # Nobody has X.
        self.assertEqual({'like': 'h1', 'hosts': None, 'most': 8},
                         report['hosts_to_clear'])
        self.assertIn('until nobody waits: not known (tried: up to 8)', text)

    def test_decisions_with_more_hosts(self) -> None:
        given = document(waiting=[
            {'id': f'w{number}', 'resources': {'VCPU': 4}}
            for number in range(3)])
        arguments = ('--add-hosts', '1', '--like', 'h1', '--hosts-to-clear')
        _code, out, _err = self.run_command(given, *arguments, '--json')
        report = json.loads(out)
        self.assertEqual(['h1+1', None, None],
                         [one['host'] for one in report['decisions']])
        self.assertEqual({'like': 'h1', 'hosts': 2, 'most': 3},
                         report['hosts_to_clear'])
        _code, out, _err = self.run_command(given, *arguments)
        self.assertIn('until nobody waits: 2 (tried: up to 3)', out)
        self.assertIn('| w0     | room    | h1+1 |', out)

    def test_a_terminal_is_told_nothing(self) -> None:
        given = document(waiting=[
            {'id': 'w', 'project': 'p\x1b[2J', 'resources': {
                'VCPU\x1b[2J': 1}}])
        given['hosts'][0]['name'] = given['servers'][0]['host'] = 'h\x1b[2J'
        code, out, _err = self.run_command(
            given, '--until', clock('13:00'), '--hosts-to-clear', '--like',
            'h\x1b[2J')
        self.assertEqual(0, code)
        self.assertNotIn('\x1b', out)
        self.assertIn(r'p\x1b[2J', out)

    def test_the_example_of_the_page(self) -> None:
        if not _PAGE.exists():
            self.skipTest(f'This is no checkout: {_PAGE} is missing.')
        examples = re.findall(
            r'\n   \$ nova-reaper simulate (.*)\n\n?((?:   .*\n|\n)+)',
            _PAGE.read_text())
        self.assertEqual(2, len(examples))
        for words, shown in examples:
            out = io.StringIO()
            arguments = [str(_PAGE.parent / word) if word.endswith('.yaml')
                         else word for word in shlex.split(words)]
            with contextlib.redirect_stdout(out):
                self.assertEqual(0, main.main(['simulate', *arguments]))
            self.assertEqual(
                out.getvalue().strip().splitlines(),
                [line.removeprefix('   ') for line
                 in shown.strip('\n').splitlines()])
