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

from nova.api.openstack.compute.schemas import simple_tenant_usage as schema
from nova.api import validation
from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.SimpleTenantUsageController)
class SimpleTenantUsageController:

    index = validation.response_body_schema(
        schema.index_response_v2105, pending.API_VERSION)(
            released.SimpleTenantUsageController.index)

    show = validation.response_body_schema(
        schema.show_response_v2105, pending.API_VERSION)(
            released.SimpleTenantUsageController.show)

    def _tenant_usages_for_period(self, *args, **kwargs):
        tenants, servers = (
            released.SimpleTenantUsageController._tenant_usages_for_period(
                self, *args, **kwargs))
        for server in servers:
            server['state'] = pending.shown(server['state'])
        return tenants, servers
