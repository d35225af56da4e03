# SPDX-License-Identifier: Apache-2.0

"""Brute force: what the best decision is, found by looking at all of them.

It is written to be seen to be right, shares no code with what it checks but
the data classes, and is for small clouds only.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import itertools
import random
from typing import Any

from nova_reaper.cloud import index
from nova_reaper.cloud import model

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
ALIASES = ('gpu', 'fpga')
SCARCE = ('CUSTOM_GPU', 'VGPU')
FILTERS = ('NUMATopologyFilter', 'NumInstancesFilter', 'PciPassthroughFilter')
LONG_AGO = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Hosts with what is used on them, and the servers on them.

    :ivar refused: the filter that refuses a host as it is, by the host's name
    """

    hosts: Sequence[model.Host]
    servers: Sequence[model.Server]
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def index(self, options: model.Options) -> index.Index:
        """The index of this world."""
        result = index.Index(options)
        for host in self.hosts:
            result.put(host, [server for server in self.servers
                              if server.host == host.name])
        return result


def world(inventories: Mapping[str, Mapping[str, int]],
          servers: Iterable[model.Server], **others: Any) -> World:
    """A world whose hosts have so much and use what the servers have."""
    servers = list(servers)
    hosts = []
    for name, totals in inventories.items():
        used: dict[str, int] = {}
        for server in servers:
            if server.host == name:
                for key, amount in server.resources.items():
                    used[key] = used.get(key, 0) + amount
        hosts.append(model.Host(
            name, {key: model.Inventory(total)
                   for key, total in totals.items()}, used, **others))
    return World(hosts, servers)


def free(host: model.Host | model.Provider, name: str) -> int:
    """What of a resource class is free on a host."""
    return host.inventory[name].capacity - host.used.get(name, 0)


def providers(host: model.Host) -> dict[str, model.Host | model.Provider]:
    """The providers of a host by their names."""
    return {'': host, **{one.name: one for one in host.providers}}


def free_together(host: model.Host, name: str) -> int | None:
    """What is free of a class on all providers of a host together."""
    having = [free(one, name) for one in providers(host).values()
              if name in one.inventory]
    if len(having) < 2:
        return having[0] if having else None
    return sum(max(0, one) for one in having)


def places(shape: model.Shape, host: model.Host,
           left: Mapping[str, Mapping[str, int]]) -> set[frozenset[
               tuple[tuple[str, str], int]]]:
    """All ways in which the providers of a host can give a shape.

    :param left: what may be allocated, by the names of providers
    """
    known, found = providers(host), set()
    if shape.spread is None:
        known = {'': host}
    spread = shape.spread or model.Group(shape.resources)
    parts: list[tuple[tuple[str, int], ...]] = [
        (pair,) for pair in spread.resources]
    parts += [group.resources for group in shape.groups]
    loose = len(spread.resources)
    for chosen in itertools.product(*([
            name for name, one in known.items()
            if all(key in one.inventory for key, _ in part) and (
                at >= loose or shares(one, shape))]
            for at, part in enumerate(parts))):
        sums: dict[tuple[str, str], int] = {}
        units = True
        for name, part in zip(chosen, parts):
            for key, amount in part:
                sums[name, key] = sums.get((name, key), 0) + amount
                item = known[name].inventory[key]
                units &= (item.min_unit <= amount and
                          amount % item.step_size == 0)
        if units and all(
                amount <= left[name][key] and
                amount <= known[name].inventory[key].max_unit
                for (name, key), amount in sums.items()) and (
                shape.spread is None or has_traits(
                    spread, [known[name] for name in chosen[:loose]])) and all(
                has_traits(group, [known[name]])
                for group, name in zip(shape.groups, chosen[loose:])) and (
                not shape.isolate or
                len({*chosen[loose:]}) == len(shape.groups)):
            found.add(frozenset(sums.items()))
    return found


def shares(one: model.Host | model.Provider, shape: model.Shape) -> bool:
    """Whether a provider may give what a shape asks for without a group."""
    if isinstance(one, model.Host) or not one.shared:
        return True
    return shape.host is None and has_all(shape.member_of, one.aggregates)


def has_traits(group: model.Group,
               some: Sequence[model.Host | model.Provider]) -> bool:
    """Whether providers have the traits of a group together."""
    return has_all(group.required, set().union(*(one.traits for one in some)))


def has_all(expressions: Iterable[str], has: Collection[str]) -> bool:
    """Whether traits or aggregates are those that are asked for."""
    for expression in expressions:
        names = set(
            expression.removeprefix('!').removeprefix('in:').split(','))
        if bool(names & set(has)) == expression.startswith('!'):
            return False
    return True


def could(host: model.Host, shape: model.Shape) -> bool:
    """Whether a host could take a shape if the host were empty."""
    if shape.host not in (None, host.name) or host.disabled:
        return False
    if not places(shape, host, {
            name: {key: item.capacity for key, item in one.inventory.items()}
            for name, one in providers(host).items()}):
        return False
    return (has_all(shape.required, host.traits) and
            has_all(shape.member_of, host.aggregates))


def may_end(server: model.Server, waiting: model.Waiting,
            options: model.Options) -> bool:
    """Whether a server may be ended for another."""
    if not server.preemptible or server.locked or server.busy:
        return False
    run = (NOW - (server.launched_at or LONG_AGO)).total_seconds()
    if run < options.min_run_time:
        return False
    return not waiting.preemptible or server.priority < waiting.priority


def cost(host: model.Host, victims: Sequence[model.Server],
         shape: model.Shape, options: model.Options = model.Options(),
         refused: str | None = None) -> tuple[Any, ...]:
    """What the order of preference compares, the smaller the better.

    :param refused: the filter that refuses the host as it is
    """
    leftover = []
    for name in ('MEMORY_MB', 'VCPU', 'DISK_GB'):
        left = free_together(host, name)
        leftover.append(0 if left is None else (
            left - shape.amounts.get(name, 0) + sum(
                server.amounts.get(name, 0) for server in victims)))
    # Without the filter's word the host has devices enough.
    asked = dict(shape.devices if refused == 'PciPassthroughFilter' else ())
    beyond = sum(max(0, freed(victims, alias) - asked.get(alias, 0))
                 for alias in ALIASES)
    for name in SCARCE:
        there = free_together(host, name) or 0
        if frees_all(refused, shape):
            there = min(there, 0)
        lacks = (max(0, shape.amounts[name] - there)
                 if name in shape.amounts else 0)
        beyond += max(0, sum(server.amounts.get(name, 0)
                             for server in victims) - lacks)
    priorities = sorted((server.priority for server in victims), reverse=True)
    scores = {
        'priority': priorities[:1],
        'count': len(victims),
        'deletes': sum(server.action == 'delete' for server in victims),
        'priorities': priorities,
        'leftover': [beyond, *leftover],
        'youngest': sum(((NOW - (server.launched_at or LONG_AGO))
                         for server in victims), datetime.timedelta())}
    return tuple(scores[name] for name in (*options.scorers, 'count'))


def decide(cloud: World, waiting: model.Waiting, options: model.Options,
           ends_left: Mapping[str, int] | None = None
           ) -> tuple[Any, ...] | None:
    """The cost of the best decision, None if there is none."""
    found = []
    for host in cloud.hosts:
        if not could(host, waiting.shape):
            continue
        mine = [server for server in cloud.servers
                if server.host == host.name and
                may_end(server, waiting, options)]
        for size in range(len(mine) + 1):
            fitting = [
                cost(host, some, waiting.shape, options,
                     cloud.refused.get(host.name))
                for some in itertools.combinations(mine, size)
                if makes_room(host, some, waiting.shape,
                              cloud.refused.get(host.name)) and
                within(some, ends_left or {})]
            # Room that is there is taken, whatever it leaves over.
            found += [(size > 0, one) for one in fitting]
            if fitting and not size:
                break
    return min(found)[1] if found else None


def freed(victims: Sequence[model.Server], alias: str) -> int:
    """How many PCI devices servers have."""
    return sum(server.devices.get(alias, 0) for server in victims)


def makes_room(host: model.Host, victims: Sequence[model.Server],
               shape: model.Shape, refused: str | None = None) -> bool:
    """Whether a host has room when these are gone.

    :param refused: the filter that refuses the host as it is
    """
    if refused == 'NumInstancesFilter' and not victims:
        return False
    if refused == 'PciPassthroughFilter' and not all(
            freed(victims, alias) >= number
            for alias, number in shape.devices):
        return False
    whole = frees_all(refused, shape)
    return bool(places(shape, host, {
        name: {key: (min(free(one, key), 0) if whole else free(one, key)) +
               sum(server.of(name).get(key, 0) for server in victims)
               for key in one.inventory}
        for name, one in providers(host).items()}))


def frees_all(refused: str | None, shape: model.Shape) -> bool:
    """Whether victims have to free all that a server asks for."""
    return refused == 'NUMATopologyFilter' or (
        refused == 'PciPassthroughFilter' and not shape.devices)


def within(victims: Sequence[model.Server],
           ends_left: Mapping[str, int]) -> bool:
    """Whether no project loses more than it may."""
    return all(sum(server.project == project for server in victims) <= left
               for project, left in ends_left.items())


def waiting(resources: Mapping[str, int], number: int = 1, *,
            required: Iterable[str] = (), member_of: Iterable[str] = (),
            host: str | None = None, devices: Mapping[str, int] | None = None,
            **others: Any) -> model.Waiting:
    """A server that waits."""
    shape = model.Shape.of(resources, required=frozenset(required),
                           member_of=frozenset(member_of), host=host,
                           devices=tuple(sorted((devices or {}).items())))
    others.setdefault('created_at', NOW)
    return model.Waiting(f'w{number}', shape, **others)


def carried_out(cloud: World, decision: model.Decision,
                one: model.Waiting) -> World:
    """The world after a decision: victims gone, the server on its host."""
    servers = [server for server in cloud.servers
               if server.id not in decision.victims]
    hosts = []
    for host in cloud.hosts:
        used = dict(host.used)
        changes = [(server.resources, -1) for server in cloud.servers
                   if server.id in decision.victims and
                   server.host == host.name]
        if host.name == decision.host:
            changes.append((one.shape.amounts, 1))
        for resources, sign in changes:
            for name, amount in resources.items():
                used[name] = used.get(name, 0) + sign * amount
        hosts.append(dataclasses.replace(host, used=used))
    return World(hosts, servers, cloud.refused)


def random_world(rand: random.Random, hosts: int = 4,
                 servers: int = 7) -> World:
    """A small cloud that is full, and somewhat odd."""
    totals = {}
    running = []
    for number in range(rand.randint(1, hosts)):
        name = f'h{number}'
        totals[name] = {'VCPU': rand.randint(2, 16),
                        'MEMORY_MB': rand.randint(2, 16) * 256,
                        'DISK_GB': rand.randint(5, 60)}
        if rand.random() < 0.3:
            totals[name]['CUSTOM_GPU'] = rand.randint(1, 4)
        flavors = [random_resources(rand, 5) for _ in range(3)]
        for at in range(rand.randint(0, servers)):
            resources = (rand.choice(flavors) if rand.random() < 0.6
                         else random_resources(rand, 5))
            running.append(model.Server(
                f'{name}-s{at}', name, resources,
                project=rand.choice('ab'),
                devices=random_devices(rand),
                preemptible=rand.random() < 0.85,
                priority=rand.choice((0, 0, 1, 2, -1000)),
                action=rand.choice(list(model.Action)),
                launched_at=rand.choice((None, NOW - datetime.timedelta(
                    seconds=rand.choice((0, 599, 600, 7200, 90000))))),
                locked=rand.random() < 0.05, busy=rand.random() < 0.05))
    result = world(totals, running)
    return World([_odd(rand, host) for host in result.hosts], running, {
        host: rand.choice(FILTERS) for host in totals if rand.random() < 0.4})


def _odd(rand: random.Random, host: model.Host) -> model.Host:
    return dataclasses.replace(
        host, disabled=rand.random() < 0.1,
        traits=frozenset(rand.sample(('CUSTOM_A', 'CUSTOM_B'),
                                     rand.randint(0, 2))),
        aggregates=frozenset(rand.sample(('az1', 'az2'),
                                         rand.randint(0, 2))),
        inventory={
            name: dataclasses.replace(
                inventory, reserved=rand.choice((0, 0, 1)),
                allocation_ratio=rand.choice((1.0, 1.0, 1.5)),
                step_size=rand.choice((1, 1, 1, 1, 2)))
            for name, inventory in host.inventory.items()})


def with_providers(rand: random.Random, cloud: World) -> World:
    """The same cloud with providers below hosts, which servers use."""
    hosts, servers = [], list(cloud.servers)
    alike, first = rand.random() < 0.3, cloud.hosts[0]
    below: dict[str, model.Provider] = {}
    for host in cloud.hosts:
        if alike:
            host = dataclasses.replace(host, inventory=first.inventory,
                                       traits=first.traits)
        if not (alike and below):
            below = {f'g{number}': model.Provider(
                f'g{number}', {
                    name: model.Inventory(
                        rand.choice((1, 1, 2, 4)),
                        max_unit=rand.choice((1, 2, 9)))
                    for name in rand.choice((
                        ['VGPU'], ['VGPU'], ['VGPU'], ['VGPU', 'CUSTOM_GPU'],
                        ['CUSTOM_GPU']))},
                traits=frozenset(rand.sample(('CUSTOM_A', 'CUSTOM_B'),
                                             rand.randint(0, 2))))
                for number in range(rand.choice((0, 1, 2, 3, 4, 4)))}
        used: dict[str, dict[str, int]] = {name: {} for name in below}
        for at, server in enumerate(servers):
            if server.host != host.name:
                continue
            has: dict[str, dict[str, int]] = {}
            for name, one in below.items():
                for key in one.inventory:
                    amount = rand.choice((0, 0, 0, 1, 1, 2))
                    # A provider may be overcommitted, and is rarely.
                    if amount and (used[name].get(key, 0) + amount <=
                                   one.inventory[key].capacity or
                                   rand.random() < 0.1):
                        has.setdefault(name, {})[key] = amount
                        used[name][key] = used[name].get(key, 0) + amount
            servers[at] = dataclasses.replace(server, providers=has)
        for name, one in below.items():
            if rand.random() < 0.2:
                # Others use something, too.
                key = next(iter(one.inventory))
                used[name][key] = used[name].get(key, 0) + 1
        hosts.append(dataclasses.replace(host, providers=tuple(
            dataclasses.replace(one, used=used[name])
            for name, one in below.items())))
    return World(hosts, servers, cloud.refused)


def crowd(rand: random.Random) -> tuple[World, model.Waiting]:
    """Hosts that are just full, with GPUs, and a server that waits for GPUs.

    Most decisions have several victims there.
    """
    hosts, servers = [], []
    for host in [f'h{number}' for number in range(rand.choice((1, 1, 2, 3)))]:
        gpus = {f'g{number}': rand.choice((1, 1, 2, 3))
                for number in range(rand.choice((1, 2, 3)))}
        left, vcpus = dict(gpus), 0
        for number in range(rand.randint(3, 7)):
            own = rand.choice((1, 2, 4, 8))
            vcpus += own
            has = {name: {'VGPU': amount} for name in gpus
                   if 0 < (amount := rand.choice((0, 0, 1, 2))) <= left[name]}
            for name, amounts in has.items():
                left[name] -= amounts['VGPU']
            servers.append(model.Server(
                f'{host}-s{number}', host, {'VCPU': own},
                preemptible=rand.random() < 0.9, locked=rand.random() < 0.15,
                priority=rand.choice((0, 0, 1)),
                action=rand.choice(list(model.Action)), providers=has))
        hosts.append(model.Host(
            host, {'VCPU': model.Inventory(vcpus)}, {'VCPU': vcpus},
            providers=tuple(model.Provider(
                name, {'VGPU': model.Inventory(total)},
                {'VGPU': total - left[name]})
                for name, total in gpus.items())))
    groups = [{'VGPU': rand.choice((1, 1, 2))}
              for _ in range(rand.choice((1, 2, 2, 3)))]
    rest = {'VCPU': rand.choice((1, 2, 4, 6))}
    return World(hosts, servers), dataclasses.replace(
        waiting({}), shape=model.Shape.of(
            model.total(rest, *groups), spread=model.Group.of(rest),
            groups=tuple(map(model.Group.of, groups)),
            isolate=rand.random() < 0.3))


def with_shares(rand: random.Random, cloud: World) -> World:
    """The same cloud with providers that share with some of its hosts."""
    pools = [model.Provider(
        f'pool{at}', {name: model.Inventory(
            rand.choice((-3, 0, 2, 10, 40)),
            step_size=rand.choice((1, 1, 1, 1, 1, 2)))
            for name in rand.choice((
                ['DISK_GB'], ['DISK_GB'], ['DISK_GB', 'CUSTOM_GPU'],
                ['VGPU']))},
        traits=frozenset(rand.sample(('CUSTOM_A', 'CUSTOM_B'),
                                     rand.choice((0, 0, 1)))),
        aggregates=frozenset(rand.sample(('az1', 'az2'),
                                         rand.choice((0, 1, 2, 2)))),
        shared=True) for at in range(rand.choice((1, 1, 1, 2)))]
    hosts, servers = [], list(cloud.servers)
    used: dict[str, dict[str, int]] = {one.name: {} for one in pools}
    for host in cloud.hosts:
        mine = [one for one in pools if rand.random() < 0.8]
        gives = {name: one.name for one in mine for name in one.inventory}
        own = {name: item for name, item in host.inventory.items()
               if name not in gives or rand.random() < 0.2}
        for at, server in enumerate(servers):
            if server.host != host.name:
                continue
            has = dict(server.providers)
            for name in server.resources.keys() & gives.keys() - own.keys():
                amount = server.resources[name]
                has[gives[name]] = {
                    **has.get(gives[name], {}), name: amount}
                used[gives[name]][name] = used[gives[name]].get(
                    name, 0) + amount
            resources = {
                name: amount for name, amount in server.resources.items()
                if name in own or name not in gives}
            servers[at] = dataclasses.replace(
                server, providers=has, resources=resources)
        hosts.append(dataclasses.replace(
            host, inventory=own, used={
                name: amount for name, amount in host.used.items()
                if name in own or name not in gives},
            providers=(*host.providers, *mine)))
    # So much is left of what they share.
    full = {one.name: dataclasses.replace(one, used=used[one.name], inventory={
        name: dataclasses.replace(item, total=max(
            0, item.total + used[one.name].get(name, 0)))
        for name, item in one.inventory.items()}) for one in pools}
    return World([dataclasses.replace(host, providers=tuple(
        full.get(one.name, one) for one in host.providers))
        for host in hosts], servers, cloud.refused)


def random_shared(rand: random.Random, number: int = 1) -> model.Waiting:
    """A server that waits for something that hosts may share."""
    one = random_waiting(rand, number)
    if rand.random() < 0.3:
        one = dataclasses.replace(
            random_groups(rand, number), preemptible=one.preemptible)
    else:
        one = dataclasses.replace(one, shape=dataclasses.replace(
            one.shape, spread=model.Group(one.shape.resources)))
    return dataclasses.replace(one, shape=dataclasses.replace(
        one.shape, host='h0' if rand.random() < 0.1 else None,
        member_of=frozenset([rand.choice((
            'az1', '!az2', 'in:az1,az2', '!in:az1,az2'))]
            if rand.random() < 0.3 else [])))


def random_groups(rand: random.Random, number: int = 1) -> model.Waiting:
    """A server that waits for something that is below hosts, too."""
    one = random_waiting(rand, number)
    amounts = random_resources(rand, rand.choice((2, 4, 8)))
    amounts.pop('CUSTOM_GPU', None)

    def traits() -> frozenset[str]:
        return frozenset([rand.choice((
            'CUSTOM_A', '!CUSTOM_B', 'in:CUSTOM_A,CUSTOM_B'))]
            if rand.random() < 0.2 else [])

    groups = [model.Group.of(rand.choice((
        {'VGPU': 1}, {'VGPU': 1}, {'VGPU': 2}, {'CUSTOM_GPU': 1},
        {'VGPU': 1, 'CUSTOM_GPU': 1})), traits())
        for _ in range(rand.choice((0, 1, 1, 2, 2, 3)))]
    if not groups or rand.random() < 0.4:
        amounts['VGPU'] = rand.choice((1, 1, 2))
    return dataclasses.replace(one, shape=dataclasses.replace(
        one.shape, required=frozenset(), member_of=frozenset(), host=None,
        resources=model.Shape.of(model.total(
            amounts, *(dict(group.resources) for group in groups))).resources,
        spread=model.Group.of(amounts, traits()), groups=tuple(groups),
        isolate=rand.random() < 0.3))


def random_resources(rand: random.Random, most: int) -> dict[str, int]:
    """What a server may have."""
    result = {'VCPU': rand.randint(1, most),
              'MEMORY_MB': rand.randint(1, most) * 256,
              'DISK_GB': rand.choice((0, rand.randint(1, 4 * most)))}
    if rand.random() < 0.15:
        result['CUSTOM_GPU'] = 1
    return {name: amount for name, amount in result.items() if amount}


def random_devices(rand: random.Random) -> dict[str, int]:
    """What PCI devices a server may have."""
    return {alias: rand.randint(1, 2) for alias in ALIASES
            if rand.random() < 0.3}


def random_waiting(rand: random.Random, number: int = 1) -> model.Waiting:
    """A server that waits, for anything that may be asked for."""
    odd = rand.random() < 0.3
    return waiting(
        random_resources(rand, rand.choice((4, 8, 14))), number,
        required=[rand.choice(('CUSTOM_A', '!CUSTOM_B',
                               'in:CUSTOM_A,CUSTOM_B'))] if odd else [],
        member_of=[rand.choice(('az1', '!az2', 'in:az1,az2', '!in:az1,az2'))
                   ] if rand.random() < 0.3 else [],
        host=rand.choice((None,) * 8 + ('h0', 'h9')),
        devices=random_devices(rand),
        preemptible=rand.random() < 0.3, priority=rand.randint(0, 2),
        project=rand.choice('abc'))
