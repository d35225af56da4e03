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

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import objects
from nova.objects import base
from nova.objects import rebuild_scope
import nova_pending

released = nova_pending.released(__name__)

# Beside the object in its row, where the release does not look: a save by
# stock Nova drops it.
_REMEMBERED = 'nova_pending'
_BEFORE_REBUILD = 'nova_pending_before_rebuild'


def _row(context, instance_uuid):
    return context.session.query(api_models.RequestSpec).filter_by(
        instance_uuid=instance_uuid)


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
    @staticmethod
    @api_db_api.context_manager.reader
    def get_remembered(context, instance_uuid):
        """Return what is remembered of a server, without its request spec.

        :param context: the request context
        :param instance_uuid: the server
        :returns: a dict, empty if the server is deleted or nothing is kept
        """
        row = _row(context, instance_uuid).one_or_none()
        return row and jsonutils.loads(row.spec).get(_REMEMBERED) or {}

    @nova_pending.new
    @staticmethod
    @api_db_api.context_manager.writer
    def forget(context, instance_uuid, *kept):
        """Forget what was remembered for the rebuild of a server.

        :param context: the request context
        :param instance_uuid: the server, which can be deleted
        :param kept: the keys of what is still needed. If there are none, the
            server is not buried any more.
        """
        # The rest of the row stays as it is: a rebuild is not alone with it.
        row = _row(context, instance_uuid).with_for_update().one_or_none()
        spec = row and jsonutils.loads(row.spec)
        if spec and _REMEMBERED in spec:
            remembered = spec.pop(_REMEMBERED)
            if kept:
                spec[_REMEMBERED] = {
                    what: value for what, value in remembered.items()
                    if what in kept}
            row.spec = jsonutils.dumps(spec)

    @nova_pending.new
    @staticmethod
    def remembers(rows):
        """Return a condition: there is what get_remembered() returns.

        :param rows: the model of request specs, as a query names it
        """
        return rows.spec.contains('"%s": ' % _REMEMBERED, autoescape=True)

    @nova_pending.new
    def touch(self):
        """Make the next save() write, though no field has changed."""
        self.requested_destination = self.requested_destination

    def _get_update_primitives(self):
        updates = released.RequestSpec._get_update_primitives(self)
        if updates and self.is_buried:
            updates['spec'] = jsonutils.dumps(
                {**jsonutils.loads(updates['spec']),
                 _REMEMBERED: self.remembered})
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
        if '"%s"' % _REMEMBERED in db_spec['spec']:
            remembered = jsonutils.loads(db_spec['spec']).get(_REMEMBERED)
            if remembered is not None:
                spec.is_buried = True
                spec.remembered = remembered
        if '"%s"' % _BEFORE_REBUILD in db_spec['spec']:
            spec.before_rebuild = jsonutils.loads(db_spec['spec']).get(
                _BEFORE_REBUILD)
        return spec
