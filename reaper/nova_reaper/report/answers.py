# SPDX-License-Identifier: Apache-2.0

"""What the reaper says of itself: in /v1, /healthz, log and gauges.

The reaper says why a server waits, what its owner can do, and what the reaper
does. Each sentence says one of these, and none stands in the place of another.
Owners read all of them, except numbers of hosts and their sizes.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import itertools
from typing import Any

from oslo_log import log

from nova_reaper.cloud import model
from nova_reaper.queue import queue
from nova_reaper.report import health

LOG = log.getLogger(__name__)
Reason, Hindrance = model.Reason, model.Hindrance

_WHY = {
    Reason.NO_ROOM: 'No host that could take it has room.',
    Reason.REFUSED: 'The scheduler refuses the hosts that have room, or all '
                    'that could take it.',
    Reason.NO_SUCH_HOST: 'The host that it was created for is not there.',
    Reason.NOTHING_FITS: 'No host could take it, even if the host were empty.',
    Reason.BUILD_FAILED: 'Its build failed on a host.',
    Reason.QUOTA: 'The quota of its project does not allow it.',
    Reason.UNKNOWN: 'Nova does not say why it waits.',
}
_HINDERED = {
    Hindrance.PROTECTED: 'Servers that could make room for it are protected '
                         'for now.',
    Hindrance.BACK_OFF: 'Its last try came to nothing.',
    Hindrance.RESERVED: 'Room is kept for a server that waits before it.',
    Hindrance.MODE: 'No server is ended to make room for it.',
    Hindrance.MISSES: 'No server is ended for it for an hour, because servers '
                      'like it did not run after others had been ended for '
                      'them.',
    Hindrance.DEADLINE: 'It has waited for too long.',
    Hindrance.NEEDS_OWNER: 'Volumes or secrets are made when it is built, so '
                           'that only its owner can rebuild it.',
}
_NOTHING = 'Nothing has to be done.'
# The words of /v1/pending for how a server waits.
STATES = ('pending', 'error', 'shelved')
_ADVICE = {
    Reason.NO_ROOM: f'{_NOTHING} With a smaller flavor it may run sooner.',
    Reason.REFUSED: 'Another flavor, image or availability zone may be '
                    'accepted. The administrator knows what the filters '
                    'require.',
    Reason.NO_SUCH_HOST: 'Delete it and create it again without asking for '
                         'this host, or ask the administrator for the host.',
    Reason.NOTHING_FITS: 'Rebuild it with a flavor, an image or an '
                         'availability zone for which there are hosts.',
    Reason.BUILD_FAILED: 'If the message names its image or its flavor as the '
                         'cause, rebuild it with another.',
    Reason.QUOTA: 'Delete servers that are not needed, or ask for more quota.',
}


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A server that waits, or was given up a short time ago.

    :ivar position: its position in the queue, None if it is not in the queue
    :ivar step: what is done for the server, in the words of /v1/pending
    :ivar decision: the last decision, None before the first
    :ivar mode: the mode of the reaper that is in force
    :ivar of_nova: the advice of Nova, which knows no reaper, to the owner; ''
        if Nova's advice is not known
    """

    waiting: model.Waiting
    position: int | None
    queue_length: int
    next_attempt: datetime.datetime | None
    deadline: datetime.datetime | None
    step: str
    decision: model.Decision | None
    decided_at: datetime.datetime | None
    mode: model.Mode = model.Mode.OBSERVE
    of_nova: str = ''

    def to_dict(self, everything: bool, details: bool = True
                ) -> dict[str, Any]:
        """Return the entry as /v1/pending has it.

        :param everything: whether hosts and other servers are in it
        :param details: whether the answer says how many hosts there are, how
            large they are, and how many servers wait
        """
        waiting = self.waiting
        answer = {
            'server': waiting.id, 'name': waiting.name,
            'project_id': waiting.project, 'state': self.state,
            'priority': waiting.priority, 'position': self.position,
            'queue_length': self.queue_length,
            'since': model.time_text(waiting.created_at),
            'attempts': waiting.attempts,
            'last_attempt': model.time_text(waiting.last_attempt),
            'next_attempt': model.time_text(self.next_attempt),
            'deadline': model.time_text(self.deadline), 'step': self.step,
            'decided_at': model.time_text(self.decided_at)}
        answer |= (self.decision or model.Decision(
            waiting.id, model.Verdict.WAIT)).to_dict()
        if self.decision is None:
            answer['verdict'] = None
        answer |= {'advice': self._advice(), 'automatic': self._automatic()}
        if not everything:
            del answer['host'], answer['victims']
        if not details:
            del answer['queue_length']
            answer['detail'] = why(self.decision) if self.decision else ''
        return answer

    @property
    def state(self) -> str:
        """Say how the server waits, by a word of STATES."""
        return ('shelved' if self.waiting.shelved else
                'error' if self.waiting.failed else 'pending')

    @property
    def _hindrance(self) -> model.Hindrance | None:
        return self.decision.hindrance if self.decision else None

    def _advice(self) -> str | None:
        """Say what the owner can do, None if nothing is known."""
        if self.step == 'given_up':
            return 'Rebuild it, or delete it.'
        if self._hindrance is Hindrance.NOT_ASKED:
            return ('Rebuild it at microversion 2.106 or later to have it '
                    'wait, or delete it.')
        if (self.mode is model.Mode.OBSERVE or
                self._hindrance is Hindrance.NEEDS_OWNER):
            return self.of_nova or None
        if self.decision and self.decision.reason and self.step == 'waiting':
            return _ADVICE.get(self.decision.reason, _NOTHING)
        return _NOTHING

    def _automatic(self) -> str:
        """Say what the reaper does for the server, and when."""
        if self.step == 'given_up':
            return 'Nothing: it was set to ERROR.'
        if self.mode is model.Mode.OBSERVE:
            return 'Nothing: the reaper only observes.'
        said = self._next()
        if self.deadline and self.step == 'waiting':
            said += (' If it still waits at '
                     f'{model.time_text(self.deadline)} it is set to ERROR.')
        return said

    def _next(self) -> str:
        built = 'brought back' if self.waiting.shelved else 'built'
        if self.step in ('holding', 'rebuilding'):
            return f'It is being {built}.'
        if self.step in ('notice', 'ending'):
            return f'Room is being made for it; then it is {built}.'
        if self._hindrance is Hindrance.NOT_ASKED:
            return 'Nothing, until its owner asks.'
        if self._hindrance is Hindrance.NEEDS_OWNER:
            return 'Nothing: its owner has to rebuild it.'
        if self.next_attempt:
            return ('It is tried again at '
                    f'{model.time_text(self.next_attempt)}.')
        if self.decision and self.decision.reason in model.NEVER:
            return (f'It is {built} as soon as there is a host that can take '
                    'it.')
        if self.decision and self.decision.reason is Reason.REFUSED:
            return (f'It is {built} as soon as a host that the scheduler '
                    'accepts has room.')
        return f'It is {built} as soon as there is room.'


def why(decision: model.Decision) -> str:
    """Say why a server waits, without numbers of hosts and sizes."""
    if decision.verdict is model.Verdict.ROOM:
        return 'A host has room.'
    if decision.verdict is model.Verdict.PREEMPT:
        return 'Room can be made for it.'
    if decision.hindrance is Hindrance.NOT_ASKED:
        return queue.NOT_ASKED
    if decision.reason is Reason.QUOTA:
        # The detail speaks of the quota of the server's project alone.
        return decision.detail
    said = [_WHY[decision.reason]] if decision.reason else []
    if decision.hindrance:
        said.append(_HINDERED[decision.hindrance])
    return ' '.join(said)


def probed(decisions: Sequence[model.Decision],
           room_by: datetime.datetime | None, details: bool) -> dict[str, Any]:
    """Say whether there is room, as /v1/probe has it.

    :param decisions: for servers that are alike, one after another, up to the
        first that would wait
    :param room_by: by when there will be room for this server, None if nobody
        knows
    :param details: whether the answer says how many hosts there are, and how
        large they are
    """
    now = sum(1 for _ in itertools.takewhile(
        lambda one: one.verdict is model.Verdict.ROOM, decisions))
    waits = decisions[-1].verdict is model.Verdict.WAIT
    after = len(decisions) - now - waits
    told = decisions[-1 if waits or not after else now]
    detail = told.detail if details else why(told)
    return {
        'verdict': ('never' if told.reason in model.NEVER else
                    'later' if waits else 'after_ends' if after else 'now'),
        'now': now, 'after_ends': after, 'room_by': model.time_text(room_by),
        'reason': told.reason.value if told.reason else None,
        'hindrance': told.hindrance.value if told.hindrance else None,
        'detail': detail}


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """A decision, and when it was made.

    :ivar since: when the first decision in a row with this reason was made
    """

    decision: model.Decision
    at: datetime.datetime
    since: datetime.datetime


class Decisions:
    """The last decision on each server that waits.

    :ivar last: by the ID of the server
    """

    def __init__(self, meters: health.Metrics) -> None:
        self._metrics = meters
        self.last: dict[str, Told] = {}
        # The labels with which the gauge of waiting servers has values.
        self._shown: set[tuple[str, str]] = set()

    def forget(self, reasons: Collection[model.Reason]) -> None:
        """Keep no decision to wait for one of these reasons."""
        self.last = {
            server: told for server, told in self.last.items()
            if told.decision.reason not in reasons}

    def tell(self, decision: model.Decision, now: datetime.datetime
             ) -> bool:
        """Keep a decision, and return whether it says anything new."""
        before = self.last.get(decision.server)
        self.last[decision.server] = Told(
            decision, now, before.since if before and (
                before.decision.reason == decision.reason) else now)
        self._metrics.decisions.labels(
            decision.verdict.value, decision.word or 'none').inc()
        return before is None or before.decision != decision

    def say(self, waiting: model.Waiting, decision: model.Decision,
            mode: model.Mode, now: datetime.datetime,
            victims: Iterable[model.Server] = ()) -> None:
        """Keep a decision, and log it with its victims if it is new."""
        if self.tell(decision, now):
            ends = ', '.join(f'{victim.id} ({victim.name})'
                             for victim in victims)
            LOG.info('Server %s (%s): %s%s%s. %s%s', waiting.id, waiting.name,
                     '' if mode != model.Mode.OBSERVE
                     else 'would be: ', decision.word or
                     decision.verdict.value,
                     f' on {decision.host}' if decision.host else '',
                     decision.detail,
                     f' Servers to end: {ends}.' if ends else '')

    def show(self, counts: Mapping[tuple[str, str], int],
             oldest: Mapping[str, float], hosts: int, preemptible: int
             ) -> None:
        """Bring the gauges up to date.

        :param counts: how many servers wait, by state and word
        :param oldest: for how many seconds the oldest server waits, by state
        :param hosts: how many hosts there are
        :param preemptible: how many servers may be ended
        """
        # Prometheus may read the gauge at any moment between these lines, and
        # finds each series with its old or its new value, or finds it gone.
        for labels in self._shown - counts.keys():
            self._metrics.pending.remove(*labels)
        self._shown = set(counts)
        for labels, count in counts.items():
            self._metrics.pending.labels(*labels).set(count)
        for state in health.STATES:
            self._metrics.oldest_pending.labels(state).set(
                oldest.get(state, 0.0))
        self._metrics.hosts.set(hosts)
        self._metrics.preemptible.set(preemptible)
