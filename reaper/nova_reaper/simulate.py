# SPDX-License-Identifier: Apache-2.0

"""Decides for a cloud that a file describes, and reads and writes such files.

The reference, "nova-reaper simulate", documents the format. The command
``simulate`` reads such a file, and ``snapshot`` writes a file about a real
cloud. A file with a wrong value is refused with the path of the value.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import difflib
import enum
import hashlib
import itertools
import json
import pathlib
import re
import sys
from typing import Any
from typing import TypeVar

from oslo_config import cfg
import yaml

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper import conf
from nova_reaper.decide import choose
from nova_reaper.queue import queue as queue_module

T = TypeVar('T')
E = TypeVar('E', bound=enum.StrEnum)
Read = Callable[[Any, str], T]
# The readers of the values of an object, by key.
Table = Mapping[str, Read[Any]]

_FIRST_YEAR = 1970
_LAST_YEAR = 3000
# Most characters of a text of the document that a sentence quotes.
_LONGEST = 300
# A server whose ID begins so stands for all other consumers on its host.
_OTHERS = 'others-on-'


class BadInput(Exception):
    """The document is wrong.

    :param path: the path of the wrong value, such as "hosts[3].name"
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f'{_shown(path) or "the document"}: '
                         f'{_shown(message)}')
        self.path = path


@dataclasses.dataclass(frozen=True, slots=True)
class Arrivals:
    """Servers of one demand that are to come.

    :ivar first: the first server, with the time at which it comes; the ID of
        each server consists of the ID of this server, "-" and the number of
        the server, which is 1 for the first
    :ivar count: how many servers come, None for no end
    :ivar every: seconds between two servers
    """

    first: model.Waiting
    count: int | None
    every: int


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """A cloud at one time, and what is to come.

    :ivar refusals: by shape, which filter of Nova's refuses it on which host
    :ivar run_times: for how many seconds a server runs before the server ends
        by itself, by the ID of the server or of the arrivals
    :ivar actions: how a server that waits or arrives is ended for another
        server once it runs, by the same IDs; the document may lack it
    """

    now: datetime.datetime
    options: model.Options = model.Options()
    hosts: Sequence[model.Host] = ()
    servers: Sequence[model.Server] = ()
    waiting: Sequence[model.Waiting] = ()
    refusals: Mapping[model.Shape, Mapping[str, str]] = dataclasses.field(
        default_factory=dict)
    arrivals: Sequence[Arrivals] = ()
    run_times: Mapping[str, int] = dataclasses.field(default_factory=dict)
    actions: Mapping[str, model.Action] = dataclasses.field(
        default_factory=dict)


def simulate(cloud: Snapshot) -> list[model.Decision]:
    """Decide once for each server that waits, in the order of the reaper.

    Each decision counts with the room that the decisions before it took and
    freed. Three kinds of servers would not be tried now, and come last:
    servers that back off, servers whose owners have not asked to wait, and
    servers that are given up.
    """
    planner = planner_of(cloud)
    queue = planner.queue
    late, unasked = [], []
    for waiting in cloud.waiting:
        end = queue_module.deadline(waiting, cloud.options)
        if end is not None and end <= cloud.now:
            late.append((waiting, end))
        elif not waiting.is_wanted(cloud.options.wait):
            unasked.append(waiting)
        else:
            queue.put(waiting, cloud.now)
    decisions = []
    while (step := planner.next(cloud.now, everybody=True)) is not None:
        decisions.append(step[1])
    done = {decision.server for decision in decisions}
    for waiting in queue.in_order():
        due = queue_module.due_at(waiting, cloud.options)
        if waiting.id not in done and due is not None:
            decisions.append(queue_module.not_tried(
                waiting, model.Hindrance.BACK_OFF,
                f'It is tried again at {model.time_text(due)}.'))
    decisions += [queue_module.not_asked(waiting)
                  for waiting in sorted(unasked, key=queue.rank)]
    for waiting, end in sorted(late, key=lambda one: queue.rank(one[0])):
        decisions.append(queue_module.not_tried(
            waiting, model.Hindrance.DEADLINE,
            f'It has waited past {model.time_text(end)}, when it is given '
            'up.'))
    return decisions


def planner_of(cloud: Snapshot) -> choose.Planner:
    """Return a planner for the hosts of a cloud, with an empty queue."""
    index = index_module.Index(cloud.options)
    servers: dict[str, list[model.Server]] = {}
    for server in cloud.servers:
        servers.setdefault(server.host, []).append(server)
    for host in cloud.hosts:
        index.put(host, servers.get(host.name, ()))
    for shape, by_host in cloud.refusals.items():
        index.exclusions.refuse(shape, by_host)
    return choose.Planner(index, queue_module.Queue(cloud.options),
                          cloud.options)


def read(path: str) -> str:
    """Return the text of a file.

    :param path: "-" for standard input
    :raises BadInput: if the file is not text
    """
    try:
        if path == '-':
            if sys.stdin is None:
                raise BadInput('', 'there is no standard input')
            return sys.stdin.buffer.read().decode()
        return pathlib.Path(path).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise BadInput('', f'is not UTF-8: {error}')


def load(text: str) -> Any:
    """Return the document that a text in JSON or YAML describes.

    :raises BadInput: if the text is neither JSON nor YAML
    """
    try:
        try:
            return json.loads(text, object_pairs_hook=_unique_keys)
        except ValueError as error:
            not_json = error
        return yaml.load(text, _Loader)
    except RecursionError:
        raise BadInput('', 'is nested too deeply')
    # PyYAML raises errors of the other classes where a tag does not fit the
    # value after it.
    except (yaml.YAMLError, ValueError, AttributeError, ArithmeticError,
            LookupError, TypeError) as error:
        if text.lstrip()[:1] in '{[':
            raise BadInput('', f'is not JSON: {not_json}')
        why = (' '.join(str(error).split())
               if isinstance(error, yaml.YAMLError)
               else 'a tag does not fit the value after it')
        raise BadInput('', f'is neither JSON nor YAML: {why}')


def _unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    try:
        result = dict(pairs)
    except TypeError:
        raise BadInput('', 'has an object with a key that is not text')
    if len(result) < len(pairs):
        keys = [key for key, _value in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadInput('', f'has the key {twice!r} twice in one '
                       'object')
    return result


class _Loader(yaml.SafeLoader):
    """Reads YAML as JSON is read: times stay strings, and keys are unique."""

    yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers
                if tag != 'tag:yaml.org,2002:timestamp']
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    # A written key overrides a merged key of the same name, so only written
    # keys have to be unique.
    _unique_keys([(loader.construct_object(key, deep=True), None)
                  for key, _value in node.value
                  if key.tag != 'tag:yaml.org,2002:merge'])
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_constructor('tag:yaml.org,2002:map', _construct_mapping)


def parse(document: Any, now: datetime.datetime) -> Snapshot:
    """Return the cloud that a document describes.

    :param document: the document as load() returns it
    :param now: the time of the cloud if the document has no time
    :raises BadInput: if a value of the document is wrong
    """
    given = _object(document, '', {
        'now': time_of, 'options': _options,
        'hosts': _list_of(_made(model.Host, _HOST)),
        'shared': _dict_of(_values(_SHARED, 'inventory', 'hosts')),
        'servers': _list_of(_values(_SERVER, 'id', 'host', 'resources')),
        'waiting': _list_of(_values(_WAITING, 'id', 'resources')),
        'arrivals': _list_of(_values(_ARRIVALS, 'id', 'resources'))})
    now, hosts = given.get('now', now), given.get('hosts', [])
    there, asking, coming = (
        given.get(key, []) for key in ('servers', 'waiting', 'arrivals'))
    names = _unique('hosts', 'name', [host.name for host in hosts], {})
    hosts = _with_shares(hosts, given.get('shared', {}))
    run_times = {values['id']: seconds for values in (
        *there, *asking, *coming)
        if (seconds := values.pop('run_time', None))}
    actions = {values['id']: action for values in (*asking, *coming)
               if (action := values.pop('action', None))}
    below = {host.name: {one.name for one in host.providers} for host in hosts}
    servers = [model.Server(**values) for values in there]
    for at, server in enumerate(servers):
        if server.host not in names:
            raise BadInput(f'servers[{at}].host',
                           f'there is no host "{server.host}"')
        for name in server.providers.keys() - below[server.host]:
            raise BadInput(f'servers[{at}].providers.{name}', 'is no provider '
                           f'of the host "{server.host}"')
    ids = _unique('servers', 'id', [server.id for server in servers], {})
    refusals = {}
    classes = {name for host in hosts for name in host.below}

    def asked(values: dict[str, Any], at: datetime.datetime | None
              ) -> model.Waiting:
        refused: dict[str, str] = values.pop('refused_by', {})
        shape = {name: values.pop(name) for name in _SHAPE if name in values}
        if values.get('shelved'):
            shape['fill_only'] = True
        shape['key'] = str(sorted(refused.items())) if refused else ''
        values.setdefault('failures', max(values.get('attempts', 0) - 1, 0))
        values.setdefault('failed_at', values.get('last_attempt'))
        item = model.Waiting(**values, shape=shape_of(**shape, below=classes),
                             created_at=at or now)
        if refused:
            refusals[item.shape] = refused
        return item

    waiting = [asked(values, values.pop('created_at', None))
               for values in asking]
    arrivals: list[Arrivals] = []
    for at, values in enumerate(coming):
        every, count = values.pop('every', None), values.pop('count', None)
        item = asked(values, values.pop('at', None))
        if item.created_at < now:
            raise BadInput(
                f'arrivals[{at}].at', 'has to be no time before '
                f'{model.time_text(now)}, the time of the cloud')
        arrivals.append(Arrivals(item, count if every else count or 1,
                                 every or 0))
    ids = _unique('waiting', 'id', [item.id for item in waiting], ids)
    first = {item.first.id: at for at, item in enumerate(arrivals)}
    for name, path in ids.items():
        found = re.fullmatch('(.*)-[1-9][0-9]*', name, re.DOTALL)
        if found and found[1] in first:
            raise BadInput(
                f'arrivals[{first[found[1]]}].id', 'the ID of a server that '
                f'comes may be "{name}", which is that of {path} already')
    _unique('arrivals', 'id', [item.first.id for item in arrivals], ids)
    return Snapshot(
        now, given.get('options', model.Options()), using(hosts, servers),
        servers, waiting, refusals, arrivals, run_times, actions)


def using(hosts: Iterable[model.Host], servers: Sequence[model.Server]
          ) -> list[model.Host]:
    """Return the hosts, whose room is used by these servers alone."""
    hosts, used = list(hosts), _usage(servers)
    shared = _of_shared(hosts, used)
    return [dataclasses.replace(
        host, used=used[host.name][model.OWN], providers=tuple(
            dataclasses.replace(one, used=shared[one.name] if one.shared
                                else used[host.name][one.name])
            for one in host.providers)) for host in hosts]


def _of_shared(hosts: Iterable[model.Host],
               used: Mapping[str, Mapping[str, collections.Counter[str]]]
               ) -> dict[str, collections.Counter[str]]:
    """Return the amounts of shared providers that servers of all hosts use.

    :param used: the amounts that servers use, by host and provider
    """
    found: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter)
    for host in hosts:
        for one in host.providers:
            if one.shared:
                found[one.name].update(used[host.name][one.name])
    return found


def _with_shares(hosts: Iterable[model.Host],
                 shared: Mapping[str, Mapping[str, Any]]) -> list[model.Host]:
    """Return the hosts with the providers that are shared with them.

    :param shared: the values of each provider, by the name of the provider
    :raises BadInput: if a host is not there, or has another provider of the
        same name
    """
    found = {host.name: host for host in hosts}
    for name, values in shared.items():
        provider = model.Provider(name, shared=True, **{
            key: value for key, value in values.items() if key != 'hosts'})
        for at, with_whom in enumerate(values['hosts']):
            host = found.get(with_whom)
            if host is None:
                raise BadInput(f'shared.{name}.hosts[{at}]',
                               f'there is no host "{with_whom}"')
            if any(one.name == name for one in host.providers):
                raise BadInput(f'shared.{name}.hosts[{at}]', f'the host '
                               f'"{with_whom}" has a provider "{name}" '
                               'already')
            found[with_whom] = dataclasses.replace(
                host, providers=(*host.providers, provider))
    return list(found.values())


def to_document(cloud: Snapshot) -> dict[str, Any]:
    """Return a document from which :func:`parse` makes the same cloud.

    The document lacks arrivals, values that are equal to their defaults, and
    how servers that wait will be ended. Consumers other than servers, such as
    holds and migrations, use room on a host, too: a server that is not
    preemptible stands for all of them.
    """
    shared: dict[str, tuple[model.Provider, list[str]]] = {}
    for host in cloud.hosts:
        for one in host.providers:
            if one.shared:
                shared.setdefault(one.name, (one, []))[1].append(host.name)
    return {
        'now': _written(cloud.now),
        'options': _differing(cloud.options, model.Options()),
        'hosts': [{
            'name': host.name,
            **_differing(host, model.Host(host.name, {}),
                         'aggregates', 'traits', 'disabled'),
            **_present(providers={
                one.name: _of_provider(one) for one in host.providers
                if not one.shared}),
            'inventory': _of_inventory(host.inventory)}
            for host in cloud.hosts],
        **_present(shared={
            name: _of_provider(one) | {'hosts': hosts}
            for name, (one, hosts) in sorted(shared.items())}),
        'servers': [{
            'id': server.id, 'host': server.host,
            'resources': dict(server.resources),
            **_differing(server, model.Server('', '', {}), *_OF_SERVER),
            **_present(run_time=cloud.run_times.get(server.id))}
            for server in map(_of_known, itertools.chain(
                cloud.servers, _others(cloud)))],
        'waiting': [{
            'id': waiting.id, **of_shape(waiting.shape),
            'created_at': _written(waiting.created_at),
            **_differing(waiting, model.Waiting(
                '', model.Shape(()), cloud.now), *_OF_WAITING),
            **({'failures': waiting.failures} if waiting.attempts > 1 else {}),
            **_present(refused_by=dict(cloud.refusals.get(waiting.shape, {})),
                       run_time=cloud.run_times.get(waiting.id))}
            for waiting in cloud.waiting]}


def _of_provider(one: model.Provider) -> dict[str, Any]:
    return {**_differing(one, model.Provider('', {}), 'traits', 'aggregates'),
            'inventory': _of_inventory(one.inventory)}


def _of_inventory(inventory: Mapping[str, model.Inventory]) -> dict[str, Any]:
    return {name: {'total': item.total,
                   **_differing(item, model.Inventory(0))}
            for name, item in inventory.items()}


def _of_known(server: model.Server) -> model.Server:
    """Return a server without its amounts of providers that are not known."""
    return dataclasses.replace(server, providers={
        name: amounts for name, amounts in server.providers.items()
        if name != model.UNKNOWN})


def of_shape(shape: model.Shape) -> dict[str, Any]:
    """Return those keys of a waiting server that describe its shape."""
    spread = shape.spread or model.Group(shape.resources)
    return {
        'resources': dict(spread.resources),
        **_differing(dataclasses.replace(
            shape, required=shape.required | spread.required),
            model.Shape(()), 'required', 'member_of', 'host', 'fill_only'),
        **_present(devices=dict(shape.devices), groups=[{
            'resources': dict(group.resources),
            **_differing(group, model.Group(()), 'required')}
            for group in shape.groups],
            group_policy='isolate' if shape.isolate else None)}


def hashed(document: dict[str, Any], key: bytes) -> dict[str, Any]:
    """Return the document with hashes in place of IDs and names.

    A hash replaces each ID and name of a server, project, user, flavor, host,
    provider or aggregate, the same hash in every place. Traits and resource
    classes stay.

    :param document: a document of :func:`to_document`
    :param key: a secret without which nobody can guess a hash; files that are
        made with the same key have the same hashes
    """
    def other(name: str) -> str:
        if name.startswith(_OTHERS):
            return _OTHERS + other(name.removeprefix(_OTHERS))
        return hashlib.blake2b(name.encode(), key=key[:64],
                               digest_size=8).hexdigest()

    def others(expression: str) -> str:
        bare = expression.removeprefix('!').removeprefix('in:')
        return expression.removesuffix(bare) + ','.join(
            map(other, bare.split(',')))

    hide: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(('id', 'name', 'host', 'project', 'user', 'flavor'),
                        other),
        'aggregates': lambda names: sorted(map(other, names)),
        'member_of': lambda names: sorted(map(others, names)),
        'providers': lambda by_name: {
            other(name): value for name, value in by_name.items()},
        'refused_by': lambda by_host: {
            other(host): name for host, name in by_host.items()}}
    shared = {other(name): value | {
        'hosts': list(map(other, value['hosts'])),
        **_present(aggregates=sorted(map(other, value.get('aggregates', ()))))}
        for name, value in document.get('shared', {}).items()}
    return document | _present(shared=shared) | {
        items: [{name: hide[name](value) if name in hide else value
                 for name, value in item.items()} for item in document[items]]
        for items in ('hosts', 'servers', 'waiting')}


def _differing(value: Any, default: Any, *names: str) -> dict[str, Any]:
    """Return the values that differ from defaults, as a document has them."""
    return {name: _written(getattr(value, name))
            for name in names or [field.name for field
                                  in dataclasses.fields(value)]
            if getattr(value, name) != getattr(default, name)}


def _present(**values: Any) -> dict[str, Any]:
    """Return the values that are not empty."""
    return {name: value for name, value in values.items() if value}


def _written(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace('+00:00', 'Z')
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def _others(cloud: Snapshot) -> list[model.Server]:
    """Return a server for each host that uses room beside the servers."""
    result = []
    explained = _usage(cloud.servers)
    # The first host that a provider shares with stands for all of them.
    of_shared = _of_shared(cloud.hosts, explained)
    seen: set[str] = set()
    for host in cloud.hosts:
        for one in host.providers:
            if one.shared:
                explained[host.name][one.name] = collections.Counter(
                    one.used if one.name in seen else of_shared[one.name])
                seen.add(one.name)
        rest = {name: left for name, used in (
            (model.OWN, host.used),
            *((one.name, one.used) for one in host.providers))
            if (left := {key: amount - explained[host.name][name][key]
                         for key, amount in used.items()
                         if amount > explained[host.name][name][key]})}
        if rest:
            result.append(model.Server(
                _OTHERS + host.name, host.name, rest.pop(model.OWN, {}),
                providers=rest))
    return result


def _usage(servers: Sequence[model.Server]
           ) -> dict[str, dict[str, collections.Counter[str]]]:
    """Return what servers use, by host, provider and resource class."""
    used: dict[str, dict[str, collections.Counter[str]]] = (
        collections.defaultdict(lambda: collections.defaultdict(
            collections.Counter)))
    for server in servers:
        for name in (model.OWN, *server.providers):
            used[server.host][name].update(server.of(name))
    return used


def printable(text: str) -> str:
    """Return a text without characters that control a terminal."""
    return ''.join(one if one.isprintable() else repr(one)[1:-1]
                   for one in text)


def _shown(text: str) -> str:
    """Return a text of the document, made short and printable."""
    return printable(text[:_LONGEST]) + '...' * (len(text) > _LONGEST)


def _has_to_be(wanted: str, value: Any, path: str) -> BadInput:
    """Return the error for a value that is not what it has to be."""
    if value is None or isinstance(value, bool):
        told = {None: 'null', True: 'true', False: 'false'}[value]
    elif isinstance(value, dict | list):
        told = 'an object' if isinstance(value, dict) else 'a list'
    else:
        try:
            told = repr(value)
        except ValueError:
            # Python does not print numbers of thousands of digits.
            told = 'that number'
    return BadInput(path, f'has to be {wanted}, not {told[:60]}')


def _object(value: Any, path: str, table: Table,
            needed: Collection[str] = ()) -> dict[str, Any]:
    """Read the values of an object by its keys.

    A key that the table lacks is refused, since it may be a typing error.

    :param needed: the keys that the object has to have
    """
    def at(key: object) -> str:
        return f'{path}.{key}' if path else str(key)

    given, result = _mapping(value, path), {}
    for key, read in table.items():
        if key in given:
            result[key] = read(given[key], at(key))
        elif key in needed:
            raise BadInput(at(key), 'is missing')
    for key in given:
        if key not in table:
            near = difflib.get_close_matches(str(key), table, 1)
            raise BadInput(at(key), 'is not known here' + (
                f'; is "{near[0]}" meant?' if near else ''))
    return result


def _values(table: Table, *needed: str) -> Read[dict[str, Any]]:
    """Return a reader of objects, which returns the values by keys."""
    return lambda value, path: _object(value, path, table, needed)


def _made(kind: type[Any], table: Table) -> Read[Any]:
    """Return a reader of objects, which makes instances of a data class."""
    needed = [field.name for field in dataclasses.fields(kind)
              if field.default is field.default_factory is dataclasses.MISSING]
    return lambda value, path: kind(**_object(value, path, table, needed))


def _unique(items: str, key: str, found: Iterable[str], seen: dict[str, str]
            ) -> dict[str, str]:
    """Refuse a name that the document has twice.

    :param items: the key of the list whose items have the names
    :param key: the key of the name in an item
    :param seen: the paths of names that are taken already, by name
    :returns: the paths of all names, by name
    """
    for at, text in enumerate(found):
        path = f'{items}[{at}].{key}'
        if text in seen:
            raise BadInput(path, f'"{text}" is that of {seen[text]} already')
        seen[text] = path
    return seen


def _only(wanted: str, is_right: Callable[[Any], bool]) -> Read[Any]:
    """Return a reader that returns a right value, and refuses others."""
    def read(value: Any, path: str) -> Any:
        if not is_right(value):
            raise _has_to_be(wanted, value, path)
        return value
    return read


_flag = _only('true or false', lambda value: isinstance(value, bool))
_list = _only('a list', lambda value: isinstance(value, list))
_mapping = _only('an object', lambda value: isinstance(value, dict))


def _list_of(read: Read[T]) -> Read[list[T]]:
    """Return a reader of lists."""
    return lambda value, path: [
        read(one, f'{path}[{at}]')
        for at, one in enumerate(_list(value, path))]


def _set_of(read: Read[T]) -> Read[frozenset[T]]:
    """Return a reader of lists whose order has no meaning."""
    return lambda value, path: frozenset(_list_of(read)(value, path))


def _dict_of(read: Read[T]) -> Read[dict[str, T]]:
    """Return a reader of objects whose keys are names."""
    return lambda value, path: {
        _name(key, f'{path}.{key}'): read(one, f'{path}.{key}')
        for key, one in _mapping(value, path).items()}


def _or_null(read: Read[T]) -> Read[T | None]:
    """Return a reader that accepts null, too."""
    return lambda value, path: None if value is None else read(value, path)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _has_to_be('a string', value, path)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _has_to_be('text', value, path) from None
    return value


def _name(value: Any, path: str) -> str:
    """Read a string that is not empty."""
    result = _text(value, path)
    if not result.strip():
        raise _has_to_be('a string that is not empty', value, path)
    return result


def _count(least: int = 0, most: int = model.MAX_INT) -> Read[int]:
    """Return a reader of whole numbers, which refuses true and 1.0."""
    return _only(f'a whole number from {least} to {most}', lambda value: (
        type(value) is int and least <= value <= most))


def number_of(text: str | None, path: str, least: int, most: int
              ) -> int | None:
    """Return the whole number that an option of the command has as text.

    :param text: None if the command has no such option
    :raises BadInput: if the text is not such a number
    """
    if text is None:
        return None
    # int() takes more than digits, and not thousands of them.
    return _count(least, most)(
        int(text) if re.fullmatch('[0-9]{1,20}', text) else text, path)


_ratio = _only(f'a number from 0 to {model.MAX_INT}', lambda value: (
    type(value) in (int, float) and 0 <= value <= model.MAX_INT))


def time_of(value: Any, path: str) -> datetime.datetime:
    """Read a time of ISO 8601 with its zone."""
    try:
        result = datetime.datetime.fromisoformat(value)
        if result.tzinfo is None or not (
                _FIRST_YEAR <= result.year <= _LAST_YEAR):
            raise ValueError
        return result.astimezone(datetime.UTC)
    except (TypeError, ValueError, OverflowError):
        raise _has_to_be(
            f'a time with its zone, as "2026-11-22T12:00:00Z", of the years '
            f'{_FIRST_YEAR} to {_LAST_YEAR}', value, path) from None


def _one_of(choices: Collection[str]) -> Read[str]:
    """Return a reader that accepts some words."""
    return _only('one of ' + ', '.join(f'"{one}"' for one in choices),
                 lambda value: isinstance(value, str) and value in choices)


def _word(kind: type[E]) -> Read[E]:
    """Return a reader of the words of an enumeration."""
    return lambda value, path: kind(_one_of(list(kind))(value, path))


def _plain_name(value: Any, path: str) -> str:
    """Read a trait or an aggregate that a host has."""
    result = _name(value, path)
    if ',' in result or result.startswith(('!', 'in:')):
        raise BadInput(path, 'has to be a name, without "," and neither "!" '
                       f'nor "in:" before it, not {result!r}')
    return result


def _expression(value: Any, path: str) -> str:
    """Read traits or aggregates that a server needs, as Placement does."""
    result = _name(value, path)
    wanted = result.removeprefix('!')
    names = wanted.removeprefix('in:').split(',')
    if (len(names) > 1 and not wanted.startswith('in:')) or not all(
            one.strip() and not one.startswith(('!', 'in:'))
            for one in names):
        raise BadInput(path, 'has to be "NAME" or "in:NAME,NAME", with "!" '
                       f'before it to forbid it, not {result!r}')
    return result


def _inventory(value: Any, path: str) -> model.Inventory:
    result: model.Inventory = _made(model.Inventory, _INVENTORY)(value, path)
    if result.reserved > result.total:
        raise BadInput(
            f'{path}.reserved', 'has to be no more than the total, '
            f'{result.total}, not {result.reserved}')
    return result


def _providers(value: Any, path: str) -> tuple[model.Provider, ...]:
    return tuple(model.Provider(name, **values) for name, values in _dict_of(
        _values(_PROVIDER, 'inventory'))(value, path).items())


def _group(value: Any, path: str) -> model.Group:
    group = model.Group.of(**_object(value, path, _GROUP, ('resources',)))
    if not group.resources:
        raise BadInput(f'{path}.resources', 'has to have an amount that is '
                       'not 0')
    return group


def shape_of(resources: Mapping[str, int], below: Collection[str],
             devices: Mapping[str, int] | None = None,
             required: frozenset[str] = frozenset(),
             groups: Sequence[model.Group] = (), group_policy: str = 'none',
             **others: Any) -> model.Shape:
    """Return the shape that keys of a waiting server describe.

    :param below: the classes of the providers below the hosts' own
    """
    others['devices'] = tuple(sorted((devices or {}).items()))
    if not groups and resources.keys().isdisjoint(below):
        return model.Shape.of(resources, required=required, **others)
    return model.Shape.of(
        model.total(resources, *(dict(one.resources) for one in groups)),
        spread=model.Group.of(resources, required), groups=tuple(groups),
        isolate=group_policy == 'isolate', **others)


def _options(value: Any, path: str) -> model.Options:
    """Read options; a simulation ignores options of the service alone."""
    values = _object(value, path, {
        name: _option(option)
        for option in conf.reaper_opts for name in (
            option.dest, *(old.name for old in option.deprecated_opts))})
    return model.Options(**{
        name: type(default)(values[name]) for name, default
        in dataclasses.asdict(model.Options()).items() if name in values})


def _option(option: cfg.Opt) -> Read[Any]:
    """Return a reader of the values of an option."""
    if isinstance(option, cfg.BoolOpt):
        return _flag
    if isinstance(option, cfg.IntOpt):
        return _count(option.type.min or 0, option.type.max or model.MAX_INT)
    if isinstance(option, cfg.ListOpt):
        return _list_of(_one_of(option.type.item_type.choices))
    if getattr(option.type, 'choices', None):
        return _one_of(option.type.choices)

    def read(value: Any, path: str) -> Any:
        text = _text(value, path)
        try:
            return option.type(text)
        except ValueError:
            raise _has_to_be('a value of this option of the service', value,
                             path) from None
    return _or_null(read) if option.default is None else read


_NAMES = _set_of(_plain_name)
_EXPRESSIONS = _set_of(_expression)
_WHEN = _or_null(time_of)
_SECONDS = _or_null(_count(1, model.MAX_SECONDS))
_INVENTORY: Table = {
    'total': _count(), 'reserved': _count(), 'allocation_ratio': _ratio,
    'min_unit': _count(1), 'max_unit': _count(1), 'step_size': _count(1)}
_PROVIDER: Table = {'inventory': _dict_of(_inventory), 'traits': _NAMES}
_SHARED: Table = {**_PROVIDER, 'aggregates': _NAMES,
                  'hosts': _list_of(_name)}
_HOST: Table = {
    'name': _name, **_PROVIDER, 'aggregates': _NAMES, 'disabled': _flag,
    'providers': _providers}
_ASKED: Table = {'resources': _dict_of(_count()),
                 'devices': _dict_of(_count(1))}
_COMMON: Table = {
    'project': _text, 'user': _text, 'name': _text, 'flavor': _text,
    'preemptible': _flag, 'priority': _count(-model.MAX_INT)}
_SERVER: Table = {
    'id': _name, 'host': _name, **_ASKED, **_COMMON, 'launched_at': _WHEN,
    'last_ended_at': _WHEN, 'action': _word(model.Action), 'locked': _flag,
    'busy': _flag, 'providers': _dict_of(_dict_of(_count())),
    'run_time': _SECONDS}
_GROUP: Table = {'resources': _dict_of(_count()), 'required': _EXPRESSIONS}
_SHAPE: Table = {
    **_ASKED, 'required': _EXPRESSIONS, 'member_of': _EXPRESSIONS,
    'groups': _list_of(_group), 'group_policy': _one_of(('none', 'isolate')),
    'host': _or_null(_name), 'fill_only': _flag}
_WAITING: Table = {
    'id': _name, **_SHAPE, 'created_at': _WHEN, **_COMMON,
    'attempts': _count(), 'last_attempt': _WHEN, 'failures': _count(),
    'failed_at': _WHEN, 'reason': _or_null(_word(model.Reason)),
    'pending_timeout': _or_null(_count(0, model.MAX_SECONDS)),
    'shelved': _flag, 'asked': _flag, 'wait': _or_null(_word(model.Wait)),
    'refused_by': _dict_of(_name), 'run_time': _SECONDS,
    'action': _word(model.Action)}
_ARRIVALS: Table = {
    **{name: read for name, read in _WAITING.items() if name not in (
        'created_at', 'attempts', 'last_attempt', 'failures', 'failed_at',
        'reason', 'shelved')},
    'at': _WHEN, 'count': _or_null(_count(1)), 'every': _SECONDS}


# Keys that a document has only where the value is not the default.
_OF_SERVER = [name for name in _SERVER
              if name not in ('id', 'host', 'resources', 'run_time')]
_OF_WAITING = [name for name in _WAITING if name not in (
    'id', *_SHAPE, 'created_at', 'failures', 'refused_by', 'run_time',
    'action')]
