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
from nova.objects import base
from nova.objects import rebuild_scope
from nova.objects import request_memory
import nova_pending

released = nova_pending.released(__name__)

# Beside the object in its row, as request_memory.KEY.
_BEFORE_REBUILD = 'nova_pending_before_rebuild'


@nova_pending.over(released.RequestSpec)
class RequestSpec:

    #: Whether save() persists what a rebuild of a buried server needs.
    is_buried = nova_pending.new(False)

    #: What that is, a dict that JSON can hold. Rebound, not changed in place.
    remembered = nova_pending.new({})

    #: What save() persists of what the last rebuild of a volume-backed server
    #: has changed: the ID of the request, the image of the request spec and
    #: the values that attributes of the server had. None if there is none.
    before_rebuild = nova_pending.new(None)

    #: The personality files of the request, while it is being scheduled.
    injected_files = nova_pending.new(())

    @nova_pending.new
    def remember_request(self, request_spec):
        """Let save() persist what the release does not and nothing else tells.

        :param request_spec: the RequestSpec with which the server was to be
            scheduled
        """
        # Asked for without networks it has an empty list.
        networks = (request_spec.requested_networks
                    if 'requested_networks' in request_spec
                    else objects.NetworkRequestList(objects=[]))
        destination = request_spec.requested_destination
        self.remembered = dict(self.remembered, request={
            'requested_networks': networks.obj_to_primitive(),
            'requested_destination':
                destination and destination.obj_to_primitive(),
            'injected_files': list(request_spec.injected_files),
            'network_metadata': (
                request_spec.network_metadata.obj_to_primitive()
                if 'network_metadata' in request_spec and
                request_spec.network_metadata else None),
        })
        self.is_buried = True
        self.touch()

    @nova_pending.new
    def recall_request(self):
        """Make this spec what it was when the server was to be scheduled.

        Only who rebuilds the server wants that: a row can be left with it
        by a conductor that does not know of it.

        :returns: the NetworkRequestList, or None for a server that was asked
            for without networks
        """
        request = self.remembered['request']
        networks = objects.NetworkRequestList.obj_from_primitive(
            request['requested_networks'])
        destination = request['requested_destination']
        self.requested_destination = (
            destination and objects.Destination.obj_from_primitive(
                destination))
        self.injected_files = request['injected_files']
        if not networks:
            return None
        metadata = request.get('network_metadata')
        networks.metadata = (
            metadata and objects.NetworkMetadata.obj_from_primitive(metadata))
        self.requested_networks = networks
        return networks

    @nova_pending.new
    def touch(self):
        """Make the next save() write, though no field has changed."""
        self.requested_destination = self.requested_destination

    def _get_update_primitives(self):
        updates = released.RequestSpec._get_update_primitives(self)
        if updates and self.is_buried:
            updates['spec'] = jsonutils.dumps(
                {**jsonutils.loads(updates['spec']),
                 request_memory.KEY: self.remembered})
        # The released rebuild saves what it has read before that was kept.
        before = rebuild_scope.before_rebuild()
        if not before or 'request_id' not in before:
            before = self.before_rebuild
        if updates and before:
            updates['spec'] = jsonutils.dumps(
                {**jsonutils.loads(updates['spec']),
                 _BEFORE_REBUILD: before})
        return updates

    @nova_pending.new
    @classmethod
    @base.remotable
    def undo_rebuild(cls, context, instance_uuid):
        """Put the image back that a request spec had before a rebuild.

        :param context: the context of the request that asked for the rebuild
        :param instance_uuid: the server
        :returns: a dict of the values that attributes of the server had;
            empty if that request is not the last one to rebuild it
        :raises: RequestSpecNotFound
        """
        spec = cls.get_by_instance_uuid(context, instance_uuid)
        before = spec.before_rebuild
        if not before or before['request_id'] != context.request_id:
            return {}
        spec.before_rebuild = None
        spec.image = before['image'] and objects.ImageMeta.obj_from_primitive(
            before['image'])
        spec.touch()
        spec.save()
        return before['instance']

    @staticmethod
    def _from_db_object(context, spec, db_spec):
        spec = released.RequestSpec._from_db_object(context, spec, db_spec)
        # Lists load many specs, and hardly one is that of a buried server.
        if '"%s"' % request_memory.KEY in db_spec['spec']:
            remembered = jsonutils.loads(db_spec['spec']).get(
                request_memory.KEY)
            if remembered is not None:
                spec.is_buried = True
                spec.remembered = remembered
        if '"%s"' % _BEFORE_REBUILD in db_spec['spec']:
            spec.before_rebuild = jsonutils.loads(db_spec['spec']).get(
                _BEFORE_REBUILD)
        return spec
