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

import nova_pending

released = nova_pending.released(__name__)

# Beside the object in its row, where the release does not look.
_REMEMBERED = 'nova_pending'

# What the release does not persist and what nothing else tells: a server
# that is buried in cell0 can only be rebuilt as it was asked for with these.
_KEPT = ('requested_networks', 'requested_destination')


@nova_pending.over(released.RequestSpec)
class RequestSpec:

    #: Whether save() persists what a rebuild of a buried server needs.
    is_buried = nova_pending.new(False)

    #: What else save() persists then, a dict that JSON can hold. Rebound, not
    #: changed in place.
    remembered = nova_pending.new({})

    def _get_update_primitives(self):
        updates = released.RequestSpec._get_update_primitives(self)
        if updates and self.is_buried:
            spec = released.RequestSpec.obj_from_primitive(
                jsonutils.loads(updates['spec']))
            for field in _KEPT:
                if field in self:
                    setattr(spec, field, getattr(self, field))
            updates['spec'] = jsonutils.dumps(
                {**spec.obj_to_primitive(), _REMEMBERED: self.remembered})
        return updates

    @staticmethod
    def _from_db_object(context, spec, db_spec):
        spec = released.RequestSpec._from_db_object(context, spec, db_spec)
        # Lists load many specs, and hardly one is that of a buried server.
        if 'requested_networks' not in db_spec['spec']:
            return spec
        row = jsonutils.loads(db_spec['spec'])
        stored = released.RequestSpec.obj_from_primitive(row)
        if 'requested_networks' in stored:
            spec.is_buried = True
            spec.remembered = row.get(_REMEMBERED, {})
            for field in _KEPT:
                if field in stored:
                    setattr(spec, field, getattr(stored, field))
            spec.obj_reset_changes(_KEPT)
        return spec
