# SPDX-License-Identifier: Apache-2.0

"""Reads what operators and owners say of a server, and what it asks for.

Operators write extra specs of flavors and properties of projects. Owners can
write metadata, so metadata decide only how and when the owner's server ends,
and whether the server waits.

The reaper asks Nova once for each shape: servers of the same flavor, image,
zone, hints and project ask Placement for the same. Before the reaper does
something, it asks which hosts the filters refuse.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import functools
import hashlib
import re
import threading
import time
from typing import Any
from typing import TypeVar
from urllib import parse
import uuid

import os_resource_classes as orc
from oslo_log import log
from oslo_utils import timeutils
from oslo_utils import uuidutils

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.cloud import model

LOG = log.getLogger(__name__)
T = TypeVar('T')
# Properties of flavors, each under our name and under that of Watcher's
# specification for 2026.2. Ours goes first.
PREEMPTIBLE = ('reaper:preemptible', 'lifecycle:preemptable')
ACTIONS = ('reaper:action', 'lifecycle:preempt_policy')
PRIORITY = 'reaper:priority'
PENDING_TIMEOUT = 'reaper:pending_timeout'
# In seconds; in the metadata of a server the owner may ask for less.
MAX_RUN_TIME = 'reaper:max_run_time'
# In the metadata of a server: its owner's choice.
ACTION = 'reaper:action'
WAIT = 'reaper:wait'
# Nova's extra spec for PCI devices of a flavor: "ALIAS:NUMBER,ALIAS:NUMBER".
ALIAS = 'pci_passthrough:alias'

# Keys of a victim's metadata: the notice that its guest can read. The second
# has the ID of the server that needs the room, or of the victim if none does.
TERMINATE_AT = 'reaper:terminate_at'
FOR = 'reaper:for'
# Key in the metadata of a server that was shelved for another, and is to come
# back.
SHELVED_AT = 'reaper:shelved_at'

# The ID of a server that is not created yet, and the key of its shape.
UNSAVED = 'unsaved'

# Statuses in which Nova takes metadata, a stop and a delete.
ENDABLE = frozenset({'ACTIVE', 'PAUSED', 'SUSPENDED', 'SHUTOFF'})
OFF_HOST = frozenset({'SHELVED_OFFLOADED', 'DELETED', 'SOFT_DELETED'})

# Stands for the filter that refuses hosts that are missing in Nova's answer:
# their cell does not answer nova-scheduler.
SCHEDULER = 'nova-scheduler'

# The values that properties have, by their words.
_FLAGS = {'true': True, 'false': False}
_ACTIONS = {word.value: word for word in model.Action}
_WAITS = {word.value: word for word in model.Wait}
# A query asks for a trait by a prefix of the trait's name: the prefix for each
# value of trait:NAME in a flavor, and the traits for each value of
# hw:cpu_thread_policy.
_TRAIT = {'required': '', 'forbidden': '!'}
_THREADS = {'isolate': ('!HW_CPU_HYPERTHREADING',),
            'require': ('HW_CPU_HYPERTHREADING',)}

# The classes that a host's own provider has; others are on nested or sharing
# providers as a rule.
OWN = frozenset({'VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB',
                 'MEM_ENCRYPTION_CONTEXT'})


@functools.cache
def _warn_once(what: str, value: str, wanted: str) -> None:
    LOG.warning('%s is %r, and has to be %s; it is taken for not set.',
                what, value, wanted)


def is_preemptible(flavor: nova.Flavor) -> bool:
    """Return whether the operator lets servers of the flavor be ended.

    The first property that the flavor has decides. Any word but "true"
    protects the servers.
    """
    names = [name for name in PREEMPTIBLE if name in flavor.extra_specs]
    return bool(_word(names[:1], flavor, {}, _FLAGS, 'true or false'))


def _whole(value: str, lowest: int) -> int | None:
    """Return the whole number that a text is, None for any other text."""
    # int() takes more than digits, and not thousands of them.
    if re.fullmatch(r'\s*[+-]?[0-9]{1,10}\s*', value) and (
            lowest <= int(value) <= model.MAX_INT):
        return int(value)
    return None


def _said(names: Sequence[str], flavor: nova.Flavor,
          project: Mapping[str, str], read: Callable[[str], T | None],
          wanted: str) -> T | None:
    """Return the value by flavor, else by project, None if neither has one.

    :param names: of the property, the first that is set goes first
    :param read: reads a value; returns None for a value that counts as not set
    :param wanted: what the value has to be
    """
    for name in names:
        for values in (flavor.extra_specs, project):
            value = values.get(name)
            if value is None:
                continue
            if (found := read(value)) is not None:
                return found
            where = ('a project' if values is project
                     else f'flavor {flavor.name}')
            _warn_once(f'{name} of {where}', value, wanted)
    return None


def _word(names: Sequence[str], flavor: nova.Flavor,
          project: Mapping[str, str], words: Mapping[str, T], wanted: str
          ) -> T | None:
    return _said(names, flavor, project, lambda value: words.get(
        value.strip().lower()), wanted)


def _number(name: str, flavor: nova.Flavor, project: Mapping[str, str],
            lowest: int) -> int | None:
    return _said([name], flavor, project, lambda value: _whole(value, lowest),
                 f'a number from {lowest} to {model.MAX_INT}')


def priority(flavor: nova.Flavor, project: Mapping[str, str]) -> int:
    """Return the priority of a server, 0 by default."""
    return _number(PRIORITY, flavor, project, -model.MAX_INT) or 0


def pending_timeout(flavor: nova.Flavor, project: Mapping[str, str]
                    ) -> int | None:
    """Return seconds that a server may wait, None where the option decides."""
    return _number(PENDING_TIMEOUT, flavor, project, 0)


def max_run_time(server: nova.NovaServer, project: Mapping[str, str]
                 ) -> int | None:
    """Return seconds that a server may run, None if that is not limited.

    The operator sets the limit; the owner may ask for less by the metadata of
    the server.
    """
    limit = _number(MAX_RUN_TIME, server.flavor, project, 0)
    if not limit:
        return None
    return min(limit, _whole(server.metadata.get(MAX_RUN_TIME, ''), 1) or
               limit)


def is_limited(flavor: nova.Flavor) -> bool:
    """Return whether the flavor itself limits how long its servers may run."""
    return bool(_number(MAX_RUN_TIME, flavor, {}, 0))


def wait(server: nova.NovaServer, project: Mapping[str, str]
         ) -> model.Wait | None:
    """Return what is said of waiting for a server, None if the option decides.

    The owner, by the metadata of the server, goes before the operator, by the
    flavor and the project.
    """
    said = server.metadata.get(WAIT, '').strip().lower()
    if said in ('true', 'false'):
        return model.Wait.ALL if said == 'true' else model.Wait.NEVER
    return _word([WAIT], server.flavor, project, _WAITS, 'asked, all or never')


def action(server: nova.NovaServer, most: int) -> model.Action:
    """Return how a preemptible server is ended.

    The flavor decides; where the flavor says nothing, the owner by the
    server's metadata; else a server on a volume is shelved, and another
    deleted.

    :param most: owners may have a server shelved that has up to so many GB of
        the host's disk
    """
    said = _word(ACTIONS, server.flavor, {}, _ACTIONS, 'shelve or delete')
    if said is None:
        said = _ACTIONS.get(server.metadata.get(ACTION, ''))
        if said is model.Action.SHELVE and local_disk(server) > most:
            said = None
    return said or (
        model.Action.DELETE if server.image else model.Action.SHELVE)


def has_asked(server: nova.NovaServer) -> bool:
    """Return whether the owner of a server has asked to wait."""
    said = wait(server, {})
    return said is model.Wait.ALL or said is not model.Wait.NEVER and (
        server.asked)


def waits_since(server: nova.NovaServer) -> datetime.datetime:
    """Return when a server was created or, if it is shelved, shelved.

    Owners can write the time of the shelving, too: no server counts as waiting
    since before its launch.
    """
    if not server.shelved:
        return server.created_at
    begun = server.launched_at or server.created_at
    now: datetime.datetime = timeutils.utcnow(True)
    try:
        shelved: datetime.datetime = timeutils.parse_isotime(
            server.metadata[SHELVED_AT])
        return min(max(begun, shelved), now)
    except (LookupError, ValueError):
        # The mark may be no time.
        return max(begun, server.updated_at)


def local_disk(server: nova.NovaServer) -> int:
    """Return how many GB a server has of its host's disk."""
    flavor = server.flavor
    return (flavor.ephemeral + -(-flavor.swap // 1024) +
            flavor.disk * bool(server.image))


def resources(server: nova.NovaServer) -> dict[str, int]:
    """Return what a server asks for by its flavor, without what ports need.

    The amounts are those of Nova's ResourceRequest.
    """
    flavor = server.flavor
    specs = flavor.extra_specs
    wanted = {'MEMORY_MB': flavor.ram, 'DISK_GB': local_disk(server)}
    if specs.keys().isdisjoint(('resources:VCPU', 'resources:PCPU')):
        pinned = _pinned(flavor)
        wanted |= {'VCPU': flavor.vcpus - pinned, 'PCPU': pinned + bool(
            pinned and specs.get('hw:emulator_threads_policy') == 'isolate')}
    for key, value in specs.items():
        name = key.partition(':')[2]
        # Nova ignores extra specs whose name is no resource class.
        if key.startswith('resources:') and value.isdecimal() and (
                name in orc.STANDARDS or orc.is_custom(name)):
            wanted[name] = min(int(value), model.MAX_INT)
    return {name: amount for name, amount in wanted.items() if amount}


def _pinned(flavor: nova.Flavor) -> int:
    """Return how many processors of a flavor are pinned.

    Nova builds no servers of a flavor whose mask has an error.
    """
    specs, cpus = flavor.extra_specs, range(flavor.vcpus)
    policy = specs.get('hw:cpu_policy')
    if policy != 'mixed':
        return flavor.vcpus * (policy == 'dedicated')
    mask = (specs.get('hw:cpu_dedicated_mask') or
            specs.get('hw:cpu_realtime_mask', '')).strip()
    found = re.findall(r'(\^?)\s*(\d+)(?:\s*-\s*(\d+))?', mask)
    named, left_out = ({
        cpu for caret, first, last in found if caret == sign
        for cpu in cpus if int(first) <= cpu <= int(last or first)}
        for sign in ('', '^'))
    return len((set(cpus) if mask.startswith('^') else named) - left_out)


def scarce(flavor: nova.Flavor) -> dict[str, int]:
    """Return what a flavor asks for of classes that few hosts have."""
    wanted: dict[str, int] = {}
    for key, value in flavor.extra_specs.items():
        group, _sep, name = key.partition(':')
        if group.startswith('resources') and value.isdecimal() and (
                name not in OWN):
            wanted[name] = min(wanted.get(name, 0) + int(value),
                               model.MAX_INT)
    return wanted


def devices(flavor: nova.Flavor) -> dict[str, int]:
    """Return how many PCI devices a flavor asks for, by alias.

    Items that are not "ALIAS:NUMBER" count for nothing: Nova builds no servers
    of such flavors.
    """
    wanted: dict[str, int] = {}
    for item in flavor.extra_specs.get(ALIAS, '').split(','):
        alias, _sep, number = map(str.strip, item.partition(':'))
        if alias and number.isdecimal() and int(number):
            wanted[alias] = min(wanted.get(alias, 0) + int(number),
                                model.MAX_INT)
    return wanted


def is_id(text: str | None) -> bool:
    """Return whether a text is an ID as Nova writes IDs."""
    return uuidutils.is_uuid_like(text) and text == str(uuid.UUID(text))


def is_noticed(server: nova.NovaServer) -> bool:
    """Return whether the metadata of a server show a notice.

    A withdrawal deletes the ID of the other server last: the ID alone is what
    an interrupted withdrawal has left. Owners write metadata, too: metadata do
    not count if the ID in them is not written as Nova writes it.
    """
    return is_id(server.metadata.get(FOR))


def is_back(server: nova.NovaServer) -> bool:
    """Return whether a server that was shelved for another is back.

    A server that is about to be shelved is under notice.
    """
    return (SHELVED_AT in server.metadata and
            FOR not in server.metadata and
            server.status in ENDABLE and not server.task_state)


def is_leaving(server: nova.NovaServer, how: model.Action) -> bool:
    """Return whether a server is on its way off its host by an action."""
    task = server.task_state or ''
    if how is model.Action.DELETE:
        return server.status == 'DELETED' or task == 'deleting'
    return server.status == 'SHELVED' or task.startswith('shelving')


def query(server: nova.NovaServer) -> str:
    """Return a query for Placement that is made from the flavor alone.

    Nova gives no query for a shelved server, nor for any server before 2.107.
    The query of the scheduler may differ.
    """
    amounts = ','.join(f'{name}:{amount}' for name, amount
                       in sorted(resources(server).items()))
    specs = server.flavor.extra_specs
    asked = {'resources': [amounts],
             'required': ['!COMPUTE_STATUS_DISABLED', *_THREADS.get(
                 specs.get('hw:cpu_thread_policy', ''), ())]}
    for key, value in sorted(specs.items()):
        group, _sep, name = key.partition(':')
        if group.startswith('trait') and value in _TRAIT:
            asked.setdefault(group.replace('trait', 'required', 1), []).append(
                _TRAIT[value] + name)
        elif group.startswith('resources') and group != 'resources' and (
                value.isdecimal() and int(value)):
            asked.setdefault(group, []).append(f'{name}:{value}')
    if len(asked) > 2:
        # Nova's choice where the flavor does not choose.
        asked['group_policy'] = [specs.get('group_policy', 'none')]
    return parse.urlencode({key: ','.join(sorted(values))
                            for key, values in asked.items()})


def unsaved(flavor: nova.Flavor, project: str, image: str,
            now: datetime.datetime) -> nova.NovaServer:
    """Return a server that is not created yet, and whose owner asks to wait.

    :param image: '' where the server would boot from a volume
    """
    return nova.NovaServer(
        UNSAVED, UNSAVED, project, '', 'PENDING', None, '', flavor, image,
        now, now, None, {}, False, asked=True)


def shape(request: str, key: str, hosts: Mapping[str, str],
          below: Collection[str] = ()) -> model.Shape:
    """Return what a query for Placement asks for.

    The shape leaves out groups that have to be in one subtree, in aggregates
    or in a tree of their own, and groups that only have traits.

    :param request: as Nova gives it in ``requests``
    :param key: tells apart requests for which filters may answer differently
    :param hosts: names of hosts by the UUID of their provider
    :param below: the resource classes that providers below those of hosts have
    """
    # By the suffix of the group, '' for resources without a group.
    amounts: dict[str, dict[str, int]] = {'': {}}
    traits: dict[str, set[str]] = {'': set()}
    of_root: set[str] = set()
    member_of: set[str] = set()
    host: str | None = None
    isolate = fill_only = False
    for name, value in parse.parse_qsl(request):
        if name == 'member_of':
            member_of.add(value)
        elif name == 'in_tree':
            # If no host has the provider, no host has its UUID for a name.
            host = hosts.get(value, value)
        elif name.startswith('resources'):
            amounts[name.removeprefix('resources')] = {
                resource: min(int(amount), model.MAX_INT)
                for resource, amount in (item.split(':')
                                         for item in value.split(','))}
        elif 'required' in name:
            found = of_root if name == 'root_required' else traits.setdefault(
                name.removeprefix('required'), set())
            found |= ({value} if value.startswith('in:')
                      else set(value.split(',')))
        elif name == 'group_policy':
            isolate = value == 'isolate'
        elif name != 'limit':
            fill_only = True
    spread = amounts.pop(''), frozenset(traits.pop(''))
    others = {'member_of': frozenset(member_of), 'host': host, 'key': key}
    if fill_only or traits.keys() - amounts.keys() or not (
            amounts or spread[0].keys() & set(below)):
        fill_only = fill_only or bool(amounts or traits or (
            spread[0].keys() - OWN - {
                name for name in spread[0] if name.startswith('CUSTOM_')}))
        return model.Shape.of(
            spread[0], required=spread[1] | of_root, fill_only=fill_only,
            **others)
    return model.Shape.of(
        model.total(spread[0], *amounts.values()),
        required=frozenset(of_root), isolate=isolate,
        spread=model.Group.of(*spread), groups=tuple(sorted((
            model.Group.of(wanted, traits.get(suffix, ()))
            for suffix, wanted in amounts.items()),
            key=lambda group: group.order)), **others)


def are_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two servers ask the same of Placement.

    The groups for ports and devices have other suffixes for each server.
    """
    asked, others = ([shape(request, '', {}) for request in requests]
                     for requests in (one, other))
    return one == other or asked == others and not any(
        made.fill_only for made in asked)


def elsewhere(request: model.Shape, classes: Collection[str],
              shared: Collection[str]) -> model.Shape:
    """Return a request without what only other providers may have.

    A class that some hosts have stays: these hosts are judged by it, and
    servers may be ended there for it. If no host has a class, of its own or
    below, the request leaves out the class, the groups and the required
    traits, which may be of the provider of the class; then nobody is ended.
    What Placement offers is exact.

    :param classes: the classes that some host has, of its own or below
    :param shared: the classes that sharing providers have
    """
    others = {name for name, _ in request.resources if name in shared or
              name not in OWN and name not in classes}
    spread = request.spread
    if not others or spread is None and others <= set(classes):
        return dataclasses.replace(request, elsewhere=frozenset(others))
    of_root = request.required if spread else frozenset()
    part = spread or model.Group(request.resources, request.required)
    return model.Shape.of(
        {name: amount for name, amount in part.resources
         if name not in others or name in classes},
        required=of_root | {name for name in part.required
                            if name.startswith('!')},
        member_of=request.member_of, host=request.host, fill_only=True,
        key=request.key, elsewhere=frozenset(others))


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What Nova says of a shape.

    :ivar is_below: whether some of the shape may be on providers below hosts'
        own
    """

    shape: model.Shape
    requests: tuple[str, ...]
    reason: model.Reason = model.Reason.UNKNOWN
    message: str = ''
    advice: str = ''
    asked_at: float = 0.0
    is_below: bool = False


class Shapes:
    """Asks Nova for shapes, and keeps the answers; safe for threads."""

    def __init__(self, compute: nova.Nova) -> None:
        self._nova = compute
        self._lock = threading.Lock()
        self._answers: dict[str, Answer] = {}
        # By ID, the keys of servers that Nova is asked for one by one.
        self._own: dict[str, str] = {}
        # By key, since when Nova is to be asked again, by the monotonic clock.
        self._stale: dict[str, float] = {}

    def key(self, server: nova.NovaServer) -> str:
        """Return the key of servers for which Nova answers alike."""
        own = self._own.get(server.id)
        if own:
            return own
        flavor = server.flavor
        parts = (flavor.name, flavor.vcpus, flavor.ram, flavor.disk,
                 flavor.ephemeral, flavor.swap,
                 sorted(flavor.extra_specs.items()), server.project,
                 server.kind, server.status)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def known(self, server: nova.NovaServer) -> Answer | None:
        """Return the last answer for a server, None if there was none."""
        return self._answers.get(self.key(server))

    def fresh(self, server: nova.NovaServer) -> Answer | None:
        """Return the answer for a server, None if it has to be asked for."""
        with self._lock:
            key = self.key(server)
            return None if key in self._stale else self._answers.get(key)

    def ask(self, server: nova.NovaServer, hosts: Mapping[str, str],
            classes: Collection[str], shared: Collection[str] = (),
            below: Collection[str] = (), beside: Collection[str] = ()
            ) -> Answer:
        """Ask Nova for a server's shape.

        :param hosts: names of hosts by the UUID of their provider
        :param classes: the resource classes that some host has
        :param shared: the resource classes of sharing providers of which it is
            not known which hosts they share with
        :param below: the resource classes that providers below hosts' have
        :param beside: the resource classes of the other sharing providers
        :raises: rest.NotFound, rest.Conflict if the server waits no more
        """
        key, asked_at = self.key(server), time.monotonic()
        pending = None
        if not (server.shelved or server.failed):
            pending = self._nova.pending(server.id, list(hosts.values())[:1])
        # If Nova gives no query, the flavor has to do.
        requests = pending and pending.requests or (query(server),)
        # If Nova says that nothing fits, Nova has asked Placement for all
        # providers of each host: then nothing is elsewhere.
        answer = dataclasses.replace(answer_for(
            server, requests, key, hosts, classes, shared, below, beside,
            lambda: pending is not None and self._nova.pending(
                server.id, ()).reason == model.Reason.NOTHING_FITS),
            requests=requests, asked_at=asked_at)
        if pending:
            answer = dataclasses.replace(
                answer, reason=pending.reason, message=pending.message,
                advice=pending.advice)
        else:
            # A shelved server was ended to make room, and Nova gives no
            # verdict on a server in ERROR.
            answer = dataclasses.replace(answer, shape=dataclasses.replace(
                answer.shape, fill_only=True))
        with self._lock:
            known = self._answers.get(key)
            if known and known.asked_at > asked_at:
                return known
            self._answers[key] = answer
            if self._stale.get(key, asked_at) <= asked_at:
                self._stale.pop(key, None)
        return answer

    def refusals(self, server: nova.NovaServer) -> dict[str, str]:
        """Ask Nova for the filters that refuse hosts, by the host's name.

        :returns: {} if the server waits no more
        :raises: rest.RequestFailed
        """
        if server.shelved or server.failed:
            return {}
        try:
            hosts = self._nova.pending(server.id).hosts
        except (rest.NotFound, rest.Conflict):
            return {}
        return {host: name for host, name in hosts.items() if name}

    def set_apart(self, server: str) -> None:
        """Have Nova asked for a server by itself, because it differs.

        Nova's lists show no forced host, no destination and no needs of ports.
        """
        with self._lock:
            self._own[server] = f'server {server}'

    @property
    def stale(self) -> bool:
        """Whether Nova has to be asked again for some answer."""
        return bool(self._stale)

    def below(self) -> set[str]:
        """Return the keys of what may be on providers below hosts' own."""
        with self._lock:
            return {key for key, answer in self._answers.items()
                    if answer.is_below}

    def keep_unsaved(self, server: nova.NovaServer, answer: Answer) -> None:
        """Keep the answer for an unsaved server until the next whole list."""
        with self._lock:
            self._answers[f'{UNSAVED} {server.flavor.id}'] = answer

    def short_of(self, classes: Collection[str]) -> set[str]:
        """Return the keys of the shapes that leave out one of some classes."""
        with self._lock:
            return {key for key, answer in self._answers.items()
                    if not answer.shape.elsewhere.isdisjoint(classes)}

    def expressions(self) -> set[str]:
        """Return the traits and aggregates that somebody asks for."""
        with self._lock:
            return {name for answer in self._answers.values()
                    for name in answer.shape.expressions}

    def forget(self, age: float = 0.0, keys: Collection[str] | None = None
               ) -> None:
        """Ask again for shapes; until then the last answers hold.

        :param age: of the answers in seconds, at least
        :param keys: of the answers, None for all
        """
        now = time.monotonic()
        with self._lock:
            self._stale.update(
                (key, now) for key, answer in self._answers.items()
                if answer.asked_at <= now - age and (
                    keys is None or key in keys) and (
                        not key.startswith(UNSAVED)))

    def keep_only(self, keys: set[str], servers: set[str]) -> None:
        """Forget what is known of all other keys and servers."""
        with self._lock:
            kept: dict[str, Any]
            for kept, wanted in ((self._answers, keys), (self._stale, keys),
                                 (self._own, servers)):
                for name in kept.keys() - wanted:
                    del kept[name]


def answer_for(server: nova.NovaServer, requests: Sequence[str], key: str,
               hosts: Mapping[str, str], classes: Collection[str],
               shared: Collection[str], below: Collection[str],
               beside: Collection[str] = (),
               is_nowhere_else: Callable[[], bool] = lambda: False) -> Answer:
    """Return what a server asks for by the first possible request of some.

    If no request is possible the last counts. The other parameters are those
    of Shapes.ask().

    :param requests: the queries for Placement, as Nova gives them
    :param key: tells apart requests for which filters may answer differently
    :param is_nowhere_else: tells whether hosts are judged by all classes; is
        called only if that makes a difference
    :returns: an answer with only the request that was chosen
    """
    asked = [shape(request, key, hosts, {*below, *beside})
             for request in requests]
    is_below = any(
        one.groups or one.spread and not one.amounts.keys().isdisjoint(
            below) or one.amounts.keys() - OWN - {*classes, *shared}
        for one in asked)
    others = [elsewhere(one, classes, shared) for one in asked]
    if others != asked and not is_nowhere_else():
        asked = others
    at = next((at for at, one in enumerate(asked) if all(
        name in classes for name, _ in one.resources)), len(asked) - 1)
    return Answer(dataclasses.replace(asked[at], devices=tuple(
        sorted(devices(server.flavor).items()))), (requests[at],),
        is_below=is_below)


def waiting(server: nova.NovaServer, answer: Answer,
            properties: Mapping[str, str]) -> model.Waiting:
    """Return a server that waits, in the words of the queue."""
    return model.Waiting(
        id=server.id, shape=answer.shape,
        created_at=waits_since(server), project=server.project,
        user=server.user, name=server.name,
        flavor=server.flavor.name,
        preemptible=is_preemptible(server.flavor),
        priority=priority(server.flavor, properties),
        attempts=1, last_attempt=server.updated_at,
        reason=(None if answer.reason == model.Reason.UNKNOWN
                else answer.reason),
        pending_timeout=pending_timeout(server.flavor, properties),
        shelved=server.shelved, failed=server.failed, asked=server.asked,
        wait=wait(server, properties), requests=answer.requests)
