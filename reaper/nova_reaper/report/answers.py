# SPDX-License-Identifier: Apache-2.0

"""What the reaper says of itself: in /v1, /healthz, log and gauges.

Of a server that waits it says why, what its owner can do, and what the reaper
does. Each sentence says one of these, and none stands in the place of another.
Owners read all of them but for numbers of hosts and their sizes.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import datetime
from typing import Any

from oslo_log import log

from nova_reaper.clients import nova
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes
from nova_reaper.events import reader
from nova_reaper.queue import queue
from nova_reaper.report import metrics

LOG = log.getLogger(__name__)
Reason, Hindrance = model.Reason, model.Hindrance

_WHY = {
    Reason.NO_ROOM: 'No host that could take it has room.',
    Reason.REFUSED: 'The scheduler refuses it the hosts that have room.',
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
    Hindrance.DEADLINE: 'It has waited for too long.',
    Hindrance.NEEDS_OWNER: 'Volumes or secrets are made when it is built, so '
                           'that only its owner can rebuild it.',
}
_NOTHING = 'Nothing has to be done.'
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


def text(time: datetime.datetime | None) -> str | None:
    """A time as Nova's API has it."""
    if time is None:
        return None
    return time.astimezone(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A server that waits.

    :ivar position: in the queue, None for a server that is not in it
    :ivar decision: the last one, None before the first
    :ivar mode: of the reaper, in force
    :ivar advice: what Nova says that its owner can do, '' if nothing is known
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
    advice: str = ''

    def to_dict(self, everything: bool, details: bool = True
                ) -> dict[str, Any]:
        """The answer.

        :param everything: whether hosts and other servers are in it
        :param details: whether it says how many hosts there are, how large
            they are, and how many servers wait
        """
        waiting = self.waiting
        decision = (self.decision or model.Decision(
            waiting.id, model.Verdict.WAIT)).to_dict()
        if self.decision is None:
            decision.update(verdict=None, reason=None)
        answer = {
            'server': waiting.id, 'name': waiting.name,
            'project_id': waiting.project,
            'state': ('shelved' if waiting.shelved else
                      'error' if waiting.failed else 'pending'),
            'priority': waiting.priority, 'position': self.position,
            'queue_length': self.queue_length,
            'since': text(waiting.created_at), 'attempts': waiting.attempts,
            'last_attempt': text(waiting.last_attempt),
            'next_attempt': text(self.next_attempt),
            'deadline': text(self.deadline), 'step': self.step,
            'decided_at': text(self.decided_at)} | decision
        answer['advice'] = advice(self.decision, self.mode,
                                            self.step, self.advice)
        answer['automatic'] = automatic(
            waiting, self.decision, self.mode, self.step, self.next_attempt,
            self.deadline)
        if not everything:
            del answer['host'], answer['victims']
        if not details:
            del answer['queue_length']
            if self.decision:
                answer['detail'] = why(self.decision)
        return answer


@dataclasses.dataclass(frozen=True, slots=True)
class NoticeEntry:
    """A preemptible server that is under notice."""

    server: str
    name: str
    project: str
    action: model.Action
    terminate_at: datetime.datetime
    waiting: str
    host: str

    def to_dict(self, everything: bool) -> dict[str, Any]:
        """The answer; without host and the server that waits for its owner."""
        answer = {'server': self.server, 'name': self.name,
                  'project_id': self.project, 'action': self.action.value,
                  'terminate_at': text(self.terminate_at)}
        if everything:
            answer |= {'for': self.waiting, 'host': self.host}
        return answer


@dataclasses.dataclass(frozen=True, slots=True)
class DryRun:
    """Who would be ended for a server, if it was the next one now."""

    decision: model.Decision
    servers: Sequence[model.Server]

    def to_dict(self) -> dict[str, Any]:
        """The answer."""
        return self.decision.to_dict() | {'servers': [
            {'server': server.id, 'name': server.name,
             'project_id': server.project, 'host': server.host,
             'priority': server.priority, 'action': server.action.value,
             'resources': dict(server.resources)}
            for server in self.servers]}


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One of the things that the reaper depends on."""

    name: str
    status: str
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """Whether the reaper does its work."""

    active: bool
    mode: model.Mode
    configured_mode: model.Mode
    safeguard: str | None
    checks: Sequence[Check]

    @property
    def status(self) -> str:
        """The worst of all."""
        worst = {check.status for check in self.checks}
        if 'failed' in worst:
            return 'failed'
        return 'degraded' if 'degraded' in worst or self.safeguard else 'ok'

    def to_dict(self) -> dict[str, Any]:
        """The answer."""
        return {'status': self.status} | dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """A decision, and when it was made.

    :ivar since: when the first of those was that have had the same reason
    """

    decision: model.Decision
    at: datetime.datetime
    since: datetime.datetime


class Record:
    """The decisions on servers that wait.

    :ivar last: by the server
    """

    def __init__(self, meters: metrics.Metrics) -> None:
        self._metrics = meters
        self.last: dict[str, Told] = {}
        # What the gauge of those that wait has.
        self._shown: set[tuple[str, str]] = set()

    def forget(self, reasons: Collection[model.Reason]) -> None:
        """Keep no decision to wait for one of these reasons."""
        self.last = {
            server: told for server, told in self.last.items()
            if told.decision.reason not in reasons}

    def tell(self, decision: model.Decision, now: datetime.datetime
             ) -> bool:
        """Keep a decision; returns whether it says anything new."""
        before = self.last.get(decision.server)
        self.last[decision.server] = Told(
            decision, now, before.since if before and (
                before.decision.reason == decision.reason) else now)
        self._metrics.decisions.labels(
            decision.verdict.value, decision.word or 'none').inc()
        return before is None or before.decision != decision

    def say(self, waiting: model.Waiting, decision: model.Decision,
            mode: model.Mode, now: datetime.datetime) -> None:
        """Keep a decision, and log it if it says anything new."""
        if self.tell(decision, now):
            LOG.info('Server %s (%s): %s%s%s %s', waiting.id, waiting.name,
                     '' if mode != model.Mode.OBSERVE
                     else 'would be: ', decision.word or
                     decision.verdict.value,
                     f' on {decision.host}' if decision.host else '',
                     decision.detail)

    def show(self, servers: Iterable[nova.NovaServer],
             views: Collection[reader.HostView], now: datetime.datetime
             ) -> None:
        """Bring the gauges up to date."""
        counts: dict[tuple[str, str], int] = {}
        oldest: dict[str, float] = {'pending': 0.0, 'shelved': 0.0}
        for server in servers:
            state = 'shelved' if server.shelved else 'pending'
            told = self.last.get(server.id)
            word = (told.decision.word if told else None) or 'none'
            counts[state, word] = counts.get((state, word), 0) + 1
            oldest[state] = max(oldest[state], (
                now - shapes.waits_since(server)).total_seconds())
        # Whoever looks meanwhile is to see either what was or what is.
        for labels in self._shown - counts.keys():
            self._metrics.pending.remove(*labels)
        for (state, word), count in counts.items():
            self._metrics.pending.labels(state, word).set(count)
        self._shown = set(counts)
        for state, seconds in oldest.items():
            self._metrics.oldest_pending.labels(state).set(seconds)
        self._metrics.hosts.set(len(views))
        self._metrics.preemptible.set(sum(
            len(view.servers) for view in views))


def why(decision: model.Decision) -> str:
    """Why a server waits, without numbers of hosts and sizes."""
    if decision.verdict is model.Verdict.ROOM:
        return 'A host has room.'
    if decision.verdict is model.Verdict.PREEMPT:
        return 'Room can be made for it.'
    if decision.hindrance is Hindrance.NOT_ASKED:
        return queue.NOT_ASKED
    if decision.reason is Reason.QUOTA:
        # It tells of the quota of the project alone.
        return decision.detail
    said = [_WHY[decision.reason]] if decision.reason else []
    if decision.hindrance:
        said.append(_HINDERED[decision.hindrance])
    return ' '.join(said)


def advice(decision: model.Decision | None, mode: model.Mode, step: str,
           of_nova: str) -> str | None:
    """What the owner can do, None if nothing is known.

    :param of_nova: what Nova says, which knows of no reaper
    """
    hindrance = decision.hindrance if decision else None
    if step == 'given_up':
        return 'Rebuild it, or delete it.'
    if hindrance is Hindrance.NOT_ASKED:
        return ('Rebuild it at microversion 2.106 or later to have it wait, '
                'or delete it.')
    if mode is model.Mode.OBSERVE or hindrance is Hindrance.NEEDS_OWNER:
        return of_nova or None
    reason = decision.reason if decision and step == 'waiting' else None
    return _ADVICE.get(reason, _NOTHING) if reason else _NOTHING


def automatic(waiting: model.Waiting, decision: model.Decision | None,
              mode: model.Mode, step: str,
              next_attempt: datetime.datetime | None,
              deadline: datetime.datetime | None) -> str:
    """What the reaper does for a server, and when."""
    if step == 'given_up':
        return 'Nothing: it was set to ERROR.'
    if mode is model.Mode.OBSERVE:
        return 'Nothing: the reaper only observes.'
    said = _next(waiting, decision, step, next_attempt)
    if deadline and step == 'waiting':
        said += (f' If it still waits at {deadline:%Y-%m-%dT%H:%M:%SZ} it is '
                 'set to ERROR.')
    return said


def _next(waiting: model.Waiting, decision: model.Decision | None, step: str,
          next_attempt: datetime.datetime | None) -> str:
    built = 'brought back' if waiting.shelved else 'built'
    if step in ('holding', 'rebuilding'):
        return f'It is being {built}.'
    if step in ('notice', 'ending'):
        return f'Room is being made for it; then it is {built}.'
    hindrance = decision.hindrance if decision else None
    if hindrance is Hindrance.NOT_ASKED:
        return 'Nothing, until its owner asks.'
    if hindrance is Hindrance.NEEDS_OWNER:
        return 'Nothing: its owner has to rebuild it.'
    if next_attempt:
        return f'It is tried again at {next_attempt:%Y-%m-%dT%H:%M:%SZ}.'
    if decision and decision.reason in model.NEVER:
        return f'It is {built} as soon as there is a host that can take it.'
    return f'It is {built} as soon as there is room.'
