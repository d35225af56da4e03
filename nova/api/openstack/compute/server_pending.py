# SPDX-License-Identifier: Apache-2.0

from urllib import parse as urlparse

from oslo_db import exception as db_exc
import webob.exc

from nova.api.openstack import common
from nova.api.openstack.compute.schemas import server_pending as schema
from nova.api.openstack.compute import servers
from nova.api.openstack import wsgi
from nova.api import validation
from nova.compute import api as compute
from nova.compute import pending
from nova.compute import pending_reason
from nova.compute import rebuild_in_cell0
from nova import exception
from nova.i18n import _
from nova.policies import server_pending as policies


class ViewBuilder(common.ViewBuilder):

    def _get_next_link(self, request, identifier, collection_name):
        # The base class keeps only one of several values of a parameter. The
        # next page needs all named hosts.
        link, _mark, _query = super()._get_next_link(
            request, identifier, collection_name).partition('?')
        params = [(name, value) for name, value in request.params.items()
                  if name != 'marker'] + [('marker', identifier)]
        return '%s?%s' % (link, urlparse.urlencode(params))


@validation.validated
class PendingController(wsgi.Controller):

    def __init__(self):
        super().__init__()
        self.pending_reason = pending_reason.PendingReason(compute.API())

    @wsgi.api_version(pending_reason.API_VERSION)
    @wsgi.expected_errors(())
    @validation.query_schema(schema.index_query)
    @validation.response_body_schema(schema.index_response)
    def index(self, req):
        """Say at which microversion each feature for waiting servers begins.

        A release into which the features were ported has other numbers. A
        client asks at the microversion "latest" before it relies on a number.
        """
        return {'pending': {'microversions': {
            'pending': pending.API_VERSION,
            'rebuild': rebuild_in_cell0.API_VERSION,
            'reason': pending_reason.API_VERSION,
        }}}

    @wsgi.api_version(pending_reason.API_VERSION)
    @wsgi.response(200)
    @wsgi.expected_errors((400, 403, 409, 503))
    @validation.schema(schema.create)
    @validation.response_body_schema(schema.create_response)
    def create(self, req, body):
        """Say what a server that is not created would ask for."""
        context = req.environ['nova.context']
        context.can(policies.BASE_POLICY_NAME % 'hosts:show', target={})
        asked = body['pending']
        if asked.get('without') and not asked.get('hosts'):
            raise webob.exc.HTTPBadRequest(explanation=_(
                'Name in "hosts" the hosts to judge without the servers.'))
        try:
            return {'pending': self.pending_reason.judge(
                context.elevated(), asked)}
        except (pending_reason.RequestRefused, exception.ImageNotActive,
                *servers.INVALID_FLAVOR_IMAGE_EXCEPTIONS) as exc:
            raise webob.exc.HTTPBadRequest(explanation=exc.format_message())
        except exception.BootFromVolumeRequiredForZeroDiskFlavor as exc:
            raise webob.exc.HTTPForbidden(explanation=exc.format_message())
        except pending_reason.ServersNotOnHost as exc:
            raise webob.exc.HTTPConflict(explanation=exc.format_message())
        except pending_reason.RequestNotJudged as exc:
            raise webob.exc.HTTPServiceUnavailable(
                explanation=exc.format_message())


@validation.validated
class ServerPendingController(wsgi.Controller):

    _view_builder_class = ViewBuilder  # type: ignore[assignment]

    def __init__(self):
        super().__init__()
        self.compute_api = compute.API()
        self.pending_reason = pending_reason.PendingReason(self.compute_api)

    @wsgi.api_version(pending_reason.API_VERSION)
    @wsgi.expected_errors((400, 404, 409, 503))
    @validation.query_schema(schema.show_query)
    @validation.response_body_schema(schema.show_response)
    def show(self, req, server_id):
        """Show why a server waits for a host."""
        context = req.environ['nova.context']
        limit, marker = common.get_limit_and_marker(req)
        hosts, without = req.GET.getall('host'), req.GET.getall('without')
        if without and len(hosts) != 1:
            raise webob.exc.HTTPBadRequest(explanation=_(
                'Name one host to judge without the servers: '
                '?host=HOST&without=ID&without=ID'))
        page = None
        if context.can(policies.BASE_POLICY_NAME % 'hosts:show', target={},
                       fatal=bool(without)):
            # A service is not of the project of the server.
            context = context.elevated()
            page = pending_reason.Page(
                hosts or None, limit, marker, without)
        try:
            instance = self._get_instance(context, server_id, page)
            if page is None:
                context.can(policies.BASE_POLICY_NAME % 'show',
                            target={'project_id': instance.project_id})
            answer = self.pending_reason.explain(context, instance, page)
        except exception.MarkerNotFound:
            raise webob.exc.HTTPBadRequest(
                explanation=_('marker [%s] not found') % marker)
        except (exception.InstanceNotFound,
                exception.RequestSpecNotFound) as exc:
            raise webob.exc.HTTPNotFound(explanation=exc.format_message())
        except (pending_reason.InstanceNotPending,
                pending_reason.ServersNotOnHost) as exc:
            raise webob.exc.HTTPConflict(explanation=exc.format_message())
        except db_exc.DBConnectionError:
            raise _unreachable()
        links = self._view_builder._get_collection_links(
            req, answer.get('hosts') or [],
            'servers/%s/pending' % server_id)
        if links:
            answer['hosts_links'] = links
        return {'pending': answer}

    def _get_instance(self, context, server_id, page):
        try:
            return common.get_instance(
                self.compute_api, context, server_id,
                expected_attrs=list(pending_reason.EXPECTED_ATTRS)
                if page else [])
        except exception.NovaException:
            # The cell does not answer. A missing server is an HTTP error.
            raise _unreachable()


def _unreachable():
    return webob.exc.HTTPServiceUnavailable(
        explanation=rebuild_in_cell0.CellUnreachable().format_message())
