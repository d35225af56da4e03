# SPDX-License-Identifier: Apache-2.0

import functools

from oslo_db import exception as db_exc
import webob

from nova.api.openstack.compute.schemas import servers as schema
from nova.api.openstack import wsgi
from nova.api import validation
from nova.compute import pending
from nova.compute import rebuild_in_cell0
from nova import exception
from nova.i18n import _
import nova_pending

released = nova_pending.released(__name__)

# What is raised where the database that has the server cannot be reached.
_UNREACHABLE = (rebuild_in_cell0.CellUnreachable, db_exc.DBConnectionError)


@nova_pending.over(released.ServersController)
class ServersController:

    detail = validation.response_body_schema(
        schema.detail_response_v2105, pending.API_VERSION)(validation.ending(
            'response_body_schema', '2.104',
            released.ServersController.detail))

    show = validation.response_body_schema(
        schema.show_response_v2105, pending.API_VERSION)(validation.ending(
            'response_body_schema', '2.104', released.ServersController.show))

    @nova_pending.in_tree(wsgi.expected_errors((400, 403, 404, 409, 503)))
    @validation.schema(schema.rebuild_v2106, rebuild_in_cell0.API_VERSION)
    @validation.response_body_schema(
        schema.rebuild_response_v2105, pending.API_VERSION)
    @functools.wraps(validation.ending(
        'request_body_schema', '2.105', validation.ending(
            'response_body_schema', '2.104',
            released.ServersController._rebuild)))
    def _rebuild(self, req, id, body):
        context = req.environ['nova.context']
        asked_for = context.supports_api_version(
            rebuild_in_cell0.API_VERSION)
        if asked_for:
            # The compute API finds the image of a server whose rebuild names
            # none.
            body = {'rebuild': {'imageRef': None, **body['rebuild']}}
            context.rebuild = rebuild_in_cell0.Asked(body['rebuild'])
        try:
            return released.ServersController._rebuild(
                self, req=req, id=id, body=body)
        except webob.exc.HTTPConflict as error:
            # Up to 2.104 the words are those of the release.
            refusal = error.__context__
            if (not asked_for and
                    context.supports_api_version(pending.API_VERSION) and
                    isinstance(refusal, exception.InstanceInvalidState) and
                    refusal.kwargs.get('attr') == 'launched_at'):
                error.explanation += _(
                    '. It was never built: ask for its rebuild with '
                    'microversion %s or later.'
                ) % rebuild_in_cell0.API_VERSION
            raise
        except (webob.exc.HTTPInternalServerError, *_UNREACHABLE) as error:
            # The release answers 500 to all that it does not expect.
            cause = error.__context__ if isinstance(
                error, webob.exc.HTTPInternalServerError) else error
            if not (asked_for and isinstance(cause, _UNREACHABLE)):
                raise
            raise webob.exc.HTTPServiceUnavailable(
                explanation=rebuild_in_cell0.CellUnreachable()
                .format_message())
