# SPDX-License-Identifier: Apache-2.0

from nova.api.openstack.compute.schemas import servers as schema
from nova.api import validation
from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ServersController)
class ServersController:

    detail = validation.response_body_schema(
        schema.detail_response_v2105, pending.API_VERSION)(validation.ending(
            'response_body_schema', '2.104',
            released.ServersController.detail))

    show = validation.response_body_schema(
        schema.show_response_v2105, pending.API_VERSION)(validation.ending(
            'response_body_schema', '2.104', released.ServersController.show))

    _rebuild = validation.response_body_schema(
        schema.rebuild_response_v2105, pending.API_VERSION)(validation.ending(
            'response_body_schema', '2.104',
            released.ServersController._rebuild))
