# SPDX-License-Identifier: Apache-2.0

"""Sweeps: finds unfinished attempts, and goes on with them or undoes them.

After a start the sweep finds everything that a reaper has left behind,
wherever that reaper died. Later it finds attempts that no reaper works
with. Only Nova and Placement have a record of attempts.

====================================  ======================================
what stands                           what follows
====================================  ======================================
notice, allocation there              the notice is withdrawn; in the mode
                                      "preempt" once it has run out: the
                                      reaper that gave it may be alive
notice for the server itself, which   the end goes on, in the mode "preempt"
has run for as long as it may
notice, no allocation, hold there     the end goes on, then the rebuild
notice, no allocation, room claimed   the end goes on: a build has the room
notice, no allocation, no hold        the allocation is written again
hold, no notice, and a preemptible    the allocation is written again, and
server on its host without one        the hold given free
whole hold of a server that waits     the rebuild
part of a hold, server waits          given free
hold, server does not wait            given free
hold, server is gone                  given free
====================================  ======================================
"""

import bisect
import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import datetime
import math
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.act.attempts import Victim
from nova_reaper.act import ending
from nova_reaper.act import holds
from nova_reaper.act import steps
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Stage
from nova_reaper.events import reader
from nova_reaper.report import health

LOG = log.getLogger(__name__)
# Within so many seconds after a notice ran out a live reaper has swapped.
LATE = 30.0
# The keys of a notice; an interrupted withdrawal may leave one of them.
MARKS = frozenset({shapes.TERMINATE_AT, shapes.FOR})
# Seconds between two looks at a guest that shuts down.
SOON = 5.0
# A sweep looks at so many consumers at most that Nova does not know.
LOOKS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a sweep has found.

    :ivar attempts: the attempts to go on with
    :ivar holds: how many holds there are
    :ivar oldest: seconds for which this process has known the oldest hold
    :ivar changed: names of the hosts on which the sweep changed allocations
    """

    attempts: tuple[Attempt, ...]
    holds: int
    oldest: float
    changed: frozenset[str]


class Recovery:
    """Looks for attempts, holds and notices that no reaper works with.

    The reaper that gave a notice may be alive, and end the server when the
    notice has run out. So in the mode "preempt" a sweep keeps a notice until
    then, and withdraws the notice if the server has not ended.

    :ivar find: gives a server as it is now, None if it is gone
    :param waiting: gives a server that waits by its ID, None if not known; any
        thread may call it
    """

    def __init__(self, conf: cfg.ConfigOpts, compute: nova.Nova,
                 room: placement.Placement, held: holds.Holds,
                 ends: ending.Victims, actor: steps.Actor,
                 source: reader.Reader, meters: health.Metrics,
                 waiting: Callable[[str], model.Waiting | None]) -> None:
        self._conf = conf.reaper
        self._nova = compute
        self._placement = room
        self._holds = held
        self._ends = ends
        self._actor = actor
        self.find = compute.find
        self._reader = source
        self._metrics = meters
        self._waiting = waiting
        # IDs of servers under notice of which only the journal may tell.
        self._noticed: set[str] = set()
        # The last consumer without a server that a sweep has looked at.
        self._last = ''
        self._seen: dict[str, float] = {}
        self._changed: set[str] = set()
        # When to look again at servers under notice, by their IDs.
        self._late: dict[str, float] = {}

    def look_also(self, server: str) -> None:
        """Look from now on at a server under notice that the journal names.

        The list of the servers that may be ended lacks a server whose flavor
        has lost its mark.

        :param server: the ID of the server
        """
        self._noticed.add(server)
        self._ends.later.add(server)

    def look(self, consumers: Collection[str], pending: Collection[str],
             busy: Collection[str], age: float, mode: model.Mode) -> Found:
        """Sweep once.

        :param consumers: IDs of the consumers of all hosts
        :param pending: IDs of the servers that wait
        :param busy: IDs of servers that attempts of this process are for
        :param age: seconds for which this process has to know of a hold or a
            notice: before that another reaper may work with it
        :param mode: the mode in force; "observe" undoes all that may be undone
        """
        self._changed.clear()
        marked = collections.defaultdict(list)
        told = {item.id: item for item in self._reader.under_notice()}
        for item in (*told.values(), *self._find_noticed(told)):
            marked[item.metadata[shapes.FOR]].append(item)
        held, in_error = self._find_held(set(consumers), set(pending),
                                         set(busy), set(marked), age)
        # A server that is busy at the moment keeps its age.
        now, begun = time.monotonic(), held | marked.keys()
        self._seen = {
            server: self._seen.get(server, now)
            for server in begun | self._seen.keys() & set(busy)}
        attempts: list[Attempt] = []
        for server in sorted((begun | in_error) - set(busy)):
            if server in begun and now - self._seen[server] < age:
                continue
            try:
                found = self._one(server, marked[server], mode)
            except rest.RequestFailed as error:
                LOG.warning('What was begun for server %s is looked at '
                            'later: %s', server, error)
                continue
            except Exception:
                # An unforeseen answer for one server must not keep the sweep
                # from all others.
                LOG.exception('What was begun for server %s cannot be looked '
                              'at.', server)
                continue
            if found:
                attempts.append(found)
        self._unmark(busy)
        return Found(tuple(attempts), len(held), max(
            (now - self._seen[server] for server in held), default=0.0),
            frozenset(self._changed))

    def _find_noticed(self, known: Collection[str]
                      ) -> Iterator[nova.NovaServer]:
        """Yield the servers of which only the journal tells the notice."""
        for uuid in self._noticed - set(known):
            try:
                server = self.find(uuid)
            except rest.RequestFailed as error:
                LOG.info('The notice to server %s is looked at later: %s',
                         uuid, error)
                continue
            if server and shapes.is_noticed(server):
                yield server
            else:
                self._noticed.discard(uuid)

    def _find_held(self, consumers: set[str], pending: set[str],
                   busy: set[str], marked: set[str], age: float
                   ) -> tuple[set[str], set[str]]:
        """Find the servers that have a hold and are not busy.

        :param marked: IDs of servers for which others have been given notice
        :returns: IDs of servers whose hold another reaper may work with, and
            IDs of servers in ERROR, whose hold is of no use
        """
        # Placement's list of a host's consumers does not tell which are holds.
        candidates = consumers & (pending | self._seen.keys())
        held = {server for server in candidates - busy
                if self._holds.find(server)}
        try:
            left = self._placement.count_holds(self._holds.project) - len(held)
        except rest.RequestFailed as error:
            if not age:
                # After a start the reaper begins nothing before it knows all
                # holds.
                raise
            LOG.warning('Holds cannot be counted: %s', error)
            return held, set()
        if left > 0:
            left -= sum(self._holds.find(server) is not None
                        for server in busy)
        if not age:
            # Holds may have been written after the hosts were read.
            for server in pending - candidates - busy:
                if left > 0 and self._holds.find(server):
                    held.add(server)
                    left -= 1
        others, in_error = held | marked | busy | pending, set[str]()
        for name, found, suspects in (
                ('in ERROR', in_error, self._with_status('ERROR')),
                ('in build', held, self._with_status('BUILD', 'REBUILD')),
                ('that are gone', held, self._unknown(consumers - others))):
            try:
                for server in suspects if left > 0 else ():
                    if server not in others and self._holds.find(server):
                        found.add(server)
                        left -= 1
                    if left <= 0:
                        break
            except rest.RequestFailed as error:
                LOG.warning('Holds of servers %s are looked for later: %s',
                            name, error)
        return held, in_error

    def _with_status(self, *statuses: str) -> Iterator[str]:
        """Yield the IDs of servers that may still have a hold."""
        for status in statuses:
            for server in self._nova.servers(status=status):
                if status != 'ERROR' or not server.host:
                    yield server.id

    def _unknown(self, consumers: set[str]) -> Iterator[str]:
        """Yield IDs of consumers that are not servers of Nova, some at a time.

        Nova deletes the allocations of a server with the server. A hold that
        is written a moment later would stay for ever: no list of Nova leads to
        the hold, and Placement does not list consumers by type. So each sweep
        looks at LOOKS of the consumers that Nova does not know, which mostly
        are migrations. That costs Nova a list of all servers, without details.
        """
        suspects = sorted(consumers.difference(self._nova.ids()))
        begin = bisect.bisect_right(suspects, self._last)
        for server in (suspects[begin:] + suspects[:begin])[:LOOKS]:
            yield server
            self._last = server

    def _one(self, server: str, marked: Iterable[nova.NovaServer],
             mode: model.Mode) -> Attempt | None:
        item = self.find(server)
        consumer = self._placement.consumer(server)
        waits = item is not None and item.waits
        if item and mode == model.Mode.PREEMPT and any(
                known.id == server for known in marked) and (
                    found := self._run_out(item)):
            return found
        taken = self._withdraw(marked, mode)
        if taken:
            return self._with_victims(server, item, consumer, taken)
        if not self._holds.is_one(consumer):
            return None
        if item is not None and not waits and item.status in (
                'BUILD', 'REBUILD', 'ACTIVE') and (
                    time.monotonic() - self._seen.get(server, math.inf) <=
                    self._conf.rebuild_timeout):
            # A build is about to take the hold, unless the build hangs.
            return None
        robbed = self._without_room(consumer)
        if robbed:
            # No victim is ended whose notice was deleted.
            return self._with_victims(server, item, consumer, robbed,
                                      'somebody has deleted it')
        waiting = self._waiting(server)
        if waits and mode != model.Mode.OBSERVE and (
                waiting and consumer.covers(waiting.shape.resources)):
            LOG.info('Room is held for server %s: it is rebuilt.', server)
            return self._attempt(server, item, consumer, Step.REBUILD)
        if self._holds.release(server):
            self._changed |= self._hosts_of(consumer)
            self._metrics.holds_swept.inc()
            LOG.info('The hold of server %s is given free: nobody works '
                     'with it.', server)
        return None

    def _run_out(self, server: nova.NovaServer) -> Attempt | None:
        """Return an attempt to end a server whose run time and notice end.

        Owners can write metadata: no notice counts for longer than a new
        notice would.

        :returns: None if the run time is not over when the notice runs out
        """
        ends_at, now = self._reader.ends_at(server), timeutils.utcnow(True)
        until = min(_until(server) or now, now + datetime.timedelta(
            seconds=self._conf.grace_period))
        provider = self._provider(server)
        if not provider or ends_at is None or ends_at > max(now, until) or (
                server.status in shapes.OFF_HOST):
            return None
        victim, = self._victims([server])
        LOG.info('The run time of server %s is over: its end goes on.',
                 server.id)
        return Attempt.of_itself(
            victim, server.user, server.host, provider,
            Step.GRACE if victim.stage is Stage.NOTICED else Step.END,
            terminate_at=until)

    def _withdraw(self, servers: Iterable[nova.NovaServer], mode: model.Mode
                  ) -> list[nova.NovaServer]:
        """Withdraw notices to servers with allocations; return the others."""
        taken: list[nova.NovaServer] = []
        for known in servers:
            server = self.find(known.id)
            if server is None or not server.host or (
                    server.status in shapes.OFF_HOST):
                # A server on no host has no allocation that was taken.
                continue
            if not self._placement.consumer(server.id).amounts:
                taken.append(server)
            elif mode != model.Mode.PREEMPT or not self._keep(server):
                self._withdraw_from(server)
        return taken

    def _withdraw_from(self, server: nova.NovaServer) -> None:
        self._ends.withdraw(self._victims([server]),
                            server.metadata.get(shapes.FOR, ''),
                            'it was given by a reaper that has ended')

    @property
    def is_late(self) -> bool:
        """Whether a notice that was kept has run out."""
        while self._ends.later:
            self._late[self._ends.later.pop()] = time.monotonic() + SOON
        now = time.monotonic()
        return any(at <= now for at in list(self._late.values()))

    def withdraw_late(self, attempts: Iterable[Attempt]) -> None:
        """Withdraw notices that have run out, except those of own attempts."""
        own = {victim.id for current in attempts
               for victim in current.victims}
        for uuid, at in list(self._late.items()):
            if at > time.monotonic():
                continue
            self._late[uuid] = time.monotonic() + LATE
            if uuid in own:
                continue
            try:
                server = self.find(uuid)
                if (server is None or MARKS.isdisjoint(server.metadata) or
                        not self._placement.consumer(uuid).amounts):
                    del self._late[uuid]
                elif not self._keep(server):
                    # The withdrawal may note the server anew.
                    del self._late[uuid]
                    self._withdraw_from(server)
            except rest.RequestFailed as error:
                LOG.warning('The notice to server %s is looked at later: %s',
                            uuid, error)
                self._late[uuid] = time.monotonic() + LATE

    def _keep(self, server: nova.NovaServer) -> bool:
        """Return whether a reaper may still wait for a notice to run out.

        That reaper would then end the server even if the notice were gone.
        """
        until = _until(server)
        if until is None:
            return False
        left = (until - timeutils.utcnow(True)).total_seconds()
        if not 0 < left <= float(self._conf.grace_period):
            return False
        if self._conf.strict_accounting:
            # The server keeps its allocation until the server has ended.
            left += self._conf.stop_timeout + self._conf.end_timeout
        self._late[server.id] = time.monotonic() + left + LATE
        return True

    def _with_victims(self, server: str, item: nova.NovaServer | None,
                      consumer: placement.Consumer,
                      taken: Collection[nova.NovaServer], needless: str = ''
                      ) -> Attempt | None:
        """Go on with the ends of servers whose room was taken, or undo them.

        :param server: ID of the server for which the room was taken
        :param item: that server, None if it was deleted
        :param consumer: the allocation of that server
        :param taken: the servers whose room was taken
        :param needless: why none of these servers is to end, '' if they may
        """
        going = None
        for host in sorted({one.host for one in taken if self._provider(one)}):
            current = self._attempt(
                server, item, consumer, Step.END,
                [one for one in taken if one.host == host], needless)
            self._changed.add(host)
            stop = current and self._actor.lost(current)
            if current and not isinstance(stop, Outcome):
                LOG.info('Room of other servers is held for %s: their end '
                         'goes on.', server)
                going = current
        return going

    def _without_room(self, held: placement.Consumer) -> list[nova.NovaServer]:
        """Find preemptible servers on the host of a hold, without allocation.

        Their notices are gone: owners can delete notices, and so does another
        reaper that chose the same servers. Or their flavors have lost the
        mark: so the host is asked, and not the list of servers that may be
        ended. A server whose notice is for a server that holds room on the
        host itself has given its room to that server.
        """
        return [server for host in sorted(self._hosts_of(held))
                for server in self._nova.servers(host=host)
                if shapes.is_preemptible(server.flavor) and
                server.status in shapes.ENDABLE and
                server.task_state in (None, 'powering-off') and
                not self._placement.consumer(server.id).amounts and
                not self._gave_to_other(server, held)]

    def _gave_to_other(self, server: nova.NovaServer,
                       held: placement.Consumer) -> bool:
        """Return whether a server has notice for another hold on its host."""
        other = server.metadata.get(shapes.FOR, held.id)
        if not shapes.is_id(other) or other == held.id:
            return False
        # Owners write metadata: the other server may run on the host.
        consumer = self._placement.consumer(other)
        return self._holds.is_one(consumer) and not (
            consumer.amounts.keys().isdisjoint(held.amounts))

    def _provider(self, server: nova.NovaServer) -> str | None:
        """Return the UUID of the provider of the host that a server is on."""
        hypervisor = self._reader.hypervisors.get(server.host)
        return hypervisor.uuid if hypervisor else None

    def _victims(self, servers: Iterable[nova.NovaServer],
                 held: placement.Consumer | None = None
                 ) -> tuple[Victim, ...]:
        """Return servers as victims; only their flavors tell what they had.

        :param held: the allocation of the server that the victims end for
        """
        left = {uuid: dict(amounts) for uuid, amounts
                in held.amounts.items()} if held else {}
        return tuple(self._victim(server, left) for server in servers)

    def _victim(self, server: nova.NovaServer,
                held: Mapping[str, dict[str, int]]) -> Victim:
        stage, provider = Stage.NOTICED, self._provider(server)
        how = self._reader.action(server)
        if shapes.is_leaving(server, how):
            # A reaper has asked for the end.
            stage = Stage.ENDING
        elif server.status == 'SHUTOFF':
            power = [action for action in self._nova.actions(server.id)
                     if action.action in ('stop', 'start')]
            if power and power[-1].action == 'stop' and (
                    power[-1].project == self._holds.project):
                # The reaper has stopped the server.
                stage = Stage.STOPPING
        return Victim(
            server.id, server.name, server.project, how,
            holds.allocation(server, provider, held) if provider else None,
            stage, time.monotonic())

    def _attempt(self, server: str, item: nova.NovaServer | None,
                 consumer: placement.Consumer, step: Step,
                 taken: Collection[nova.NovaServer] = (), needless: str = ''
                 ) -> Attempt | None:
        """Return an attempt on the host of some victims, or of a hold."""
        host = next((one.host for one in taken), '') or next(
            iter(self._hosts_of(consumer)), '')
        hypervisor = self._reader.hypervisors.get(host)
        if hypervisor is None:
            return None
        waiting = self._waiting(server)
        if waiting is None and item:
            waiting = model.Waiting(
                server, model.Shape.of(shapes.resources(item)),
                shapes.waits_since(item), item.project, item.user, item.name)
        elif waiting is None:
            # The server was deleted.
            waiting = model.Waiting(
                server, model.Shape(()), timeutils.utcnow(True))
        held = consumer if hypervisor.uuid in consumer.amounts else None
        return Attempt(
            waiting, host, hypervisor.uuid, step,
            victims=self._victims(taken, held), needless=needless,
            held=held if held and self._holds.is_one(held) else None,
            swapped=bool(taken), since=time.monotonic())

    def _hosts_of(self, consumer: placement.Consumer) -> set[str]:
        """Return the names of the hosts on which a consumer has something."""
        names = self._reader.names_by_provider()
        return {names[uuid] for uuid in consumer.amounts if uuid in names}

    def _unmark(self, busy: Collection[str]) -> None:
        """Delete the reaper's marks of servers that owners have unshelved."""
        for known in self._reader.known():
            if known.id in busy or not shapes.is_back(known):
                continue
            try:
                server = self.find(known.id)
                if server and shapes.is_back(server):
                    self._nova.delete_metadata(
                        server.id, (shapes.SHELVED_AT,))
            except rest.RequestFailed as error:
                LOG.info('The mark of server %s stays: %s', known.id, error)


def _until(server: nova.NovaServer) -> datetime.datetime | None:
    """Return when the notice to a server runs out, None without notice."""
    try:
        until: datetime.datetime = timeutils.parse_isotime(
            server.metadata[shapes.TERMINATE_AT])
        return until
    except (LookupError, ValueError):
        return None
