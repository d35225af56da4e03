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

"""Keeps a build that was lost from what the server has elsewhere.

nova-compute can hang while it builds a server, which returns to cell0 then and
is built on another host. When it wakes the release deletes the allocations and
unbinds the ports by the ID of the server alone.
"""

import contextvars

from nova import context_value
from nova import exception
from nova.objects import rebuilt_instance
from nova.scheduler import allocations

_instance = contextvars.ContextVar('build_under_way', default=None)


def of(instance):
    """Mark what runs within as a build of a server that came out of cell0.

    :param instance: the Instance that this host was asked to build
    """
    return context_value.within(_instance, instance)


def delete_allocations(context, report_client, instance_uuid):
    """Delete what a server has allocated if it still is this build's.

    :param context: the request context
    :param report_client: the client of the placement service
    :param instance_uuid: the server
    :returns: None if the caller does not run within of() the server;
        otherwise False, if they are another build's, or True
    """
    instance = _instance.get()
    if instance is None or instance.uuid != instance_uuid:
        return None
    lost = False

    def is_current():
        nonlocal lost
        lost = rebuilt_instance.is_elsewhere(instance)
        return not lost

    try:
        allocations.delete(
            context, report_client, instance_uuid, is_current)
    except exception.AllocationUpdateFailed:
        return False
    return not lost
