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

"""Checks the quota for the rebuild of a server in cell0."""

from keystoneauth1 import exceptions as ks_exc

from nova.compute import utils as compute_utils
import nova.conf
from nova import exception
from nova.limit import placement as placement_limits
from nova.limit import utils as limit_utils
from nova import objects
from nova import quota
from nova.scheduler import held_room
from nova.scheduler import utils as scheduler_utils

CONF = nova.conf.CONF


def check(request):
    """Check what is not counted yet of what a rebuild asks for.

    A server in cell0 is an instance, and where cores and RAM are counted in
    the cells they are counted in cell0 too, with the flavor that it has.
    Placement knows nothing of it, but for room that is held for it.

    :param request: the rebuild_request.Request, with its request spec
    :raises: OverQuota
    """
    request.owner.uncounted_hold = _find_hold(request)
    try:
        _check_usage(request)
    finally:
        request.owner.uncounted_hold = None


def _find_hold(request):
    """Return the room that is held for the server, if usage counts it."""
    if not (CONF.quota.count_usage_from_placement or
            limit_utils.use_unified_limits()):
        return None
    try:
        return held_room.find(
            request.context, request.api.placementclient,
            request.record.uuid)
    except ks_exc.ClientException:
        # Who counts the usage says so.
        return None


def _check_usage(request):
    instance, flavor = request.record, request.flavor
    in_placement = (
        CONF.quota.count_usage_from_placement and
        quota._user_id_queued_for_delete_populated(
            request.owner, instance.project_id))
    if in_placement:
        _check_deltas(request, flavor.vcpus, flavor.memory_mb)
    elif request.correction.flavor_id is not None:
        _check_deltas(request, flavor.vcpus - instance.flavor.vcpus,
                      flavor.memory_mb - instance.flavor.memory_mb)
    else:
        compute_utils.check_num_instances_quota(
            request.owner, flavor, 0, 0, orig_num_req=1,
            project_id=instance.project_id, user_id=instance.user_id)
    # Does nothing where there are no unified limits.
    placement_limits.enforce_num_instances_and_resources(
        request.owner, instance.project_id,
        scheduler_utils.request_spec_for_limits(
            flavor, request.request_spec.is_bfv, request.port_resources,
            request.accelerators),
        1, 1, delta_updates={'servers': 0})


def _check_deltas(request, cores, ram):
    deltas = {'instances': 0, 'cores': cores, 'ram': ram}
    project_id = request.record.project_id
    user_id = request.record.user_id
    try:
        objects.Quotas.check_deltas(
            request.owner, deltas, project_id, user_id=user_id,
            check_project_id=project_id, check_user_id=user_id)
    except exception.OverQuota as exc:
        # Say it as a create does.
        quotas, usages = exc.kwargs['quotas'], exc.kwargs['usages']
        headroom = {name: quotas[name] - usages[name]
                    for name in exc.kwargs['overs']}
        overs, req, allowed, used = compute_utils.get_over_quota_detail(
            headroom, exc.kwargs['overs'], quotas, deltas)
        raise exception.TooManyInstances(
            overs=overs, req=req, used=used, allowed=allowed)
