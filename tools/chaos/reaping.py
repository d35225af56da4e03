# SPDX-License-Identifier: Apache-2.0

"""Rounds in which nobody asks for rebuilds but nova-reaper.

In the mode ``fill`` room is made for all servers that wait. In ``preempt``
preemptible servers fill the cloud, and some are ended.
"""

import collections

from oslo_utils import timeutils

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
    #: How many VCPUs a server that waits needs. A preemptible server has 1.
    vcpus = 1

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
    """The reaper ends two servers for each that waits.

    The preemptible servers stay for the next round: those that were shelved
    return, and those that were deleted are created anew.
    """

    mode = 'preempt'
    vcpus = 2

    def _make(self):
        self._cloud.set_reaper('observe', **OPTIONS)
        self._cloud.make_victims()
        self._since = timeutils.utcnow().isoformat() + 'Z'
        super()._make()

    def _after(self):
        super()._after()
        found = self._settle(
            self._cloud.victims, self._settles, judge.judge_victim)
        ended = sum(map(judge.is_ended, found.values()))
        self._report.count('victims: run', len(found) - ended)
        self._report.count('victims: ended', ended)
        self._judge_journal(ended)

    def _judge_journal(self, ended):
        """See that the journal answers for each end.

        :param ended: how many servers do not run
        """
        def records(kind):
            return self._cloud.journal(kind, self._since)

        ends = collections.Counter(
            record['for'] for record in records('end')
            if record['result'] != 'left')
        returns = sum(record['result'] == 'active'
                      for record in records('return'))
        vain = collections.Counter()
        for record in records('build'):
            if record['result'] not in ('active', 'asked'):
                vain[record['server']] += len(
                    record['detail'].get('victims', ()))
        if ends.total() - returns != ended:
            self._report.wrong(
                'journal', 'it tells of %d ends and %d returns, and %d '
                'servers do not run' % (ends.total(), returns, ended))
        for server, number in ends.items():
            needless = max(number - self.vcpus, 0)
            self._report.count('victims: ended in vain, as the journal says',
                               needless)
            if needless > vain[server]:
                self._report.wrong(
                    'ended in vain', '%d were ended, and the journal says of '
                    '%d that nothing came of it' % (number, vain[server]),
                    server)

    def _end(self):
        # The room that becomes free is for those that were shelved.
        self._each(self._cloud.delete, self._servers)
        found = self._settle(
            self._cloud.victims, self._settles,
            lambda asked, found: judge.judge_victim(asked, found) or (
                found.shown is not None and judge.is_ended(found) and
                [('victim', 'it does not come back')] or []))
        self._cloud.victims = [
            victim for victim in self._cloud.victims
            if not judge.is_ended(found[victim.server])]
        self._report.count('victims: back or never ended',
                           len(self._cloud.victims))
        super()._end()


def _judge_reaped(asked, found):
    become = judge.outcome(found)
    if become not in (judge.BUILT, judge.GIVEN_UP):
        return [('not built', 'the server is %s: %s/%s' % (
            become, *(found.shown and (
                found.shown['status'],
                found.shown['OS-EXT-STS:task_state']) or (None, None))))]
    return judge.judge(asked, found)
