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

from nova.compute import pending
from nova.compute import rebuild_in_cell0
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ViewBuilder)
class ViewBuilder:

    _fault_statuses = released.ViewBuilder._fault_statuses + ('PENDING',)

    def show(self, request, instance, *args, **kwargs):
        view = released.ViewBuilder.show(
            self, request, instance, *args, **kwargs)
        server = view['server']
        if 'OS-EXT-STS:vm_state' in server:
            server['OS-EXT-STS:vm_state'] = pending.shown(
                server['OS-EXT-STS:vm_state'])
        return view

    def _add_security_grps(self, request, servers, instances):
        # Neutron has no port yet of a server that has just left cell0.
        if rebuild_in_cell0.taken_out() is None:
            released.ViewBuilder._add_security_grps(
                self, request, servers, instances)
