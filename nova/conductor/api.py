# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ComputeTaskAPI)
class ComputeTaskAPI:

    @nova_pending.new
    def rebuild_instance_in_cell0(self, context, build_request, request_spec,
                                  image, admin_password, injected_files,
                                  requested_networks, block_device_mapping,
                                  tags):
        self.conductor_compute_rpcapi.rebuild_instance_in_cell0(
            context, build_request, request_spec, image, admin_password,
            injected_files, requested_networks, block_device_mapping, tags)
