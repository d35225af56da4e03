# SPDX-License-Identifier: Apache-2.0

"""Defines hosts, servers, waiting servers, demands and decisions.

ways() finds which provider of a host gives what of a shape, like Placement.

Nothing here asks a service. All times are aware datetimes, all amounts are in
Placement's units (MEMORY_MB, DISK_GB, ...).
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import enum
import math
from typing import Any
from typing import overload

# Placement's own largest value of a max_unit and of a total.
MAX_INT = 0x7FFFFFFF
# The largest amount that a host has: Placement takes any allocation ratio.
MOST = 1 << 60
# The longest time in seconds: sums of several such times are valid times, too.
MAX_SECONDS = 100 * 366 * 86400
# Names of a host's own provider, and of a provider that is not known.
OWN, UNKNOWN = '', '?'
# The most ways of a host to look at, and the most steps to find the ways.
MOST_WAYS = 256
MOST_STEPS = 20_000

# The amount by the name of the provider and the resource class.
Way = Mapping[str, Mapping[str, int]]


@overload
def time_text(time: datetime.datetime) -> str:
    ...


@overload
def time_text(time: None) -> None:
    ...


def time_text(time: datetime.datetime | None) -> str | None:
    """Return a time as Nova's API writes times, None for None."""
    if time is None:
        return None
    return time.astimezone(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')


class Mode(enum.StrEnum):
    """How far the reaper may go."""

    OBSERVE = 'observe'
    FILL = 'fill'
    PREEMPT = 'preempt'


class Wait(enum.StrEnum):
    """For which servers the reaper looks for room."""

    ASKED = 'asked'
    ALL = 'all'
    NEVER = 'never'


class Verdict(enum.StrEnum):
    """What becomes of a server that waits."""

    ROOM = 'room'
    PREEMPT = 'preempt'
    WAIT = 'wait'


class Reason(enum.StrEnum):
    """Why a server waits; the words of ``GET /servers/{id}/pending``."""

    NO_ROOM = 'no_room'
    REFUSED = 'refused'
    NO_SUCH_HOST = 'no_such_host'
    NOTHING_FITS = 'nothing_fits'
    BUILD_FAILED = 'build_failed'
    QUOTA = 'quota'
    UNKNOWN = 'unknown'


# The reasons for which no host could take a server, were the host empty.
NEVER = (Reason.NOTHING_FITS, Reason.NO_SUCH_HOST)


class Hindrance(enum.StrEnum):
    """Why the reaper itself leaves a server waiting, beyond Nova's words."""

    PROTECTED = 'protected'
    BACK_OFF = 'back_off'
    RESERVED = 'reserved'
    MODE = 'mode'
    MISSES = 'misses'
    DEADLINE = 'deadline'
    NEEDS_OWNER = 'needs_owner'
    NOT_ASKED = 'not_asked'


class Action(enum.StrEnum):
    """How a preemptible server is ended."""

    DELETE = 'delete'
    SHELVE = 'shelve'


class Cause(enum.StrEnum):
    """Why a server has notice."""

    ROOM = 'room'            # another server needs its room
    RUN_TIME = 'run_time'    # it has run for as long as it may
    REHEARSAL = 'rehearsal'  # its owner tests what the guest does

    @property
    def message(self) -> str:
        """The sentence that the API has for the cause."""
        return {Cause.ROOM: 'Another server needs the room.',
                Cause.RUN_TIME: 'Its run time ends.',
                Cause.REHEARSAL: 'Its owner rehearses its end.'}[self]


class Stage(enum.StrEnum):
    """Where a server stands that has notice, or is about to."""

    CHOSEN = 'chosen'
    NOTICED = 'noticed'
    STOPPING = 'stopping'
    ENDING = 'ending'
    ENDED = 'ended'


class Result(enum.StrEnum):
    """How an attempt to have a server built ended."""

    ACTIVE = 'active'        # the server runs
    PENDING = 'pending'      # the server waits again in spite of the room
    ERROR = 'error'
    REFUSED = 'refused'      # Nova refuses the server, whatever the room
    GONE = 'gone'            # the server is deleted, or waits no more
    TIMEOUT = 'timeout'
    CONFLICT = 'conflict'    # something has changed: decide again
    STUCK = 'stuck'          # a victim did not end
    WITHDRAWN = 'withdrawn'  # the victims need not, or may no longer, end


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """What a host has of one resource class, as Placement says it."""

    total: int
    reserved: int = 0
    allocation_ratio: float = 1.0
    min_unit: int = 1
    max_unit: int = MAX_INT
    step_size: int = 1

    @property
    def capacity(self) -> int:
        """How much can be allocated: (total - reserved) * allocation_ratio."""
        return min(MOST, math.floor(
            (self.total - self.reserved) * self.allocation_ratio))


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A provider of a host: its own, one below, such as a GPU, or one shared.

    :ivar name: no other provider of the host has the name; a provider that
        shares has the same name on all hosts
    :ivar used: what all consumers have of each resource class
    :ivar shared: whether the provider shares what it has with several hosts
    :ivar aggregates: of a sharing provider, the aggregates that ``member_of``
        of a request is compared with
    """

    name: str
    inventory: Mapping[str, Inventory]
    used: Mapping[str, int] = dataclasses.field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    shared: bool = False
    aggregates: frozenset[str] = frozenset()

    @property
    def left(self) -> dict[str, int]:
        """What may be allocated of each class, below 0 if too much is."""
        return {name: item.capacity - self.used.get(name, 0)
                for name, item in self.inventory.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """A host and its resource provider.

    :ivar inventory: the Inventory of each resource class
    :ivar used: what all consumers have of each resource class of the host's
        own provider, preemptible servers, holds and migrations included
    :ivar aggregates: what ``member_of`` of a request is compared with
    :ivar disabled: whether the service is disabled, forced down or not up
    :ivar generation: the generation of the provider, None if not known
    :ivar providers: the providers below the host's own, if they are looked at,
        and the providers that share with the host
    """

    name: str
    inventory: Mapping[str, Inventory]
    used: Mapping[str, int] = dataclasses.field(default_factory=dict)
    aggregates: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    disabled: bool = False
    uuid: str = ''
    generation: int | None = None
    providers: tuple[Provider, ...] = ()

    @property
    def all_providers(self) -> tuple[Provider, ...]:
        """The host's own provider, and the others."""
        return (Provider(OWN, self.inventory, self.used, self.traits),
                *self.providers)

    @property
    def below(self) -> set[str]:
        """The resource classes that providers besides its own have."""
        return {name for one in self.providers for name in one.inventory}


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A server that has an allocation on a host.

    :ivar host: the name of its host
    :ivar resources: what the server has of the host's own provider
    :ivar providers: what the server has of other providers of the host, by the
        name of the provider; UNKNOWN if nobody knows which provider
    :ivar devices: how many PCI devices the flavor asks for, by alias, which
        Placement does not know of
    :ivar preemptible: whether the operator's flavor lets the server be ended
    :ivar launched_at: None if not known, which counts as long ago
    :ivar last_ended_at: when the server ran again after the reaper had ended
        it, where repeat_protection begins; None if the reaper has not
    :ivar ends_at: when the run time is over, None without a limit
    :ivar locked: whether an administrator has locked the server, or the reaper
        leaves the server alone for a time
    :ivar busy: whether the server has a task, or a status in which it cannot
        be ended; such a server is never ended
    """

    id: str
    host: str
    resources: Mapping[str, int]
    project: str = ''
    user: str = ''
    name: str = ''
    flavor: str = ''
    preemptible: bool = False
    priority: int = 0
    launched_at: datetime.datetime | None = None
    last_ended_at: datetime.datetime | None = None
    ends_at: datetime.datetime | None = None
    action: Action = Action.DELETE
    locked: bool = False
    busy: bool = False
    devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    providers: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)

    @property
    def amounts(self) -> Mapping[str, int]:
        """What the server has of all providers together."""
        return total(self.resources, *self.providers.values())

    def of(self, provider: str) -> Mapping[str, int]:
        """Return what the server has of a provider, OWN for the host's own."""
        return (self.resources if provider == OWN
                else self.providers.get(provider, {}))


def total(first: Mapping[str, int], *others: Mapping[str, int]
          ) -> Mapping[str, int]:
    """Return the sums of amounts by resource class."""
    if not others:
        return first
    sums = dict(first)
    for amounts in others:
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0) + amount
    return sums


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A request group: a single provider has to have all of it.

    :ivar resources: pairs of resource class and amount, sorted
    :ivar required: traits, as those of a shape
    """

    resources: tuple[tuple[str, int], ...]
    required: frozenset[str] = frozenset()

    @classmethod
    def of(cls, resources: Mapping[str, int], required: Iterable[str] = ()
           ) -> 'Group':
        """Return a group whose resources are given as a mapping."""
        return cls(_pairs(resources), frozenset(required))

    @property
    def order(self) -> tuple[object, ...]:
        """What groups are sorted by, so that equal groups are side by side."""
        return self.resources, sorted(self.required)


def _pairs(resources: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount) for name, amount in resources.items()
                        if amount))


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """All of a request that decides on which hosts a server could land.

    Two servers of the same shape are evaluated once.

    :ivar resources: pairs of resource class and amount, sorted; with all of
        the groups
    :ivar required: traits; "!" in front of one forbids it, "in:A,B" asks for
        any of them
    :ivar member_of: aggregates; "in:a,b" is any of them, "!" in front forbids
    :ivar host: the name of the only host that a server may have, None for any
    :ivar fill_only: whether no victim is ended for a server of the shape
    :ivar elsewhere: resource classes that other providers may have for a host
        that has none of its own: such a host is not judged by these classes
    :ivar key: tells apart shapes that are else the same, for which Nova's
        filters may answer differently (image, hints, group, tenant aggregates)
    :ivar devices: pairs of alias and number of the PCI devices that the flavor
        asks for, which Placement does not know of
    :ivar spread: the part whose classes may each come from another provider of
        the host; None if the host's own provider has to have all resources
    :ivar groups: the other parts; a single provider has to have each of them
    :ivar isolate: whether no two groups may have the same provider
    """

    resources: tuple[tuple[str, int], ...]
    required: frozenset[str] = frozenset()
    member_of: frozenset[str] = frozenset()
    host: str | None = None
    fill_only: bool = False
    key: str = ''
    elsewhere: frozenset[str] = frozenset()
    devices: tuple[tuple[str, int], ...] = ()
    spread: Group | None = None
    groups: tuple[Group, ...] = ()
    isolate: bool = False

    @property
    def amounts(self) -> dict[str, int]:
        """The resources as a dictionary."""
        return dict(self.resources)

    @property
    def by_host(self) -> list[tuple[str, int]]:
        """The resources that each host has to have of its own."""
        return [(name, amount) for name, amount in self.resources
                if name not in self.elsewhere]

    @classmethod
    def of(cls, resources: Mapping[str, int], **others: Any) -> 'Shape':
        """Return a shape whose resources are given as a mapping."""
        return cls(_pairs(resources), **others)

    @property
    def expressions(self) -> frozenset[str]:
        """The traits and aggregates that the shape asks for."""
        parts = self.groups if self.spread is None else (
            self.spread, *self.groups)
        return self.required.union(
            self.member_of, *(group.required for group in parts))


@dataclasses.dataclass(frozen=True, slots=True)
class Demand:
    """All of a waiting server that decides on the verdict about the server.

    The reaper decides once for all servers of one demand: if one of them finds
    no room, the others find none.

    :ivar below: victims have to have a priority below this, None for any
    :ivar avoid: the host that is taken only if no other host has room
    :ivar spared: why no victim is ended for the demand, '' if that is allowed
    """

    shape: Shape
    below: int | None = None
    avoid: str | None = None
    spared: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """A server that waits for room, or a shelved server that is to come back.

    :ivar preemptible: whether the flavor is preemptible: the reaper then ends
        only servers of a lower priority for the server
    :ivar created_at: since when the server waits
    :ivar requests: queries for Placement, as Nova gives them, in order
    :ivar attempts: how many builds were asked for, the create included
    :ivar last_attempt: the time of the last attempt, None if not known
    :ivar failures: for how many attempts the server backs off
    :ivar failed_at: the time of the last of these attempts
    :ivar paused_until: before this there is no try, whatever the back-off says
    :ivar avoid: the host on which the last build came to nothing: the reaper
        takes another host that has room
    :ivar spared: a sentence that says why the reaper may end no victim for the
        server, '' if the reaper may
    :ivar reason: what Nova says of the last attempt
    :ivar pending_timeout: seconds that the server may wait by its flavor or
        project, None if the option decides
    :ivar shelved: whether the reaper shelved the server to bring it back
    :ivar failed: whether the server is in ERROR since a build failed, and is
        to be built again
    :ivar asked: whether the owner has asked Nova for a server that waits
    :ivar wait: what flavor, project or metadata say of waiting, None if the
        option decides
    """

    id: str
    shape: Shape
    created_at: datetime.datetime
    project: str = ''
    user: str = ''
    name: str = ''
    flavor: str = ''
    preemptible: bool = False
    priority: int = 0
    attempts: int = 0
    last_attempt: datetime.datetime | None = None
    failures: int = 0
    failed_at: datetime.datetime | None = None
    paused_until: datetime.datetime | None = None
    avoid: str | None = None
    spared: str = ''
    reason: Reason | None = None
    pending_timeout: int | None = None
    shelved: bool = False
    failed: bool = False
    asked: bool = True
    wait: Wait | None = None
    requests: tuple[str, ...] = ()

    def is_wanted(self, wait: Wait) -> bool:
        """Return whether to build the server, by the option ``wait``."""
        wait = self.wait or wait
        return self.shelved or wait is not Wait.NEVER and (
            self.failed or self.asked or wait is Wait.ALL)

    @property
    def demand(self) -> Demand:
        """The demand of the server."""
        return Demand(self.shape, self.priority if self.preemptible else None,
                      self.avoid, self.spared)


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the operator allows, each as the option of its name says.

    The help of the options is in nova_reaper.conf; times are in seconds.
    """

    mode: Mode = Mode.OBSERVE
    wait: Wait = Wait.ASKED
    min_run_time: int = 600
    max_ends_per_project_hour: int = 0
    max_ends_per_hour: int = 0
    repeat_protection: int = 3600
    pending_timeout: int = 0
    retry_interval: int = 10
    max_retry_interval: int = 600
    build_failed_retry_interval: int = 300
    fair_share_half_life: int = 86400
    reserve: bool = False
    scorers: tuple[str, ...] = ('priority', 'count', 'deletes', 'priorities',
                                'leftover', 'youngest')


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for one waiting server, and why.

    The log line, the answer over HTTP, the metric and the simulation all show
    a decision.

    :ivar server: the ID of the server that waits
    :ivar host: the host for the server, None if the server waits
    :ivar victims: IDs of the servers that are to be ended for the server
    :ivar reason: why there is no room for the server now, in Nova's words;
        None if there is room
    :ivar hindrance: which rule of the reaper keeps the server waiting, None if
        no rule does
    :ivar detail: sentences for a human being; the server's owner reads them,
        so they name no host and no server of others
    """

    server: str
    verdict: Verdict
    host: str | None = None
    victims: tuple[str, ...] = ()
    reason: Reason | None = None
    detail: str = ''
    hindrance: Hindrance | None = None

    @property
    def word(self) -> str | None:
        """The word that best says why the server waits, None for no reason."""
        if self.verdict is not Verdict.WAIT:
            return self.reason.value if self.reason else None
        told = self.hindrance or self.reason
        return told.value if told else None

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as it is printed; ``reason`` is Nova's word."""
        return {'server': self.server, 'verdict': self.verdict.value,
                'host': self.host, 'victims': list(self.victims),
                'reason': self.reason.value if self.reason else None,
                'hindrance': self.hindrance.value if self.hindrance else None,
                'detail': self.detail}


def ways(shape: Shape, nodes: Sequence[Provider],
         steps: Iterator[int] | None = None) -> Iterator[Way]:
    """Yield ways in which a host can give what a shape asks for.

    A host has its own provider, and may have providers below, such as GPUs,
    and providers that share with the host. A request group takes all that it
    asks for from a single provider. Without a group each resource class may
    come from another provider; the providers that give these classes have to
    have the required traits together, and sharing providers among them have to
    be in the required aggregates.

    The function yields MOST_WAYS ways at most.

    :param nodes: the providers of the host, its own first
    :param steps: has an item for each step that may be made
    """
    if shape.spread is None:
        parts = [(Group(shape.resources), False)]
        nodes = nodes[:1]
    else:
        forbidden = frozenset(name for name in shape.spread.required
                              if name.startswith('!'))
        parts = [(Group((pair,), forbidden), False)
                 for pair in shape.spread.resources]
        parts += [(group, True) for group in sorted(
            shape.groups, key=lambda group: group.order)]
    seen: set[frozenset[tuple[str, str, int]]] = set()
    steps = steps or iter(range(MOST_STEPS))
    for chosen in _choices(shape, parts, nodes, steps, [], {}):
        way: dict[str, dict[str, int]] = {}
        for (part, _), at in zip(parts, chosen):
            for name, amount in part.resources:
                amounts = way.setdefault(nodes[at].name, {})
                amounts[name] = amounts.get(name, 0) + amount
        same = frozenset((provider, *item) for provider, amounts in way.items()
                         for item in amounts.items())
        if same not in seen:
            seen.add(same)
            yield way
        if len(seen) == MOST_WAYS:
            return


def _choices(shape: Shape, parts: Sequence[tuple[Group, bool]],
             nodes: Sequence[Provider], steps: Iterator[int],
             chosen: list[int], taken: dict[tuple[int, str], int]
             ) -> Iterator[list[int]]:
    """Yield the numbers of the nodes that give the parts."""
    if len(chosen) == len(parts):
        if shape.spread is None or _have(
                [nodes[at] for at, (_, alone) in zip(chosen, parts)
                 if not alone], shape.spread.required):
            yield chosen
        return
    part, alone = parts[len(chosen)]
    # Two equal groups that swap their providers are the same way.
    begin = (chosen[-1] if chosen and parts[len(chosen) - 1] == (part, True)
             else 0)
    others = {at for at, (_, group) in zip(chosen, parts) if group}
    for at, _step in zip(range(begin, len(nodes)), steps):
        node = nodes[at]
        if (alone and shape.isolate and at in others or
                not alone and not admits(shape, node) or
                not _have([node], part.required)):
            continue
        sums = {(at, name): taken.get((at, name), 0) + amount
                for name, amount in part.resources}
        if all(_gives(node, name, amount, sums[at, name])
               for name, amount in part.resources):
            yield from _choices(shape, parts, nodes, steps,
                                [*chosen, at], taken | sums)


def _gives(node: Provider, name: str, amount: int, together: int
           ) -> bool:
    """Return whether a provider can give an amount of a class.

    :param together: the amount with what other parts take there
    """
    item = node.inventory.get(name)
    return item is not None and (
        together <= min(item.capacity - node.used.get(name, 0),
                        item.max_unit) and
        amount >= item.min_unit and amount % item.step_size == 0)


def admits(shape: Shape, node: Provider) -> bool:
    """Return whether a provider may give resources that are in no group.

    The aggregates of a host are those of all providers of its tree. A
    provider that shares is in no host's tree.
    """
    return not node.shared or shape.host is None and _match(
        node.aggregates, shape.member_of)


def _have(nodes: Sequence[Provider], required: frozenset[str]) -> bool:
    """Return whether nodes together have the traits, and none forbidden."""
    return _match(frozenset().union(*(node.traits for node in nodes)),
                  required)


def _match(traits: frozenset[str], required: frozenset[str]) -> bool:
    for expression in required:
        names = expression.removeprefix('!')
        wanted = frozenset(names.removeprefix('in:').split(',')
                           if names.startswith('in:') else [names])
        if traits.isdisjoint(wanted) != expression.startswith('!'):
            return False
    return True
