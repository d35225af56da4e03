# SPDX-License-Identifier: Apache-2.0

"""The lists that heal what notifications did not tell.

They are read by a thread of their own, and applied by the engine: a long list
holds nobody up. What was read of a host meanwhile is newer, and stays.
"""

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import datetime
import math
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes
from nova_reaper.events import reader

LOG = log.getLogger(__name__)
# What there is to read; the names of jobs, too.
FULL = 'full list'
WAITING = 'list of servers that wait'
CHANGES = 'list of what has changed'
ROOM = 'list of servers that wait and of hosts that have changed'
SHAPES = 'list of what filters say'
# How often the list of changes is tried before everything is read, and how
# many servers of one kind Nova may fail over in one list.
TRIES = 3
# Seconds in which what servers ask for is asked for one list; and how many of
# these requests may fail, and none be answered, before it is Nova that fails.
ASKING = 60.0
FAILURES = 5
PAUSE = 10.0  # seconds in which a flood of changes of aggregates is one
# Between two lists of what filters say is a pause of so many times what the
# first has taken: Nova's schedulers are asked about all hosts, and have others
# to serve.
REST = 5
# By so much the clocks of Nova's hosts may be behind, and writes be late.
SKEW = datetime.timedelta(seconds=60)
HOUR = datetime.timedelta(hours=1)
NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingList:
    """All that wait: those that are PENDING, and those that are to return."""

    servers: Mapping[str, nova.NovaServer]
    answers: Mapping[str, shapes.Answer]
    read_at: datetime.datetime
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class FullList:
    """Everything, or all that has changed of it.

    :ivar hosts: None for one of which Placement knows nothing
    :ivar read_at: when the reading began
    """

    hypervisors: Mapping[str, nova.Hypervisor]
    hosts: Mapping[str, reader.HostView | None]
    waiting: WaitingList
    read_at: datetime.datetime
    seconds: float

    @property
    def unknown(self) -> int:
        """How many hosts Placement does not know."""
        return sum(view is None for view in self.hosts.values())

    @property
    def bare(self) -> tuple[int, int]:
        """How many hosts have no inventory at all, and of how many.

        Of those that are up and enabled: others may have none for good
        reason. Where no host is, of all. What was not read has not changed.
        """
        names = [name for name, item in self.hypervisors.items()
                 if item.up and item.enabled] or list(self.hypervisors)
        views = [self.hosts.get(name) for name in names]
        return (sum(view is not None and not view.host.inventory
                    for view in views), len(names))


class Lists:
    """Reads lists by the reader, and asks for the shapes on them."""

    def __init__(self, source: reader.Reader, forms: shapes.Shapes) -> None:
        self._reader = source
        self._shapes = forms
        # IDs of servers over which Nova failed in the last list: their turn is
        # the last.
        self._failing: set[str] = set()
        # The servers in ERROR that keep their places, as they were read last,
        # and the IDs of those that the reaper has rebuilt.
        self._failed: dict[str, nova.NovaServer] = {}
        self._rebuilt: set[str] = set()

    def read_waiting(self, classes: Collection[str]) -> WaitingList:
        """All that wait, with what they ask for.

        :param classes: the resource classes that some host has
        """
        begun = time.monotonic()
        read_at = timeutils.utcnow(True)
        servers = {server.id: server for server in (
            *self._reader.nova.servers(status='PENDING'),
            *self._reader.shelved()) if server.waits or server.shelved}
        servers |= self._read_failed()
        answers = self._answers(servers.values(), classes)
        self._shapes.keep_only({self._shapes.key(server)
                                for server in servers.values()},
                               set(servers))
        self._learn(answers.values())
        return WaitingList(servers, answers, read_at,
                           time.monotonic() - begun)

    def keep_failed(self, server: str) -> None:
        """The reaper has rebuilt a server, and its build failed."""
        self._rebuilt.add(server)

    def _is_kept(self, server: nova.NovaServer) -> bool:
        """Whether a server in ERROR keeps its place in the queue."""
        return server.failed and (
            server.id in self._rebuilt or shapes.has_asked(server)) and (
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
        """What servers ask for, as far as Nova says so in the time there is.

        Hints, which owners may make up for each server, and servers over which
        Nova fails must not keep all others from being known: what is left
        over has the answer of before, if any, until the next list.

        :raises: rest.RequestFailed where Nova fails over one after another,
            and over none not
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
        end = time.monotonic() + ASKING
        told = False
        failed: set[str] = set()
        of_kind: collections.Counter[str] = collections.Counter()
        for server in sorted(unknown, key=lambda server: places[server.id]):
            answer, kind = self._shapes.known(server), self._shapes.key(server)
            if time.monotonic() < end and of_kind[kind] < TRIES:
                try:
                    answer, told = self.answer(server, classes), True
                except (rest.RequestFailed, ValueError) as error:
                    failed.add(server.id)
                    of_kind[kind] += 1
                    LOG.warning('What server %s asks for is looked at later: '
                                '%s', server.id, error)
                    if len(failed) == FAILURES and not told:
                        self._failing |= failed
                        raise
            if answer:
                answers[server.id] = answer
        self._failing = failed
        return answers

    def read_one(self, uuid: str, classes: Collection[str]
                 ) -> tuple[nova.NovaServer, shapes.Answer] | None:
        """One server, None if it does not wait."""
        server = self._reader.nova.find(uuid)
        if server is None or not (server.waits or self._is_kept(server)):
            return None
        answer = self.answer(server, classes)
        if answer is None:
            return None
        self._learn([answer])
        return server, answer

    def answer(self, server: nova.NovaServer, classes: Collection[str]
               ) -> shapes.Answer | None:
        """What a server asks for, None if it has just ceased to wait."""
        known = self._shapes.fresh(server)
        if known:
            return known
        try:
            return self._shapes.ask(
                server, self._reader.names_by_provider(), classes,
                self._reader.shared)
        except (rest.NotFound, rest.Conflict):
            return None

    def _learn(self, answers: Iterable[shapes.Answer]) -> None:
        """Ask Placement for traits and aggregates that are new."""
        expressions: set[str] = set()
        for answer in answers:
            expressions |= answer.shape.required | answer.shape.member_of
        self._reader.read_having(expressions)

    def read_hosts(self, since: datetime.datetime | None = None,
                   views: Mapping[str, reader.HostView] | None = None,
                   anew: bool = True) -> FullList:
        """Everything, or the hosts that have changed and all that wait.

        A host has changed if one of its servers has, if the host was not there
        before, or if Nova says something else of the host.

        :param since: when the last reading of everything began, None to read
            everything
        :param views: the hosts as they were read then
        :param anew: whether to ask again for traits, for aggregates and for
            what filters say
        :raises: rest.RequestFailed if any part cannot be read: half a list is
            none
        """
        begun, read_at = time.monotonic(), timeutils.utcnow(True)
        source, whole = self._reader, since is None
        if whole:
            source.nova.client.look_again()
        known = dict(source.hypervisors)
        hypervisors = source.read_hypervisors()
        if not known:
            source.keep_hypervisors(hypervisors)
        source.read_properties()
        # A notice does not count as a change of the server.
        source.read_preemptible()
        among = hypervisors if since is None else {
            name: hypervisors[name] for name in self._changed(
                since, views or {}, known, hypervisors)}
        if anew:
            source.read_having(self._shapes.expressions(), again=True)
            self._shapes.forget()
        if whole:
            source.read_shared(hypervisors)
        hosts = source.read_hosts(among)
        if whole:
            # The lists until the next one of all read each of these by itself.
            # Nova leaves out those of cells that are down.
            self._failed |= {server.id: server for server
                             in source.nova.servers(status='ERROR')
                             if self._is_kept(server)}
        waiting = self.read_waiting(reader.classes(
            hosts.values() if views is None else views.values()))
        if not whole:
            LOG.info('Of %d hosts %d have changed since %s.',
                     len(hypervisors), len(hosts), since)
        elif not waiting.servers and (
                found := source.nova.count_not_placed(read_at - HOUR)):
            LOG.warning(
                'No server waits, but %d that were created within the hour '
                'found no host and are in ERROR: nova-conductor seems to run '
                'without "use_pending_state = true".', found)
        # Traits that only servers on the list ask for are read after the
        # hosts.
        return FullList(hypervisors, {
            name: view and source.with_traits(view)
            for name, view in hosts.items()}, waiting, read_at,
            time.monotonic() - begun)

    def _changed(self, since: datetime.datetime,
                 views: Mapping[str, reader.HostView],
                 known: Mapping[str, nova.Hypervisor],
                 hypervisors: Mapping[str, nova.Hypervisor]) -> set[str]:
        """The names of the hosts that have changed."""
        changed = self._reader.read_changed(since - SKEW)
        names = {server.host for server in (*changed.values(),
                                            *self._reader.under_notice())}
        names |= {name for name, view in views.items()
                  if not view.consumers.isdisjoint(changed)}
        names |= {name for name, item in hypervisors.items()
                  if name not in views or known.get(name) != item}
        return names & hypervisors.keys()


class Calendar:
    """When which list is due, by the monotonic clock.

    :ivar resume: whether others have acted since everything was read
    :ivar read_at: when that was
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf.reaper
        self._pending_at = self._full_at = -math.inf
        self._full_failed = False
        self._soon: float | None = None
        self._not_before = -math.inf
        self.resume = False
        self._resume_at = -math.inf
        self._resumed = 0
        self._last: str | None = None
        self.read_at = NEVER

    @property
    def pending(self) -> float:
        """When those that wait are to be listed again."""
        interval: float = self._conf.pending_list_interval
        return self._pending_at + interval

    @property
    def full(self) -> float:
        """When everything is to be listed again."""
        due: float = self._full_at + self._conf.full_list_interval
        return min(due, self.pending) if self._full_failed else due

    def due(self, active: bool, recovered: bool, hears: bool = True
            ) -> str | None:
        """The list that is to be read now, None if there is none.

        :param hears: whether notifications come: without them each list of
            servers that wait is one of hosts, too
        :param active: whether this is the reaper that acts
        :param recovered: whether it knows what was begun by others
        """
        now = time.monotonic()
        if active and self.resume and self.read_at > NEVER:
            return CHANGES if now >= self._resume_at else None
        if now >= self.full:
            return FULL
        if self._soon is not None and now >= max(self._soon,
                                                 self._not_before):
            return SHAPES if self.read_at > NEVER else FULL
        known = recovered or not active and self.read_at > NEVER
        if now >= self.pending and known:
            return WAITING if hears or self.read_at == NEVER else ROOM
        return None

    def began(self, name: str | None) -> None:
        """A list is being read."""
        self._pending_at = time.monotonic()
        self._last = name
        if name == FULL:
            self._full_at = self._pending_at
            self._full_failed = False
            self._resumed = 0
            self._soon = None
        if name == CHANGES:
            self.resume = False
            self._resumed += 1
        if name == SHAPES:
            self._soon = None

    def failed(self, name: str) -> None:
        """A list could not be read: it is not waited for until the next."""
        if name == FULL and self._last == CHANGES and self._resumed < TRIES:
            # A large cloud is not read anew after a single error: the next
            # list goes on where this list has failed.
            self.resume = True
            self._resume_at = time.monotonic() + PAUSE
        elif self._last != ROOM:
            self._full_failed = self._full_failed or name == FULL

    def took(self, seconds: float) -> None:
        """A list with what filters say has been read."""
        self._not_before = time.monotonic() + REST * seconds

    def read_soon(self) -> None:
        """Have what filters say read again, but not more often than needed."""
        if self._soon is None:
            self._soon = time.monotonic() + PAUSE
