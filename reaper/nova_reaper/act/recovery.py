# SPDX-License-Identifier: Apache-2.0

"""Finds in Nova and Placement what was begun; goes on with it or undoes it.

After a start that is all of what a reaper left behind that died at any point;
later it is what nobody works with: the sweep. There is no other record.

====================================  ======================================
what stands                           what follows
====================================  ======================================
notice, allocation there              the notice is withdrawn, it is planned
                                      again; in the mode "preempt" when it
                                      has run out: who gave it may be alive
notice, no allocation, hold there     the end goes on, then the rebuild
notice, no allocation, room claimed   the end goes on: a build has the room
notice, no allocation, no hold        the allocation is written again
hold, no notice, and a preemptible    the allocation is written again, and
server on its host without one        the hold given free
hold of one that waits, whole         the rebuild
hold of one that waits, a part        given free
hold of one that does not wait        given free
hold of one that is gone              given free
====================================  ======================================
"""

import bisect
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
import dataclasses
import datetime
import itertools
import math
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Step
from nova_reaper.act.attempts import Victim
from nova_reaper.act import ending
from nova_reaper.act import holds
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Stage
from nova_reaper.cloud import shapes
from nova_reaper.events import reader
from nova_reaper.report import metrics

LOG = log.getLogger(__name__)
NOBODY = 'nobody waits for its room any more'
# A reaper that is alive has swapped so many seconds after a notice ran out.
LATE = 30.0
# Of a notice; one of them is left where its withdrawal was interrupted.
MARKS = frozenset({shapes.TERMINATE_AT, shapes.FOR})
# Between two looks at a guest that shuts down.
SOON = 5.0
# So many consumers are asked for in one go.
LOOKS = 100


class Notices:
    """Withdraws notices that no attempt works with.

    Who gave a notice may be alive, and end the server when it has run out. So
    in the mode "preempt" it is kept until then, and withdrawn if nothing came
    of it.

    :param victim: gives a server as a victim at a stage
    """

    def __init__(self, conf: cfg.ConfigOpts, room: placement.Placement,
                 ends: ending.Victims,
                 victim: Callable[[nova.NovaServer, Stage], Victim],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._conf = conf.reaper
        self._placement = room
        self._ends = ends
        self._victim = victim
        self._clock = clock
        # When to look again at servers under notice, by their IDs.
        self._late: dict[str, float] = {}

    def withdraw(self, servers: Iterable[nova.NovaServer], mode: model.Mode
                 ) -> list[nova.NovaServer]:
        """Withdraw notices to those who have an allocation; the others."""
        taken: list[nova.NovaServer] = []
        for known in servers:
            server = self._ends.find(known.id)
            if server is None or not server.host or (
                    server.status in shapes.OFF_HOST):
                # On no host it has no allocation, and nobody has taken it.
                continue
            if not self._placement.consumer(server.id).amounts:
                taken.append(server)
            elif mode != model.Mode.PREEMPT or not self._keep(server):
                self._withdraw_from(server)
        return taken

    def _withdraw_from(self, server: nova.NovaServer) -> None:
        self._ends.withdraw([self._victim(server, Stage.NOTICED)],
                            server.metadata.get(shapes.FOR, ''),
                            'it was given by a reaper that has ended')

    @property
    def is_late(self) -> bool:
        """Whether a notice has run out that was kept."""
        while self._ends.later:
            self._late[self._ends.later.pop()] = self._clock() + SOON
        return min(list(self._late.values()),
                   default=math.inf) <= self._clock()

    def withdraw_late(self, attempts: Iterable[Attempt]) -> None:
        """Withdraw notices that have run out, and nobody has acted upon.

        :param attempts: of this process, whose notices are their affair
        """
        own = {victim.id for current in attempts
               for victim in current.victims}
        for uuid, at in list(self._late.items()):
            if at > self._clock():
                continue
            self._late[uuid] = self._clock() + LATE
            if uuid in own:
                continue
            try:
                server = self._ends.find(uuid)
                if (server and not MARKS.isdisjoint(server.metadata) and
                        self._placement.consumer(uuid).amounts):
                    if self._keep(server):
                        continue
                    # It may be one to look at anew after that.
                    del self._late[uuid]
                    self._withdraw_from(server)
                else:
                    del self._late[uuid]
            except rest.RequestFailed as error:
                LOG.warning('The notice to server %s is looked at later: %s',
                            uuid, error)
                self._late[uuid] = self._clock() + LATE

    def _keep(self, server: nova.NovaServer) -> bool:
        """Whether a reaper may wait at the moment for a notice to run out.

        It would end the server at that time, with the notice or without.
        """
        try:
            until: datetime.datetime = timeutils.parse_isotime(
                server.metadata[shapes.TERMINATE_AT])
        except (LookupError, ValueError):
            return False
        left = (until - timeutils.utcnow(True)).total_seconds()
        if not 0 < left <= float(self._conf.grace_period):
            return False
        if self._conf.strict_accounting:
            # It has its allocation until it has ended.
            left += self._conf.stop_timeout + self._conf.end_timeout
        self._late[server.id] = self._clock() + left + LATE
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a sweep has found.

    :ivar attempts: to go on with
    :ivar holds: how many there are
    :ivar oldest: age of the oldest in seconds, as far as this process knows
    :ivar changed: hosts on which room was given back or free
    """

    attempts: tuple[Attempt, ...]
    holds: int
    oldest: float
    changed: frozenset[str]


class Recovery:
    """Looks for what was left behind.

    :ivar notices: whom others have given notice
    """

    def __init__(self, conf: cfg.ConfigOpts, compute: nova.Nova,
                 room: placement.Placement, held: holds.Holds,
                 ends: ending.Victims, source: reader.Reader,
                 meters: metrics.Metrics,
                 waiting: Callable[[str], model.Waiting | None],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._conf = conf.reaper
        self._nova = compute
        self._placement = room
        self._holds = held
        self._ends = ends
        self._reader = source
        self._metrics = meters
        self._waiting = waiting
        self._clock = clock
        # The consumer that was looked at last of those without a server.
        self._last = ''
        self.notices = Notices(conf, room, ends, self._victim, clock)
        self._seen: dict[str, float] = {}
        self._changed: set[str] = set()

    def find(self, server: str) -> nova.NovaServer | None:
        """A server as it is now, None if it is gone."""
        return self._ends.find(server)

    def look(self, consumers: Collection[str], pending: Collection[str],
             busy: Collection[str], age: float, mode: model.Mode) -> Found:
        """Look once.

        :param consumers: of all hosts
        :param pending: IDs of the servers that wait
        :param busy: IDs of servers that attempts of this process are for
        :param age: what is known for fewer seconds is left alone: another
            reaper may work with it
        :param mode: in force; in "observe" everything is undone
        """
        self._changed.clear()
        marked: dict[str, list[nova.NovaServer]] = {}
        for item in self._reader.under_notice():
            marked.setdefault(item.metadata[shapes.FOR], []).append(item)
        held = self._find_held(consumers, pending, busy, marked, age)
        # One that is busy at the moment is not younger for it.
        self._remember(held | marked.keys() |
                       self._seen.keys() & set(busy))
        attempts: list[Attempt] = []
        for server in sorted((held | marked.keys()) - set(busy)):
            if self._clock() - self._seen[server] < age:
                continue
            try:
                found = self._one(server, marked.get(server, ()), mode)
            except rest.RequestFailed as error:
                LOG.warning('What was begun for server %s is looked at '
                            'later: %s', server, error)
                continue
            except Exception:
                # An answer that nobody foresees for one server must not keep
                # all others from being served.
                LOG.exception('What was begun for server %s cannot be looked '
                              'at.', server)
                continue
            if found:
                attempts.append(found)
        self._unmark(busy)
        return Found(tuple(attempts), len(held), max(
            (self._clock() - self._seen[server] for server in held),
            default=0.0), frozenset(self._changed))

    def _find_held(self, consumers: Collection[str], pending: Collection[str],
                   busy: Collection[str], marked: Collection[str],
                   age: float) -> set[str]:
        """IDs of those who have a hold, but for the busy ones.

        Holds of servers in ERROR are given free at once.

        :param marked: IDs of those for whom others have been given notice
        """
        # What Placement says of a host does not tell holds from others.
        candidates = set(consumers) & (set(pending) | self._seen.keys())
        held = {server for server in candidates - set(busy)
                if self._holds.find(server)}
        left = self._count_holds() - len(held)
        if left > 0:
            left -= sum(self._holds.find(server) is not None
                        for server in busy)
        if not age:
            # Hosts may not have been read since they were written.
            for server in set(pending) - candidates - set(busy):
                if left > 0 and self._holds.find(server):
                    held.add(server)
                    left -= 1
        known = held | set(marked) | set(busy)
        if left > 0:
            left -= self._release_in_error(known | set(pending))
        if left > 0:
            building = self._find_in_build(known | set(pending))
            held |= building
            left -= len(building)
        if left > 0:
            held |= self._find_orphans(set(consumers) - known, left)
        return held

    def _count_holds(self) -> int:
        """How many holds there are, of whatever servers; 0 if nobody tells.
        """
        try:
            return self._placement.count_holds(self._holds.project)
        except rest.RequestFailed as error:
            LOG.warning('Holds cannot be counted: %s', error)
            return 0

    def _release_in_error(self, others: Collection[str]) -> int:
        """Give the holds of servers free that are in ERROR without a host.

        :param others: IDs of servers that are none of its affair
        :returns: how many there were
        """
        released = 0
        try:
            for server in self._nova.servers(status='ERROR'):
                if not server.host and server.id not in others and (
                        self._holds.release(server.id)):
                    released += 1
                    self._metrics.holds_swept.inc()
                    LOG.info('The hold of server %s, which is in ERROR, is '
                             'given free.', server.id)
        except rest.RequestFailed as error:
            LOG.warning('Holds of servers in ERROR are looked for later: %s',
                        error)
        return released

    def _find_in_build(self, others: Collection[str]) -> set[str]:
        """IDs of servers that Nova builds, and that have a hold still.

        :param others: IDs of servers that are none of its affair
        """
        try:
            return {server.id for status in ('BUILD', 'REBUILD')
                    for server in self._nova.servers(status=status)
                    if server.id not in others and self._holds.find(server.id)}
        except rest.RequestFailed as error:
            LOG.warning('Holds of servers in build are looked for later: %s',
                        error)
            return set()

    def _find_orphans(self, consumers: Collection[str], wanted: int
                      ) -> set[str]:
        """IDs of consumers that are holds and no server of Nova's.

        Nova takes what is allocated to a server away with the server. A hold
        that is written a moment later would stay for ever: none of Nova's
        lists leads to it, and Placement has none of its consumers by their
        type. So a part of the cloud is looked at each time.

        It costs Nova a list of all servers, without details. What is left
        then, migrations most of all, Placement is asked for one by one.

        :param consumers: where to look
        :param wanted: how many there may be at most
        """
        found: set[str] = set()
        try:
            known = set(self._nova.ids())
            suspects = sorted(set(consumers) - known)
            begin = bisect.bisect_right(suspects, self._last)
            for server in itertools.islice(
                    suspects[begin:] + suspects[:begin], LOOKS):
                if len(found) >= wanted:
                    break
                if self._holds.find(server):
                    found.add(server)
                self._last = server
        except rest.RequestFailed as error:
            LOG.warning('Holds of servers that are gone are looked for '
                        'later: %s', error)
        return found

    def _remember(self, now: Collection[str]) -> None:
        self._seen = {server: self._seen.get(server, self._clock())
                      for server in now}

    def _one(self, server: str, marked: Iterable[nova.NovaServer],
             mode: model.Mode) -> Attempt | None:
        item = self._ends.find(server)
        consumer = self._placement.consumer(server)
        waits = item is not None and item.waits
        taken = self.notices.withdraw(marked, mode)
        if taken:
            return self._with_victims(server, consumer, taken, waits, mode)
        if not self._holds.is_one(consumer):
            return None
        if item is not None and not waits and item.status in (
                'BUILD', 'REBUILD', 'ACTIVE') and (
                    self._clock() - self._seen[server] <=
                    self._conf.rebuild_timeout):
            # A build is about to take it, unless it hangs.
            return None
        robbed = self._without_room(consumer)
        if robbed:
            # Nobody is ended without a notice that stands.
            self._give_back(server, server, robbed,
                            'somebody has deleted it')
            return None
        if waits and mode != model.Mode.OBSERVE and (
                self._is_whole(server, consumer)):
            LOG.info('Room is held for server %s: it is rebuilt.', server)
            return self._attempt(server, consumer, Step.REBUILD, ())
        if self._holds.release(server):
            self._changed |= self._hosts_of(consumer)
            self._metrics.holds_swept.inc()
            LOG.info('The hold of server %s is given free: nobody works '
                     'with it.', server)
        return None

    def _with_victims(self, server: str, consumer: placement.Consumer,
                      taken: list[nova.NovaServer], waits: bool,
                      mode: model.Mode) -> Attempt | None:
        there = [item for item in taken
                 if self._provider(item) in consumer.amounts]
        # It has gone elsewhere since, and left them where they are.
        left = [item for item in taken if item not in there and
                self._provider(item)]
        if left:
            self._give_back(None, server, left, NOBODY)
        if not there:
            return None
        held = self._holds.is_one(consumer)
        if not held or waits and mode == model.Mode.PREEMPT:
            LOG.info('Room of other servers is held for %s: their end goes '
                     'on.', server)
            return self._attempt(server, consumer, Step.END, tuple(
                self._victim(item, Stage.NOTICED) for item in there))
        self._give_back(server, server, there, NOBODY)
        return None

    def _without_room(self, held: placement.Consumer) -> list[nova.NovaServer]:
        """Preemptible servers on the host of a hold without an allocation.

        Their owners delete notices, and so does another reaper that chose the
        same ones.
        """
        found: list[nova.NovaServer] = []
        for known in self._reader.on_hosts(self._hosts_of(held)):
            if self._placement.consumer(known.id).amounts:
                continue
            server = self._ends.find(known.id)
            if server and server.host == known.host and (
                    server.status in shapes.ENDABLE and
                    server.task_state in (None, 'powering-off')):
                found.append(server)
        return found

    def _give_back(self, hold_of: str | None, server: str,
                   taken: Collection[nova.NovaServer], why: str) -> None:
        """Let those live on whose room was taken.

        :param hold_of: the server whose hold has their room, None if none has
        :param server: for which it was taken
        """
        victims = [self._victim(item, Stage.NOTICED) for item in taken]
        consumers = [victim.consumer for victim in victims if victim.consumer]
        hosts = {item.id: item.host for item in taken}
        if self._holds.give_back(
                hold_of, consumers,
                lambda victim: self._ends.has_left(victim, hosts[victim])):
            self._changed |= {item.host for item in taken}
            self._ends.withdraw(victims, server, why)
        else:
            ending.tell_unallocated(victims)

    def _provider(self, server: nova.NovaServer) -> str | None:
        """The UUID of the provider of the host that a server is on."""
        hypervisor = self._reader.hypervisors.get(server.host)
        return hypervisor.uuid if hypervisor else None

    def _victim(self, server: nova.NovaServer, stage: Stage) -> Victim:
        """A victim; what it had is written down only in its flavor."""
        provider = self._provider(server)
        consumer = provider and holds.allocation(server, provider) or None
        if server.status == 'SHUTOFF' and self._stopped_by_us(server):
            stage = Stage.STOPPING
        return Victim(server.id, server.name, server.project,
                      self._reader.action(server), consumer, stage,
                      self._clock())

    def _stopped_by_us(self, server: nova.NovaServer) -> bool:
        actions = self._nova.actions(server.id)
        return bool(actions and actions[-1].action == 'stop' and
                    actions[-1].project == self._holds.project)

    def _is_whole(self, server: str, held: placement.Consumer) -> bool:
        """Whether a hold is all that the server asks for."""
        waiting = self._waiting(server)
        return waiting is not None and held.covers(waiting.shape.resources)

    def _attempt(self, server: str, consumer: placement.Consumer, step: Step,
                 victims: tuple[Victim, ...]) -> Attempt | None:
        names = self._reader.names_by_provider()
        provider = next((uuid for uuid in consumer.amounts if uuid in names),
                        None)
        waiting = self._waiting(server)
        if waiting is None:
            item = self._nova.server(server)
            waiting = model.Waiting(
                server, model.Shape.of(shapes.resources(item)),
                shapes.waits_since(item), item.project, item.user, item.name)
        if provider is None:
            return None
        return Attempt(
            waiting, names[provider], provider, step, victims=victims,
            held=consumer if self._holds.is_one(consumer) else None,
            swapped=bool(victims), since=self._clock())

    def _hosts_of(self, consumer: placement.Consumer) -> set[str]:
        """The names of the hosts on which a consumer has something."""
        names = self._reader.names_by_provider()
        return {names[uuid] for uuid in consumer.amounts if uuid in names}

    def _unmark(self, busy: Collection[str]) -> None:
        """Whom its owner has unshelved is not brought back another time."""
        for known in self._reader.back():
            if known.id in busy:
                continue
            try:
                server = self._ends.find(known.id)
                if server and shapes.is_back(server):
                    self._nova.delete_metadata(
                        server.id, (shapes.SHELVED_AT,))
            except rest.RequestFailed as error:
                LOG.info('The mark of server %s stays: %s', known.id, error)
