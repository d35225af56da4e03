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
# Seconds in which what servers ask for, and then how often a host was looked
# for, is asked for one list; and how many of the first may fail, and none be
# answered, before it is Nova that fails.
ASKING = 60.0
FAILURES = 5
# For how many servers one list asks how often a host was looked for. A server
# comes to wait in so long after its create, and is not rebuilt before.
LOOKS = 50
BURIAL = datetime.timedelta(seconds=10)
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
    """All that wait: those that are PENDING, and those that are to return.

    :ivar tries: how often a host was looked for, for some of them
    """

    servers: Mapping[str, nova.NovaServer]
    answers: Mapping[str, shapes.Answer]
    tries: Mapping[str, nova.Tries]
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
        # The last change of each server when its tries were read.
        self._tried: dict[str, datetime.datetime] = {}
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
        return WaitingList(servers, answers, self._read_tries(servers),
                           read_at, time.monotonic() - begun)

    def keep_failed(self, server: str) -> None:
        """The reaper has rebuilt a server, and its build failed."""
        self._rebuilt.add(server)

    def _is_kept(self, server: nova.NovaServer) -> bool:
        """Whether a server in ERROR keeps its place in the queue."""
        return server.failed and (
            server.id in self._rebuilt or shapes.has_asked(server))

    def _read_failed(self) -> dict[str, nova.NovaServer]:
        found = {}
        for uuid in self._failed.keys() | self._rebuilt:
            try:
                server = self._reader.nova.server(uuid)
            except rest.NotFound:
                self._rebuilt.discard(uuid)
                continue
            except nova.CellDown:
                if uuid in self._failed:
                    found[uuid] = self._failed[uuid]
                continue
            if self._is_kept(server):
                found[uuid] = server
            elif server.launched_at:
                self._rebuilt.discard(uuid)
        self._failed = found
        return found

    def _read_tries(self, servers: Mapping[str, nova.NovaServer]
                    ) -> dict[str, nova.Tries]:
        """The tries of servers that were rebuilt since they were looked at.

        Of so many as are LOOKS, as far as there is time: one request for each.
        """
        self._tried = {server: at for server, at in self._tried.items()
                       if server in servers}
        found: dict[str, nova.Tries] = {}
        end = time.monotonic() + ASKING
        for server in servers.values():
            if len(found) == LOOKS or time.monotonic() >= end:
                break
            if tries := self.read_tries(server):
                found[server.id] = tries
        return found

    def read_tries(self, server: nova.NovaServer) -> nova.Tries | None:
        """The tries of a server, None if nothing has changed."""
        known = self._tried.get(server.id, server.created_at + BURIAL)
        if server.shelved or server.updated_at <= known:
            return None
        try:
            tries = self._reader.nova.tries(server.id)
        except rest.RequestFailed as error:
            LOG.info('How often a host was looked for, for server %s, is '
                     'looked at later: %s', server.id, error)
            return None
        self._tried[server.id] = server.updated_at
        return tries

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
                 ) -> tuple[nova.NovaServer, shapes.Answer,
                            nova.Tries | None] | None:
        """One server, None if it does not wait."""
        try:
            server = self._reader.nova.server(uuid)
        except rest.NotFound:
            return None
        if not server.waits and not self._is_kept(server):
            return None
        answer = self.answer(server, classes)
        if answer is None:
            return None
        self._learn([answer])
        return server, answer, self.read_tries(server)

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

    def read_all(self) -> FullList:
        """Everything.

        :raises: rest.RequestFailed if any part cannot be read: half a
            list is none
        """
        begun, read_at = time.monotonic(), timeutils.utcnow(True)
        self._reader.nova.client.look_again()
        hypervisors = self._reader.read_hypervisors()
        if not self._reader.hypervisors:
            self._reader.keep_hypervisors(hypervisors)
        self._reader.read_properties()
        self._reader.read_preemptible()
        self._reader.read_having(self._shapes.expressions(), again=True)
        self._reader.read_shared(hypervisors)
        hosts = self._reader.read_hosts(hypervisors)
        self._shapes.forget()
        # The lists until the next one of all read each of these by itself.
        # Nova leaves out those of cells that are down.
        self._failed |= {
            server.id: server
            for server in self._reader.nova.servers(status='ERROR')
            if self._is_kept(server)}
        waiting = self.read_waiting(reader.classes(hosts.values()))
        if not waiting.servers and (
                found := self._reader.nova.count_not_placed(read_at - HOUR)):
            LOG.warning(
                'No server waits, but %d that were created within the hour '
                'found no host and are in ERROR: nova-conductor seems to run '
                'without "use_pending_state = true".', found)
        return self._full(hypervisors, hosts, waiting, read_at, begun)

    def read_changes(self, since: datetime.datetime,
                     views: Mapping[str, reader.HostView],
                     anew: bool = False) -> FullList:
        """What has changed since everything was read, of it the waiting all.

        A host has changed if one of its servers has, or it was not there, or
        Nova says something else of it.

        :param since: when that reading began
        :param views: the hosts as they were read then
        :param anew: whether traits, aggregates and what filters say are to be
            asked for again, too
        :raises: rest.RequestFailed
        """
        begun, read_at = time.monotonic(), timeutils.utcnow(True)
        known = dict(self._reader.hypervisors)
        hypervisors = self._reader.read_hypervisors()
        self._reader.read_properties()
        # A notice does not count as a change of the server.
        self._reader.read_preemptible()
        changed = self._reader.read_changed(since - SKEW)
        names = {server.host for server in (*changed.values(),
                                            *self._reader.under_notice())}
        names |= {name for name, view in views.items()
                  if not view.consumers.isdisjoint(changed)}
        names |= {name for name, item in hypervisors.items()
                  if name not in views or known.get(name) != item}
        if anew:
            self._reader.read_having(self._shapes.expressions(), again=True)
            self._shapes.forget()
        hosts = self._reader.read_hosts(
            {name: hypervisors[name] for name in names if name in hypervisors})
        waiting = self.read_waiting(reader.classes(views.values()))
        LOG.info('Of %d hosts %d have changed since %s.', len(hypervisors),
                 len(hosts), since)
        return self._full(hypervisors, hosts, waiting, read_at, begun)

    def _full(self, hypervisors: Mapping[str, nova.Hypervisor],
              hosts: Mapping[str, reader.HostView | None],
              waiting: WaitingList, read_at: datetime.datetime, begun: float
              ) -> FullList:
        # Traits that only servers on the list ask for are read after the
        # hosts.
        whole = {name: view and self._reader.with_traits(view)
                 for name, view in hosts.items()}
        return FullList(hypervisors, whole, waiting, read_at,
                        time.monotonic() - begun)


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
