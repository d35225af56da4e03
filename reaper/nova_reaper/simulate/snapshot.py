#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

"""The file of a cloud: what ``simulate`` reads and ``snapshot`` writes.

The format is that of the reference, "nova-reaper simulate". What is wrong in
a file is refused with the path of the wrong value.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import hashlib
import itertools
from typing import Any

from oslo_config import cfg

from nova_reaper.cloud import model
from nova_reaper import conf
from nova_reaper.decide import victims
from nova_reaper.simulate import fields

_RESOURCES = fields.dict_of(fields.count())
_NAMES = fields.list_of(fields.plain_name)
_EXPRESSIONS = fields.list_of(fields.expression)
_TIME = fields.or_null(fields.time)


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """A cloud at one time.

    :ivar refusals: by shape, which filter of Nova's refuses it on which host
    """

    now: datetime.datetime
    options: model.Options = model.Options()
    hosts: Sequence[model.Host] = ()
    servers: Sequence[model.Server] = ()
    waiting: Sequence[model.Waiting] = ()
    refusals: Mapping[model.Shape, Mapping[str, str]] = dataclasses.field(
        default_factory=dict)


def parse(document: Any, now: datetime.datetime) -> Snapshot:
    """The cloud that a document describes.

    :param document: what JSON or YAML made of the file
    :param now: the time that counts if the document has none
    :raises fields.BadInput: if anything is wrong with it
    """
    top = fields.Object(document, '')
    now = top.get('now', fields.time, now)
    options = top.get('options', _options, model.Options())
    hosts = top.get('hosts', fields.list_of(_host), [])
    names = fields.unique(((host.name, f'hosts[{at}].name')
                           for at, host in enumerate(hosts)), {})
    servers = top.get('servers', fields.list_of(_server), [])
    for at, server in enumerate(servers):
        if server.host not in names:
            raise fields.BadInput(f'servers[{at}].host',
                                  f'there is no host "{server.host}"')
    ids = fields.unique(((server.id, f'servers[{at}].id')
                         for at, server in enumerate(servers)), {})
    pairs = top.get('waiting', fields.list_of(
        lambda value, path: _waiting(value, path, now)), [])
    fields.unique(((waiting.id, f'waiting[{at}].id')
                   for at, (waiting, _refused) in enumerate(pairs)), ids)
    top.done()
    used = _usage(servers)
    hosts = [dataclasses.replace(host, used=used.get(host.name, {}))
             for host in hosts]
    return Snapshot(now, options, hosts, servers,
                    [waiting for waiting, _refused in pairs],
                    {waiting.shape: refused for waiting, refused in pairs
                     if refused})


def to_document(cloud: Snapshot) -> dict[str, Any]:
    """The document that :func:`parse` makes the same cloud of.

    What has its default is left out. Room that is used on a host by others
    than the servers (holds, migrations, what Placement alone knows of) becomes
    a server that is not preemptible.
    """
    return {
        'now': _written(cloud.now),
        'options': _differing(cloud.options, model.Options()),
        'hosts': [{
            'name': host.name,
            **_differing(host, model.Host(host.name, {}),
                         'aggregates', 'traits', 'disabled'),
            'inventory': {
                name: {'total': inventory.total,
                       **_differing(inventory, model.Inventory(0))}
                for name, inventory in host.inventory.items()}}
            for host in cloud.hosts],
        'servers': [{
            'id': server.id, 'host': server.host,
            'resources': dict(server.resources),
            **_differing(server, model.Server('', '', {}), *_SERVER)}
            for server in itertools.chain(cloud.servers, _others(cloud))],
        'waiting': [{
            'id': waiting.id, 'resources': waiting.shape.amounts,
            'created_at': _written(waiting.created_at),
            **_differing(waiting.shape, model.Shape(()), 'required',
                         'member_of', 'host', 'fill_only'),
            **_differing(waiting, model.Waiting(
                '', model.Shape(()), cloud.now), *_WAITING),
            **({'failures': waiting.failures} if waiting.attempts > 1 else {}),
            **({'refused_by': dict(cloud.refusals[waiting.shape])}
               if cloud.refusals.get(waiting.shape) else {})}
            for waiting in cloud.waiting]}


def hashed(cloud: Snapshot, key: bytes) -> Snapshot:
    """The same cloud, with hashes for IDs and names.

    IDs and names of servers, projects, users, flavors, hosts and aggregates
    are replaced, each by the same hash wherever it stands. Traits and resource
    classes stay.

    :param key: a secret without which a hash cannot be guessed; files that
        were made with the same one have the same hashes
    """
    def other(name: str) -> str:
        return name and hashlib.blake2b(name.encode(), key=key[:64],
                                        digest_size=8).hexdigest()

    def others(expression: str) -> str:
        forbidden = '!' * expression.startswith('!')
        names = expression.removeprefix('!').removeprefix('in:')
        either = 'in:' * expression.removeprefix('!').startswith('in:')
        return forbidden + either + ','.join(map(other, names.split(',')))

    def refusal(shape: model.Shape) -> dict[str, str]:
        return {other(host): name
                for host, name in cloud.refusals.get(shape, {}).items()}

    def hidden(shape: model.Shape) -> model.Shape:
        return dataclasses.replace(
            shape, host=other(shape.host) if shape.host else None,
            member_of=frozenset(map(others, shape.member_of)),
            key=other(shape.key))

    def names(server: model.Server | model.Waiting) -> dict[str, Any]:
        return {name: other(getattr(server, name))
                for name in ('id', 'name', 'project', 'user', 'flavor')}

    return dataclasses.replace(
        cloud,
        hosts=[dataclasses.replace(
            host, name=other(host.name), uuid=other(host.uuid),
            aggregates=frozenset(map(other, host.aggregates)))
            for host in cloud.hosts],
        servers=[dataclasses.replace(server, host=other(server.host),
                                     **names(server))
                 for server in cloud.servers],
        waiting=[dataclasses.replace(waiting, shape=hidden(waiting.shape),
                                     **names(waiting))
                 for waiting in cloud.waiting],
        refusals={hidden(shape): refusal(shape) for shape in cloud.refusals})


_SERVER = ('project', 'user', 'name', 'flavor', 'preemptible', 'priority',
           'launched_at', 'last_ended_at', 'action', 'locked', 'busy')
_WAITING = ('project', 'user', 'name', 'flavor', 'preemptible', 'priority',
            'attempts', 'last_attempt', 'failed_at', 'reason',
            'pending_timeout', 'shelved', 'asked', 'wait')


def _differing(value: Any, default: Any, *names: str) -> dict[str, Any]:
    """What of a data class is not its default, as a document says it."""
    return {name: _written(getattr(value, name))
            for name in names or [field.name for field
                                  in dataclasses.fields(value)]
            if getattr(value, name) != getattr(default, name)}


def _written(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace('+00:00', 'Z')
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def _others(cloud: Snapshot) -> list[model.Server]:
    """For each host a server with what the others on it do not explain."""
    result = []
    explained = _usage(cloud.servers)
    for host in cloud.hosts:
        mine = explained.get(host.name, {})
        rest = {name: amount - mine.get(name, 0)
                for name, amount in host.used.items()
                if amount > mine.get(name, 0)}
        if rest:
            result.append(model.Server(f'others-on-{host.name}', host.name,
                                       rest))
    return result


def _inventory(value: Any, path: str) -> model.Inventory:
    values = fields.Object(value, path)
    total = values.need('total', fields.count())
    result = model.Inventory(
        total,
        values.get('reserved', fields.count(), 0),
        values.get('allocation_ratio', fields.ratio, 1.0),
        values.get('min_unit', fields.count(1), 1),
        values.get('max_unit', fields.count(1), model.MAX_INT),
        values.get('step_size', fields.count(1), 1))
    if result.reserved > total:
        raise fields.BadInput(
            values.path('reserved'), 'has to be no more than the total, '
            f'{total}, not {result.reserved}')
    values.done()
    return result


def _host(value: Any, path: str) -> model.Host:
    values = fields.Object(value, path)
    host = model.Host(
        values.need('name', fields.name),
        values.need('inventory', fields.dict_of(_inventory)),
        aggregates=frozenset(values.get('aggregates', _NAMES, [])),
        traits=frozenset(values.get('traits', _NAMES, [])),
        disabled=values.get('disabled', fields.flag, False))
    values.done()
    return host


def _common(values: fields.Object) -> dict[str, Any]:
    """What is said of servers, and of such as wait, alike."""
    return {
        'project': values.get('project', fields.text, ''),
        'user': values.get('user', fields.text, ''),
        'name': values.get('name', fields.text, ''),
        'flavor': values.get('flavor', fields.text, ''),
        'preemptible': values.get('preemptible', fields.flag, False),
        'priority': values.get('priority', fields.count(-model.MAX_INT), 0)}


def _server(value: Any, path: str) -> model.Server:
    values = fields.Object(value, path)
    server = model.Server(
        id=values.need('id', fields.name),
        host=values.need('host', fields.name),
        resources=values.need('resources', _RESOURCES),
        **_common(values),
        launched_at=values.get('launched_at', _TIME, None),
        last_ended_at=values.get('last_ended_at', _TIME, None),
        action=model.Action(values.get('action', fields.one_of(*model.Action),
                                       model.Action.DELETE)),
        locked=values.get('locked', fields.flag, False),
        busy=values.get('busy', fields.flag, False))
    values.done()
    return server


def _waiting(value: Any, path: str, now: datetime.datetime
             ) -> tuple[model.Waiting, dict[str, str]]:
    values = fields.Object(value, path)
    refused = values.get('refused_by', fields.dict_of(fields.name), {})
    reason = values.get('reason', fields.or_null(
        fields.one_of(*model.Reason)), None)
    shelved = values.get('shelved', fields.flag, False)
    attempts = values.get('attempts', fields.count(), 0)
    last = values.get('last_attempt', _TIME, None)
    wait = values.get('wait', fields.or_null(fields.one_of(*model.Wait)), None)
    waiting = model.Waiting(
        id=values.need('id', fields.name),
        shape=model.Shape.of(
            values.need('resources', _RESOURCES),
            required=frozenset(values.get('required', _EXPRESSIONS, [])),
            member_of=frozenset(values.get('member_of', _EXPRESSIONS, [])),
            host=values.get('host', fields.or_null(fields.name), None),
            fill_only=values.get('fill_only', fields.flag, False) or shelved,
            key=str(sorted(refused.items())) if refused else ''),
        created_at=values.get('created_at', _TIME, None) or now,
        **_common(values),
        attempts=attempts, last_attempt=last,
        failures=values.get('failures', fields.count(), max(attempts - 1, 0)),
        failed_at=values.get('failed_at', _TIME, last),
        reason=model.Reason(reason) if reason else None,
        pending_timeout=values.get('pending_timeout', fields.or_null(
            fields.count(0, model.MAX_SECONDS)), None),
        shelved=shelved, asked=values.get('asked', fields.flag, True),
        wait=model.Wait(wait) if wait else None)
    values.done()
    return waiting, refused


def _options(value: Any, path: str) -> model.Options:
    """The options, each of the type of its default."""
    values = fields.Object(value, path)
    chosen: dict[str, Any] = {}
    options = {name: option for option in conf.reaper_opts
               for name in (option.dest, *(
                   old.name for old in option.deprecated_opts))}
    for field in dataclasses.fields(model.Options):
        default = field.default
        read: fields.Read[Any]
        if isinstance(default, model.Mode):
            read = fields.one_of(*model.Mode)
        elif isinstance(default, model.Wait):
            read = fields.one_of(model.Wait.ASKED, model.Wait.ALL)
        elif isinstance(default, bool):
            read = fields.flag
        elif isinstance(default, tuple):
            read = fields.list_of(fields.one_of(*victims.SCORERS))
        else:
            read = _of_service(options[field.name])
        chosen[field.name] = values.get(field.name, read, default)
    for name, option in options.items():
        if name not in chosen:
            # Of the service alone: it decides nothing here.
            read = _of_service(option)
            values.get(name, read if option.default is not None
                       else fields.or_null(read), None)
    values.done()
    return model.Options(**{
        **chosen, 'mode': model.Mode(chosen['mode']),
        'wait': model.Wait(chosen['wait']),
        'scorers': tuple(chosen['scorers'])})


def _of_service(option: cfg.Opt) -> fields.Read[Any]:
    if isinstance(option, cfg.BoolOpt):
        return fields.flag
    if isinstance(option, cfg.IntOpt):
        return fields.count(option.type.min or 0,
                            option.type.max or model.MAX_INT)

    def read(value: Any, path: str) -> Any:
        text = fields.text(value, path)
        try:
            return option.type(text)
        except ValueError:
            raise fields.BadInput(path, fields.has_to_be(
                'a value of this option of the service', value)) from None
    return read


def _usage(servers: Sequence[model.Server]) -> dict[str, dict[str, int]]:
    """What servers use, by host and resource class."""
    used: dict[str, dict[str, int]] = {}
    for server in servers:
        mine = used.setdefault(server.host, {})
        for name, amount in server.resources.items():
            mine[name] = mine.get(name, 0) + amount
    return used
