# SPDX-License-Identifier: Apache-2.0

from nova.api.openstack import api_version_request
from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.Resource)
class Resource:

    def _process_stack(self, request, action, action_args,
                       content_type, body, accept):
        unknown = not api_version_request.is_supported(
            request, pending.API_VERSION)
        with pending.hidden(unknown):
            return released.Resource._process_stack(
                self, request, action, action_args, content_type, body,
                accept)
