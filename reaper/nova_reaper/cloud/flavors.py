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

"""What flavors, projects and metadata say of a server.

Pure functions. What operators write is in extra specs of flavors and in
properties of projects; owners can write metadata, so that decides only how
their own server ends.
"""

from collections.abc import Mapping
import datetime
import functools
import uuid

import os_resource_classes as orc
from oslo_log import log
from oslo_utils import timeutils
from oslo_utils import uuidutils

from nova_reaper.clients import nova
from nova_reaper.cloud import model

LOG = log.getLogger(__name__)
PREEMPTIBLE = 'reaper:preemptible'
PRIORITY = 'reaper:priority'
PENDING_TIMEOUT = 'reaper:pending_timeout'
ACTION = 'reaper:action'
WAIT = 'reaper:wait'

# What no provider has: Placement stores no larger amount.
LARGEST = 2 ** 31 - 1

# Of a victim's metadata: the notice that its guest can read.
TERMINATE_AT = 'reaper:terminate_at'
FOR = 'reaper:for'
# Of one that was shelved for another: it is to come back.
SHELVED_AT = 'reaper:shelved_at'

# Statuses in which Nova takes metadata, a stop and a delete.
ENDABLE = frozenset({'ACTIVE', 'PAUSED', 'SUSPENDED', 'SHUTOFF'})
OFF_HOST = frozenset({'SHELVED_OFFLOADED', 'DELETED', 'SOFT_DELETED'})


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


def wait(server: nova.NovaServer, project: Mapping[str, str]
         ) -> model.Wait | None:
    """What is said of waiting for a server, None where the option decides.

    The owner, by the metadata of the server, goes before the operator, by the
    flavor and the project.
    """
    said = server.metadata.get(WAIT, '').strip().lower()
    if said in ('true', 'false'):
        return model.Wait.ALL if said == 'true' else model.Wait.NEVER
    for where, values in ((f'flavor {server.flavor.name}',
                           server.flavor.extra_specs), ('a project', project)):
        value = values.get(WAIT)
        if value is None:
            continue
        try:
            return model.Wait(value.strip().lower())
        except ValueError:
            _warn_once(f'{WAIT} of {where}', value, 'asked, all or never')
    return None


def action(server: nova.NovaServer, most: int) -> model.Action:
    """How a preemptible server is ended.

    The flavor decides; where it says nothing, the owner by the server's
    metadata; else a server on a volume is shelved, and another deleted.

    :param most: of how many GB on the host's disk owners may have shelved
    """
    value = server.flavor.extra_specs.get(ACTION)
    if value not in (model.Action.DELETE, model.Action.SHELVE):
        value = server.metadata.get(ACTION)
        if value == model.Action.SHELVE and local_disk(server) > most:
            value = None
    if value in (model.Action.DELETE, model.Action.SHELVE):
        return model.Action(value)
    return model.Action.DELETE if server.image else model.Action.SHELVE


def has_asked(server: nova.NovaServer) -> bool:
    """Whether the owner of a server has asked to wait, by whatever means."""
    said = wait(server, {})
    return said is model.Wait.ALL or said is not model.Wait.NEVER and (
        server.asked)


def waits_since(server: nova.NovaServer) -> datetime.datetime:
    """When a server began to wait: at its create, or when it was shelved.

    Owners can write the time of the shelving, too: no server waits since
    before it ran.
    """
    if not server.shelved:
        return server.created_at
    begun = server.launched_at or server.created_at
    now: datetime.datetime = timeutils.utcnow(True)
    try:
        shelved: datetime.datetime = timeutils.parse_isotime(
            server.metadata[SHELVED_AT])
        return min(max(begun, shelved), now)
    except (LookupError, ValueError, TypeError):
        # The mark is no time, or no time with a zone.
        return max(begun, server.updated_at)


def local_disk(server: nova.NovaServer) -> int:
    """How many GB a server has of its host's disk."""
    flavor = server.flavor
    return (flavor.ephemeral + -(-flavor.swap // 1024) +
            flavor.disk * bool(server.image))


def resources(server: nova.NovaServer) -> dict[str, int]:
    """What a server asks for by its flavor, without what ports need.

    As ResourceRequest of Nova counts it where extra specs do not say
    otherwise.
    """
    flavor = server.flavor
    specs = flavor.extra_specs
    cpu = 'PCPU' if specs.get('hw:cpu_policy') == 'dedicated' else 'VCPU'
    wanted = {cpu: flavor.vcpus, 'MEMORY_MB': flavor.ram,
              'DISK_GB': local_disk(server)}
    for key, value in specs.items():
        name = key.partition(':')[2]
        # Nova takes no notice of what is no class.
        if key.startswith('resources:') and value.isdecimal() and (
                name in orc.STANDARDS or orc.is_custom(name)):
            wanted[name] = min(int(value), LARGEST)
    return {name: amount for name, amount in wanted.items() if amount}


def is_id(text: str | None) -> bool:
    """Whether a text is an ID as Nova writes it, and so may be a notice's."""
    return uuidutils.is_uuid_like(text) and text == str(uuid.UUID(text))


def is_back(server: nova.NovaServer) -> bool:
    """Whether a server was shelved for another, and is so no more.

    One that is about to be shelved is under notice.
    """
    return (SHELVED_AT in server.metadata and
            FOR not in server.metadata and
            server.status in ENDABLE and not server.task_state)


def is_leaving(server: nova.NovaServer) -> bool:
    """Whether a server is on its way off its host by being shelved."""
    return (server.status == 'SHELVED' or
            (server.task_state or '').startswith('shelving'))
