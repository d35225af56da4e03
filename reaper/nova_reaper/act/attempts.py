# SPDX-License-Identifier: Apache-2.0

"""The attempts that are under way: begun, gone on with, ended.

The one thread of the engine owns them. Each step is a job in the pool, and
what comes of it is taken by that thread. Nothing here is kept beyond the
process: what a restart needs is in Nova and Placement, and recovery.py reads
it there.
"""

import collections
from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import datetime
import enum
import functools
import math
import time
from typing import Any
from typing import Protocol

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.cloud.model import Stage
from nova_reaper.cloud import shapes
from nova_reaper.cloud import world
from nova_reaper.decide import plan
from nova_reaper.events import reader
from nova_reaper.queue import queue
from nova_reaper.report import answers
from nova_reaper.report import journal
from nova_reaper.report import metrics
from nova_reaper.report import store

LOG = log.getLogger(__name__)
GIVE_UP = 'give up '  # the name of a job, before that of the server
# A server that was given up is answered for so long.
REMEMBERED = datetime.timedelta(hours=1)
# Seconds until a step is done again after an answer that never came, and until
# a server is given up again for which that came to nothing.
AGAIN = 5.0
GIVE_UP_AGAIN = 60.0


class Step(enum.StrEnum):
    """What is to be done next."""

    CHECK = 'check'        # is the decision still right, Nova's verdict
    HOLD = 'hold'          # of free room
    NOTICE = 'notice'      # to the victims
    GRACE = 'grace'        # until the time of the notice has come
    SWAP = 'swap'          # the victims' room for a hold
    END = 'end'            # stop, then delete or shelve the victims
    REBUILD = 'rebuild'    # or unshelve
    WATCH = 'watch'        # until it runs, or waits again


# As /v1/pending has it.
SHOWN = {Step.CHECK: 'holding', Step.HOLD: 'holding', Step.NOTICE: 'notice',
         Step.GRACE: 'notice', Step.SWAP: 'notice', Step.END: 'ending',
         Step.REBUILD: 'rebuilding', Step.WATCH: 'rebuilding'}
# Steps at which an attempt counts against max_rebuilds, and such at which one
# with victims counts against max_preemptions.
ASKING = frozenset({Step.HOLD, Step.REBUILD})
ENDING = frozenset(Step) - ASKING - {Step.CHECK, Step.WATCH}


@dataclasses.dataclass(frozen=True, slots=True)
class Victim:
    """A preemptible server that is to be ended.

    :ivar consumer: with the amounts that it had before the swap
    :ivar since: when its stage began, by the monotonic clock
    :ivar failed_at: when Nova failed over a request to stop or end it, by the
        monotonic clock, 0 if it did not
    """

    id: str
    name: str
    project: str
    action: model.Action
    consumer: placement.Consumer | None = None
    stage: Stage = Stage.CHOSEN
    since: float = 0.0
    failed_at: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether it is gone or off its host."""
        return self.stage == Stage.ENDED


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt, as it stands.

    :ivar provider: UUID of the host's resource provider
    :ivar requests: queries for Placement, as Nova gives them, in order
    :ivar terminate_at: when the notice to the victims is over
    :ivar held: the hold as it was written last
    :ivar held_at: when a part was held before the swap, by the monotonic
        clock, 0 if none was
    :ivar needless: why the victims need not end, '' if they have to
    :ivar swapped: whether the victims' allocations are gone
    :ivar unsure: whether a write of the hold got no answer: it may be done
    :ivar ended: how many victims were ended by the reaper
    :ivar stalled: whether it cannot go on before the cell of a server is back
    :ivar wake_at: when to go on, by the monotonic clock; 0 is at once
    :ivar since: when the step began, by the monotonic clock
    :ivar sent: whether the rebuild was accepted
    :ivar asked_at: when it was asked for first, by the monotonic clock
    :ivar decision: that is carried out, None if a sweep has found it
    :ivar runner_up: what was decided against
    :ivar mode: in which it was decided
    """

    waiting: model.Waiting
    host: str
    provider: str
    step: Step = Step.CHECK
    requests: tuple[str, ...] = ()
    victims: tuple[Victim, ...] = ()
    terminate_at: datetime.datetime | None = None
    held: placement.Consumer | None = None
    held_at: float = 0.0
    needless: str = ''
    swapped: bool = False
    unsure: bool = False
    ended: int = 0
    stalled: bool = False
    wake_at: float = 0.0
    since: float = 0.0
    sent: bool = False
    asked_at: float = 0.0
    freed_at: float = 0.0
    decision: model.Decision | None = None
    runner_up: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mode: model.Mode | None = None

    @property
    def id(self) -> str:
        """Of the server that waits."""
        return self.waiting.id

    @property
    def has(self) -> Mapping[str, int]:
        """What is held on the host's own provider."""
        return self.held.amounts.get(self.provider, {}) if self.held else {}

    @property
    def shown(self) -> str:
        """The step in the words of /v1/pending."""
        if self.step == Step.CHECK and self.victims:
            return 'notice'
        return SHOWN[self.step]

    @property
    def decided(self) -> dict[str, Any]:
        """What the journal is told of the decision."""
        return {'decision': self.decision.to_dict(),
                'runner_up': self.runner_up,
                'mode': self.mode} if self.decision else {}

    def but(self, **changes: Any) -> 'Attempt':
        """The same with some changes."""
        return dataclasses.replace(self, **changes)

    def later(self, seconds: float, **changes: Any) -> 'Attempt':
        """The same, to go on after so many seconds."""
        return self.but(wake_at=time.monotonic() + seconds, **changes)

    def at(self, step: Step, seconds: float = 0.0, **changes: Any
           ) -> 'Attempt':
        """The same at the begin of a step, to go on after so many seconds."""
        return self.later(seconds, step=step, since=time.monotonic(),
                          **changes)


def record_of(current: Attempt, result: str, why: str = '',
              **detail: Any) -> store.Record:
    """The build of an attempt, for the journal.

    :param result: ``asked`` before Nova is asked, then how it ended
    """
    waiting = current.waiting
    if result == store.ASKED:
        detail |= current.decided
    else:
        detail |= {'why': why, 'resources': waiting.shape.amounts,
                   'victims': [victim.id for victim in current.victims
                               if victim.ended]}
    return store.Record(
        store.Kind.RETURN if waiting.shelved else store.Kind.BUILD,
        waiting.id, waiting.project, waiting.name, waiting.id,
        waiting.project, current.host, result, detail)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended.

    :ivar reason: why the server waits now, None if it does not
    :ivar hindrance: what of the reaper's own keeps it waiting
    :ivar avoid: IDs of victims that are not to be chosen for a time
    :ivar refused_by: the filter of Nova's that refuses the host
    :ivar apart: whether the server asks for something else than its like
    :ivar offered: where the host turned out to have no room, and the index
        cannot know: UUIDs of the providers on which there is; None otherwise
    :ivar tries: what Nova knows of attempts, where a reaper before this one
        has made some
    :ivar why: the cause, where result and reason do not tell
    """

    attempt: Attempt
    result: Result
    detail: str
    reason: model.Reason | None = None
    hindrance: model.Hindrance | None = None
    avoid: tuple[str, ...] = ()
    refused_by: str = ''
    apart: bool = False
    offered: frozenset[str] | None = None
    tries: nova.Tries | None = None
    why: queue.Cause | None = None

    @property
    def cause(self) -> queue.Cause:
        """Why nothing came of the attempt."""
        if self.why:
            return self.why
        if self.reason is model.Reason.BUILD_FAILED:
            return queue.Cause.HOST
        if self.result in (Result.REFUSED, Result.PENDING, Result.ERROR):
            return queue.Cause.SERVER
        if self.result is Result.TIMEOUT or (
                self.reason is model.Reason.UNKNOWN):
            return queue.Cause.SERVICE
        return queue.Cause.RACE


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


class Actor(Protocol):
    """Does the steps of attempts; there is one in steps.py."""

    def advance(self, current: Attempt) -> Attempt | Outcome:
        """Do the next step."""

    def give_up(self, waiting: model.Waiting) -> bool:
        """Set a server to ERROR; returns whether it waited still."""


class Attempts:
    """Has decisions carried out, as many at a time as options allow.

    :ivar under_way: attempts by the ID of the server that waits
    :ivar given_up: what is answered for servers that were given up
    :param read_one: has a server that waits read anew
    :param keep_failed: is told of a server whose build failed, and that is in
        ERROR
    """

    def __init__(self, conf: cfg.ConfigOpts, source: reader.Reader,
                 known: world.World, forms: shapes.Shapes, actor: Actor,
                 meters: metrics.Metrics, book: journal.Journal,
                 reading: reader.Hosts, runner: reader.Jobs,
                 read_one: Callable[[str], None],
                 keep_failed: Callable[[str], None]) -> None:
        self._conf = conf.reaper
        self._reader = source
        self._world = known
        self._shapes = forms
        self._actor = actor
        self._metrics = meters
        self._book = book
        self._hosts = reading
        self._jobs = runner
        self._read_one = read_one
        self._keep_failed = keep_failed
        self.under_way: dict[str, Attempt] = {}
        self.given_up: dict[str, answers.Entry] = {}
        # When to read servers again for which nothing could be begun.
        self._not_begun: dict[str, float] = {}
        # When servers were to be given up, and how often each was ended.
        self._asked_at: dict[str, float] = {}
        self._ended: collections.Counter[str] = collections.Counter()

    def tally(self) -> Tally:
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
        now = timeutils.utcnow(True)
        find = self._world.index.slots.find
        hypervisor = self._reader.hypervisors.get(decision.host or '')
        answer = self._world.answer(waiting.id)
        victims = tuple(
            Victim(server.id, server.name, server.project, server.action)
            for server in map(find, decision.victims) if server)
        if hypervisor is None or answer is None or (
                len(victims) < len(decision.victims)):
            self._world.planner.undo(decision, now)
            # The demand of the server, the host or a victim has changed since
            # the decision. The server is queued again when Nova was asked.
            self._world.queue.discard(waiting.id)
            self._hosts.read(decision.host or '', whole=True)
            self._not_begun[waiting.id] = time.monotonic() + AGAIN
            return False
        self.under_way[waiting.id] = Attempt(
            waiting, hypervisor.host, hypervisor.uuid,
            requests=answer.requests, victims=victims,
            freed_at=self._hosts.freed.get(hypervisor.host, 0.0),
            since=time.monotonic(), decision=decision,
            runner_up=self._world.planner.runner_up(
                waiting, decision, now) if victims else {},
            mode=self._world.options.mode)
        return True

    def go_on(self) -> None:
        """Start the next step of all that are not to wait."""
        now, group = time.monotonic(), self._conf
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
            self.under_way[server] = current.but(wake_at=math.inf)
            self._jobs.start(f'attempt {server}', functools.partial(
                self._actor.advance, current), self._advanced)
        self._metrics.rebuilds_in_flight.set(sum(
            current.step == Step.WATCH for current in self.under_way.values()))
        self._metrics.notices.set(sum(
            len(current.victims) for current in self.under_way.values()
            if current.step in (Step.GRACE, Step.SWAP)))

    def _planned_anew(self, current: Attempt) -> Attempt:
        """Take note if the victims under notice need not end any more."""
        before = current.decision
        waiting = self._world.waiting(current.id)
        if before is None or waiting is None or current.unsure:
            # A step finds out what becomes of a server that waits no more.
            return current
        if waiting.demand != current.waiting.demand:
            return current.but(
                needless='the server asks for something else by now')
        view = self._world.views.get(current.host)
        # Room that is held before the swap counts if the host was read since.
        shows = view and 0 < current.held_at <= view.read_at
        found = self._world.planner.better(
            waiting, before, current.has if shows else {},
            timeutils.utcnow(True))
        if found is None:
            return current
        if found.verdict is not model.Verdict.ROOM:
            return current.but(needless='others are ended at a lower price')
        if found.host != current.host:
            return current.but(needless='there is room without its end')
        return current.at(Step.SWAP)

    def _advanced(self, result: Attempt | Outcome) -> None:
        if isinstance(result, Outcome):
            self._finish(result)
            return
        before = self.under_way.get(result.id)
        if before is None:
            return
        self.under_way[result.id] = result.but(
            wake_at=min(before.wake_at, result.wake_at))
        if before.step != result.step and result.step in (
                Step.END, Step.REBUILD):
            self._hosts.freed.pop(result.host, None)
            if result.held:
                self._note_written(result.id)

    def _note_written(self, server: str) -> None:
        """What was planned for a server, if it still is, is in Placement."""
        planned = self._world.index.plans.get(server)
        if planned:
            planned.written_at = time.monotonic()

    def failed(self, name: str) -> None:
        """A job has failed; if it was a step it is done again later."""
        if name.startswith(GIVE_UP):
            self._read_one(name.removeprefix(GIVE_UP))
        current = self.under_way.get(name.removeprefix('attempt '))
        if current is not None:
            self.under_way[current.id] = current.but(
                wake_at=min(current.wake_at, time.monotonic() + AGAIN))

    def wake(self, server: str) -> None:
        """Go on with what waits for a server.

        A step that is under way may not have seen any more what has changed.
        """
        for key, current in self.under_way.items():
            if server in (key, *(victim.id for victim in current.victims)):
                self.under_way[key] = current.but(wake_at=0.0)

    def show_holds(self, others: int, oldest: float) -> None:
        """Bring the gauges of holds up to date.

        :param others: how many there are that are no attempt's
        :param oldest: the age of the oldest of them in seconds
        """
        self._metrics.holds.set(others + sum(
            current.held is not None for current in self.under_way.values()))
        self._metrics.hold_oldest.set(oldest)

    def _finish(self, outcome: Outcome) -> None:
        """An attempt has ended."""
        current, now = outcome.attempt, timeutils.utcnow(True)
        server = current.id
        known = self.under_way.pop(server, None)
        if known is None:
            return
        decision = known.decision
        LOG.info('Server %s (%s) and host %s: %s. %s', server,
                 current.waiting.name, current.host, outcome.result.value,
                 outcome.detail)
        missed = self._count(outcome)
        if current.asked_at or current.ended:
            self._book.write(record_of(
                current, outcome.result.value, outcome.detail, missed=missed,
                reason=outcome.reason))
        if decision:
            # Those that came to pass are counted below.
            self._world.planner.drop_ends(decision)
        if outcome.result in (Result.ACTIVE, Result.GONE, Result.TIMEOUT):
            # Its plan counts until its host has been read again.
            self._world.discard(server, planned=True)
        else:
            self._again(outcome)
            # Given back by what is known of it from now on.
            if decision:
                self._world.planner.undo(decision, now)
            else:
                self._world.index.drop_plan(server)
            self._tell(outcome)
        for victim in current.victims:
            if victim.ended:
                self._world.planner.ends.append(
                    plan.End(victim.id, victim.project, now))
        self._reader.avoid(outcome.avoid, self._conf.stuck_exclusion)
        if outcome.apart:
            self._shapes.set_apart(server)
        if outcome.result is Result.ERROR:
            self._keep_failed(server)
        item = self._world.servers.get(server)
        if item is None:
            self._note_written(server)
        else:
            if outcome.refused_by:
                self._shapes.forget(item)
            self._read_one(server)
        # Where nothing came of it the host may not be what it was taken for.
        self._hosts.read(current.host, outcome.result != Result.ACTIVE)

    def _again(self, outcome: Outcome) -> None:
        server, host = outcome.attempt.id, outcome.attempt.host
        if outcome.refused_by:
            # Decided again at once, without this host.
            self._world.refuse(server, host, outcome.refused_by)
        elif outcome.result is Result.WITHDRAWN:
            pass  # Nobody refused it anything: it is decided again at once.
        elif outcome.tries:
            self._world.learn_tries(server, outcome.tries, outcome.reason)
        elif outcome.offered is not None:
            self._world.offer(server, host, outcome.offered)
        elif not outcome.apart:
            waiting = self._world.waiting(server)
            lost = outcome.cause is queue.Cause.RACE and (
                outcome.result is Result.CONFLICT)
            if lost and waiting and not outcome.attempt.victims:
                # All of its shape wait for news of the host, so that nobody
                # overtakes it.
                self._world.withhold(waiting.shape, host)
            else:
                # Where notices were withdrawn others are not given at once.
                self._world.came_to_nothing(
                    server, queue.Cause.SERVICE if lost else outcome.cause,
                    outcome.reason, host)
        if outcome.attempt.sent:
            self._world.history[server].asked(timeutils.utcnow(True))
        self._world.put_again(server)

    def _count(self, outcome: Outcome) -> str | None:
        """Count it; the key of the shape for which others ended in vain."""
        current, missed, now = outcome.attempt, None, timeutils.utcnow(True)
        waiting = current.waiting
        if current.sent or outcome.result == Result.REFUSED and current.held:
            (self._metrics.returned if waiting.shelved
             else self._metrics.rebuilds).labels(outcome.result.value).inc()
        if outcome.result == Result.ACTIVE:
            self._metrics.pending_age.labels(
                'shelved' if waiting.shelved else 'pending').observe(
                    (now - waiting.created_at).total_seconds())
            if waiting.shelved:
                self._reader.has_returned(current.id, now)
        elif current.ended:
            self._metrics.needless_victims.inc(current.ended)
            if self._world.missed(waiting, outcome.cause, outcome.detail):
                missed = waiting.shape.key
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
                if outcome.cause is queue.Cause.SERVER and
                outcome.reason == model.Reason.NO_ROOM else None)))

    def drop_written(self, view: reader.HostView) -> bool:
        """Drop the plans that a host shows as it was read.

        What is held before a swap is planned no more where it shows.

        :returns: whether there were any
        """
        index, shown = self._world.index, False
        for planned in index.planned(view.host.name):
            current = self.under_way.get(planned.server)
            if planned.written_at <= view.read_at:
                # What was planned shows in the host itself from now on.
                index.drop_plan(planned.server)
                shown = True
            elif current and current.held and (
                    0 < current.held_at <= view.read_at):
                index.plan(dataclasses.replace(planned, resources={
                    name: amount - current.has.get(name, 0) for name, amount
                    in current.waiting.shape.resources}))
        return shown

    def stand_by(self) -> None:
        """What is under way is another's now."""
        for server, current in self.under_way.items():
            self._world.leave(server, current.decision)
        for server in self._not_begun:
            self._world.put_again(server)
        self._not_begun.clear()
        self.under_way.clear()

    def give_up(self) -> None:
        """Give up servers that have waited too long, or fit nowhere."""
        for waiting, reason in self._hopeless():
            # Nothing else is begun for it meanwhile.
            self._world.queue.discard(waiting.id)
            self._jobs.line_up(f'{GIVE_UP}{waiting.id}', functools.partial(
                self._actor.give_up, waiting), functools.partial(
                    self._gave_up, waiting, reason))

    def _hopeless(self) -> list[tuple[model.Waiting, str]]:
        """The servers to give up, and for what; none while it only observes.

        One that is still there after that is not named again at once.
        """
        if self._world.options.mode == model.Mode.OBSERVE:
            return []
        now, then = timeutils.utcnow(True), time.monotonic()
        waiting = self._world.queue
        found = [(late, model.Hindrance.DEADLINE.value) for late in (
            *waiting.expired(now), *queue.expired(
                self._world.not_asked.values(), self._world.options, now))]
        timeout = self._conf.nothing_fits_timeout
        for server, told in self._world.told.last.items():
            reason = told.decision.reason
            if not timeout or reason not in model.NEVER or (
                    now - told.since).total_seconds() < timeout:
                continue
            item = waiting.get(server)
            known = item and waiting.asleep(item.demand)
            if item and known and known.reason == reason and not (
                    item.shelved or item.failed):
                found.append((item, reason.value))
        self._asked_at = {server: at for server, at in self._asked_at.items()
                          if then - at < GIVE_UP_AGAIN}
        found = [(item, reason) for item, reason in found
                 if item.id not in self.under_way and
                 item.id not in self._asked_at]
        self._asked_at.update((item.id, then) for item, _ in found)
        return found

    def _gave_up(self, waiting: model.Waiting, reason: str, done: bool
                 ) -> None:
        """A server was set to ERROR, or waits no more."""
        if not done:
            self._read_one(waiting.id)
            return
        now, late = timeutils.utcnow(True), reason == model.Hindrance.DEADLINE
        told = self._world.told.last.get(waiting.id)
        detail = told.decision.detail if told else ''
        if late:
            detail = f'It has waited for too long. {detail}'.strip()
        LOG.warning('Server %s (%s) of project %s was set to ERROR: %s',
                    waiting.id, waiting.name, waiting.project, detail)
        self._metrics.given_up.labels(reason).inc()
        self._book.write(store.Record(
            store.Kind.GIVEN_UP, waiting.id, waiting.project, waiting.name,
            waiting.id, waiting.project, result=reason,
            detail={'why': detail}))
        decision = model.Decision(
            waiting.id, model.Verdict.WAIT, detail=detail,
            reason=(told.decision.reason if told else None) if late
            else model.Reason(reason),
            hindrance=model.Hindrance.DEADLINE if late else None)
        self.given_up = {
            server: entry for server, entry in self.given_up.items()
            if entry.decided_at and now - entry.decided_at < REMEMBERED}
        self.given_up[waiting.id] = answers.Entry(
            waiting, None, 0, None,
            queue.deadline(waiting, self._world.options), 'given_up', decision,
            now, self._world.options.mode)
        self._world.discard(waiting.id)
