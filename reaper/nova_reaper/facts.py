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

"""What follows from flavors, projects, metadata and Nova's queries.

Pure functions. What operators write is in extra specs of flavors and in
properties of projects; owners can write metadata, so that decides only how
their own server ends.
"""

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from urllib import parse

import os_resource_classes as orc
from oslo_log import log

from nova_reaper import model
from nova_reaper import nova
from nova_reaper import placement

LOG = log.getLogger(__name__)
PREEMPTIBLE = 'reaper:preemptible'
PRIORITY = 'reaper:priority'
PENDING_TIMEOUT = 'reaper:pending_timeout'
ACTION = 'reaper:action'

# What no provider has: Placement stores no larger amount.
LARGEST = 2 ** 31 - 1

# What a query says for the values of a trait that Nova knows.
_TRAIT = {'required': '', 'forbidden': '!'}

# What a host's own provider has; others are on nested or sharing providers as
# a rule.
OWN = frozenset({'VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB',
                 'MEM_ENCRYPTION_CONTEXT'})


@functools.cache
def _warn_once(what: str, value: str, wanted: str) -> None:
    LOG.warning('%s is %r, and has to be %s; it is taken for not set.',
                what, value, wanted)


def is_preemptible(flavor: nova.Flavor) -> bool:
    """Whether the operator says that servers of the flavor may be ended."""
    value = flavor.extra_specs.get(PREEMPTIBLE, 'false')
    word = value.strip().lower()
    if word not in ('true', 'false'):
        _warn_once(f'{PREEMPTIBLE} of flavor {flavor.name}', value,
                   'true or false')
    return word == 'true'


def _number(name: str, flavor: nova.Flavor, project: Mapping[str, str],
            lowest: int) -> int | None:
    """The value by flavor, else by project, None if neither has one."""
    for where, values in ((f'flavor {flavor.name}', flavor.extra_specs),
                          ('a project', project)):
        value = values.get(name)
        if value is None:
            continue
        try:
            number = int(value)
            if lowest <= number <= model.MAX_INT:
                return number
        except ValueError:
            pass
        _warn_once(f'{name} of {where}', value,
                   f'a number from {lowest} to {model.MAX_INT}')
    return None


def priority(flavor: nova.Flavor, project: Mapping[str, str]) -> int:
    """The priority of a server, 0 unless the operator gives it another."""
    return _number(PRIORITY, flavor, project, -model.MAX_INT) or 0


def pending_timeout(flavor: nova.Flavor, project: Mapping[str, str]
                    ) -> int | None:
    """Seconds that a server may wait, None where the option decides."""
    return _number(PENDING_TIMEOUT, flavor, project, 0)


def action(server: nova.NovaServer) -> model.Action:
    """How a preemptible server is ended.

    The flavor decides; where it says nothing, the owner by the server's
    metadata; else a server on a volume is shelved, and another deleted.
    """
    for value in (server.flavor.extra_specs.get(ACTION),
                  server.metadata.get(ACTION)):
        if value in (model.Action.DELETE, model.Action.SHELVE):
            return model.Action(value)
    return model.Action.DELETE if server.image else model.Action.SHELVE


def resources(server: nova.NovaServer) -> dict[str, int]:
    """What a server asks for by its flavor, without what ports need.

    As ResourceRequest of Nova counts it where extra specs do not say
    otherwise.
    """
    flavor = server.flavor
    specs = flavor.extra_specs
    cpu = 'PCPU' if specs.get('hw:cpu_policy') == 'dedicated' else 'VCPU'
    disk = flavor.ephemeral + -(-flavor.swap // 1024)
    if server.image:
        disk += flavor.disk
    wanted = {cpu: flavor.vcpus, 'MEMORY_MB': flavor.ram, 'DISK_GB': disk}
    for key, value in specs.items():
        name = key.partition(':')[2]
        # Nova takes no notice of what is no class.
        if key.startswith('resources:') and value.isdecimal() and (
                name in orc.STANDARDS or orc.is_custom(name)):
            wanted[name] = min(int(value), LARGEST)
    return {name: amount for name, amount in wanted.items() if amount}


def allocation(server: nova.NovaServer, provider: str) -> placement.Consumer:
    """What a server has of its host, where Placement does not say it."""
    return placement.Consumer(server.id, {provider: resources(server)},
                              server.project, server.user)


def query(server: nova.NovaServer) -> str:
    """A query for Placement from the flavor alone.

    For what Nova answers nothing about: a shelved server, and any before
    2.107. The scheduler may know better.
    """
    amounts = ','.join(f'{name}:{amount}' for name, amount
                       in sorted(resources(server).items()))
    traits = ['!COMPUTE_STATUS_DISABLED']
    for key, value in server.flavor.extra_specs.items():
        if key.startswith('trait:') and value in _TRAIT:
            traits.append(_TRAIT[value] + key.partition(':')[2])
    return parse.urlencode({'resources': amounts,
                            'required': ','.join(sorted(traits))})


def shape(request: str, key: str, hosts: Mapping[str, str]) -> model.Shape:
    """What a query for Placement asks for.

    :param request: as Nova gives it in ``requests``
    :param key: tells apart requests for which filters may answer differently
    :param hosts: names of hosts by the UUID of their provider
    """
    amounts: dict[str, int] = {}
    required: set[str] = set()
    member_of: set[str] = set()
    host: str | None = None
    fill_only = False
    for name, value in parse.parse_qsl(request):
        if name == 'resources':
            for item in value.split(','):
                resource, amount = item.split(':')
                amounts[resource] = min(int(amount), LARGEST)
        elif name in ('required', 'root_required'):
            required |= ({value} if value.startswith('in:')
                         else set(value.split(',')))
        elif name == 'member_of':
            member_of.add(value)
        elif name == 'in_tree':
            # A provider that no host has leaves none.
            host = hosts.get(value, value)
        elif name not in ('limit', 'group_policy', 'same_subtree'):
            fill_only = True
    fill_only = fill_only or bool(amounts.keys() - OWN - {
        name for name in amounts if name.startswith('CUSTOM_')})
    return model.Shape.of(
        amounts, required=frozenset(required), member_of=frozenset(member_of),
        host=host, fill_only=fill_only, key=key)


def elsewhere(request: model.Shape, classes: Collection[str],
              shared: Collection[str]) -> model.Shape:
    """A request without what only other providers than hosts' own may have.

    A class that a sharing provider has is got there by each host that has none
    of its own: where only some hosts have none it stays, and those that have
    it are judged by it, and may have servers ended for it, as ever. A class
    that no host has of its own is left out, be it shared or, as Nova says that
    it is somewhere, nested; nobody is ended for it. With it go the traits that
    are required, which may be those of its provider. What Placement offers is
    exact.

    :param classes: those that some host's own provider has
    :param shared: those that sharing providers have
    """
    others = {name for name, _ in request.resources if name in shared or
              name not in OWN and name not in classes}
    kept = {name: amount for name, amount in request.resources
            if name not in others or name in classes}
    if len(kept) == len(request.resources):
        return dataclasses.replace(request, elsewhere=frozenset(others))
    return model.Shape.of(
        kept, required=frozenset(name for name in request.required
                                 if name.startswith('!')),
        member_of=request.member_of, host=request.host, fill_only=True,
        key=request.key, elsewhere=frozenset(others))


def amounts(request: model.Shape, provider: str) -> placement.Amounts:
    """What to hold of a host's own provider for a request."""
    return {provider: dict(request.resources)}


def fits(request: Sequence[tuple[str, int]], free: Mapping[str, int],
         inventory: Mapping[str, model.Inventory]) -> bool:
    """Whether an amount of each class may be allocated where free is left."""
    for name, amount in request:
        item = inventory.get(name)
        if (item is None or amount > free.get(name, 0) or
                not item.min_unit <= amount <= item.max_unit or
                amount % item.step_size):
            return False
    return True


def least(request: Sequence[tuple[str, int]], provider: placement.Provider,
          victims: Sequence[str], held: Mapping[str, int]
          ) -> tuple[str, ...] | None:
    """Those of the victims that are still needed as the host is now.

    :param victims: IDs of the servers under notice that are still there
    :param held: what is held for the request already
    :returns: None if even all of them do not make room enough
    """
    shares = {uuid: provider.consumers[uuid].resources
              for uuid in victims if uuid in provider.consumers}

    def enough(uuids: Sequence[str]) -> bool:
        free = dict(provider.free)
        for source in [held, *(shares[uuid] for uuid in uuids)]:
            for name, amount in source.items():
                free[name] = free.get(name, 0) + amount
        return fits(request, free, provider.inventory)

    needed = list(shares)
    if not enough(needed):
        return None
    # The largest is left out first: what is kept is what one of them gives.
    for uuid in sorted(shares, key=lambda one: sorted(
            shares[one].items()), reverse=True):
        rest = [other for other in needed if other != uuid]
        if enough(rest):
            needed = rest
    return tuple(needed)
