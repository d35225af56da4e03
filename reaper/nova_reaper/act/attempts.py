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

"""The attempts that are under way: begun, gone on with, ended.

The one thread of the engine owns them. Each step is a job in the pool, and
what comes of it is taken by that thread.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
import dataclasses
import datetime
import functools
import math
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act import attempt
from nova_reaper.act.attempt import Attempt
from nova_reaper.act.attempt import Outcome
from nova_reaper.act.attempt import Result
from nova_reaper.act.attempt import Step
from nova_reaper.act import steps
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes
from nova_reaper.cloud import world
from nova_reaper.events import jobs
from nova_reaper.events import reader
from nova_reaper.queue import history
from nova_reaper.queue import queue
from nova_reaper.report import answers
from nova_reaper.report import journal
from nova_reaper.report import metrics
from nova_reaper.report import store

LOG = log.getLogger(__name__)

ASKING = frozenset({Step.HOLD, Step.REBUILD})
ENDING = frozenset(Step) - ASKING - {Step.CHECK, Step.WATCH}
GIVE_UP = 'give up '  # the name of a job, before that of the server
# What was given up is answered for so long.
REMEMBERED = datetime.timedelta(hours=1)
# Seconds until one is given up again for which that came to nothing.
AGAIN = 60.0


class Outcomes:
    """Applies outcomes to the world; the engine holds the lock."""

    def __init__(self, conf: cfg.ConfigOpts, source: reader.Reader,
                 known: world.World, meters: metrics.Metrics,
                 book: journal.Journal) -> None:
        self._conf = conf.reaper
        self._reader = source
        self._world = known
        self._metrics = meters
        self._book = book
        self._ended: collections.Counter[str] = collections.Counter()
        self._asked_at: dict[str, float] = {}
        self.given_up: dict[str, answers.Entry] = {}

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
            since=time.monotonic(), decided={
                'decision': decision.to_dict(),
                'runner_up': self._world.planner.runner_up(
                    waiting, decision, timeutils.utcnow(True))
                if victims else {},
                'mode': self._world.options.mode.value})

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
        missed = self._count(outcome, asked)
        if current.asked_at or current.ended:
            self._book.write(attempt.record_of(
                current, outcome.result.value, outcome.detail, missed=missed,
                reason=outcome.reason))
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
        elif outcome.result is Result.WITHDRAWN:
            # Nobody refused it anything: it is decided again at once.
            pass
        elif outcome.tries:
            self._world.learn_tries(server, outcome.tries, outcome.reason)
        elif outcome.offered is not None:
            self._world.offer(server, host, outcome.offered)
        elif not outcome.apart:
            self._came_to_nothing(outcome)
        if asked:
            self._world.asked(server)
        self._world.put_again(server)

    def _came_to_nothing(self, outcome: Outcome) -> None:
        server, host = outcome.attempt.id, outcome.attempt.host
        cause = outcome.cause
        if cause is history.Cause.RACE and (
                outcome.result is Result.CONFLICT):
            waiting = self._world.waiting(server)
            if waiting and not outcome.attempt.victims:
                # All of its shape wait for news of the host, so that nobody
                # overtakes it.
                self._world.withhold(waiting.shape, host)
                return
            # Notices were withdrawn: others are not to be given at once.
            cause = history.Cause.SERVICE
        self._world.came_to_nothing(server, cause, outcome.reason, host)

    def _count(self, outcome: Outcome, asked: bool) -> str | None:
        """Count it; the key of the shape for which others ended in vain."""
        current, missed = outcome.attempt, None
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
            if self._world.missed(
                    current.waiting, outcome.cause, outcome.detail):
                missed = current.waiting.shape.key
        for victim in current.victims:
            if victim.ended:
                self._ended[victim.id] += 1
                if self._ended[victim.id] >= 3:
                    self._metrics.repeated_victims.inc()
        for uuid in self._ended.keys() - self._reader.preemptible.keys():
            # It does not come back.
            del self._ended[uuid]
        return missed

    def _tell(self, outcome: Outcome) -> None:
        known = self._world.servers
        if outcome.reason is None or outcome.attempt.id not in known:
            return
        self._world.tell(model.Decision(
            outcome.attempt.id, model.Verdict.WAIT, reason=outcome.reason,
            detail=outcome.detail, hindrance=outcome.hindrance or (
                model.Hindrance.BACK_OFF
                if outcome.cause is history.Cause.SERVER and
                outcome.reason == model.Reason.NO_ROOM else None)))

    def hopeless(self, busy: Collection[str]
                 ) -> list[tuple[model.Waiting, str]]:
        """The servers to give up, and for what; none while it only observes.

        One that is still there after that is not named again at once.
        """
        if self._world.options.mode == model.Mode.OBSERVE:
            return []
        now = timeutils.utcnow(True)
        found = [(waiting, model.Hindrance.DEADLINE.value)
                 for waiting in (*self._world.queue.expired(now),
                                 *queue.expired(
                                     self._world.not_asked.values(),
                                     self._world.options, now))]
        timeout = self._conf.nothing_fits_timeout
        if timeout:
            latest = now - datetime.timedelta(seconds=timeout)
            for server, told in self._world.told.last.items():
                reason = told.decision.reason
                if reason in model.NEVER and told.since <= latest:
                    waiting = self._world.queue.get(server)
                    known = waiting and self._world.queue.asleep(
                        waiting.demand)
                    if waiting and known and not (
                            waiting.shelved or waiting.failed) and (
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
        self._book.write(store.Record(
            store.Kind.GIVEN_UP, waiting.id, waiting.project, waiting.name,
            waiting.id, waiting.project, result=reason,
            detail={'why': detail}))
        now = timeutils.utcnow(True)
        self.given_up = {
            server: entry for server, entry in self.given_up.items()
            if entry.decided_at and now - entry.decided_at < REMEMBERED}
        deadline = reason == model.Hindrance.DEADLINE
        self.given_up[waiting.id] = answers.Entry(
            waiting, None, 0, None,
            queue.deadline(waiting, self._world.options), 'given_up',
            model.Decision(
                waiting.id, model.Verdict.WAIT, detail=detail,
                reason=(told.decision.reason if told else None) if deadline
                else model.Reason(reason),
                hindrance=model.Hindrance.DEADLINE if deadline else None),
            now, self._world.options.mode)
        self._world.discard(waiting.id)


@dataclasses.dataclass(slots=True)
class Tally:
    """How much is under way that counts against a limit.

    What a host builds counts for nobody, and what waits for others to end has
    a limit of its own.

    :ivar checks: attempts without victims that are to be checked
    :ivar with_victims: attempts with victims that are to be checked
    :ivar projects: what is asked of Nova for each project, or is to be
    """

    checks: int = 0
    with_victims: int = 0
    projects: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter)

    def add(self, project: str, with_victims: bool) -> None:
        """Count an attempt that is to be checked."""
        if with_victims:
            self.with_victims += 1
        else:
            self.checks += 1
            self.projects[project] += 1

    def full(self, most: int) -> set[str]:
        """The projects for which as much goes on as may for one."""
        return {project for project, count in self.projects.items()
                if count >= most}


class Attempts:
    """Has decisions carried out, as many at a time as options allow.

    :ivar under_way: attempts by the ID of the server that waits
    :ivar decisions: what they carry out, by the same; none of those that a
        sweep has found
    :param read_one: has a server that waits read anew
    :param keep_failed: is told of a server whose build failed, and that is in
        ERROR
    """

    def __init__(self, conf: cfg.ConfigOpts, known: world.World,
                 actor: steps.Actor, results: Outcomes,
                 forms: shapes.Shapes, reading: jobs.Hosts,
                 runner: jobs.Jobs, read_one: Callable[[str], None],
                 keep_failed: Callable[[str], None]) -> None:
        self._conf = conf
        self._world = known
        self._actor = actor
        self._outcomes = results
        self._shapes = forms
        self._hosts = reading
        self._jobs = runner
        self._read_one = read_one
        self._keep_failed = keep_failed
        self.under_way: dict[str, Attempt] = {}
        self.decisions: dict[str, model.Decision] = {}
        # Since when what was planned for a server is written in Placement.
        self._written: dict[str, float] = {}
        # When to read servers again for which nothing could be begun.
        self._not_begun: dict[str, float] = {}
        # What a step that was under way may not have seen any more.
        self._woken: set[str] = set()

    def tally(self) -> 'Tally':
        """How much is under way that counts against a limit."""
        tally = Tally()
        for current in self.under_way.values():
            if current.step == Step.CHECK:
                tally.add(current.waiting.project, bool(current.victims))
            elif current.step in ASKING:
                tally.projects[current.waiting.project] += 1
        return tally

    def begin(self, waiting: model.Waiting, decision: model.Decision
              ) -> bool:
        """Begin to carry out a decision; if that cannot be, it is undone.

        The server stands in nobody's way then.

        :returns: whether it has begun
        """
        made = self._outcomes.begin(waiting, decision,
                                    self._hosts.freed.get(
                                        decision.host or '', 0.0))
        if made:
            self.under_way[waiting.id] = made
            self.decisions[waiting.id] = decision
            return True
        self._world.planner.undo(decision, timeutils.utcnow(True))
        # What it asks for, its host or a victim is not known as it was: it is
        # in the queue again when it has been read.
        self._world.queue.discard(waiting.id)
        self._hosts.read(decision.host or '', whole=True)
        self._not_begun[waiting.id] = time.monotonic() + steps.AGAIN
        return False

    def go_on(self) -> None:
        """Start the next step of all that are not to wait."""
        now, group = time.monotonic(), self._conf.reaper
        for server in [server for server, at in self._not_begun.items()
                       if at <= now]:
            del self._not_begun[server]
            self._read_one(server)
        going = [current for current in self.under_way.values()
                 if not current.stalled]
        asking = sum(current.step in ASKING for current in going)
        ending = sum(bool(current.victims) and current.step in ENDING
                     for current in going)
        for server, current in list(self.under_way.items()):
            if current.wake_at > now or f'attempt {server}' in self._jobs:
                continue
            if current.step in (Step.GRACE, Step.SWAP):
                current = self.under_way[server] = self._planned_anew(current)
            if current.step == Step.CHECK:
                if current.victims and ending >= group.max_preemptions or (
                        asking >= group.max_rebuilds):
                    continue
                ending += bool(current.victims)
                asking += not current.victims
            self._jobs.start(f'attempt {server}', functools.partial(
                self._actor.advance, current), self._advanced)
        self._outcomes.show(self.under_way.values())

    def _planned_anew(self, current: Attempt) -> Attempt:
        """Take note if the victims under notice need not end any more."""
        before = self.decisions.get(current.id)
        waiting = self._world.waiting(current.id)
        if before is None or waiting is None or current.unsure:
            # A step finds out what becomes of a server that waits no more.
            return current
        if waiting.demand != current.waiting.demand:
            return dataclasses.replace(
                current, needless='the server asks for something else by now')
        found = self._world.planner.better(
            waiting, before, self._shown_hold(current), timeutils.utcnow(True))
        if found is None:
            return current
        if found.verdict is model.Verdict.ROOM:
            if found.host == current.host:
                return current.at(Step.SWAP, time.monotonic())
            return dataclasses.replace(
                current, needless='there is room without its end')
        return dataclasses.replace(
            current, needless='others are ended at a lower price')

    def _shown_hold(self, current: Attempt) -> dict[str, int]:
        """What is held before the swap, as far as the host as read shows it.
        """
        view = self._world.views.get(current.host)
        if not current.held or not current.held_at or view is None or (
                view.read_at < current.held_at):
            return {}
        return dict(current.held.amounts.get(current.provider, {}))

    def _advanced(self, result: Attempt | Outcome) -> None:
        current = result if isinstance(result, Attempt) else result.attempt
        woken = current.id in self._woken
        self._woken.discard(current.id)
        if isinstance(result, Attempt):
            before = self.under_way.get(result.id)
            if before is None:
                return
            if woken:
                result = dataclasses.replace(result, wake_at=0.0)
            self.under_way[result.id] = result
            if before.step != result.step and result.step in (
                    Step.END, Step.REBUILD):
                self._hosts.freed.pop(result.host, None)
                if result.held:
                    self._written[result.id] = time.monotonic()
            return
        server = result.attempt.id
        if self.under_way.pop(server, None) is None:
            return
        self._outcomes.finish(result, self.decisions.pop(server, None))
        if result.apart:
            self._shapes.set_apart(server)
        if result.result is Result.ERROR:
            self._keep_failed(server)
        self._written.pop(server, None)
        item = self._world.servers.get(server)
        if item is None:
            if server in self._world.index.plans:
                self._written[server] = time.monotonic()
        else:
            if result.refused_by:
                self._shapes.forget(item)
            self._read_one(server)
        # Where nothing came of it the host may not be what it was taken for.
        self._hosts.read(result.attempt.host, result.result != Result.ACTIVE)

    def failed(self, name: str) -> None:
        """A job has failed; if it was a step it is done again later."""
        if name.startswith(GIVE_UP):
            self._read_one(name.removeprefix(GIVE_UP))
        current = self.under_way.get(name.removeprefix('attempt '))
        if current is not None:
            woken = current.id in self._woken
            self._woken.discard(current.id)
            self.under_way[current.id] = dataclasses.replace(
                current, wake_at=0.0 if woken else
                time.monotonic() + steps.AGAIN)

    def wake(self, server: str) -> None:
        """Go on with what waits for a server."""
        for key, current in self.under_way.items():
            if key == server or any(victim.id == server
                                    for victim in current.victims):
                self.under_way[key] = dataclasses.replace(current, wake_at=0.0)
                if f'attempt {key}' in self._jobs:
                    self._woken.add(key)

    def drop_written(self, view: reader.HostView) -> bool:
        """Drop the plans that a host shows as it was read.

        What is held before a swap is planned no more where it shows.

        :returns: whether there were any
        """
        for server in self._world.index.planned(view.host.name):
            current = self.under_way.get(server)
            if current and current.held and (
                    0 < current.held_at <= view.read_at):
                held = current.held.amounts.get(current.provider, {})
                plan = self._world.index.plans[server]
                self._world.index.plan(server, plan.host, {
                    name: amount - held.get(name, 0) for name, amount
                    in current.waiting.shape.resources}, plan.victims)
        shown = [server
                 for server in self._world.index.planned(view.host.name)
                 if self._written.get(server, math.inf) <= view.read_at]
        for server in shown:
            # What was planned shows in the host itself from now on.
            self._world.index.drop_plan(server)
            del self._written[server]
        return bool(shown)

    def stand_by(self) -> None:
        """What is under way is another's now."""
        for server in self.under_way:
            self._world.leave(server, self.decisions.get(server))
            self._written.pop(server, None)
        for server in self._not_begun:
            self._world.put_again(server)
        self._not_begun.clear()
        self._woken.clear()
        self.under_way.clear()
        self.decisions.clear()

    def give_up(self) -> None:
        """Give up servers that have waited too long, or fit nowhere."""
        for waiting, reason in self._outcomes.hopeless(self.under_way):
            # Nothing else is begun for it meanwhile.
            self._world.queue.discard(waiting.id)
            self._jobs.line_up(f'{GIVE_UP}{waiting.id}', functools.partial(
                self._actor.give_up, waiting), functools.partial(
                    self._gave_up, waiting, reason))

    def _gave_up(self, waiting: model.Waiting, reason: str, done: bool
                 ) -> None:
        if done:
            self._outcomes.gave_up(waiting, reason)
        else:
            self._read_one(waiting.id)
