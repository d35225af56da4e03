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

from oslo_db import exception as db_exc
import webob.exc

from nova.api.openstack import common
from nova.api.openstack.compute.schemas import server_pending as schema
from nova.api.openstack import wsgi
from nova.api import validation
from nova.compute import api as compute
from nova.compute import pending_reason
from nova.compute import rebuild_in_cell0
from nova import exception
from nova.i18n import _
from nova.policies import server_pending as policies


@validation.validated
class ServerPendingController(wsgi.Controller):

    _view_builder_class = common.ViewBuilder

    def __init__(self):
        super().__init__()
        self.compute_api = compute.API()

    @wsgi.api_version(pending_reason.API_VERSION)
    @wsgi.expected_errors((400, 404, 409, 503))
    @validation.query_schema(schema.show_query)
    @validation.response_body_schema(schema.show_response)
    def show(self, req, server_id):
        """Show why a server waits for a host."""
        context = req.environ['nova.context']
        limit, marker = common.get_limit_and_marker(req)
        with_hosts = context.can(
            policies.BASE_POLICY_NAME % 'hosts:show', target={}, fatal=False)
        if with_hosts:
            # A service has no project of the server's owner.
            context = context.elevated()
        try:
            instance = self._get_instance(context, server_id)
            if not with_hosts:
                context.can(policies.BASE_POLICY_NAME % 'show',
                            target={'project_id': instance.project_id})
            answer = pending_reason.explain(
                self.compute_api, context, instance, with_hosts=with_hosts,
                hosts=req.GET.getall('host') or None, limit=limit,
                marker=marker)
        except exception.MarkerNotFound:
            raise webob.exc.HTTPBadRequest(
                explanation=_('marker [%s] not found') % marker)
        except (exception.InstanceNotFound,
                pending_reason.InstanceNotPending) as exc:
            raise webob.exc.HTTPNotFound(explanation=exc.format_message())
        except exception.InstanceInvalidState as exc:
            raise webob.exc.HTTPConflict(explanation=exc.format_message())
        except db_exc.DBConnectionError:
            raise _unreachable()
        links = self._view_builder._get_collection_links(
            req, answer.get('hosts') or [],
            'servers/%s/pending' % server_id)
        if links:
            answer['hosts_links'] = links
        return {'pending': answer}

    def _get_instance(self, context, server_id):
        try:
            return common.get_instance(
                self.compute_api, context, server_id,
                expected_attrs=list(pending_reason.EXPECTED_ATTRS))
        except exception.NovaException:
            # Its cell does not answer; what is not found is an HTTP error.
            raise _unreachable()


def _unreachable():
    return webob.exc.HTTPServiceUnavailable(
        explanation=rebuild_in_cell0.Cell0Unreachable().format_message())
