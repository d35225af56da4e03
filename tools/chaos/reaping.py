#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

"""Rounds in which nobody asks for rebuilds but nova-reaper.

In the mode ``fill`` room is made for all servers that wait. In ``preempt``
preemptible servers fill the cloud, and some are ended.
"""

from tools.chaos import judge
from tools.chaos import rounds

#: What the options of the reaper are: it looks soon, and tries soon again.
OPTIONS = {
    'pending_list_interval': 5, 'full_list_interval': 10, 'hold_timeout': 60,
    'retry_interval': 3, 'max_retry_interval': 15,
    'build_failed_retry_interval': 3, 'rebuild_timeout': 60,
    'grace_period': 5, 'stop_timeout': 5, 'end_timeout': 60,
    'stuck_exclusion': 30}

# Two sweeps, the second with a hold that was left alone; and some tries.
_SETTLES = 2 * (OPTIONS['full_list_interval'] + OPTIONS['hold_timeout']) + (
    4 * OPTIONS['max_retry_interval'])


class FillRound(rounds.Round):
    """The reaper fills free room."""

    mode = 'fill'

    def __init__(self, *args):
        super().__init__(*args)
        self._settles += _SETTLES

    def _make(self):
        self._cloud.set_reaper('observe', **OPTIONS)
        super()._make()

    def _asks(self):
        self._cloud.set_reaper(self.mode)
        return []

    def _after(self):
        self._count(self._settle(
            self._servers, self._settles, _judge_reaped))

    def _end(self):
        self._cloud.set_reaper('observe')
        super()._end()


class PreemptRound(FillRound):
    """The reaper ends servers for those that wait."""

    mode = 'preempt'

    def __init__(self, *args):
        super().__init__(*args)
        self._victims = []

    def _make(self):
        self._cloud.set_reaper('observe', **OPTIONS)
        self._victims = self._cloud.make_victims()
        super()._make()

    def _after(self):
        super()._after()
        found = self._settle(
            self._victims, self._settles, judge.judge_victim)
        ended = sum(map(judge.is_ended, found.values()))
        self._report.count('victims: run', len(found) - ended)
        self._report.count('victims: ended', ended)
        landed = sum(judge.outcome(self._cloud.look(asked.server)) in (
            judge.BUILT, judge.GIVEN_UP) for asked in self._servers)
        if ended > landed:
            self._report.wrong(
                'ended in vain', '%d were ended, and %d servers have landed'
                % (ended, landed))

    def _end(self):
        # The room that becomes free is for those that were shelved.
        self._each(self._cloud.delete, self._servers)
        victims = self._settle(
            self._victims, self._settles,
            lambda asked, found: judge.judge_victim(asked, found) or (
                found.shown is not None and judge.is_ended(found) and
                [('victim', 'it does not come back')] or []))
        self._report.count('victims: back', sum(
            not judge.is_ended(found) for found in victims.values()))
        self._servers += self._victims
        super()._end()


def _judge_reaped(asked, found):
    become = judge.outcome(found)
    if become not in (judge.BUILT, judge.GIVEN_UP):
        return [('not built', 'the server is %s: %s/%s' % (
            become, *(found.shown and (
                found.shown['status'],
                found.shown['OS-EXT-STS:task_state']) or (None, None))))]
    return judge.judge(asked, found)
