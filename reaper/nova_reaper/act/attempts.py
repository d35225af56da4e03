# SPDX-License-Identifier: Apache-2.0

"""Attempts begins attempts, goes on with them, and ends them.

The thread of the engine owns the attempts. Each step is a job in the pool, and
the thread takes the result of the job: the attempt as it stands then, or its
outcome. No attempt outlives the process: recovery.py reads what a restart
needs from Nova and Placement.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import enum
import functools
import itertools
import math
import time
from typing import Any
from typing import TYPE_CHECKING

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import shapes
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.cloud.model import Stage
from nova_reaper.decide import choose
from nova_reaper.events import reader
from nova_reaper.queue import queue
from nova_reaper.report import answers
from nova_reaper.report import health
from nova_reaper.report import journal
from nova_reaper import world

if TYPE_CHECKING:
    from nova_reaper.act import steps

LOG = log.getLogger(__name__)
# The name of a job that gives a server up begins so; the server's ID follows.
GIVE_UP = 'give up '
# How long /v1/pending/ID answers for a server that was given up.
REMEMBERED = datetime.timedelta(hours=1)
# The most servers that have notice, or end, at a time since their run time is
# over, and the most that rehearse; the reaper looks at the others again after
# LOOK seconds.
AT_ONCE = 50
LOOK = 1.0
# The reaper gives the notice of a run time so many seconds early, so that the
# notice runs out with the run time.
EARLY = 5.0
# A server has at most one rehearsal in so many seconds.
REHEARSED = 3600.0
# Seconds until a step is repeated after a request without an answer.
AGAIN = 5.0
# How many servers a turn checks for having waited too long.
LOOKS = 500
# Seconds until the reaper tries again to give a server up.
GIVE_UP_AGAIN = 60.0
# For so many seconds after its notice an attempt still looks for room on other
# hosts. Hosts that change all the time would otherwise put its end off.
ELSEWHERE = 60.0


class Step(enum.StrEnum):
    """What is to be done next."""

    CHECK = 'check'      # ask whether the decision is still right
    HOLD = 'hold'        # hold free room
    NOTICE = 'notice'    # give notice to the victims
    GRACE = 'grace'      # wait until the notice has run out
    SWAP = 'swap'        # swap the victims' room for a hold
    END = 'end'          # stop, then delete or shelve the victims
    REBUILD = 'rebuild'  # have Nova rebuild or unshelve the server
    WATCH = 'watch'      # wait until the server runs, or waits again


# The words of /v1/pending for each step.
SHOWN = {Step.CHECK: 'holding', Step.HOLD: 'holding', Step.NOTICE: 'notice',
         Step.GRACE: 'notice', Step.SWAP: 'notice', Step.END: 'ending',
         Step.REBUILD: 'rebuilding', Step.WATCH: 'rebuilding'}
# At these steps an attempt counts against max_rebuilds.
ASKING = frozenset({Step.HOLD, Step.REBUILD})
# At these steps, and at its check, an attempt with victims counts against
# max_preemptions.
ENDING = frozenset(Step) - ASKING - {Step.CHECK, Step.WATCH}


@dataclasses.dataclass(frozen=True, slots=True)
class Victim:
    """A preemptible server that is to be ended.

    :ivar consumer: the server's allocation as it was before the swap
    :ivar since: when the stage began, by the monotonic clock
    :ivar failed_at: when Nova failed over a request to stop or end the server,
        by the monotonic clock; 0 if Nova did not fail
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
        """Whether the victim is gone or off its host."""
        return self.stage == Stage.ENDED


def _victims(servers: Iterable[model.Server]) -> tuple[Victim, ...]:
    return tuple(Victim(server.id, server.name, server.project, server.action)
                 for server in servers)


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to have a server built, as the attempt stands.

    Times are those of the monotonic clock; 0 stands for "not yet".

    :ivar provider: UUID of the host's resource provider
    :ivar terminate_at: when the notice to the victims runs out
    :ivar held: the hold as the reaper last wrote or found the hold
    :ivar held_at: when the part of the room that is held before the swap
        changed last
    :ivar needless: why the victims need not end, '' if they have to
    :ivar elsewhere: the attempt to build the server on another host, where
        nobody has to end, or the outcome of the last such attempt
    :ivar swapped: whether the victims' allocations are gone
    :ivar unsure: whether a write of the hold, which may be done, got no answer
    :ivar ended: how many victims the reaper has ended
    :ivar stalled: whether the attempt waits for a cell that is down
    :ivar wake_at: when to do the next step
    :ivar since: when the step began
    :ivar sent: whether Nova has accepted the rebuild
    :ivar asked_at: when the reaper first asked Nova for the rebuild
    :ivar freed_at: when the reaper heard that room on the host was free
    :ivar decision: what the attempt carries out; None if a sweep has found the
        attempt, or the attempt is a rehearsal
    :ivar runner_up: the next best decision, for the journal
    :ivar others: the hosts that come next; the request about the host asks
        Nova whether its filters refuse these, too
    :ivar mode: the mode in which the decision was made
    :ivar lacks: what the victims have to free though it seems to be free
    :ivar instead: the servers of the host of which the victims may be chosen,
        the dearest first; none where Nova has named the victims
    :ivar rehearsal: whether the reaper starts the server of the attempt, which
        has the notice itself, again instead of ending it
    """

    waiting: model.Waiting
    host: str
    provider: str
    step: Step = Step.CHECK
    victims: tuple[Victim, ...] = ()
    terminate_at: datetime.datetime | None = None
    held: placement.Consumer | None = None
    held_at: float = 0.0
    needless: str = ''
    elsewhere: 'Attempt | Outcome | None' = None
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
    others: tuple[str, ...] = ()
    mode: model.Mode | None = None
    lacks: frozenset[index_module.Lack] = frozenset()
    instead: tuple[Victim, ...] = ()
    rehearsal: bool = False

    @classmethod
    def of_itself(cls, server: Victim, user: str, host: str, provider: str,
                  step: Step, **others: Any) -> 'Attempt':
        """Return an attempt whose only victim makes room for no other."""
        waiting = model.Waiting(
            server.id, model.Shape(()), timeutils.utcnow(True),
            server.project, user, server.name)
        return cls(waiting, host, provider, step, victims=(server,),
                   since=time.monotonic(), **others)

    @property
    def cause(self) -> model.Cause:
        """Why the victims are to end."""
        if self.rehearsal:
            return model.Cause.REHEARSAL
        return model.Cause.RUN_TIME if any(
            victim.id == self.id for victim in self.victims
        ) else model.Cause.ROOM

    @property
    def for_another(self) -> bool:
        """Whether a server waits for the room of the victims."""
        return self.cause is model.Cause.ROOM

    @property
    def left(self) -> tuple[Victim, ...]:
        """The victims that have not ended yet."""
        return tuple(victim for victim in self.victims if not victim.ended)

    @property
    def id(self) -> str:
        """The ID of the server that waits."""
        return self.waiting.id

    @property
    def has(self) -> placement.Amounts:
        """The amounts that are held, by the UUID of the provider."""
        return self.held.amounts if self.held else {}

    @property
    def has_by_name(self) -> placement.Amounts:
        """The amounts that are held, by the index's names of providers."""
        return {model.OWN if uuid == self.provider else uuid: amounts
                for uuid, amounts in self.has.items()}

    @property
    def notice_left(self) -> float:
        """Seconds until the notice runs out, less than 0 after that."""
        return (self.terminate_at - timeutils.utcnow(True)
                ).total_seconds() if self.terminate_at else 0.0

    @property
    def shown(self) -> str:
        """The step in the words of /v1/pending."""
        if self.step == Step.CHECK and self.victims:
            return 'notice'
        return SHOWN[self.step]

    @property
    def decided(self) -> dict[str, Any]:
        """What the journal keeps of the decision, {} if there is none."""
        return {'decision': self.decision.to_dict(),
                'runner_up': self.runner_up,
                'mode': self.mode} if self.decision else {}

    def but(self, **changes: Any) -> 'Attempt':
        """Return a copy of the attempt with some changes."""
        return dataclasses.replace(self, **changes)

    def later(self, seconds: float, **changes: Any) -> 'Attempt':
        """Return a copy of the attempt that goes on after so many seconds."""
        return self.but(wake_at=time.monotonic() + seconds, **changes)

    def at(self, step: Step, seconds: float = 0.0, **changes: Any
           ) -> 'Attempt':
        """Return a copy that begins a step after so many seconds."""
        return self.later(seconds, step=step, since=time.monotonic(),
                          **changes)


def record_of(current: Attempt, result: str, why: str = '',
              **detail: Any) -> journal.Record:
    """Return the record of a build that is asked for, or of its result."""
    waiting = current.waiting
    if result == journal.ASKED:
        detail |= current.decided
    else:
        detail |= {'why': why, 'resources': waiting.shape.amounts,
                   'victims': [victim.id for victim in current.victims
                               if victim.ended]}
    return journal.Record(
        journal.Kind.RETURN if waiting.shelved else journal.Kind.BUILD,
        waiting.id, waiting.project, waiting.name, waiting.id,
        waiting.project, current.host, result, detail)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended.

    :ivar reason: why the server waits now, None if it does not wait
    :ivar hindrance: which rule of the reaper keeps the server waiting
    :ivar avoid: IDs of victims that are not to be chosen for a time
    :ivar refused: the filters that refuse the host, and other hosts, by the
        host's name
    :ivar named: IDs of the servers without which Nova accepts the host of the
        attempt, where Nova refuses the host without the victims
    :ivar apart: whether the server asks for something else than other servers
        of the same flavor, image and project
    :ivar offered: UUIDs of the providers on which Placement has room, if the
        host has none and the index cannot know; None otherwise
    :ivar why: the cause, where result and reason do not tell the cause
    """

    attempt: Attempt
    result: Result
    detail: str
    reason: model.Reason | None = None
    hindrance: model.Hindrance | None = None
    avoid: tuple[str, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    named: tuple[str, ...] = ()
    apart: bool = False
    offered: frozenset[str] | None = None
    why: world.Cause | None = None

    @property
    def avoided(self) -> tuple[str, ...] | None:
        """IDs of servers that are not to be chosen for a time.

        :returns: None for all servers of the host, if the host has ended none
            of the victims: the host may end no other server
        """
        hangs = self.result is Result.STUCK and not self.attempt.ended and any(
            victim.stage is Stage.ENDING and not victim.failed_at
            for victim in self.attempt.victims)
        return None if hangs else self.avoid

    @property
    def cause(self) -> world.Cause:
        """Why the attempt came to nothing."""
        if self.why:
            return self.why
        if self.reason is model.Reason.BUILD_FAILED:
            return world.Cause.HOST
        if self.result in (Result.REFUSED, Result.PENDING, Result.ERROR):
            return world.Cause.SERVER
        if self.result is Result.TIMEOUT or (
                self.reason is model.Reason.UNKNOWN):
            return world.Cause.SERVICE
        return world.Cause.RACE


@dataclasses.dataclass(slots=True)
class Tally:
    """How many attempts count against each limit.

    An attempt counts against no limit while a host builds the server. Attempts
    that end victims have a limit of their own.

    :ivar checks: attempts without victims at the step CHECK
    :ivar with_victims: attempts whose victims have not all ended, except
        attempts that wait for a cell that is down
    :ivar projects: attempts by project that count against max_rebuilds, or
        will after their check
    """

    checks: int = 0
    with_victims: int = 0
    projects: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter)

    def add(self, project: str, with_victims: bool) -> None:
        """Count an attempt that begins."""
        if with_victims:
            self.with_victims += 1
        else:
            self.checks += 1
            self.projects[project] += 1


class Attempts:
    """Has the actor carry out decisions, as many at a time as options allow.

    :ivar under_way: attempts by the ID of the server that waits
    :ivar given_up: the servers that were given up, by ID: find_given_up()
    :param read_one: reads a server that waits anew
    :param keep_failed: is told the ID of a server that is in ERROR since its
        build failed
    :param observe: is told the ID of a server and what would be done for it
    """

    def __init__(self, conf: cfg.ConfigOpts, source: reader.Reader,
                 known: world.World, forms: shapes.Shapes,
                 actor: 'steps.Actor', meters: health.Metrics,
                 book: journal.Journal, reading: reader.Hosts,
                 runner: reader.Jobs, read_one: Callable[[str], None],
                 keep_failed: Callable[[str], None],
                 observe: Callable[[str, model.Decision], None]) -> None:
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
        self._observe = observe
        self.under_way: dict[str, Attempt] = {}
        self.given_up: dict[str, answers.Entry] = {}
        # The servers that give_up() is still to look at.
        self._to_look_at: Iterator[str] = iter(())
        # When the reaper last tried to give each server up.
        self._asked_at: dict[str, float] = {}
        # When the last rehearsal of each server began.
        self._rehearsed: dict[str, float] = {}
        # When to look again for servers whose run time is over.
        self._look_at = 0.0
        # How often each preemptible server was ended.
        self._ended: collections.Counter[str] = collections.Counter()

    # Attempts begin, and go on.

    def tally(self) -> Tally:
        """Return how many attempts count against each limit."""
        tally = Tally()
        for current in self.under_way.values():
            if current.step == Step.CHECK:
                tally.add(current.waiting.project, bool(current.victims))
            elif current.step in ENDING:
                tally.with_victims += bool(
                    current.victims and current.for_another and
                    not current.stalled)
            elif current.step in ASKING:
                tally.projects[current.waiting.project] += 1
        return tally

    def begin(self, waiting: model.Waiting, decision: model.Decision
              ) -> bool:
        """Begin to carry out a decision, or undo the decision.

        A decision is undone if the host or a victim is not known any more. The
        host then is left out until the reaper has read the host again.

        :returns: whether an attempt has begun
        """
        current = self._attempt(waiting, decision)
        if current is None:
            now, host = timeutils.utcnow(True), decision.host or ''
            self._world.planner.undo(decision, now)
            self._world.index.exclusions.withhold(
                waiting.shape, host, now + datetime.timedelta(seconds=AGAIN),
                ends=True)
            self._hosts.read(host, whole=True)
            return False
        self.under_way[waiting.id] = current
        return True

    def _attempt(self, waiting: model.Waiting, decision: model.Decision
                 ) -> Attempt | None:
        """Return an attempt to carry out a decision.

        :returns: None if the server, the host or a victim is not known any
            more
        """
        now = timeutils.utcnow(True)
        find = self._world.index.slots.find
        hypervisor = self._reader.hypervisors.get(decision.host or '')
        victims = _victims(filter(None, map(find, decision.victims)))
        if hypervisor is None or len(victims) < len(decision.victims):
            return None
        index, exclusions = self._world.index, self._world.index.exclusions
        may: list[model.Server] = []
        if self._world.options.mode is not model.Mode.FILL and (
                hypervisor.host not in exclusions.named(waiting.shape)):
            may = choose.may_end(
                index, waiting, hypervisor.host, now, decision.victims
            ) if victims else choose.to_search(
                index, waiting, hypervisor.host, now)
        return Attempt(
            waiting, hypervisor.host, hypervisor.uuid,
            victims=victims,
            freed_at=self._hosts.freed.get(hypervisor.host, 0.0),
            since=time.monotonic(), decision=decision,
            others=choose.candidates(self._world.index, waiting, decision),
            mode=self._world.options.mode,
            lacks=exclusions.crowded(waiting.shape).get(
                hypervisor.host, frozenset()),
            instead=_victims(may))

    def has_rehearsed(self, server: str, at: datetime.datetime) -> None:
        """Allow a server no rehearsal within an hour after this time."""
        ago = (timeutils.utcnow(True) - at).total_seconds()
        self._rehearsed[server] = max(
            time.monotonic() - ago, self._rehearsed.get(server, -math.inf))

    def end_run_times(self) -> None:
        """Begin to give notice to servers whose run time is nearly over."""
        if self._world.options.mode is not model.Mode.PREEMPT or (
                time.monotonic() < self._look_at):
            return
        self._look_at = time.monotonic() + LOOK
        now = timeutils.utcnow(True)
        due = self._world.index.slots.due(index_module.to_micros(
            now + datetime.timedelta(
                seconds=self._conf.grace_period + EARLY)))
        hypervisors = self._reader.hypervisors
        # Attempts that a sweep has found have no plan.
        busy = {victim.id for current in self.under_way.values()
                for victim in current.victims} if due else ()
        for server in self._world.planner.take_ends(
                (server for server in due if server.host in hypervisors and
                 server.id not in busy),
                AT_ONCE - sum(current.cause is model.Cause.RUN_TIME
                              for current in self.under_way.values()), now):
            self.adopt(Attempt.of_itself(
                Victim(server.id, server.name, server.project, server.action),
                server.user, server.host, hypervisors[server.host].uuid,
                Step.NOTICE, terminate_at=server.ends_at,
                mode=self._world.options.mode, decision=model.Decision(
                    server.id, model.Verdict.PREEMPT, server.host,
                    (server.id,), detail=model.Cause.RUN_TIME.message)))

    def rehearse(self, server: nova.NovaServer) -> str | None:
        """Begin a rehearsal of the end of a server.

        :param server: as Nova shows it now
        :returns: why no rehearsal begins, in a sentence; None if it has begun
        """
        hypervisor = self._reader.hypervisors.get(server.host)
        now = time.monotonic()
        self._rehearsed = {uuid: at for uuid, at in self._rehearsed.items()
                           if now - at < REHEARSED}
        if not self._reader.is_preemptible(server):
            return 'The server is not preemptible.'
        if server.status != 'ACTIVE' or server.task_state:
            return 'The server does not run, or has a task.'
        if not {shapes.TERMINATE_AT, shapes.FOR}.isdisjoint(
                server.metadata) or any(
                    victim.id == server.id and not victim.ended
                    for current in self.under_way.values()
                    for victim in current.victims):
            return 'The server has notice, or is about to have notice.'
        if server.id in self._rehearsed:
            return 'The server has had a rehearsal within the last hour.'
        if hypervisor is None or (
                self._world.options.mode is not model.Mode.PREEMPT):
            return 'The reaper ends no servers at the moment.'
        if AT_ONCE <= sum(current.rehearsal
                          for current in self.under_way.values()):
            return 'Too many rehearsals are under way. Ask again.'
        self._rehearsed[server.id] = now
        self.adopt(Attempt.of_itself(
            Victim(server.id, server.name, server.project,
                   self._reader.action(server)),
            server.user, hypervisor.host, hypervisor.uuid, Step.NOTICE,
            rehearsal=True))
        return None

    def adopt(self, current: Attempt) -> None:
        """Go on with an attempt that no decision of the queue has begun."""
        self.under_way[current.id] = current
        self._world.queue.discard(current.id)
        if current.decision is None and not current.rehearsal:
            self._world.planner.to_end[current.id] = {
                victim.id: victim.project for victim in current.left}
        if not current.for_another:
            # No other server may choose this server as its victim.
            self._world.avoid(current.host, {current.id}, math.inf)

    def go_on(self) -> None:
        """Start the next step of each attempt whose time has come."""
        now = time.monotonic()
        going = [current for current in self.under_way.values()
                 if not current.stalled]
        asking = sum(current.step in ASKING for current in going)
        for server, current in list(self.under_way.items()):
            if current.wake_at > now or f'attempt {server}' in self._jobs:
                continue
            if current.step in (Step.GRACE, Step.SWAP):
                current = self._planned_anew(current)
            elif current.step is Step.HOLD:
                current = current.but(needless=self._unwanted(current))
            if current.step == Step.CHECK:
                if asking >= self._conf.max_rebuilds:
                    continue
                asking += not current.victims
            self.under_way[server] = current.but(wake_at=math.inf)
            self._jobs.start(f'attempt {server}', functools.partial(
                self._actor.advance, current), self._advanced)
        self._metrics.rebuilds_in_flight.set(sum(
            current.step == Step.WATCH for current in self.under_way.values()))
        self._metrics.notices.set(sum(
            len(current.victims) for current in self.under_way.values()
            if current.step in (Step.GRACE, Step.SWAP)))

    def _unwanted(self, current: Attempt) -> str:
        """Return why an attempt is to end for the sake of those it is for.

        Options, properties and metadata may have changed since the decision.

        :returns: a clause for the log and the server's owner, '' if nothing
            speaks against the attempt
        """
        waiting = self._world.waiting(current.id)
        if waiting is None:
            return ''
        if not waiting.is_wanted(self._world.options.wait):
            return 'the server is not to wait any more'
        below, find = waiting.demand.below, self._world.index.slots.find
        if below is not None and any(
                server and server.priority >= below
                for server in map(find, (one.id for one in current.left))):
            return ('a server that was to make room for it is of no lower '
                    'priority any more')
        return ''

    def _planned_anew(self, current: Attempt) -> Attempt:
        """Decide anew; note in the attempt if its victims need not end."""
        before = current.decision
        waiting = self._world.waiting(current.id)
        now = timeutils.utcnow(True)
        there = current.elsewhere
        if before is None or waiting is None or current.unsure or (
                isinstance(there, Attempt) and there.unsure):
            # The next step finds out whether the server still waits, and what
            # is held for the server.
            return current
        if isinstance(there, Attempt):
            current = current.but(elsewhere=None)
        if waiting.demand != current.waiting.demand:
            return current.but(
                needless='the server asks for something else by now')
        if unwanted := self._unwanted(current):
            return current.but(needless=unwanted)
        if self._is_over_cap(current, now):
            return current.but(needless='the cap of ends allows it no more')
        view = self._world.views.get(current.host)
        # The index counts the held part as used once the host has been read.
        shows = view and 0 < current.held_at <= view.read_at
        found = self._world.planner.better(
            waiting, before, current.has_by_name if shows else {}, now)
        if found is None:
            return current
        is_room = found.verdict is model.Verdict.ROOM
        if found.host == current.host:
            if is_room:
                return current.at(Step.SWAP)
            if current.lacks or set(found.victims) <= {
                    victim.id for victim in current.victims}:
                # The swap leaves out victims that need not end. Once the host
                # has changed, "lacks" is known no more: the victims stay.
                return current
        if is_room:
            if current.notice_left < -ELSEWHERE or (
                    isinstance(there, Outcome) and
                    there.attempt.host == found.host and
                    time.monotonic() < there.attempt.wake_at):
                return current
            return current.but(elsewhere=self._attempt(waiting, found))
        history = self._world.history[current.id]
        if not history.may_withdraw(now):
            return current
        history.withdrawn_at = now
        return current.but(needless='others are ended at a lower price')

    def _is_over_cap(self, current: Attempt, now: datetime.datetime) -> bool:
        """Return whether a cap, which was lowered, spares the victims.

        The attempts that began first have what is left of the cap.
        """
        planned = sorted((
            other for other in self.under_way.values()
            if other.for_another and other.step != Step.END and
            not other.ended), key=lambda other: bool(other.needless))
        return current.id in self._world.planner.over_caps(
            [other.id for other in planned if other.decision], now)

    def _advanced(self, result: Attempt | Outcome) -> None:
        if isinstance(result, Outcome):
            self._finish(result)
            return
        before = self.under_way.get(result.id)
        if before is None:
            return
        if before.decision and before.step == Step.CHECK != result.step and (
                self._world.options.mode is model.Mode.OBSERVE):
            # Nova accepts the decision, and the mode allows nothing more.
            del self.under_way[result.id]
            self._observe(result.id, before.decision)
            return
        if before.decision and before.step == Step.CHECK and (
                result.step == Step.NOTICE):
            result = result.but(runner_up=self._world.planner.runner_up(
                result.waiting, before.decision, timeutils.utcnow(True)))
        if isinstance(result.elsewhere, Outcome) and (
                result.elsewhere is not before.elsewhere):
            self._leave_out(result.elsewhere, timeutils.utcnow(True))
            if not result.elsewhere.refused:
                # The index may be wrong about the host.
                self._hosts.read(result.elsewhere.attempt.host, True)
        if before.decision and result.decision and (
                result.host != before.host):
            now = timeutils.utcnow(True)
            self._world.planner.move(before.decision, result.decision,
                                     result.waiting, now)
            self._world.told.say(result.waiting, result.decision,
                                 self._world.options.mode, now)
            self._hosts.read(before.host)
        self.under_way[result.id] = result.but(
            wake_at=min(before.wake_at, result.wake_at))
        if before.step != result.step and result.step in (
                Step.END, Step.REBUILD):
            self._hosts.freed.pop(result.host, None)
            if result.held and (result.swapped or
                                result.step == Step.REBUILD):
                self._note_written(result.id)

    def _note_written(self, server: str) -> None:
        """Note that Placement has what was planned for a server."""
        planned = self._world.index.plans.get(server)
        if planned:
            planned.written_at = time.monotonic()

    def failed(self, name: str) -> None:
        """Have the step of a job that failed done again later, by its name."""
        if name.startswith(GIVE_UP):
            self._read_one(name.removeprefix(GIVE_UP))
        current = self.under_way.get(name.removeprefix('attempt '))
        if current is not None:
            self.under_way[current.id] = current.but(
                wake_at=min(current.wake_at, time.monotonic() + AGAIN))

    def wake(self, server: str) -> None:
        """Go on with the attempts that a server is part of.

        A step that runs may have looked at the server before the change: the
        next step comes at once.
        """
        for key, current in self.under_way.items():
            if server in (key, *(victim.id for victim in current.victims)):
                self.under_way[key] = current.but(wake_at=0.0)

    # Attempts end.

    def _finish(self, outcome: Outcome) -> None:
        """Take note of the outcome of an attempt."""
        current, now = outcome.attempt, timeutils.utcnow(True)
        server = current.id
        known = self.under_way.pop(server, None)
        if known is None:
            return
        decision = known.decision
        LOG.info('Server %s (%s) and host %s: %s. %s', server,
                 current.waiting.name, current.host, outcome.result.value,
                 outcome.detail)
        if not current.for_another:
            self._world.avoid(current.host, (server,), 0)
        # The next decision comes before the host is read.
        self._world.avoid(current.host, outcome.avoided,
                          self._conf.stuck_exclusion)
        # The victims that did end are counted below.
        self._world.planner.drop_ends(server)
        if not current.for_another:
            self._finish_alone(outcome, now)
            return
        missed = self._count(outcome)
        if current.asked_at or current.ended:
            self._book.write(record_of(
                current, outcome.result.value, outcome.detail, missed=missed,
                reason=outcome.reason, failed=outcome.cause in world.OWN))
        if outcome.result in (Result.ACTIVE, Result.GONE, Result.TIMEOUT):
            # The plan counts until the host has been read again.
            self._world.discard(server, planned=True)
        else:
            self._again(outcome, now)
            # undo() gives the server back to the queue as _again() put it.
            if decision:
                self._world.planner.undo(decision, now)
            else:
                self._world.index.drop_plan(server)
            self._tell(outcome)
        self._count_ends(current.victims, now)
        if outcome.apart:
            self._shapes.set_apart(server)
        if outcome.result is Result.ERROR:
            self._keep_failed(server)
        if server not in self._world.servers:
            self._note_written(server)
        elif outcome.refused and current.step == Step.CHECK:
            # Nothing was done: the reaper decides on the next host at once.
            return
        else:
            self._read_one(server)
        # If the attempt failed, the index may be wrong about the host.
        self._hosts.read(current.host, outcome.result != Result.ACTIVE)

    def _finish_alone(self, outcome: Outcome, now: datetime.datetime) -> None:
        """Take note of the outcome of an attempt that makes no room."""
        current = outcome.attempt
        if not current.rehearsal:
            self._count_ends(current.victims, now)
        if outcome.result is Result.CONFLICT:
            # Nova notifies nobody of a change of metadata.
            self._jobs.line_up(
                f'preemptible {current.id}', functools.partial(
                    self._reader.read_server, current.id),
                lambda _: self._hosts.failed(current.host))
        else:
            self._hosts.read(current.host)

    def _again(self, outcome: Outcome, now: datetime.datetime) -> None:
        """Have the world note why the server of an attempt waits again."""
        server, history = outcome.attempt.id, self._world.history
        # After a withdrawal, which is no refusal, the next decision comes at
        # once.
        if not self._leave_out(outcome, now) and (
                outcome.result is not Result.WITHDRAWN):
            history[server].came_to_nothing(
                outcome.cause, outcome.reason, outcome.attempt.host, now,
                self._conf.retry_interval)
        if outcome.apart:
            # Nova is to say first what the server needs.
            history[server].paused_until = now + datetime.timedelta(
                seconds=AGAIN)
        if outcome.attempt.sent:
            history[server].asked(now)
        self._world.put_again(server)

    def _leave_out(self, outcome: Outcome, now: datetime.datetime) -> bool:
        """Leave out the hosts that an attempt has found to be of no use.

        :returns: whether the next decision may come at once, because the
            outcome is about hosts, or other servers of the shape, alone
        """
        host, exclusions = outcome.attempt.host, self._world.index.exclusions
        waiting = self._world.waiting(outcome.attempt.id)
        if outcome.refused:
            if waiting:
                self._refuse(waiting, outcome, now)
        elif outcome.offered is not None:
            if waiting:
                exclusions.offer(waiting.shape, {
                    name for name, view in self._world.views.items()
                    if view.host.uuid in outcome.offered and name != host})
        elif waiting and not outcome.apart and (
                outcome.cause is world.Cause.RACE and
                outcome.result is Result.CONFLICT):
            # Placement has no room on the host, whatever the index has, or a
            # victim has changed. All servers of the shape wait for news of
            # the host, so that none of them overtakes this server.
            exclusions.withhold(
                waiting.shape, host, now + datetime.timedelta(
                    seconds=self._conf.retry_interval),
                bool(outcome.attempt.victims))
        else:
            return outcome.apart
        return True

    def _refuse(self, waiting: model.Waiting, outcome: Outcome,
                now: datetime.datetime) -> None:
        """Leave out the hosts that Nova's filters refuse.

        Two kinds of hosts stay: a host that was read after Nova judged the
        host, which may have changed, and a host for which an attempt of its
        own may ask Nova for victims.
        """
        current, views = outcome.attempt, self._world.views
        shape, index = waiting.shape, self._world.index
        for host, name in outcome.refused.items():
            if host != current.host and not current.victims and (
                    current.mode is not model.Mode.FILL and
                    name in index_module.BY_USAGE and host in index.rows and
                    choose.to_search(index, waiting, host, now)):
                continue
            if name in index_module.LASTING or host not in views or (
                    views[host].read_at < current.since):
                is_mine = host == current.host
                index.exclusions.refuse(
                    shape, {host: name},
                    current.lacks if is_mine else frozenset(),
                    outcome.named if is_mine else ())

    def _count(self, outcome: Outcome) -> str | None:
        """Count an outcome for the metrics, and a miss for the world.

        :returns: the key of the server's shape if victims ended in vain and
            that counts as a miss, None otherwise
        """
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
                self._world.has_returned(current.id, now)
        elif current.ended:
            self._metrics.needless_victims.inc(current.ended)
            if self._world.missed(waiting, outcome.cause, outcome.detail):
                missed = waiting.shape.key
        return missed

    def _count_ends(self, victims: Sequence[Victim], now: datetime.datetime
                    ) -> None:
        """Count ended victims against the caps, and ends of each victim."""
        self._world.planner.drop_stuck(
            {victim.id for victim in victims if victim.ended})
        for victim in victims:
            if victim.stage in (Stage.ENDING, Stage.ENDED):
                # The host may end a server yet that has not ended.
                self._world.planner.ends.append(choose.End(
                    victim.id, victim.project, now, stuck=not victim.ended))
            if victim.ended:
                self._ended[victim.id] += 1
                if self._ended[victim.id] >= 3:
                    self._metrics.repeated_victims.inc()
        for uuid in self._ended.keys() - self._reader.preemptible.keys():
            # A server that was deleted does not come back.
            del self._ended[uuid]

    def _tell(self, outcome: Outcome) -> None:
        known = self._world.servers
        if outcome.reason is None or outcome.attempt.id not in known:
            return
        self._world.told.tell(model.Decision(
            outcome.attempt.id, model.Verdict.WAIT, reason=outcome.reason,
            detail=outcome.detail, hindrance=outcome.hindrance or (
                model.Hindrance.BACK_OFF
                if outcome.cause is world.Cause.SERVER and
                outcome.reason == model.Reason.NO_ROOM else None)),
            timeutils.utcnow(True))

    # Plans are dropped once they are read back, or another reaper acts.

    def drop_written(self, view: reader.HostView) -> bool:
        """Drop the plans whose allocations a view of a host includes.

        The part that is held before a swap leaves the plan once the view has
        that part.

        :returns: whether a plan was dropped
        """
        index, shown = self._world.index, False
        for planned in index.planned(view.host.name):
            current = self.under_way.get(planned.server)
            if planned.written_at <= view.read_at:
                index.drop_plan(planned.server)
                shown = True
            elif current and 0 < current.held_at <= view.read_at:
                index.plan(dataclasses.replace(
                    planned, held=current.has_by_name))
        return shown

    def stand_by(self) -> None:
        """Leave all attempts to the reaper that acts now."""
        for server, current in self.under_way.items():
            if not current.for_another:
                self._world.avoid(current.host, (server,), 0)
            if current.decision:
                self._world.planner.undo(current.decision,
                                         timeutils.utcnow(True))
            else:
                self._world.index.drop_plan(server)
            self._world.put_again(server)
        self.under_way.clear()

    # Servers are given up.

    def find_given_up(self, server: str) -> answers.Entry | None:
        """Return what /v1/pending/ID answers for a server that was given up.

        :returns: None if the server was not given up, or too long ago
        """
        entry = self.given_up.get(server)
        return entry if entry and entry.decided_at and (
            timeutils.utcnow(True) - entry.decided_at < REMEMBERED) else None

    def give_up(self) -> None:
        """Give up servers that have waited too long, or fit nowhere.

        Each call looks at LOOKS servers; successive calls look at all.
        """
        for waiting, reason in self._hopeless():
            # No attempt begins for the server meanwhile.
            self._world.queue.discard(waiting.id)
            self._jobs.line_up(f'{GIVE_UP}{waiting.id}', functools.partial(
                self._actor.give_up, waiting), functools.partial(
                    self._gave_up, waiting, reason))

    def _hopeless(self) -> list[tuple[model.Waiting, str]]:
        """Return the servers to give up, and why; none in the mode "observe".

        A server that could not be given up is named again after GIVE_UP_AGAIN.
        """
        if self._world.options.mode == model.Mode.OBSERVE:
            return []
        now, then = timeutils.utcnow(True), time.monotonic()
        self._asked_at = {server: at for server, at in self._asked_at.items()
                          if then - at < GIVE_UP_AGAIN}
        servers = list(itertools.islice(self._to_look_at, LOOKS))
        if len(servers) < LOOKS:
            self._to_look_at = iter(list(self._world.servers))
        waiting, found = self._world.queue, []
        timeout = self._conf.nothing_fits_timeout
        for server in servers:
            item = waiting.get(server) or self._world.not_asked.get(server)
            if item is None or server in self.under_way or (
                    server in self._asked_at):
                continue
            if queue.is_late(item, self._world.options, now):
                found.append((item, model.Hindrance.DEADLINE.value))
                continue
            told = self._world.told.last.get(server)
            reason = told.decision.reason if told else None
            if told and reason and timeout and (
                    reason in model.NEVER and
                    (now - told.since).total_seconds() >= timeout and
                    not (item.shelved or item.failed)):
                known = waiting.asleep(item.demand)
                if known and known.reason == reason:
                    found.append((item, reason.value))
        self._asked_at.update((item.id, then) for item, _ in found)
        return found

    def _gave_up(self, waiting: model.Waiting, reason: str, done: bool
                 ) -> None:
        """Take note of the try to give a server up, done or in vain."""
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
        self._book.write(journal.Record(
            journal.Kind.GIVEN_UP, waiting.id, waiting.project, waiting.name,
            waiting.id, waiting.project, result=reason,
            detail={'why': detail}))
        decision = model.Decision(
            waiting.id, model.Verdict.WAIT, detail=detail,
            reason=(told.decision.reason if told else None) if late
            else model.Reason(reason),
            hindrance=model.Hindrance.DEADLINE if late else None)
        self.given_up = {server: entry for server in list(self.given_up)
                         if (entry := self.find_given_up(server))}
        self.given_up[waiting.id] = answers.Entry(
            waiting, None, 0, None,
            queue.deadline(waiting, self._world.options), 'given_up', decision,
            now, self._world.options.mode)
        self._world.discard(waiting.id)
