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

"""What follows from the end of an attempt: back-off, counts, words."""

import collections
from collections.abc import Collection
import datetime
import time
from typing import Protocol

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper import attempt
from nova_reaper.attempt import Outcome
from nova_reaper.attempt import Result
from nova_reaper import metrics
from nova_reaper import model
from nova_reaper import queue
from nova_reaper import reader
from nova_reaper import view
from nova_reaper import world

LOG = log.getLogger(__name__)
# What was given up is answered for so long.
REMEMBERED = datetime.timedelta(hours=1)
# Seconds until one is given up again for which that came to nothing.
AGAIN = 60.0


class GivenUp(Protocol):
    """Is told of servers that were set to ERROR."""

    def given_up(self, server: str, project: str, reason: str,
                 detail: str) -> None:
        """Server was set to ERROR."""


class Outcomes:
    """Applies outcomes to the world; the engine holds the lock."""

    def __init__(self, conf: cfg.ConfigOpts, source: reader.Reader,
                 known: world.World, meters: metrics.Metrics,
                 announcer: GivenUp) -> None:
        self._conf = conf.reaper
        self._reader = source
        self._world = known
        self._metrics = meters
        self._announcer = announcer
        self._ended: collections.Counter[str] = collections.Counter()
        self._asked_at: dict[str, float] = {}
        self.given_up: dict[str, view.Entry] = {}

    def begin(self, waiting: model.Waiting, decision: model.Decision,
              freed_at: float) -> attempt.Attempt | None:
        """The attempt that carries a decision out."""
        hypervisor = self._reader.hypervisors.get(decision.host or '')
        requests = self._world.requests(waiting.id)
        if hypervisor is None or not requests:
            return None
        victims = []
        for uuid in decision.victims:
            server = self._world.index.slots.find(uuid)
            if server is None:
                return None
            victims.append(attempt.Victim(uuid, server.name, server.project,
                                          server.action))
        return attempt.Attempt(
            waiting, hypervisor.host, hypervisor.uuid, requests=requests,
            victims=tuple(victims), freed_at=freed_at,
            since=time.monotonic())

    def show(self, attempts: Collection[attempt.Attempt]) -> None:
        """Bring the gauges of what is under way up to date."""
        self._metrics.rebuilds_in_flight.set(sum(
            current.step == attempt.Step.WATCH for current in attempts))
        self._metrics.notices.set(sum(
            len(current.victims) for current in attempts
            if current.step in (attempt.Step.GRACE, attempt.Step.SWAP)))

    def show_holds(self, others: int, oldest: float,
                   attempts: Collection[attempt.Attempt]) -> None:
        """Bring the gauges of holds up to date.

        :param others: how many there are that are no attempt's
        :param oldest: the age of the oldest of them in seconds
        """
        self._metrics.holds.set(others + sum(
            current.held is not None for current in attempts))
        self._metrics.hold_oldest.set(oldest)

    def finish(self, outcome: Outcome, decision: model.Decision | None
               ) -> None:
        """An attempt has ended."""
        current, now = outcome.attempt, timeutils.utcnow(True)
        server = current.id
        asked = current.sent
        LOG.info('Server %s (%s) and host %s: %s. %s', server,
                 current.waiting.name, current.host, outcome.result.value,
                 outcome.detail)
        self._count(outcome, asked)
        if decision:
            # Those that came to pass are counted below.
            self._world.planner.drop_ends(decision)
        if outcome.result in (Result.ACTIVE, Result.GONE, Result.TIMEOUT):
            # Its plan counts until its host has been read again.
            self._world.discard(server, planned=True)
        else:
            self._again(outcome, asked)
            # Given back by what is known of it from now on.
            if decision:
                self._world.planner.undo(decision, now)
            else:
                self._world.index.drop_plan(server)
            self._tell(outcome)
        for victim in current.victims:
            if victim.ended:
                self._world.planner.record_end(victim.id, victim.project, now)
        self._reader.avoid(outcome.avoid, self._conf.stuck_exclusion)

    def _again(self, outcome: Outcome, asked: bool) -> None:
        server, host = outcome.attempt.id, outcome.attempt.host
        if outcome.refused_by:
            # Decided again at once, without this host.
            self._world.refuse(server, host, outcome.refused_by)
        elif outcome.history:
            self._world.history[server] = world.History(
                outcome.history[0], outcome.history[1],
                reason=outcome.reason)
        elif not outcome.apart and not (
                outcome.offered is not None and
                self._world.offer(server, host, outcome.offered)):
            self._world.failed(server, outcome.reason, asked)
        self._world.put_again(server)

    def _count(self, outcome: Outcome, asked: bool) -> None:
        current = outcome.attempt
        result = outcome.result.value
        if asked or outcome.result == Result.REFUSED and current.held:
            (self._metrics.returned if current.waiting.shelved
             else self._metrics.rebuilds).labels(result).inc()
        if outcome.result == Result.ACTIVE:
            state = 'shelved' if current.waiting.shelved else 'pending'
            self._metrics.pending_age.labels(state).observe((
                timeutils.utcnow(True) - current.waiting.created_at
            ).total_seconds())
            if current.waiting.shelved:
                self._reader.has_returned(current.id, timeutils.utcnow(True))
        elif current.ended:
            self._metrics.needless_victims.inc(current.ended)
            self._world.missed(current.waiting, outcome.reason)
        for victim in current.victims:
            if victim.ended:
                self._ended[victim.id] += 1
                if self._ended[victim.id] >= 3:
                    self._metrics.repeated_victims.inc()

    def _tell(self, outcome: Outcome) -> None:
        known = self._world.servers
        if outcome.reason is None or outcome.attempt.id not in known:
            return
        self._world.tell(model.Decision(
            outcome.attempt.id, model.Verdict.WAIT, reason=outcome.reason,
            detail=outcome.detail, hindrance=outcome.hindrance or (
                model.Hindrance.BACK_OFF
                if outcome.reason == model.Reason.NO_ROOM else None)))

    def hopeless(self, busy: Collection[str]
                 ) -> list[tuple[model.Waiting, str]]:
        """The servers to give up, and for what; none while it only observes.

        One that is still there after that is not named again at once.
        """
        if self._world.options.mode == model.Mode.OBSERVE:
            return []
        now = timeutils.utcnow(True)
        found = [(waiting, model.Hindrance.DEADLINE.value)
                 for waiting in self._world.queue.expired(now)]
        timeout = self._conf.nothing_fits_timeout
        if timeout:
            latest = now - datetime.timedelta(seconds=timeout)
            for server, told in self._world.told.last.items():
                reason = told.decision.reason
                if reason in model.NEVER and told.since <= latest:
                    waiting = self._world.queue.get(server)
                    known = waiting and self._world.queue.asleep(
                        waiting.demand)
                    if waiting and not waiting.shelved and known and (
                            known.reason == reason):
                        found.append((waiting, reason.value))
        then = time.monotonic()
        self._asked_at = {server: at for server, at in self._asked_at.items()
                          if then - at < AGAIN}
        found = [(waiting, reason) for waiting, reason in found
                 if waiting.id not in busy and
                 waiting.id not in self._asked_at]
        self._asked_at.update((waiting.id, then) for waiting, _ in found)
        return found

    def gave_up(self, waiting: model.Waiting, reason: str) -> None:
        """A server was set to ERROR."""
        told = self._world.told.last.get(waiting.id)
        detail = told.decision.detail if told else ''
        if reason == model.Hindrance.DEADLINE:
            detail = f'It has waited for too long. {detail}'.strip()
        LOG.warning('Server %s (%s) of project %s was set to ERROR: %s',
                    waiting.id, waiting.name, waiting.project, detail)
        self._metrics.given_up.labels(reason).inc()
        self._announcer.given_up(waiting.id, waiting.project, reason, detail)
        now = timeutils.utcnow(True)
        self.given_up = {
            server: entry for server, entry in self.given_up.items()
            if entry.decided_at and now - entry.decided_at < REMEMBERED}
        deadline = reason == model.Hindrance.DEADLINE
        self.given_up[waiting.id] = view.Entry(
            waiting, 0, 0, None, queue.deadline(waiting, self._world.options),
            'given_up', model.Decision(
                waiting.id, model.Verdict.WAIT, detail=detail,
                reason=(told.decision.reason if told else None) if deadline
                else model.Reason(reason),
                hindrance=model.Hindrance.DEADLINE if deadline else None),
            now)
        self._world.discard(waiting.id)
