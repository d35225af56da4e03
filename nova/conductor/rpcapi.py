# SPDX-License-Identifier: Apache-2.0

from oslo_serialization import jsonutils

import nova.conf
from nova.scheduler.client import report
import nova_pending

CONF = nova.conf.CONF

released = nova_pending.released(__name__)


@nova_pending.over(released.ComputeTaskAPI)
class ComputeTaskAPI:
    """
    1.27 - Added rebuild_instance_in_cell0()
    """  # noqa: H404

    @nova_pending.new
    def rebuild_instance_in_cell0(self, context, build_request, request_spec,
                                  image, admin_password, injected_files,
                                  requested_networks, block_device_mapping,
                                  tags):
        """Cast the build of a server that the API has taken out of its cell.

        While [upgrade_levels] conductor is set there may be conductors that
        do not know the method. They can build a build request, but take a hold
        for the allocation of a server that moves.
        """
        version = '1.27'
        if (CONF.upgrade_levels.conductor or
                not self.client.can_send_version(version)):
            report.drop_held_room(context, build_request.instance_uuid)
            self.schedule_and_build_instances(
                context, [build_request], [request_spec], image,
                admin_password, injected_files, requested_networks,
                block_device_mapping, tags)
            return
        self.client.prepare(version=version).cast(
            context, 'rebuild_instance_in_cell0',
            build_request=build_request,
            request_spec=request_spec,
            image=jsonutils.to_primitive(image),
            admin_password=admin_password,
            injected_files=injected_files,
            requested_networks=requested_networks,
            block_device_mapping=block_device_mapping,
            tags=tags)
