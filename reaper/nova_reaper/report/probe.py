# SPDX-License-Identifier: Apache-2.0

"""Says whether there is room for servers that are not created yet.

The planner decides for such servers as for servers that wait. Nova says what
the servers would ask for, and which filters refuse the hosts of the decisions.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import datetime
import functools
import itertools
import time
from typing import Any

from oslo_utils import timeutils

from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import engine as engine_module

# A probe is for so many servers at most, and may hold the engine up for so
# many seconds at a time.
MOST = 20
LONGEST = 0.2
# Nova is asked about so many hosts that have room at a time. If filters refuse
# hosts of the decisions, the planner decides so many times at most.
HOSTS = 20
ROUNDS = 5

NO_FLAVOR = ('There is no such flavor: name the ID or the name of a flavor '
             'that the project may use.')
TOO_LONG = ('To decide for so many servers takes too long at the moment: ask '
            'for fewer.')


class Refused(Exception):
    """The request is wrong; the text says what to do."""


class NotKnown(Exception):
    """The room on the hosts is not known yet.

    :ivar seconds: after which to ask again
    """

    def __init__(self, seconds: int) -> None:
        super().__init__('The room on the hosts is not known yet.')
        self.seconds = seconds


class Probe:
    """Decisions for servers that are alike and are not created.

    Nothing is changed by the decisions, but that the traits and the aggregates
    that the servers ask for are known then.

    :ivar waiting: the first of the servers, as the queue would have it
    :ivar room_by: when run times that end will have made room for the first
        server that would wait, None if that is not known
    """

    waiting: model.Waiting

    def __init__(self, engine: engine_module.Engine, list_interval: int,
                 project: str, asked: Mapping[str, Any],
                 room_by: Callable[[model.Waiting], datetime.datetime | None]
                 ) -> None:
        """:param engine: decides, and goes on between two requests

        :param list_interval: the seconds until the next list
        :param project: the ID of the project that the servers would belong to
        :param asked: the body of POST /v1/probe
        :param room_by: says by when there will be room for a server; called
            under the lock
        """
        self._engine = engine
        self._list_interval = list_interval
        self._project = project
        self._asked = asked
        self._find_room_by = room_by
        self.room_by: datetime.datetime | None = None
        self._now = timeutils.utcnow(True)
        self._offered: set[str] | None = None
        # The filters that refuse hosts, and the hosts that Nova has judged,
        # each with the victims without which it was judged.
        self._refused: dict[str, str] = {}
        self._judged: set[tuple[str, tuple[str, ...]]] = set()

    def run(self) -> list[model.Decision]:
        """Decide for the servers one after another.

        :returns: the decisions, up to the first server that would wait
        :raises: Refused; NotKnown; rest.RequestFailed
        """
        decisions = self._run()
        # Placement has said whether there is room for the first server.
        if not self._is_known and (
                self._asked['count'] > 1 or
                decisions[0].verdict is not model.Verdict.ROOM):
            raise NotKnown(self._list_interval)
        return decisions

    def _run(self) -> list[model.Decision]:
        self._ask()
        accepted: list[model.Decision] = []
        for _ in range(ROUNDS if self._requests else 0):
            decisions = self._decide()
            refused = self._refusals(decisions)
            self._refused |= refused
            accepted = list(itertools.takewhile(
                lambda one: one.host not in refused, decisions))
            if len(accepted) == len(decisions):
                return decisions
        self.room_by = None
        return [*accepted, model.Decision(
            self.waiting.id, model.Verdict.WAIT,
            reason=model.Reason.REFUSED,
            detail='The scheduler refuses the hosts that were tried.')]

    def _ask(self) -> None:
        """Find out what the servers would ask for."""
        source, asked = self._engine.source, self._asked
        flavor = source.nova.find_flavor(asked['flavor'], self._project)
        if flavor is None:
            raise Refused(NO_FLAVOR)
        server = shapes.unsaved(flavor, self._project,
                                asked.get('image') or '', self._now)
        self._judge = functools.partial(
            source.nova.judge, server, asked.get('zone') or None)
        try:
            self._requests, _ = self._judge(list(source.hypervisors)[:1])
        except rest.BadRequest as error:
            raise Refused(error.message) from None
        with self._engine.lock:
            classes = [name for name, total
                       in self._engine.world.index.totals().items() if total]
        # If Nova refuses every host, it does not say what to ask for.
        answer = shapes.answer_for(
            server, self._requests or (shapes.query(server),),
            shapes.UNSAVED, {}, classes, source.shared,
            source.below | source.beside)
        # While no server that waits asks for what providers below hosts have,
        # nobody reads these providers.
        self._is_known = not answer.is_below or source.trees is not None
        self._engine.forms.keep_unsaved(server, answer)
        if self._requests:
            self._offered = source.read_room(answer.requests[0])
            source.read_having(answer.shape.expressions)
            self._learn()
        self.waiting = shapes.waiting(
            server, answer, source.properties.get(self._project, {}))

    def _learn(self) -> None:
        """Put what the reader has learnt; the engine goes on between hosts."""
        learning = self._engine.world.learn()
        more = True
        while more:
            with self._engine.lock:
                more = next(learning, self) is not self

    def _decide(self) -> list[model.Decision]:
        decisions = []
        self.room_by = None
        end = time.perf_counter() + LONGEST
        planner = self._engine.world.planner
        with self._engine.lock, contextlib.closing(planner.would(
                self.waiting, self._offered, self._refused, self._now
                )) as would:
            for decision in itertools.islice(would, self._asked['count']):
                decisions.append(decision)
                if decision.verdict is model.Verdict.WAIT:
                    # The index still has the plans of the other servers.
                    self.room_by = self._find_room_by(self.waiting)
                    return decisions
                if time.perf_counter() > end:
                    break
        if len(decisions) < self._asked['count']:
            raise Refused(TOO_LONG)
        return decisions

    def _refusals(self, decisions: Sequence[model.Decision]
                  ) -> dict[str, str]:
        """Find the filters that refuse hosts of decisions, by the host's name.

        Other hosts with room are judged with the first: a filter that refuses
        one of them refuses many of them as a rule.
        """
        ends: dict[str, list[str]] = {}
        hosts: dict[str, None] = {}
        for decision in decisions:
            if decision.host and decision.victims:
                ends.setdefault(decision.host, []).extend(decision.victims)
            elif decision.host and decision.host not in ends:
                # After ends on a host, servers take what the ends leave over.
                hosts[decision.host] = None
        hosts |= dict.fromkeys(sorted(self._offered or ()))
        found = self._refused_by([
            host for host in hosts if (host, ()) not in self._judged][:HOSTS])
        for host, victims in ends.items():
            # A host that was judged and refused is in no decision.
            if (host, tuple(victims)) not in self._judged and (
                    self._refused_by([host], victims)):
                # Which other servers would have to end is not looked for.
                found[host] = shapes.SCHEDULER
        return found

    def _refused_by(self, hosts: Collection[str], victims: Sequence[str] = ()
                    ) -> dict[str, str]:
        """Find the filters that refuse hosts, as if victims had gone."""
        if not hosts:
            return {}
        try:
            _, judged = self._judge(hosts, victims)
        except rest.Conflict:
            # A victim is about to change.
            judged = {}
        self._judged.update((host, tuple(victims)) for host in hosts)
        return {host: name for host in hosts
                if (name := judged.get(host, shapes.SCHEDULER))}
