# SPDX-License-Identifier: Apache-2.0

import functools

from oslo_db import exception as db_exc
import webob

from nova.api.openstack import api_version_request
from nova.api.openstack import common
from nova.api.openstack.compute.schemas import servers as schema
from nova.api.openstack import wsgi
from nova.api import validation
from nova.compute import pending
from nova.compute import pending_reason
from nova.compute import rebuild_correction
from nova.compute import rebuild_in_cell0
from nova import exception
from nova.i18n import _
from nova import objects
from nova.policies import servers as server_policies
import nova_pending

released = nova_pending.released(__name__)

# The exceptions if the database that has the server cannot be reached.
_UNREACHABLE = (rebuild_in_cell0.CellUnreachable, db_exc.DBConnectionError)


@nova_pending.over(released.ServersController)
class ServersController:

    @validation.response_body_schema(
        schema.detail_response_v2107, pending_reason.API_VERSION)
    @validation.response_body_schema(
        schema.detail_response_v2105, pending.API_VERSION,
        rebuild_in_cell0.API_VERSION)
    @functools.wraps(validation.ending(
        'response_body_schema', '2.104', released.ServersController.detail))
    def detail(self, req):
        answer = released.ServersController.detail(self, req)
        self._add_asked_to_wait(req, answer['servers'])
        return answer

    @validation.response_body_schema(
        schema.show_response_v2107, pending_reason.API_VERSION)
    @validation.response_body_schema(
        schema.show_response_v2105, pending.API_VERSION,
        rebuild_in_cell0.API_VERSION)
    @functools.wraps(validation.ending(
        'response_body_schema', '2.104', released.ServersController.show))
    def show(self, req, id):
        answer = released.ServersController.show(self, req, id)
        self._add_asked_to_wait(req, [answer['server']])
        return answer

    @validation.response_body_schema(
        schema.update_response_v2105, pending.API_VERSION)
    @functools.wraps(validation.ending(
        'response_body_schema', '2.104', released.ServersController.update))
    def update(self, req, id, body):
        return released.ServersController.update(self, req, id, body=body)

    @nova_pending.new
    def _add_asked_to_wait(self, req, servers):
        """Say of servers that were never built whether they asked to wait.

        The request specs of those servers are loaded in one query.
        """
        context = req.environ['nova.context']
        if not api_version_request.is_supported(
                req, pending_reason.API_VERSION):
            return
        waiting = {server['id']: server for server in servers
                   if server['status'] == 'PENDING' or (
                       server['status'] == 'ERROR' and not server['hostId'] and
                       server['OS-SRV-USG:launched_at'] is None)}
        if waiting:
            for spec in objects.RequestSpec.get_by_instance_uuids(
                    context, list(waiting)):
                waiting[spec.instance_uuid]['asked_to_wait'] = (
                    pending_reason.asked_to_wait(spec))

    def _get_server(self, context, req, instance_uuid, is_detail=False,
                    *args, **kwargs):
        asked = context.rebuild
        # With details, the server is read to be shown in the answer.
        if is_detail and asked is not None and asked.taken_out is not None:
            return asked.taken_out
        instance = released.ServersController._get_server(
            self, context, req, instance_uuid, is_detail, *args, **kwargs)
        if asked is not None and not is_detail:
            # A rebuild reads its server here, before it checks anything.
            asked.correction = self._find_correction(
                context, instance, asked.body)
        return instance

    @nova_pending.new
    def _find_correction(self, context, instance, rebuild):
        """Return the flavor and the zone that a rebuild names.

        The policies and the lock are checked before either of them is looked
        up.

        :param rebuild: the body of the rebuild action
        :returns: a Correction, None if neither is named
        """
        flavor_id = rebuild.get('flavorRef')
        names_zone = 'availability_zone' in rebuild
        if flavor_id is None and not names_zone:
            return None
        target = {'project_id': instance.project_id,
                  'user_id': instance.user_id,
                  'availability_zone': instance.availability_zone}
        context.can(server_policies.SERVERS % 'rebuild', target=target)
        zone = host = node = None
        if names_zone:
            try:
                zone, host, node = self.compute_api.parse_availability_zone(
                    context, rebuild['availability_zone'])
            except exception.InvalidInput as error:
                raise webob.exc.HTTPBadRequest(
                    explanation=error.format_message())
            target['availability_zone'] = zone
        # A rebuild must not give the owner what the owner may not create, or
        # resize a server to.
        context.can(server_policies.SERVERS % 'create', target=target)
        if flavor_id is not None:
            context.can(server_policies.SERVERS % 'resize', target=target)
            flavor_id = common.get_id_from_href(flavor_id)
        if host or node:
            context.can(server_policies.SERVERS % 'create:forced_host',
                        target=target)
        if instance.locked and not context.is_admin:
            raise webob.exc.HTTPConflict(
                explanation=exception.InstanceIsLocked(
                    instance_uuid=instance.uuid).format_message())
        if host or node:
            zone = self._validate_host_availability_zone(context, zone, host)
        return rebuild_correction.Correction(
            flavor_id, (zone, host, node) if names_zone else None)

    @nova_pending.in_tree(wsgi.expected_errors((400, 403, 404, 409, 503)))
    @validation.schema(schema.rebuild_v2107, rebuild_correction.API_VERSION)
    @validation.schema(
        schema.rebuild_v2106, rebuild_in_cell0.API_VERSION,
        rebuild_in_cell0.API_VERSION)
    @validation.response_body_schema(
        schema.rebuild_response_v2105, pending.API_VERSION)
    @functools.wraps(validation.ending(
        'request_body_schema', '2.105', validation.ending(
            'response_body_schema', '2.104',
            released.ServersController._rebuild)))
    def _rebuild(self, req, id, body):
        context = req.environ['nova.context']
        asked_for = api_version_request.is_supported(
            req, rebuild_in_cell0.API_VERSION)
        if asked_for:
            # The compute API finds the image of a server whose rebuild names
            # none.
            body = {'rebuild': {'imageRef': None, **body['rebuild']}}
            context.rebuild = rebuild_in_cell0.Asked(body['rebuild'])
        try:
            return released.ServersController._rebuild(
                self, req=req, id=id, body=body)
        except webob.exc.HTTPConflict as error:
            # Up to 2.104 the words do not mention that rebuild.
            refusal = error.__context__
            if (not asked_for and not pending.is_hidden() and
                    isinstance(refusal, exception.InstanceInvalidState) and
                    refusal.kwargs.get('attr') == 'launched_at'):
                error.explanation += _(
                    '. It was never built: ask for its rebuild with '
                    'microversion %s or later.'
                ) % rebuild_in_cell0.API_VERSION
            raise
        except (webob.exc.HTTPInternalServerError, *_UNREACHABLE) as error:
            # The rebuild answers an unexpected exception with 500.
            cause = error.__context__ if isinstance(
                error, webob.exc.HTTPInternalServerError) else error
            if not (asked_for and isinstance(cause, _UNREACHABLE)):
                raise
            raise webob.exc.HTTPServiceUnavailable(
                explanation=rebuild_in_cell0.CellUnreachable()
                .format_message())
