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

from oslo_serialization import jsonutils

from nova import objects
from nova.objects import persisted_request
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.RequestSpec)
class RequestSpec:

    #: What save() persists beside the fields for the rebuild of a server in
    #: cell0: see nova.objects.persisted_request. None for all other servers.
    #: Rebound, not changed in place.
    rebuild_data = nova_pending.new(None)

    #: The personality files of the request, while it is being scheduled. No
    #: field: they go neither over the bus nor into a log.
    injected_files = nova_pending.new(())

    @nova_pending.new
    def save_all(self):
        """Save though no field has changed.

        A save that was rolled back has left nothing that is changed.
        """
        self.instance_uuid = self.instance_uuid
        self.save()

    def _get_update_primitives(self):
        updates = released.RequestSpec._get_update_primitives(self)
        if updates and self.rebuild_data is not None:
            # The release persists no networks.
            updates['spec'] = persisted_request.with_rebuild_data(
                updates['spec'], self, self.rebuild_data)
        return updates

    @staticmethod
    def _from_db_object(context, spec, db_spec):
        spec = released.RequestSpec._from_db_object(context, spec, db_spec)
        # Lists load many specs, and hardly one is that of a server in cell0.
        if '"%s"' % persisted_request.KEY in db_spec['spec']:
            _load_rebuild_data(spec, jsonutils.loads(db_spec['spec']))
        return spec


def _load_rebuild_data(spec, stored):
    spec.rebuild_data = stored.get(persisted_request.KEY)
    networks = stored['nova_object.data'].get('requested_networks')
    # None were asked for: the scheduler tells that by the missing field.
    if spec.rebuild_data is None or not networks['nova_object.data'][
            'objects']:
        return
    spec.requested_networks = objects.NetworkRequestList.obj_from_primitive(
        networks)
    spec.obj_reset_changes(['requested_networks'])
