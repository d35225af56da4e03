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

from nova.api.openstack import api_version_request
from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.Resource)
class Resource:

    def _process_stack(self, request, action, action_args,
                       content_type, body, accept):
        context = request.environ.get('nova.context')
        if context and not request.api_version_request.is_null():
            context.api_version = request.api_version_request.get_string()
        unknown = not api_version_request.is_supported(
            request, pending.API_VERSION)
        with pending.hidden(unknown):
            return released.Resource._process_stack(
                self, request, action, action_args, content_type, body,
                accept)
