# SPDX-License-Identifier: Apache-2.0

"""Reads Nova and Placement into the classes of cloud/model.py.

The reader keeps from the last list what a read of a single host needs: which
server is preemptible, which provider has which trait. A hint about a server
has that server read again. The module also has the jobs that threads run.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import dataclasses
import datetime
import functools
import queue
import threading
import time
from typing import TypeVar

from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_log import log

from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model

LOG = log.getLogger(__name__)
T = TypeVar('T')
U = TypeVar('U')
# Seconds after which a host that could not be read is read again.
AGAIN = 10.0
# If a larger part of many hosts than one of so many cannot be read, Placement
# is taken to have failed.
SHARE = 10
# Seconds for which a list goes by what it read of use of a sharing provider.
SHARED_AGE = 1.0
# read_room() looks at fewer candidates of Placement than this.
MANY = 100
GONE = ('DELETED', 'SOFT_DELETED')
# A host that is full for servers mostly has some of these classes left.
OUTLINED = ('MEMORY_MB', 'DISK_GB', 'VCPU', 'PCPU')


@dataclasses.dataclass(frozen=True, slots=True)
class HostView:
    """A host, its preemptible servers, and who else has something on it.

    :ivar read_at: when the reading began, by the monotonic clock
    :ivar whole_at: when the inventory, too, was read last
    :ivar outlined: whether the host was read together with all others, by
        Reader.outline()
    """

    host: model.Host
    servers: tuple[model.Server, ...]
    consumers: frozenset[str]
    read_at: float
    whole_at: float = 0.0
    outlined: bool = False


class Reader:
    """Reads Nova, Placement and Keystone; safe for threads.

    :param pool: threads for requests at the same time
    """

    def __init__(self, compute: nova.Nova, room: placement.Placement,
                 identity: rest.Keystone,
                 pool: futures.Executor, conf: cfg.ConfigOpts) -> None:
        self.nova = compute
        self._placement = room
        self._keystone = identity
        self._pool = pool
        self._conf = conf.reaper
        self._lock = threading.Lock()
        self.hypervisors: dict[str, nova.Hypervisor] = {}
        self.preemptible: dict[str, nova.NovaServer] = {}
        # Names of the flavors that bear the mark now, and of those that limit
        # the run time of their servers now.
        self._marked: frozenset[str] = frozenset()
        self._limited: frozenset[str] = frozenset()
        self.properties: Mapping[str, Mapping[str, str]] = {}
        # Servers that were read one by one while a list of all was read.
        self._meanwhile: dict[str, nova.NovaServer | None] = {}
        # The classes that providers share with no host that is known; by the
        # UUID of a host the other providers that share with the host; and
        # what is used of these, with the time of the reading.
        self.shared: frozenset[str] = frozenset()
        self.sharing: Mapping[str, Sequence[model.Provider]] = {}
        self._used: dict[str, tuple[float, Mapping[str, int]]] = {}
        # The UUIDs of the providers below, by the UUID of the host's own
        # provider, None as long as no server asks for anything below hosts;
        # and the resource classes that the providers below have.
        self.trees: Mapping[str, list[str]] | None = None
        self.below: frozenset[str] = frozenset()
        # UUIDs of providers of which several threads have learnt traits or
        # aggregates.
        self._learned: set[str] = set()
        self._having: dict[str, set[str]] = {}
        self._locked: dict[str, tuple[datetime.datetime, bool]] = {}
        self._doubled: set[str] = set()

    def read_hypervisors(self) -> dict[str, nova.Hypervisor]:
        """Read all hosts by name, except hosts with several nodes.

        The reader keeps nothing, because the caller may not believe the list.
        """
        found: dict[str, list[nova.Hypervisor]] = {}
        for item in self.nova.hypervisors():
            found.setdefault(item.host, []).append(item)
        doubled = {name for name, items in found.items() if len(items) > 1}
        if doubled - self._doubled:
            LOG.info('Hosts with several nodes (bare metal) are left alone: '
                     '%s', ', '.join(sorted(doubled)))
        self._doubled = doubled
        return {name: items[0] for name, items in found.items()
                if name not in doubled}

    def keep_hypervisors(self, found: Mapping[str, nova.Hypervisor]) -> None:
        """Use these hosts from now on."""
        with self._lock:
            self.hypervisors = dict(found)

    def names_by_provider(self) -> dict[str, str]:
        """Return the names of all hosts by the UUID of their provider."""
        return {item.uuid: name for name, item in self.hypervisors.items()}

    def read_preemptible(self) -> dict[str, nova.NovaServer]:
        """Read the servers that may be ended, or were shelved for others."""
        with self._lock:
            self._meanwhile = {}
        flavors = [flavor for flavor in self.nova.flavors()
                   if shapes.is_preemptible(flavor) or
                   shapes.is_limited(flavor)]
        # The mark, and a limit of the run time, have to be on the flavor that
        # a server was made with as well. A server that was shelved for others
        # comes back, whatever became of its flavor.
        listed = {server.id: server for server in (
            *(server for flavor in flavors
              for server in self.nova.servers(flavor=flavor.id)),
            *(server for project, properties in self.properties.items()
              if shapes.MAX_RUN_TIME in properties
              for server in self.nova.servers(project_id=project)),
            *(server for server
              in self.nova.servers(status='SHELVED_OFFLOADED')
              if shapes.SHELVED_AT in server.metadata))}
        with self._lock:
            self._marked = _names(flavors, shapes.is_preemptible)
            self._limited = _names(flavors, shapes.is_limited)
            found = {uuid: server for uuid, server in listed.items()
                     if self._counts(server)}
            for server_id, newer in self._meanwhile.items():
                found.pop(server_id, None)
                if newer and self._counts(newer):
                    found[server_id] = newer
            self.preemptible, self._meanwhile = found, {}
            # Other threads note locks at the same time.
            for uuid in self._locked.keys() - found.keys():
                del self._locked[uuid]
        return found

    def has_other_marks(self) -> bool:
        """Return whether other flavors bear marks than at the last list."""
        flavors = list(self.nova.flavors())
        return (self._marked, self._limited) != (
            _names(flavors, shapes.is_preemptible),
            _names(flavors, shapes.is_limited))

    def marked(self, mark: Callable[[nova.Flavor], bool] =
               shapes.is_preemptible) -> frozenset[str]:
        """Return names of the flavors that bear a mark now, as Nova says."""
        return _names(self.nova.flavors(), mark)

    def ends_at(self, server: nova.NovaServer,
                limited: Collection[str] | None = None
                ) -> datetime.datetime | None:
        """Return when the run time of a server is over, None without limit.

        :param limited: names of the flavors that limit run times now, None for
            those that did when servers were listed
        """
        limit = self.max_run_time(server, limited)
        if limit is None or server.launched_at is None:
            return None
        return server.launched_at + datetime.timedelta(seconds=limit)

    def max_run_time(self, server: nova.NovaServer,
                     limited: Collection[str] | None = None) -> int | None:
        """Return how many seconds a server may run, None without a limit."""
        if shapes.is_limited(server.flavor) and server.flavor.name not in (
                self._limited if limited is None else limited):
            return None
        return shapes.max_run_time(
            server, self.properties.get(server.project, {}))

    def read_changed(self, since: datetime.datetime
                     ) -> dict[str, nova.NovaServer]:
        """Read all servers that have changed, also servers that are gone."""
        found = {server.id: server for server in self.nova.servers(
            **{'changes-since': since.isoformat()})}
        with self._lock:
            for server in found.values():
                self._keep(server.id,
                           None if server.status in GONE else server)
        return found

    def read_properties(self) -> None:
        """Read what operators have written on projects."""
        self.properties = self._keystone.project_properties()

    def read_server(self, uuid: str) -> nova.NovaServer | None:
        """Read a server again; None if it is gone, or may not be ended."""
        server = self.nova.find(uuid)
        with self._lock:
            return self._keep(uuid, server)

    def _keep(self, uuid: str, server: nova.NovaServer | None
              ) -> nova.NovaServer | None:
        # A list that is being read may find that the flavor is marked by now.
        self._meanwhile[uuid] = server
        if server and self._counts(server):
            self.preemptible[uuid] = server
            return server
        self.preemptible.pop(uuid, None)
        return None

    def _counts(self, server: nova.NovaServer) -> bool:
        """Return whether a server may be ended, or was shelved for another."""
        return self.is_preemptible(server) or (
            shapes.SHELVED_AT in server.metadata and
            shapes.is_preemptible(server.flavor)
        ) or self.ends_at(server) is not None

    def is_preemptible(self, server: nova.NovaServer) -> bool:
        """Return whether a server may be ended for others."""
        return shapes.is_preemptible(server.flavor) and (
            server.flavor.name in self._marked)

    def read_having(self, expressions: Iterable[str], again: bool = False
                    ) -> None:
        """Read which providers have the traits and aggregates asked for.

        One request for each, not for each host.

        :param expressions: of ``required`` and ``member_of`` of shapes
        :param again: whether to ask also for those that are known, and forget
            those that nobody asks for any more: owners make names up
        """
        # Another job may learn of more traits at the same time.
        before = dict(self._having)
        names = {name for expression in expressions for name
                 in expression.removeprefix('!').removeprefix('in:').split(
                     ',')}
        if again:
            for name in before.keys() - names:
                del self._having[name]
        for name in sorted(names if again else names - before.keys()):
            try:
                self._having[name] = self._placement.providers(**{
                    'member_of' if _is_aggregate(name) else 'required': name})
            except rest.BadRequest:
                # Placement does not know the trait, so no host has the trait.
                self._having[name] = set()
            with self._lock:
                self._learned |= before.get(name, set()) ^ self._having[name]

    def take_learned(self) -> list[str]:
        """Take the names of hosts whose traits or aggregates have changed."""
        with self._lock:
            learned, self._learned = self._learned, set()
        names = self.names_by_provider() if learned else {}
        return [names[uuid] for uuid in learned if uuid in names]

    def read_shared(self, among: Mapping[str, nova.Hypervisor]) -> None:
        """Read which providers share what with which hosts.

        :param among: all hosts, whose own providers do not count
        """
        read_at = time.monotonic()
        try:
            found = self._placement.read_sharing(
                {item.uuid for item in among.values()})
        except rest.BadRequest:
            # This Placement does not know the trait of sharing providers.
            found = []
        sharing: dict[str, list[model.Provider]] = {}
        for one, hosts in sorted(found, key=lambda item: item[0].uuid):
            made = dataclasses.replace(one.summed(), used={})
            for host in hosts:
                sharing.setdefault(host, []).append(made)
        self.shared = frozenset().union(*(
            one.inventory for one, hosts in found if not hosts))
        self.sharing = sharing
        self._used = {one.uuid: (read_at, one.summed().used)
                      for one, _ in found}

    @property
    def beside(self) -> frozenset[str]:
        """The resource classes that providers share with known hosts."""
        return self._placement.beside

    def used_of(self, provider: str) -> Mapping[str, int]:
        """Return what was used of a sharing provider when it was read last."""
        return self._used.get(provider, (0.0, {}))[1]

    def _read_used(self, provider: str, before: float) -> None:
        """Read what is used of a sharing provider, unless read since then."""
        if self._used.get(provider, (0.0, {}))[0] >= before:
            return
        read_at = time.monotonic()
        try:
            self._used[provider] = read_at, self._placement.used(provider)
        except rest.NotFound:
            # The next list finds that the provider is gone.
            self._used[provider] = read_at, self.used_of(provider)

    def read_trees(self, wanted: bool) -> None:
        """Read which hosts have providers below, if a server may want them."""
        self.trees = self._placement.below() if wanted else None
        if not wanted:
            self.below = frozenset()

    def _read_below(self, host: str, before: HostView | None
                    ) -> list[placement.Provider]:
        """Read the providers below that of a host."""
        known = {one.name: one for one in before.host.providers
                 } if before else {}
        found = []
        for uuid in (self.trees or {}).get(host, ()):
            try:
                one = known.get(uuid)
                found.append(dataclasses.replace(
                    self._placement.provider(
                        uuid, one.inventory if one else None),
                    traits=one.traits if one
                    else self._placement.traits(uuid)))
            except rest.NotFound:
                continue
        with self._lock:
            self.below = self.below.union(*(one.inventory for one in found))
        return found

    def read_host(self, name: str, among: Mapping[str, nova.Hypervisor] |
                  None = None, before: HostView | None = None
                  ) -> HostView | None:
        """Read a host; return None if the host is not known or gone.

        :param among: hosts that are not kept yet
        :param before: the host as it was read before, to save the request for
            the inventory, which changes rarely; None to read that, too. The
            steps of an attempt always read the inventory
        """
        hypervisor = (among or self.hypervisors).get(name)
        if hypervisor is None:
            return None
        read_at = time.monotonic()
        if before and (before.outlined or
                       before.host.uuid != hypervisor.uuid):
            before = None
        try:
            provider = self._placement.provider(
                hypervisor.uuid, before.host.inventory if before else None)
        except rest.NotFound:
            return None
        below = self._read_below(hypervisor.uuid, before)
        sharing = self.sharing.get(hypervisor.uuid, ())
        for one in sharing:
            # A list reads many hosts that share one provider.
            self._read_used(one.name, read_at - SHARED_AGE * bool(among))
        with self._lock:
            there = [(self.preemptible[uuid], share) for uuid, share
                     in provider.consumers.items()
                     if uuid in self.preemptible]
        servers = tuple(
            self._server(server, name, share, {
                one.uuid: one.consumers[server.id]
                for one in below if server.id in one.consumers}, sharing)
            for server, share in there if server.host == name)
        host = self._host(
            name, hypervisor, provider.summed(),
            (*(one.summed() for one in below), *sharing), provider.generation)
        consumers = frozenset(provider.consumers).union(
            *(one.consumers for one in below))
        return HostView(host, servers, consumers, read_at,
                        before.whole_at if before else read_at)

    def outline(self, among: Mapping[str, nova.Hypervisor], most: int
                ) -> dict[str, HostView]:
        """Read all hosts by few requests, about as they are.

        Hosts that have some memory, disk or processor left are among the
        candidates of Placement. What is not known of them: the units that the
        inventories are given in, providers below, and what others than
        preemptible servers have. Of a preemptible server the flavor counts.
        The steps of an attempt read the host anew.

        :param among: all hosts
        :param most: how many other hosts may be read one by one
        :returns: no hosts if there are more others
        """
        read_at = time.monotonic()
        found: dict[str, model.Provider] = {}
        others = {item.uuid: name for name, item in among.items()}
        for resource_class in OUTLINED:
            if others:
                found |= self._placement.having_left(resource_class)
                others = {uuid: name for uuid, name in others.items()
                          if uuid not in found}
        if len(others) > most:
            return {}
        servers: dict[str, list[nova.NovaServer]] = {}
        known = self.known()
        # Nova says by one request a server who has locked the server.
        list(self.at_once(self.locked_by_admin, [
            server for server in known if server.locked]))
        for server in known:
            servers.setdefault(server.host, []).append(server)
        views = {name: self._outline_of(
            name, item, found[item.uuid], servers.get(name, ()), read_at)
            for name, item in among.items() if item.uuid in found}
        for name in others.values():
            if view := self.read_host(name, among):
                views[name] = view
        return views

    def _outline_of(self, name: str, hypervisor: nova.Hypervisor,
                    own: model.Provider, servers: Iterable[nova.NovaServer],
                    read_at: float) -> HostView:
        """Return a host of which Placement has said the capacity."""
        sharing = self.sharing.get(hypervisor.uuid, ())
        there = tuple(self._server(server, name, {
            key: amount for key, amount in shapes.resources(server).items()
            if key in own.inventory}, {}, sharing)
            for server in servers)
        return HostView(
            self._host(name, hypervisor, own, tuple(sharing)), there,
            frozenset(server.id for server in there), read_at, outlined=True)

    def _host(self, name: str, hypervisor: nova.Hypervisor,
              own: model.Provider, others: tuple[model.Provider, ...],
              generation: int | None = None) -> model.Host:
        """Return a host whose providers have been read.

        :param own: the host's own provider
        :param others: the providers below, and those that share with the host
        """
        return model.Host(
            name=name, inventory=own.inventory, used=own.used,
            disabled=not (hypervisor.up and hypervisor.enabled),
            uuid=hypervisor.uuid, generation=generation, providers=others)

    def _having_of(self, provider: str
                   ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the traits and aggregates of a provider, as asked for."""
        having = frozenset(name for name, uuids in list(self._having.items())
                           if provider in uuids)
        traits = frozenset(name for name in having if not _is_aggregate(name))
        return traits, having - traits

    def with_traits(self, view: HostView) -> HostView:
        """Return the view with the traits and aggregates known by now."""
        traits, aggregates = self._having_of(view.host.uuid)
        if (traits, aggregates) == (view.host.traits, view.host.aggregates):
            return view
        return dataclasses.replace(view, host=dataclasses.replace(
            view.host, traits=traits, aggregates=aggregates))

    def at_once(self, call: Callable[[U], T], items: Iterable[U]
                ) -> Iterator[T]:
        """Return results of a function for items, called by many threads."""
        return self._pool.map(call, items)

    def offered(self, request: str, most: int) -> list[str]:
        """Ask for names of hosts with room, among so many candidates."""
        names = self.names_by_provider()
        return [names[uuid] for uuid
                in self._placement.first_offered(request, most)
                if uuid in names]

    def read_room(self, request: str) -> set[str] | None:
        """Ask for the names of all hosts with room, None if they are many."""
        try:
            found = self._placement.offered(request, MANY)
        except rest.BadRequest:
            # Placement does not know a trait or a class: no host has it.
            return set()
        names = self.names_by_provider()
        return None if found is None else {
            names[uuid] for uuid in found if uuid in names}

    def has_allocation(self, server: str) -> bool:
        """Return whether a server that waits has something, as a hold is."""
        return bool(self._placement.consumer(server).amounts)

    def read_hosts(self, among: Mapping[str, nova.Hypervisor]
                   ) -> tuple[dict[str, HostView | None], frozenset[str]]:
        """Read several hosts at the same time.

        :returns: the hosts, and the names of those that could not be read
        :raises: rest.RequestFailed if more than one in SHARE hosts failed
        """
        def read(name: str) -> HostView | rest.RequestFailed | None:
            try:
                return self.read_host(name, among)
            except rest.RequestFailed as error:
                return error

        found: dict[str, HostView | None] = {}
        failed: dict[str, rest.RequestFailed] = {}
        for name, view in zip(among, self.at_once(read, among)):
            if isinstance(view, rest.RequestFailed):
                failed[name] = view
            else:
                found[name] = view
        for error in list(failed.values())[:1]:
            if len(failed) * SHARE > len(among):
                raise error
            LOG.warning('%d hosts, as %s, are read again later: %s',
                        len(failed), next(iter(failed)), error)
        return found, frozenset(failed)

    def _server(self, server: nova.NovaServer, host: str,
                share: Mapping[str, int],
                below: Mapping[str, Mapping[str, int]],
                sharing: Sequence[model.Provider]) -> model.Server:
        properties = self.properties.get(server.project, {})
        if not below and (scarce := {
                name: amount for name, amount
                in shapes.scarce(server.flavor).items()
                if name not in share}):
            below = {model.UNKNOWN: scarce}
        if sharing:
            below = _with_shares(server, share, below, sharing)
        return model.Server(
            id=server.id, host=host, resources=share,
            project=server.project, user=server.user, name=server.name,
            flavor=server.flavor.name,
            preemptible=self.is_preemptible(server),
            priority=shapes.priority(server.flavor, properties),
            launched_at=server.launched_at,
            ends_at=self.ends_at(server),
            action=self.action(server),
            locked=self.locked_by_admin(server),
            busy=bool(server.task_state or
                      server.status not in shapes.ENDABLE),
            providers=below, devices=shapes.devices(server.flavor))

    def action(self, server: nova.NovaServer) -> model.Action:
        """Return how a preemptible server is ended."""
        return shapes.action(server, self._conf.owner_shelve_max_gb)

    def locked_by_admin(self, server: nova.NovaServer) -> bool:
        """Return whether an administrator, not the owner, locked a server."""
        if not server.locked:
            return False
        known = self._locked.get(server.id)
        if known and known[0] == server.updated_at:
            return known[1]
        try:
            locks = [action for action in self.nova.actions(server.id)
                     if action.action == 'lock']
        except rest.RequestFailed:
            return True
        by_admin = not locks or locks[-1].project != server.project
        self._locked[server.id] = (server.updated_at, by_admin)
        return by_admin

    def under_notice(self) -> list[nova.NovaServer]:
        """Return the servers that may be ended whose metadata show a notice.
        """
        return [server for server in self.known()
                if shapes.is_noticed(server)]

    def shelved(self) -> list[nova.NovaServer]:
        """Return the servers that the reaper shelved and is to bring back."""
        return [server for server in self.known() if is_to_return(server)]

    def has_shelved(self, uuid: str) -> bool:
        """Return whether the reaper shelved a server that is to come back."""
        server = self.preemptible.get(uuid)
        return server is not None and is_to_return(server)

    def known(self) -> list[nova.NovaServer]:
        """Return a copy of the servers that read_preemptible() keeps."""
        # Another thread may learn of more servers at the same time.
        with self._lock:
            return list(self.preemptible.values())


def _names(flavors: Iterable[nova.Flavor],
           mark: Callable[[nova.Flavor], bool]) -> frozenset[str]:
    """Return the names of the flavors that bear a mark."""
    return frozenset(flavor.name for flavor in flavors if mark(flavor))


def _with_shares(server: nova.NovaServer, own: Mapping[str, int],
                 below: Mapping[str, Mapping[str, int]],
                 sharing: Iterable[model.Provider]
                 ) -> dict[str, Mapping[str, int]]:
    """Return what a server has of providers other than its host's own.

    Of a provider that shares the server has what its flavor asks for: the
    provider has too many consumers to ask who they are. The steps of an
    attempt ask for what the victims have.

    :param own: what it has of the host's own provider
    :param below: what it has of those below
    :param sharing: those that share with the host
    """
    known = model.total(own, *below.values())
    found = dict(below)
    for name, amount in shapes.resources(server).items():
        having = [one.name for one in sharing if name in one.inventory]
        if having and name not in known:
            provider = having[0] if len(having) == 1 else model.UNKNOWN
            found[provider] = {**found.get(provider, {}), name: amount}
    return found


def classes(views: Iterable[HostView | None]) -> frozenset[str]:
    """Return the resource classes of hosts, of their own or below."""
    return frozenset(name for view in views if view
                     for name in (*view.host.inventory, *view.host.below))


def is_to_return(server: nova.NovaServer) -> bool:
    """Return whether the reaper has shelved a server that is to come back."""
    return server.shelved and shapes.SHELVED_AT in server.metadata


def _is_aggregate(name: str) -> bool:
    # An aggregate is named by its UUID, and no trait has a hyphen.
    return '-' in name


class Jobs:
    """Runs jobs in the threads of a pool; jobs of one name never overlap.

    The thread of the engine takes the results.

    :param wake: is called when there is a result to take
    :param failed: is told the name of a job that failed, and why
    :param at_once: how many jobs that were lined up run at a time
    """

    def __init__(self, pool: futures.Executor, wake: Callable[[], None],
                 failed: Callable[[str, str], None], at_once: int = 4
                 ) -> None:
        self._pool = pool
        self._wake = wake
        self._failed = failed
        self._at_once = at_once
        self._running: set[str] = set()
        # Functions that begin jobs which stand in line, by name; the names of
        # jobs that run and stood in line; functions that begin a job again
        # when the running job of that name has ended.
        self._in_line: dict[str, Callable[[], bool]] = {}
        self._from_line: set[str] = set()
        self._again: dict[str, Callable[[], bool]] = {}
        self._results: queue.SimpleQueue[tuple[str, Callable[[], None]]] = (
            queue.SimpleQueue())
        self.stopping = False

    def __contains__(self, name: str) -> bool:
        return name in self._running or name in self._in_line

    def runs(self, kind: str) -> bool:
        """Return whether a job runs whose name begins so."""
        return any(name.startswith(kind) for name in self._running)

    @property
    def waiting(self) -> bool:
        """Whether there is a result to take."""
        return not self._results.empty()

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is to be taken."""
        return not (self._running or self._in_line or self.waiting)

    def line_up(self, name: str, call: Callable[[], T],
                done: Callable[[T], None]) -> None:
        """Have a job done in turn, and once if its name is in line already.

        News of many servers at once must not keep the steps of attempts from
        the pool. If a job of the same name runs, the new job is done after it.
        """
        begin = functools.partial(self.start, name, call, done)
        if name in self._running:
            self._again[name] = begin
        elif not self.stopping:
            self._in_line[name] = begin
            self._go_on()

    def start(self, name: str, call: Callable[[], T],
              done: Callable[[T], None]) -> bool:
        """Have a job done, unless a job of its name runs.

        :param done: is called by :meth:`take` with what the job returned
        :returns: whether the job has begun
        """
        if name in self._running or self.stopping:
            return False
        self._running.add(name)
        self._pool.submit(self._work, name, call, done)
        return True

    def _work(self, name: str, call: Callable[[], T],
              done: Callable[[T], None]) -> None:
        try:
            result = functools.partial(done, call())
        except Exception as error:
            why = str(error)
            if isinstance(error, rest.RequestFailed):
                LOG.warning('%s: %s', name, error)
            elif isinstance(error, db_exception.DBError):
                # The text of the error may hold the password of the URL.
                why = type(error).__name__
                LOG.warning('%s: the database cannot be read at the moment '
                            '(%s).', name, why)
            elif not self.stopping:
                LOG.exception('%s failed.', name)
            result = functools.partial(self._failed, name, why)
        self._results.put((name, result))
        self._wake()

    def _go_on(self) -> None:
        """Begin jobs that stand in line, at_once of them at a time."""
        self._from_line &= self._running
        while self._in_line and len(self._from_line) < self._at_once:
            name = next(iter(self._in_line))
            if self._in_line.pop(name)():
                self._from_line.add(name)

    def take(self) -> None:
        """Make the calls for all results that there are."""
        while not self._results.empty():
            name, result = self._results.get()
            self._running.discard(name)
            again = self._again.pop(name, None)
            try:
                result()
            finally:
                if again:
                    again()
        self._go_on()


class Hosts:
    """Has hosts read by jobs; jobs for the same host never overlap.

    A host whose room may have become free is read at once: a server may wait
    for room. A host on which room was taken is read when there is time.
    Placement finds out if a decision used an old view of a host, because the
    reaper asks Placement before it does anything.

    :ivar freed: when it was heard that room on a host may be free, by the
        monotonic clock
    :param views: the hosts as they were read last
    :param apply: is told what was read, None for a host that is gone
    :param at_once: how many hosts that can wait are read at the same time
        while nothing else is to be done
    """

    def __init__(self, source: Reader,
                 views: Mapping[str, HostView], running: Jobs,
                 apply: Callable[[str, HostView | None], None],
                 at_once: int) -> None:
        self._reader = source
        self._views = views
        self._jobs = running
        self._apply = apply
        self._at_once = at_once
        # Hosts to be read once more after the read that runs, and whether
        # their inventory is to be read, too.
        self._again: dict[str, bool] = {}
        # Hosts to be read when there is time, and those of them that are read
        # now; when to read those that could not be read.
        self._later: dict[str, None] = {}
        self._slow: set[str] = set()
        self._failed: dict[str, float] = {}
        self.freed: dict[str, float] = {}

    def read(self, host: str, whole: bool = False) -> None:
        """Read a host now, with its inventory if the whole is wanted."""
        self._later.pop(host, None)
        if host not in self._reader.hypervisors:
            return
        before = None if whole else self._views.get(host)
        if not self._jobs.start(
                f'host {host}', functools.partial(
                    self._reader.read_host, host, before=before),
                functools.partial(self._read, host)):
            self._again[host] = whole or self._again.get(host, False)

    def read_later(self, host: str) -> None:
        """Read a host when there is time for it."""
        self._later.setdefault(host)

    def go_on(self, busy: bool) -> None:
        """Begin to read hosts that can wait, fewer while attempts ask, too."""
        now = time.monotonic()
        for host in [host for host, at in self._failed.items() if at <= now]:
            del self._failed[host]
            self.read_later(host)
        self._slow = {host for host in self._slow
                      if f'host {host}' in self._jobs}
        while self._later and len(self._slow) < (1 if busy else self._at_once):
            host = next(iter(self._later))
            self._slow.add(host)
            self.read(host)

    def failed(self, host: str) -> None:
        """Have a host that could not be read read again later."""
        self._failed[host] = time.monotonic() + AGAIN

    def forget_freed(self) -> None:
        """Forget freed room, which no waiting server has a use for."""
        self.freed = {
            host: at for host, at in self.freed.items()
            if host not in self._views or self._views[host].read_at < at}

    def forget(self) -> None:
        """Forget what is to be read, since another reaper acts."""
        self._failed.clear()
        self._later.clear()
        self._again.clear()
        self.freed.clear()

    def _read(self, host: str, view: HostView | None) -> None:
        self._apply(host, view)
        if host in self._again:
            self.read(host, self._again.pop(host))
