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

from nova import objects
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.API)
class API:

    def create_resource_requests(self, context, requested_networks,
                                 pci_requests=None, affinity_policy=None):
        if _are_known(requested_networks):
            return (requested_networks.metadata, [],
                    objects.RequestLevelParams())
        return released.API.create_resource_requests(
            self, context, requested_networks, pci_requests=pci_requests,
            affinity_policy=affinity_policy)


def _are_known(networks):
    """Whether there is nothing to ask for but what a burial has kept.

    What a network is laid over does not change. What a port asks for does.
    """
    return bool(networks) and networks.metadata is not None and not any(
        network.port_id for network in networks)
