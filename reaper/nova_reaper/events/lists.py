# SPDX-License-Identifier: Apache-2.0

"""Reads lists, which find what notifications did not tell.

A job reads the lists, and the engine applies them a part at a time, so that a
long list holds nothing up. If a host was read meanwhile, that read counts.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import functools
import heapq
import itertools
import math
import time
from typing import Any
from typing import TypeVar

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.events import reader

LOG = log.getLogger(__name__)
T = TypeVar('T')
# What Nova says that servers of a kind ask for, None if Nova does not say it,
# and the names of hosts that have room for such a server.
Offer = tuple[shapes.Answer | None, list[str]]
# What there is to read; the names of jobs, too.
FULL = 'full list'
CHANGES = 'list of what has changed'
FIRST_HOSTS = 'first hosts'
NEXT_HOSTS = 'next hosts with room'
# How often the list of changes is tried before everything is read, and how
# many servers of one kind Nova may fail over in one list.
TRIES = 3
# Seconds in which a list asks Nova what servers ask for; and how many failed
# requests, without any answer, mean that Nova has failed.
ASKING = 60.0
FAILURES = 5
AT_ONCE = 8  # requests of this kind
# In a cloud with more hosts than FEW the reaper looks for hosts with room, or
# with servers that may end, before it reads all hosts: for FIRST servers, of
# AT_ONCE kinds, and FIRST hosts at most, ROUNDS times at most.
FEW = 64
FIRST = 32
ROUNDS = 16
# Seconds after which Nova is asked again what a server asks for.
LASTS = 3600.0
PAUSE = 10.0  # seconds in which changes of aggregates count once
# The clocks of Nova's hosts may be behind, and writes late, by so much.
SKEW = datetime.timedelta(seconds=60)
HOUR = datetime.timedelta(hours=1)
NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingList:
    """Servers that are PENDING, and shelved servers that are to return.

    :ivar gone: the IDs of servers that wait no more, None if all that wait are
        on the list
    """

    servers: Mapping[str, nova.NovaServer]
    answers: Mapping[str, shapes.Answer]
    read_at: datetime.datetime
    gone: frozenset[str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class HostList:
    """Hosts of Nova, and what Placement knows of them.

    :ivar hosts: by name, None for a host that Placement does not know
    """

    hypervisors: Mapping[str, nova.Hypervisor]
    hosts: Mapping[str, reader.HostView | None]

    @property
    def unknown(self) -> int:
        """How many hosts Placement does not know."""
        return sum(view is None for view in self.hosts.values())

    @property
    def bare(self) -> tuple[int, int]:
        """How many hosts have no inventory at all, and of how many.

        Only hosts that are up and enabled count: other hosts may have no
        inventory for good reason. If no host is up and enabled, all hosts
        count. A host that was not read has not changed.
        """
        names = [name for name, item in self.hypervisors.items()
                 if item.up and item.enabled] or list(self.hypervisors)
        views = [self.hosts.get(name) for name in names]
        return (sum(view is not None and not view.host.inventory
                    for view in views), len(names))


@dataclasses.dataclass(frozen=True, slots=True)
class FullList(HostList):
    """All hosts and waiting servers, or those that have changed.

    :ivar failed: the names of hosts that could not be read
    :ivar read_at: when the reading began
    """

    waiting: WaitingList
    read_at: datetime.datetime
    seconds: float
    failed: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class First(HostList):
    """The first servers that wait, and the hosts that are read for them.

    :ivar hypervisors: all hosts, if all are read; otherwise none, and the
        hosts are some on which Placement has room
    :ivar servers: servers for which no attempt has begun
    :ivar noticed: whether servers have notice
    """

    servers: Mapping[str, nova.NovaServer]
    answers: Mapping[str, shapes.Answer]
    noticed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Ahead:
    """How to build servers before all hosts are read.

    :ivar ends: whether other servers may be ended for them
    :ivar wait: the option of that name
    :ivar share: gives the share of a project in what was given
    """

    ends: bool
    wait: model.Wait
    share: Callable[[str], float]


class Lists:
    """Reads lists by the reader, and asks Nova for shapes on the lists.

    :ivar failed_before: IDs of servers that are to keep their places if a list
        of all servers shows them in ERROR, for their builds have failed for
        an earlier reaper
    """

    def __init__(self, source: reader.Reader, forms: shapes.Shapes) -> None:
        self._reader = source
        self._shapes = forms
        # IDs of servers over which Nova failed in the last list: they come
        # last.
        self._failing: set[str] = set()
        # The servers in ERROR that keep their places, as they were read last,
        # and the IDs of those that the reaper has rebuilt.
        self._failed: dict[str, nova.NovaServer] = {}
        self._rebuilt: set[str] = set()
        self.failed_before: frozenset[str] = frozenset()
        # Servers that wait, and of which Nova has not said yet what they ask
        # for.
        self._unknown: dict[str, nova.NovaServer] = {}

    def read_first(self, ahead: Ahead) -> Iterator[First]:
        """Read the first servers that wait and hosts for them, and the next.

        Placement names the hosts that have room. The list of everything, which
        waits for the first item, has the servers and hosts that cannot be
        looked at now, or within ASKING seconds of an item. In a cloud of few
        hosts that list is read as soon as an item would be: there is no item.

        :raises: rest.RequestFailed if a list of Nova's cannot be read
        """
        source = self._reader
        hypervisors = source.read_hypervisors()
        source.keep_hypervisors(hypervisors)
        if len(hypervisors) <= FEW:
            return
        source.read_properties()
        waiting = collections.deque(self._sorted(
            source.nova.servers(status='PENDING'), ahead))
        if not waiting:
            return
        source.read_preemptible()
        source.read_shared(hypervisors)
        outlines = (self._or_none(source.outline, hypervisors, FEW)
                    if ahead.ends else None) or {}
        # By the kind of the servers that were looked at.
        known: dict[str, Offer] = {}
        # The hosts that were read for these servers, by name.
        views: dict[str, reader.HostView] = {}
        # All hosts, until the first item has told of them.
        untold: Mapping[str, nova.Hypervisor] = hypervisors if outlines else {}
        for left in reversed(range(ROUNDS)):
            end = time.monotonic() + ASKING
            kinds = self._next_kinds(waiting, known, bool(outlines))
            # A kind without room comes again if all hosts are known by now.
            offers = {key: known[key] if key in known and not known[key][1]
                      else self._offered(some)
                      for key, some in kinds.items() if time.monotonic() < end}
            known |= offers
            # Which resource classes hosts have is not known yet: the list of
            # everything asks again.
            self._shapes.forget(keys=kinds)
            # The first host of each kind, then the second host of each kind.
            names = list(dict.fromkeys(
                name for names in itertools.zip_longest(*(
                    names for _, names in offers.values()))
                for name in names if name))
            for name in [name for name in names if name not in views][:FIRST]:
                view = self._or_none(source.read_host, name) if (
                    time.monotonic() < end) else None
                if view and view.host.inventory:
                    views[name] = view
            marked = {server.metadata[shapes.FOR]
                      for server in source.under_notice()}
            servers: dict[str, nova.NovaServer] = {}
            answers: dict[str, shapes.Answer] = {}
            for key, (answer, offered) in offers.items():
                if answer is None or not (offered or outlines):
                    continue
                for server in kinds[key]:
                    if server.id not in marked and time.monotonic() < end and (
                            self._or_none(source.has_allocation, server.id)
                            is False):
                        servers[server.id], answers[server.id] = server, answer
            if servers or waiting and left:
                yield First(
                    untold, {name: outlines.get(name) for name in untold} | {
                        name: views[name] for name in names if name in views},
                    servers, answers, bool(marked))
                untold = {}
            if not waiting:
                return

    def _sorted(self, servers: Iterable[nova.NovaServer], ahead: Ahead
                ) -> list[nova.NovaServer]:
        """Sort servers about as the queue, which lacks them yet, would do.

        Of projects with equal shares each has a server in turn.
        """
        turns: collections.Counter[tuple[int, str]] = collections.Counter()
        ranked: list[tuple[int, float, int, int, nova.NovaServer]] = []
        for server in sorted(servers, key=lambda server: server.created_at):
            waiting = shapes.waiting(
                server, shapes.Answer(model.Shape(()), ()),
                self._reader.properties.get(server.project, {}))
            if not server.waits or not waiting.is_wanted(ahead.wait):
                continue
            level = -waiting.priority, server.project
            turns[level] += 1
            ranked.append((-waiting.priority, ahead.share(server.project),
                           turns[level], len(ranked), server))
        return [rank[-1] for rank in sorted(ranked)]

    def _next_kinds(self, waiting: collections.deque[nova.NovaServer],
                    known: Mapping[str, Offer], outlined: bool
                    ) -> dict[str, list[nova.NovaServer]]:
        """Take the next servers by kind.

        Kinds that have no room are left out unless all hosts are known.
        """
        kinds: dict[str, list[nova.NovaServer]] = {}
        taken = 0
        while waiting and taken < FIRST:
            key = self._shapes.key(waiting[0])
            if key not in kinds and len(kinds) == AT_ONCE:
                break
            server = waiting.popleft()
            if outlined or known.get(key, (None, [key]))[1]:
                kinds.setdefault(key, []).append(server)
                taken += 1
        return kinds

    def _offered(self, servers: Sequence[nova.NovaServer]) -> Offer:
        """Return what a kind of servers asks for, and hosts with room."""
        for server in servers[:TRIES]:
            answer = self._or_none(self._first_answer, server)
            if answer:
                return answer, [
                    name for request in answer.requests
                    for name in self._or_none(
                        self._reader.offered, request, FIRST) or ()]
        return None, []

    def _first_answer(self, server: nova.NovaServer) -> shapes.Answer | None:
        """Return what a server asks for when it is known who has the traits.

        Otherwise hosts that have a forbidden trait would seem to fit.
        """
        answer = self.answer(server, shapes.OWN)
        if answer:
            self._learn([answer])
        return answer

    @staticmethod
    def _or_none(call: Callable[..., T], *args: Any) -> T | None:
        """Return what a function returns, None if a service fails."""
        try:
            return call(*args)
        except rest.RequestFailed as error:
            LOG.warning('It is left to the list of all hosts: %s', error)
            return None

    def read_waiting(self, classes: Collection[str],
                     changed: Mapping[str, nova.NovaServer] | None = None,
                     waiting: Iterable[nova.NovaServer] = ()) -> WaitingList:
        """Read the servers that wait, and what they ask for.

        :param classes: the resource classes that some host has
        :param changed: the servers that have changed, None to list all that
            wait
        :param waiting: all that wait, as they were read last
        """
        read_at, gone = timeutils.utcnow(True), None
        listed = (self._reader.nova.servers(status='PENDING')
                  if changed is None else changed.values())
        before = {*(changed or ()), *self._failed, *self._rebuilt}
        servers = {server.id: server for server in (
            *listed, *self._reader.shelved())
            if server.waits or reader.is_to_return(server)}
        servers |= self._read_failed()
        if changed is not None:
            gone = frozenset(before - servers.keys())
            servers |= {server.id: server for server in (
                *self._unknown.values(),
                *(waiting if self._shapes.stale else ()))
                if server.id not in before and not self._shapes.fresh(server)}
        answers = self._answers(servers.values(), classes)
        if changed is None:
            self._shapes.keep_only({self._shapes.key(server)
                                    for server in servers.values()},
                                   set(servers))
        self._learn(answers.values())
        return WaitingList(servers, answers, read_at, gone)

    def keep_failed(self, server: str) -> None:
        """Have a server keep its place whose build failed for the reaper."""
        self._rebuilt.add(server)

    def _is_kept(self, server: nova.NovaServer) -> bool:
        """Return whether a server in ERROR keeps its place in the queue."""
        return server.failed and (
            server.id in self._rebuilt or server.id in self.failed_before or
            shapes.has_asked(server)) and (
                shapes.wait(server, self._reader.properties.get(
                    server.project, {})) is not model.Wait.NEVER)

    def _read_failed(self) -> dict[str, nova.NovaServer]:
        found = {}
        for uuid in self._failed.keys() | self._rebuilt:
            try:
                server = self._reader.nova.find(uuid)
            except nova.CellDown:
                if uuid in self._failed:
                    found[uuid] = self._failed[uuid]
                continue
            if server and self._is_kept(server):
                found[uuid] = server
            elif server is None or server.launched_at:
                self._rebuilt.discard(uuid)
        self._failed = found
        return found

    def _answers(self, servers: Collection[nova.NovaServer],
                 classes: Collection[str]) -> dict[str, shapes.Answer]:
        """Return what servers ask for, as far as Nova says so in time.

        Hints, which owners may make up for each server, and servers over which
        Nova fails must not keep all others from being known: what is left
        over has the answer of before, if any, until the next list.

        :raises: the last error if Nova fails over FAILURES servers and has
            answered for no server
        """
        answers = {server.id: known for server in servers
                   if (known := self._shapes.fresh(server))}
        # Servers of which nothing is known come first, of each project one
        # after another, and those over which Nova has failed come last.
        unknown = [server for server in servers if server.id not in answers]
        turns: collections.Counter[str] = collections.Counter()
        places = {}
        for server in unknown:
            turns[server.project] += 1
            places[server.id] = (
                server.id in self._failing,
                self._shapes.known(server) is not None,
                turns[server.project])
        # The list asks Nova for one server of a kind, and for the next server
        # only if the request fails, or the server waits no more.
        kinds: dict[str, list[nova.NovaServer]] = {}
        for server in sorted(unknown, key=lambda server: places[server.id]):
            kinds.setdefault(self._shapes.key(server), []).append(server)
        left = collections.deque(kinds.values())
        end = time.monotonic() + ASKING
        told = False
        failed: dict[str, rest.RequestFailed] = {}
        while left and time.monotonic() < end:
            some = [left.popleft() for _ in range(min(AT_ONCE, len(left)))]
            for servers, said in zip(some, self._reader.at_once(
                    functools.partial(self._try, classes),
                    [servers[0] for servers in some])):
                if isinstance(said, shapes.Answer):
                    told = True
                    continue
                if said:
                    failed[servers[0].id] = said
                    LOG.warning('What server %s asks for is looked at later: '
                                '%s', servers[0].id, said)
                    if len(failed) == FAILURES and not told:
                        self._failing |= failed.keys()
                        raise said
                tried = sum(server.id in failed for server
                            in kinds[self._shapes.key(servers[0])])
                if len(servers) > 1 and tried < TRIES:
                    left.append(servers[1:])
        self._failing = set(failed)
        answers |= {server.id: known for server in unknown
                    if (known := self._shapes.known(server))}
        self._unknown = {server.id: server for server in unknown
                         if server.id not in answers}
        return answers

    def _try(self, classes: Collection[str], server: nova.NovaServer
             ) -> shapes.Answer | rest.RequestFailed | None:
        """Return what a server asks for, or why that is not known."""
        try:
            return self.answer(server, classes)
        except rest.RequestFailed as error:
            return error

    def read_one(self, uuid: str, classes: Collection[str]
                 ) -> tuple[nova.NovaServer | None, shapes.Answer | None]:
        """Read a server, None if it is gone, and what it asks for if it waits.
        """
        server = self._reader.nova.find(uuid)
        if server is None or not (server.waits or self._is_kept(server)):
            return server, None
        answer = self.answer(server, classes)
        if answer:
            self._learn([answer])
        return server, answer

    def answer(self, server: nova.NovaServer, classes: Collection[str]
               ) -> shapes.Answer | None:
        """Return what a server asks for, None if it has ceased to wait.

        :raises: rest.RequestFailed if Nova fails, or nobody can read its
            answer
        """
        known = self._shapes.fresh(server)
        if known:
            return known
        try:
            return self._shapes.ask(
                server, self._reader.names_by_provider(), classes,
                self._reader.shared, self._reader.below,
                self._reader.beside)
        except (rest.NotFound, rest.Conflict):
            return None
        except ValueError as error:
            raise rest.Unavailable(
                'nova', f'what server {server.id} asks for',
                f'the answer cannot be read: {error}', 200) from error

    def _learn(self, answers: Iterable[shapes.Answer]) -> None:
        """Ask Placement for traits and aggregates that are new."""
        self._reader.read_having({
            name for answer in answers for name in answer.shape.expressions})

    def read_hosts(self, since: datetime.datetime | None = None,
                   views: Mapping[str, reader.HostView] | None = None,
                   waiting: Collection[nova.NovaServer] = (),
                   whole: bool = True, anew: bool = True, oldest: int = 0
                   ) -> FullList:
        """Read everything, or what has changed and some hosts that have not.

        A host has changed if one of its servers has, if the host was not there
        before, or only by its outline, or if Nova says something else of the
        host.

        :param since: when the last reading began, None to read everything
        :param views: the hosts as they were read then
        :param waiting: the servers that wait, as they were read then
        :param whole: whether all servers are listed, and not only those that
            have changed: a notice does not count as a change
        :param anew: whether to ask again what servers ask for
        :param oldest: how many of the hosts that were read longest ago are
            read, too
        :raises: rest.RequestFailed if a list of Nova's cannot be read, or too
            many hosts cannot be read
        """
        begun, read_at = time.monotonic(), timeutils.utcnow(True)
        source = self._reader
        if whole:
            source.nova.client.look_again()
        known = dict(source.hypervisors)
        hypervisors = source.read_hypervisors()
        if not known:
            source.keep_hypervisors(hypervisors)
        source.read_properties()
        if whole or source.has_other_marks():
            source.read_preemptible()
        changed = {} if since is None else source.read_changed(since - SKEW)
        before = views or {}
        among = hypervisors if since is None else {
            name: hypervisors[name]
            for name in self._changed(changed, before, known, hypervisors) |
            set(heapq.nsmallest(
                oldest, before.keys() & hypervisors.keys(),
                key=lambda name: before[name].whole_at))}
        if anew or whole:
            source.read_having(self._shapes.expressions(), again=True)
            self._shapes.forget(0.0 if anew else LASTS)
        if whole:
            source.read_shared(hypervisors)
            source.read_trees(bool(self._shapes.below()))
        hosts, failed = source.read_hosts(among)
        if whole:
            # Until the next list of all servers, each list reads each of these
            # servers by itself. Nova leaves out cells that are down.
            self._failed |= {server.id: server for server
                             in source.nova.servers(status='ERROR')
                             if self._is_kept(server)}
        classes = reader.classes([*(views or {}).values(), *hosts.values()])
        # Some shapes leave out a class that no host had when Nova was asked.
        self._shapes.forget(keys=self._shapes.short_of(
            classes - source.shared))
        listed = self.read_waiting(classes, None if whole else changed,
                                   waiting)
        below = self._shapes.below()
        if below and source.trees is None:
            # Only now the reaper knows what the listed servers ask for.
            source.read_trees(True)
            deeper, more = source.read_hosts({
                name: item for name, item in hypervisors.items()
                if item.uuid in (source.trees or {})})
            hosts, failed = hosts | deeper, failed | more
            self._shapes.forget(keys=below)
            listed = self.read_waiting(
                classes | reader.classes(deeper.values()),
                None if whole else changed, waiting)
        if since is not None:
            LOG.info('%d of %d hosts were read: those that have changed since '
                     '%s, and %d others.', len(hosts), len(hypervisors),
                     since, oldest)
        if whole and not listed.servers and (
                found := source.nova.count_not_placed(read_at - HOUR)):
            LOG.warning(
                'No server waits, but %d that were created within the hour '
                'found no host and are in ERROR: nova-conductor seems to run '
                'without "use_pending_state = true".', found)
        return FullList(hypervisors, hosts, listed, read_at,
                        time.monotonic() - begun, failed)

    def _changed(self, changed: Mapping[str, nova.NovaServer],
                 views: Mapping[str, reader.HostView],
                 known: Mapping[str, nova.Hypervisor],
                 hypervisors: Mapping[str, nova.Hypervisor]) -> set[str]:
        """Return the names of the hosts that have changed."""
        ids = set(changed)
        names = {server.host for server in (*changed.values(),
                                            *self._reader.under_notice())}
        names |= {name for name, view in views.items()
                  if not view.consumers.isdisjoint(ids)}
        names |= {name for name, item in hypervisors.items()
                  if name not in views or views[name].outlined or
                  known.get(name) != item}
        return names & hypervisors.keys()


class Calendar:
    """Tells which list is due when, by the monotonic clock.

    :ivar resume: whether others have acted since everything was read
    :ivar read_at: when the reading of the last list began
    :ivar whole: whether the list that is due is to have all servers
    :ivar anew: whether it is to have anew what aggregates and flavors decide
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf.reaper
        # When the last list was begun, the last list of all servers, and the
        # list of all servers before that; whether the last list of everything
        # has failed, and whether the last list was to be anew.
        self._begun_at = self._whole_at = self._whole_before = -math.inf
        self._was_anew = False
        self._has_failed = False
        self._soon = math.inf
        self.resume = False
        self._resume_at = -math.inf
        self._resumed = 0
        self.read_at = NEVER

    @property
    def next(self) -> float:
        """When the next list is due, unless one is due sooner."""
        interval: float = self._conf.pending_list_interval
        return self._begun_at + interval

    @property
    def whole(self) -> bool:
        """Whether the list that is due is to have all servers."""
        return self.resume or self._is_old

    @property
    def _is_old(self) -> bool:
        """Whether the last list of all servers is as old as may be."""
        interval: float = self._conf.full_list_interval
        return time.monotonic() >= self._whole_at + interval

    @property
    def anew(self) -> bool:
        """Whether the list that is due asks again what servers ask for."""
        return time.monotonic() >= self._soon

    @property
    def oldest(self) -> float:
        """Which part of the hosts is read though they have not changed.

        All of them have had their turn after full_list_interval.
        """
        interval: float = self._conf.full_list_interval
        return min(1.0, (time.monotonic() - self._begun_at) / interval)

    def due(self, active: bool, recovered: bool, doubted: bool = False
            ) -> str | None:
        """Return the list that is to be read now, None if there is none.

        :param active: whether this is the reaper that acts; another reaper
            reads less often
        :param recovered: whether this reaper knows what others have begun
        :param doubted: whether the next list of all servers is to be a list of
            everything
        """
        now = time.monotonic()
        if self.read_at == NEVER:
            is_due = now >= self.next if self._has_failed else (
                self._is_old or active and self.resume)
            return FULL if is_due else None
        if active and self.resume:
            return CHANGES if now >= self._resume_at else None
        if active and not recovered:
            return None
        if doubted and self._is_old and now >= self.next:
            return FULL
        return CHANGES if self.anew or (
            now >= self.next if active else self._is_old) else None

    def began(self, name: str | None) -> None:
        """Note that a list is being read."""
        self._begun_at, self._was_anew = time.monotonic(), self.anew
        self._whole_before = self._whole_at
        if self.whole:
            self._whole_at = self._begun_at
        if name == FULL:
            self._has_failed = False
            self._resumed = 0
        else:
            self._resumed = self._resumed + 1 if self.resume else 0
        self.resume = False
        if self._was_anew:
            self._soon = math.inf

    def failed(self, name: str, recovered: bool) -> None:
        """Note that a list could not be read, and when to read the next."""
        self._whole_at = self._whole_before
        if self._was_anew:
            self.read_soon()
        if name == FULL:
            self._has_failed = True
        elif not recovered and self._resumed < TRIES:
            # A large cloud is not read anew after a single error: the next
            # list goes on where this list has failed.
            self.resume = True
            self._resume_at = time.monotonic() + PAUSE
        elif not recovered:
            self.read_at, self._has_failed = NEVER, True

    def read_soon(self) -> None:
        """Have a list read soon, with what aggregates and flavors decide."""
        self._soon = min(self._soon, time.monotonic() + PAUSE)
