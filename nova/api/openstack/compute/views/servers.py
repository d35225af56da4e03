# SPDX-License-Identifier: Apache-2.0

from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ViewBuilder)
class ViewBuilder:

    _fault_statuses = released.ViewBuilder._fault_statuses + ("PENDING",)

    def show(self, request, instance, *args, **kwargs):
        view = released.ViewBuilder.show(
            self, request, instance, *args, **kwargs)
        server = view['server']
        if 'OS-EXT-STS:vm_state' in server:
            server['OS-EXT-STS:vm_state'] = pending.shown(
                server['OS-EXT-STS:vm_state'])
        return view

    def _add_security_grps(self, request, servers, instances):
        # A server that was just taken out of its cell has no ports that
        # Neutron could be asked for.
        asked = request.environ['nova.context'].rebuild
        if asked is not None and asked.taken_out is not None:
            return
        released.ViewBuilder._add_security_grps(
            self, request, servers, instances)
