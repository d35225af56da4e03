# SPDX-License-Identifier: Apache-2.0

import dataclasses

import testtools

from tools.chaos import judge

_BEFORE = {'name': 'n', 'tags': [], 'metadata': {}, 'key_name': 'k',
           'image': 'i', 'flavor': 'f', 'created': 'c', 'status': 'PENDING',
           'OS-EXT-STS:task_state': None}

_ASKED = judge.Asked('id', 'volume', None, ('vol',), _BEFORE)
_WAITS = judge.Found(
    shown=_BEFORE, cells=('cell0',), records=(('cell0', None, None),),
    attachments=(('vol', 'reserved'),))
_BUILT = judge.Found(
    shown=dict(_BEFORE, status='ACTIVE'), cells=('cell1',),
    records=(('cell1', None, 'host1'),), allocations=('host1',),
    ports=(('port', 'host1'),), attachments=(('vol', 'attached'),), builds=1)


def _shown(status, task_state=None):
    return dict(_BEFORE, **{
        'status': status, 'OS-EXT-STS:task_state': task_state})


class OutcomeTestCase(testtools.TestCase):

    def check(self, wanted, found, **changes):
        self.assertEqual(wanted, judge.outcome(
            dataclasses.replace(found, **changes)))

    def test_outcomes(self):
        self.check(judge.WAITS, _WAITS)
        self.check(judge.WAITS, _WAITS, shown=_shown('ERROR'))
        self.check(judge.BUILT, _BUILT)
        self.check(judge.GONE, _BUILT, shown=None)

    def test_server_in_progress_is_unsettled(self):
        self.check(judge.UNSETTLED, _WAITS,
                   shown=_shown('REBUILD', 'rebuilding'))
        self.check(judge.UNSETTLED, _WAITS, shown=_shown('BUILD'),
                   cells=(None,))
        self.check(judge.UNSETTLED, _WAITS, shown=_shown('BUILD'),
                   cells=('cell1',))
        self.check(judge.UNSETTLED, _BUILT, shown=_shown(
            'ERROR', 'scheduling'))

    def test_server_that_no_host_has_failed_in_its_cell(self):
        self.check(judge.FAILED, _BUILT, shown=_shown('ERROR'),
                   records=(('cell1', None, None),))
        self.check(judge.FAILED, _BUILT, shown=_shown(
            'ERROR', 'scheduling'), records=(('cell1', 'scheduling', None),))
        self.check(judge.GIVEN_UP, _BUILT, shown=_shown('ERROR'))
        self.check(judge.GIVEN_UP, _BUILT, shown={
            **_shown('ERROR'), 'OS-SRV-USG:launched_at': '2026-11-26T04:44'},
            records=(('cell1', None, None),))
        self.check(judge.UNSETTLED, _BUILT, shown=_shown('BUILD', 'spawning'))

    def test_host_died_in_a_rebuild_in_place_of_a_server_in_error(self):
        for task in ('rebuilding', 'rebuild_block_device_mapping',
                     'rebuild_spawning'):
            shown = _shown('ERROR', task)
            self.check(judge.UNSETTLED, _BUILT, shown=shown)
            shown['OS-SRV-USG:launched_at'] = '2026-11-26T04:44'
            self.check(judge.GIVEN_UP, _BUILT, shown=shown)
            self.check(judge.UNSETTLED, _BUILT, shown=shown,
                       records=(('cell1', task, None),))

    def test_server_of_two_cells_is_unsettled(self):
        self.check(judge.UNSETTLED, _WAITS, cells=('cell0', 'cell1'))


class JudgeTestCase(testtools.TestCase):

    def check(self, kinds, found, asked=_ASKED, **changes):
        self.assertEqual(kinds, [kind for kind, _sentence in judge.judge(
            asked, dataclasses.replace(found, **changes))])

    def test_nothing_is_wrong(self):
        self.check([], _WAITS)
        self.check([], _BUILT)

    def test_lost_and_unsettled_servers(self):
        self.check(['lost'], _BUILT, shown=None)
        self.check(['unsettled'], _WAITS, cells=())

    def test_what_is_wrong_with_any_server(self):
        for found in (_WAITS, _BUILT):
            self.check(['not kept'], found, shown=dict(
                found.shown, metadata={'other': 1}))
            self.check(['place'], found, records=(
                *found.records, ('cell2', None, 'host1')))
            self.check(['build requests'], found, build_requests=1)

    def test_what_is_wrong_with_a_server_that_waits(self):
        self.check(['state'], _WAITS, shown=_shown('ERROR'))
        self.check(['allocations'], _WAITS, allocations=('host1',))
        self.check([], _WAITS, allocations=('host1',), held=True)
        self.check(['ports'], _WAITS, ports=(('port', 'host1'),))
        self.check(['volumes'], _WAITS, attachments=())
        self.check(['volumes'], _WAITS, attachments=(
            ('vol', 'reserved'), ('vol', 'reserved')))
        self.check(['request'], _WAITS, keeps_request=False)

    def test_server_of_the_storm_was_not_shown_before(self):
        asked = dataclasses.replace(_ASKED, before=None)
        self.check([], _WAITS, asked, shown=_shown('ERROR'))
        self.check([], _BUILT, asked, shown=dict(_BUILT.shown, metadata={}))
        self.check(['allocations'], _WAITS, asked, allocations=('host1',))

    def test_what_is_wrong_with_a_server_that_is_built(self):
        self.check(['allocations'], _BUILT, allocations=('host2',))
        self.check(['allocations'], _BUILT, allocations=('host1', 'host2'))
        self.check(['ports'], _BUILT, ports=(('port', 'host2'),))
        self.check(['ports'], _BUILT, ports=(
            ('port', 'host1'), ('other', 'host1')))
        self.check(['volumes'], _BUILT, attachments=(('vol', 'reserved'),))
        self.check(['volumes'], _BUILT, attachments=(
            ('vol', 'attached'), ('other', 'attached')))
        self.check(['volumes', 'volumes'], _BUILT, attachments=())
        self.check(['builds'], _BUILT, builds=2)
        self.check(['hold'], _BUILT, held=True)

    def test_owners_port_is_the_only_one(self):
        asked = dataclasses.replace(_ASKED, port='port')
        self.check([], _BUILT, asked)
        self.check(['ports'], _BUILT, asked, ports=(('other', 'host1'),))

    def test_volume_that_is_made_of_the_image(self):
        asked = dataclasses.replace(
            _ASKED, kind='image volume', volumes=())
        self.check([], _WAITS, asked, attachments=())
        self.check([], _BUILT, asked)
        self.check(['volumes'], _BUILT, asked, attachments=())

    def test_server_given_up_by_its_host_is_in_one_place(self):
        self.check([], _BUILT, shown=_shown('ERROR'), allocations=(),
                   ports=(), attachments=())
        self.check(['place'], _BUILT, shown=_shown('ERROR'), records=(
            *_BUILT.records, *_WAITS.records))

    def test_what_is_left_of_a_server(self):
        self.assertEqual([], judge.left(judge.Found(shown=None)))
        self.assertEqual(
            [('left behind', "allocations: ('host1',)")],
            judge.left(judge.Found(shown=None, allocations=('host1',))))


class VictimTestCase(testtools.TestCase):

    asked = dataclasses.replace(_ASKED, kind=judge.SHELVED)

    def check(self, number, status, task_state=None, metadata=None,
              allocations=()):
        found = judge.Found(shown=dict(
            _shown(status, task_state), metadata=metadata or {}),
            allocations=allocations)
        self.assertEqual(
            ['victim'] * number,
            [kind for kind, _sentence in judge.judge_victim(
                self.asked, found)])
        return judge.is_ended(found)

    def test_victim_that_runs(self):
        self.assertFalse(self.check(0, 'ACTIVE', allocations=('host1',)))

    def test_victim_that_was_shelved(self):
        self.assertTrue(self.check(0, 'SHELVED_OFFLOADED'))

    def test_victim_that_was_deleted(self):
        found = judge.Found(shown=None)
        self.assertEqual([], judge.judge_victim(dataclasses.replace(
            self.asked, kind=judge.DELETED), found))
        self.assertTrue(judge.is_ended(found))

    def test_victim_that_was_deleted_and_not_shelved(self):
        self.assertEqual(
            [('victim', 'it is gone, and was to be shelved')],
            judge.judge_victim(self.asked, judge.Found(shown=None)))

    def test_victim_that_runs_without_room_or_is_shelved_with_it(self):
        self.check(1, 'ACTIVE')
        self.check(1, 'SHELVED_OFFLOADED', allocations=('host1',))

    def test_victim_that_runs_with_a_notice(self):
        self.check(1, 'ACTIVE', allocations=('host1',),
                   metadata={'reaper:for': 'another'})
        self.check(0, 'ACTIVE', allocations=('host1',),
                   metadata={'owner': 'other'})

    def test_victim_that_is_lost_or_in_the_middle(self):
        self.check(1, 'ERROR')
        self.check(1, 'SHUTOFF', allocations=('host1',))
        self.check(1, 'ACTIVE', 'powering-off', allocations=('host1',))
