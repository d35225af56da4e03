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

"""What the reaper says of itself: in /v1, /healthz, log and gauges."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import datetime
from typing import Any
from typing import Protocol

from oslo_log import log

from nova_reaper.clients import nova
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes
from nova_reaper.events import reader
from nova_reaper.report import metrics
from nova_reaper.report import sentences

LOG = log.getLogger(__name__)


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
        answer['advice'] = sentences.advice(self.decision, self.mode,
                                            self.step, self.advice)
        answer['automatic'] = sentences.automatic(
            waiting, self.decision, self.mode, self.step, self.next_attempt,
            self.deadline)
        if not everything:
            del answer['host'], answer['victims']
        if not details:
            del answer['queue_length']
            if self.decision:
                answer['detail'] = sentences.why(self.decision)
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
        return {'status': self.status, 'active': self.active,
                'mode': self.mode.value,
                'configured_mode': self.configured_mode.value,
                'safeguard': self.safeguard,
                'checks': [dataclasses.asdict(check)
                           for check in self.checks]}


class Source(Protocol):
    """Where the answers come from; safe for threads."""

    def entries(self) -> Sequence[Entry]:
        """All that wait, in the order in which they are looked at."""

    def entry(self, server: str) -> Entry | None:
        """One of them, or one that was given up a short time ago."""

    def notices(self) -> Sequence[NoticeEntry]:
        """Who is under notice."""

    def dry_run(self, server: str) -> DryRun | None:
        """Who would be ended; None while the room is not known."""

    def health(self) -> Health:
        """How the reaper is."""

    def as_of(self) -> datetime.datetime | None:
        """When the queue was last compared with Nova."""


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
