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

import copy

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


def _add_pending(usage):
    usage['properties']['server_usages']['items']['properties']['state'][
        'enum'].append(vm_states.PENDING)


index_response_v2105 = copy.deepcopy(released.index_response_v240)
_add_pending(index_response_v2105['properties']['tenant_usages']['items'])

show_response_v2105 = copy.deepcopy(released.show_response_v240)
_add_pending(show_response_v2105['properties']['tenant_usage']['oneOf'][0])
