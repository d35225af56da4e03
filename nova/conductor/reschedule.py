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

"""Tries other hosts for a server that came out of cell0.

If no host is left it is given up, and nova.conductor.failed_builds returns it
to cell0.
"""

import contextlib
import contextvars

from oslo_log import log as logging

from nova.compute import rebuild_in_cell0
from nova.compute import utils as compute_utils
from nova.conductor import rebuild_log
from nova.conductor.tasks import host_builds
import nova.conf
from nova import context_value
from nova import exception
from nova import objects
from nova.objects import rebuilt_instance
from nova.scheduler import allocations

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_trying_again = contextvars.ContextVar('trying_again', default=None)


def find_more_hosts(manager, context, instance, filter_properties,
                    request_spec, host_lists):
    """Find other hosts for a server whose build has failed on all it had.

    One for which room was held has no alternates, and one that was the last
    in a full cloud has none either.

    :param manager: the ComputeTaskManager
    :param context: the request context
    :param instance: the Instance
    :param filter_properties: the filter properties, with the tries so far
    :param request_spec: the RequestSpec, None from an old host
    :param host_lists: the alternates that are left, a list with a list
    :returns: lists of Selection objects, of which the caller claims the first
        that it can; what was given if there is nothing to find
    """
    retry = filter_properties.get('retry', {})
    if (host_lists is None or host_lists[0] or request_spec is None or
            not rebuilt_instance.is_marked(instance) or
            CONF.api_database.connection is None or
            not 0 < retry.get('num_attempts', 0) <
            CONF.scheduler.max_attempts):
        return host_lists
    spec = request_spec.obj_clone()
    spec._context = context
    tried = {(host, node) for host, node in retry['hosts']}
    ignored = 'ignore_hosts' in spec and spec.ignore_hosts or ()
    spec.ignore_hosts = [*ignored, *_used_up(instance, tried)]
    manager._restrict_request_spec_to_cell(context, instance, spec)
    try:
        with _answered(context, instance.uuid):
            [found] = manager._schedule_instances(
                context, spec, [instance.uuid], return_alternates=True)
            return [_without(manager, context, instance, found, tried)]
    except exception.NoValidHost:
        LOG.info('There is no other host for the server.', instance=instance)
    except Exception:
        LOG.exception('No other host can be found for the server.',
                      instance=instance)
    return host_lists


def _used_up(instance, tried):
    """Return the hosts of which each node was tried; one of Ironic has many.

    :param instance: the Instance in the cell of the hosts
    :param tried: a set of host and node
    """
    def nodes(host):
        try:
            return objects.ComputeNodeList.get_all_by_host(
                instance._context, host)
        except exception.ComputeHostNotFound:
            return ()

    return [host for host in sorted({host for host, _node in tried})
            if all((host, node.hypervisor_hostname) in tried
                   for node in nodes(host))]


def _without(manager, context, instance, found, tried):
    """Return a list of Selection objects without the nodes that were tried.

    A scheduler can leave out whole hosts only, and claims the first node. It
    finds as many as may be tried, so one that was not is among them.
    """
    left = [selection for selection in found if (
        selection.service_host, selection.nodename) not in tried]
    if found and left[:1] != found[:1]:
        # Or the claim of the next would be added to it.
        allocations.delete(
            context, manager.report_client, instance.uuid,
            lambda: not rebuilt_instance.is_elsewhere(instance))
    return left


@contextlib.contextmanager
def _answered(context, instance_uuid):
    """Let recovery look at a server if a scheduler does not answer in time.

    It may have claimed a host when nobody waits any more, and the entry of
    the rebuild can be as old as its first build by then, and is ended soon.
    """
    mapping = rebuild_in_cell0.cell0(context)
    entry = rebuild_log.begin(context, mapping, instance_uuid)
    try:
        yield
    except exception.NoValidHost:
        rebuild_log.end(context, mapping, entry)
        raise
    rebuild_log.end(context, mapping, entry)


@contextlib.contextmanager
def trying_again(context, report_client, instance, reason):
    """Mark what runs within as another try to build a server.

    If the server has returned to cell0 by the end, what was claimed for it
    meanwhile is nobody's. Recovery looks, since the entry of its rebuild can
    have ended. If its owner has deleted it, who did so can have deleted its
    allocations before the claim.

    :param context: the request context
    :param report_client: the client of the placement service
    :param instance: the Instance, whether it came out of cell0 or not
    :param reason: why its build failed, None if that is not known
    """
    try:
        with context_value.within(_trying_again, (instance, reason)):
            yield
    finally:
        if (rebuilt_instance.is_marked(instance) and
                host_builds.is_deleted(instance._context, instance)):
            _delete_allocations(context, report_client, instance)
        elif (CONF.api_database.connection is not None and
                rebuilt_instance.is_elsewhere(instance)):
            rebuild_log.begin(
                context, rebuild_in_cell0.cell0(context), instance.uuid)


def _delete_allocations(context, report_client, instance):
    try:
        allocations.delete(
            context, report_client, instance.uuid, lambda: True)
    except Exception:
        LOG.exception('What was claimed for the server, which is deleted, is '
                      'allocated still.', instance=instance)


def give_up(context, instance_uuid, exc):
    """Let a server return to cell0 for which the release sets ERROR.

    :param context: the request context
    :param instance_uuid: the server
    :param exc: why no host is asked any more
    :returns: False if it is no other try to build a server out of cell0
    """
    instance, reason = _trying_again.get() or (None, None)
    if (instance is None or instance.uuid != instance_uuid or
            not rebuilt_instance.is_marked(instance)):
        return False
    LOG.warning('The server returns to cell0: %s', exc, instance=instance)
    rebuilt_instance.give_up(instance)
    instance.save()
    compute_utils.add_instance_fault_from_exc(
        context, instance, exc, fault_message=reason)
    return True
