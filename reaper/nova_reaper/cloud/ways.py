# SPDX-License-Identifier: Apache-2.0

"""Finds which provider of a host gives what of a request, like Placement.

A host has its own provider, and may have providers below, such as GPUs, and
providers that share with the host. A request group takes all that it asks for
from a single provider. Without a group each resource class may come from
another provider; the providers that give these classes have to have the
required traits together, and sharing providers among them have to be in the
required aggregates.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from nova_reaper.cloud import model

# The most ways of a host to look at, and the most steps to find the ways.
MOST = 256
STEPS = 20_000

# The amount by the name of the provider and the resource class.
Way = Mapping[str, Mapping[str, int]]


def find(shape: model.Shape, nodes: Sequence[model.Provider],
         steps: Iterator[int] | None = None) -> Iterator[Way]:
    """Yield ways in which a host can give what a shape asks for, MOST at most.

    :param nodes: the providers of the host, its own first
    :param steps: has an item for each step that may be made
    """
    if shape.spread is None:
        parts = [(model.Group(shape.resources), False)]
        nodes = nodes[:1]
    else:
        forbidden = frozenset(name for name in shape.spread.required
                              if name.startswith('!'))
        parts = [(model.Group((pair,), forbidden), False)
                 for pair in shape.spread.resources]
        parts += [(group, True) for group in sorted(
            shape.groups, key=lambda group: group.order)]
    seen: set[frozenset[tuple[str, str, int]]] = set()
    steps = steps or iter(range(STEPS))
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
        if len(seen) == MOST:
            return


def _choices(shape: model.Shape, parts: Sequence[tuple[model.Group, bool]],
             nodes: Sequence[model.Provider], steps: Iterator[int],
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


def _gives(node: model.Provider, name: str, amount: int, together: int
           ) -> bool:
    """Return whether a provider can give an amount of a class.

    :param together: the amount with what other parts take there
    """
    item = node.inventory.get(name)
    return item is not None and (
        together <= min(item.capacity - node.used.get(name, 0),
                        item.max_unit) and
        amount >= item.min_unit and amount % item.step_size == 0)


def admits(shape: model.Shape, node: model.Provider) -> bool:
    """Return whether a provider may give resources that are in no group.

    The aggregates of a host are those of all providers of its tree. A
    provider that shares is in no host's tree.
    """
    return not node.shared or shape.host is None and _match(
        node.aggregates, shape.member_of)


def _have(nodes: Sequence[model.Provider], required: frozenset[str]) -> bool:
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
