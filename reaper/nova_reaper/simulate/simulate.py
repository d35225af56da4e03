# SPDX-License-Identifier: Apache-2.0

"""What would happen, from a file and without a cloud."""

import datetime
import json
import os
import pathlib
import sys
from typing import Any
from typing import TextIO

import prettytable
import yaml

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import plan
from nova_reaper.queue import queue as queue_module
from nova_reaper.simulate import snapshot

# Most objects and lists within each other; a cloud has few.
_DEEPEST = 100


def simulate(cloud: snapshot.Snapshot) -> list[model.Decision]:
    """Decide once for each server that waits, in the order of the reaper.

    Each decision sees what those before it took and freed. Those that would
    not be tried now, because they back off, their owners have not asked, or
    they are given up, come last.
    """
    index = index_module.Index(cloud.options)
    servers: dict[str, list[model.Server]] = {}
    for server in cloud.servers:
        servers.setdefault(server.host, []).append(server)
    for host in cloud.hosts:
        index.put(host, servers.get(host.name, ()))
    for shape, by_host in cloud.refusals.items():
        index.exclusions.refuse(shape, by_host)
    queue = queue_module.Queue(cloud.options)
    late, unasked = [], []
    for waiting in cloud.waiting:
        end = queue_module.deadline(waiting, cloud.options)
        if end is not None and end <= cloud.now:
            late.append((waiting, end))
        elif not waiting.is_wanted(cloud.options.wait):
            unasked.append(waiting)
        else:
            queue.put(waiting, cloud.now)
    planner = plan.Planner(index, queue, cloud.options)
    decisions = []
    while (step := planner.next(cloud.now, everybody=True)) is not None:
        decisions.append(step[1])
    done = {decision.server for decision in decisions}
    for waiting in queue.in_order():
        due = queue_module.due_at(waiting, cloud.options)
        if waiting.id not in done and due is not None:
            decisions.append(_not_tried(
                waiting, model.Hindrance.BACK_OFF,
                f'It is tried again at {due:%Y-%m-%dT%H:%M:%SZ}.'))
    decisions += [queue_module.not_asked(waiting)
                  for waiting in sorted(unasked, key=queue.rank)]
    for waiting, end in sorted(late, key=lambda one: queue.rank(one[0])):
        decisions.append(_not_tried(
            waiting, model.Hindrance.DEADLINE,
            f'It has waited past {end:%Y-%m-%dT%H:%M:%SZ}, when it is given '
            'up.'))
    return decisions


def _not_tried(waiting: model.Waiting, hindrance: model.Hindrance,
               detail: str) -> model.Decision:
    return model.Decision(
        waiting.id, model.Verdict.WAIT, detail=detail, hindrance=hindrance,
        reason=waiting.reason or model.Reason.UNKNOWN)


def run(path: str, as_json: bool, now: datetime.datetime) -> int:
    """Simulate what is in a file and print it; returns the exit code.

    :param path: the file, "-" for standard input
    """
    try:
        cloud = snapshot.parse(load(read(path)), now)
    except snapshot.BadInput as error:
        return tell(f'nova-reaper simulate: {error}')
    except OSError as error:
        return tell(f'nova-reaper simulate: {path}: {error.strerror}')
    if sys.stdout is None:
        return tell('nova-reaper simulate: there is no standard output')
    show(simulate(cloud), as_json)
    return 0


def tell(what: str) -> int:
    """Tell what is wrong, if anybody can be told; returns the exit code."""
    if sys.stderr:
        try:
            print(what, file=sys.stderr, flush=True)
        except OSError:
            give_up(sys.stderr)
    return 2


def give_up(output: TextIO) -> None:
    """Drop what could not be written: Python would try again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def show(decisions: list[model.Decision], as_json: bool) -> None:
    """Print decisions, as JSON or as a table."""
    if as_json:
        print(json.dumps({'decisions': [decision.to_dict()
                                        for decision in decisions]},
                         indent=2))
        return
    table = prettytable.PrettyTable(
        ['Server', 'Verdict', 'Host', 'Victims', 'Reason', 'Detail'])
    table.align = 'l'
    for decision in decisions:
        table.add_row([_shown(decision.server), decision.verdict.value,
                       _shown(decision.host or ''),
                       '\n'.join(map(_shown, decision.victims)),
                       decision.word or '', _shown(decision.detail)])
    print(table)


def _shown(text: str) -> str:
    """A text in which nothing tells a terminal what to do."""
    return ''.join(one if one.isprintable() else
                   one.encode('unicode_escape').decode() for one in text)


def read(path: str) -> str:
    """The text of a file, "-" for standard input.

    :raises snapshot.BadInput: if it is no text
    """
    try:
        if path == '-':
            if sys.stdin is None:
                raise snapshot.BadInput('', 'there is no standard input')
            return sys.stdin.buffer.read().decode()
        return pathlib.Path(path).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise snapshot.BadInput('', f'is no UTF-8: {error}')


def load(text: str) -> Any:
    """What a text says, be it JSON or YAML.

    :raises snapshot.BadInput: if it is neither
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise snapshot.BadInput('', 'is nested too deeply')
    except snapshot.BadInput:
        raise
    except ValueError as error:
        not_json = error
    try:
        _see_depth(text)
        return yaml.load(text, _Loader)
    except RecursionError:
        raise snapshot.BadInput('', 'is nested too deeply')
    except snapshot.BadInput:
        raise
    # PyYAML raises errors of the other classes where a tag does not fit the
    # value after it.
    except (yaml.YAMLError, ValueError, AttributeError, ArithmeticError,
            LookupError, TypeError) as error:
        if text.lstrip()[:1] in '{[':
            raise snapshot.BadInput('', f'is no JSON: {not_json}')
        why = (' '.join(str(error).split())
               if isinstance(error, yaml.YAMLError)
               else 'a tag does not fit the value after it')
        raise snapshot.BadInput('', f'is neither JSON nor YAML: {why}')


def _see_depth(text: str) -> None:
    """Refuse a text on which the parser in C would overflow the stack."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += (isinstance(event, yaml.CollectionStartEvent) -
                  isinstance(event, yaml.CollectionEndEvent))
        if depth > _DEEPEST:
            raise snapshot.BadInput('', 'is nested too deeply')


def _unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    try:
        result = dict(pairs)
    except TypeError:
        raise snapshot.BadInput('', 'has an object with a key that is no text')
    if len(result) < len(pairs):
        keys = [key for key, _value in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise snapshot.BadInput('', f'has the key {twice!r} twice in one '
                              'object')
    return result


class _Loader(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):  # type: ignore
    """YAML as JSON would say it: times stay strings, keys are there once."""

    yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers
                if tag != 'tag:yaml.org,2002:timestamp']
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    # A key that is written overrides the same key that is merged, so that
    # only written keys are looked at.
    _unique_keys([(loader.construct_object(key, deep=True), None)
                  for key, _value in node.value
                  if key.tag != 'tag:yaml.org,2002:merge'])
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_constructor('tag:yaml.org,2002:map', _construct_mapping)
