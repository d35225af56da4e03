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

"""The attachment of a server to one of its volumes, while it is rebuilt.

Cinder re-images a volume whose one attachment has no host. One is made in the
place of the server's, which is kept until it is known that the server does not
need it again.
"""

from oslo_log import log as logging
from oslo_utils import excutils

from nova.compute import cinder_reimage
from nova import exception

LOG = logging.getLogger(__name__)


class Attachment:
    """The attachment of a server to one volume."""

    def __init__(self, context, volume_api, bdm):
        """Change nothing.

        :param context: the request context
        :param volume_api: the API of the block storage service
        :param bdm: the BlockDeviceMapping of the volume, which has the ID of
            the attachment
        """
        self.context = context
        self.volume_api = volume_api
        self.bdm = bdm
        #: Whether it has no host.
        self.is_reserved = False
        #: Whether there may be another, whose ID is not known.
        self.is_lost = False
        # Its ID and connection, from when another is made in its place until
        # one of the two is chosen, and the ID of the other.
        self._original = None
        self._replacement = None
        # All that were made and not deleted.
        self._created = set()

    @property
    def was_connected(self):
        """Whether the volume was connected when the rebuild began."""
        return self._replacement is not None

    def ids(self):
        """Return the IDs of all attachments of the server to the volume."""
        return [attachment['id']
                for attachment in self.volume_api.attachment_get_all(
                    self.context, instance_id=self.bdm.instance_uuid)
                if attachment.get('volume_id') == self.bdm.volume_id]

    def delete_others(self):
        """Delete what a nova-compute that died has left."""
        self._delete(set(self.ids()) - {self.bdm.attachment_id})

    def adopt(self, status):
        """Make one attachment of what a rebuild has left that failed.

        :param status: the status of the volume
        """
        self.delete_others()
        if status == 'reserved' and self._exists(self.bdm.attachment_id):
            self.is_reserved = True
        elif status != 'in-use':
            # Cinder leaves a volume in error there, even if the re-image
            # succeeds, and makes no attachment to it. It is available once
            # it has none.
            self._delete([self.bdm.attachment_id])
            self._use(self._create())

    def reserve(self):
        """Make one without a host, beside the one that is connected."""
        self._original = (self.bdm.attachment_id, self.bdm.connection_info)
        self._replacement = self._create()

    def exchange(self, disconnect):
        """Let the one without a host take the place of the connected one.

        :param disconnect: what disconnects the volume from the host
        """
        if self.is_reserved:
            return
        # One without an ID is of a time before Cinder had attachments.
        if self.bdm.attachment_id and not self._replacement:
            self.reserve()
        disconnect()
        if self._replacement:
            self.bdm.attachment_id = self._replacement
            self.bdm.save()
        self.is_reserved = True

    def delete_original(self):
        """Delete the one whose place another has taken."""
        if self._original:
            self._delete([self._original[0]])

    def renew(self):
        """Exchange one without a host for another."""
        before = self.bdm.attachment_id
        self._use(self._create())
        self._delete([before])

    def restore(self):
        """Keep one of the two, the connected one if it is there."""
        if self._original is None:
            return
        original, connection_info = self._original
        self.is_reserved = not self._exists(original)
        if not self.is_reserved:
            self.bdm.attachment_id = original
            self.bdm.connection_info = connection_info
        elif self._replacement:
            self.bdm.attachment_id = self._replacement
        self.bdm.save()
        if self._replacement and self._replacement != self.bdm.attachment_id:
            self._delete([self._replacement])
        self._original = None

    def ensure(self):
        """Make it anew if a try to connect it has deleted it."""
        if not self._exists(self.bdm.attachment_id):
            self._use(self._create())

    def clear_connection(self):
        """Clear the connection: another volume may be under its name now."""
        if self.is_reserved:
            self.bdm.connection_info = '{}'
            self.bdm.save()

    def abandon(self, is_deleted):
        """Delete those that nothing knows of any more.

        :param is_deleted: whether the server is deleted
        """
        unknown = self._created - {self.bdm.attachment_id}
        if is_deleted:
            unknown = set(self._created)
            if self._original:
                unknown.add(self._original[0])
            if self.is_reserved:
                unknown.add(self.bdm.attachment_id)
        for attachment_id in unknown:
            try:
                self._delete([attachment_id])
            except Exception:
                self.is_lost = True
                LOG.exception('Attachment %s stays.', attachment_id,
                              instance_uuid=self.bdm.instance_uuid)

    def _use(self, attachment_id):
        """Have one without a host in the block device mapping."""
        self.bdm.attachment_id = attachment_id
        self.bdm.connection_info = '{}'
        self.bdm.save()
        self.is_reserved = True
        if self._original:
            self._replacement = attachment_id

    def _exists(self, attachment_id):
        # Cinder shows with a volume only those that are connected.
        try:
            self.volume_api.attachment_get(self.context, attachment_id)
        except exception.VolumeAttachmentNotFound:
            return False
        return True

    def _create(self):
        """Make one without a host, or none: return its ID."""
        try:
            attachment_id = self.volume_api.attachment_create(
                self.context, self.bdm.volume_id,
                self.bdm.instance_uuid)['id']
        except Exception as exc:
            with excutils.save_and_reraise_exception():
                if not cinder_reimage.is_refusal(exc):
                    self._delete_unknown()
        self._created.add(attachment_id)
        return attachment_id

    def _delete_unknown(self):
        """Delete what Cinder may have made without a word."""
        known = self._created | {self.bdm.attachment_id}
        for _last in cinder_reimage.tries():
            try:
                return self._delete(set(self.ids()) - known)
            except Exception as exc:
                LOG.warning('The attachments of volume %s are not known: %s',
                            self.bdm.volume_id, exc,
                            instance_uuid=self.bdm.instance_uuid)
        self.is_lost = True

    def _delete(self, attachment_ids):
        for attachment_id in attachment_ids:
            self.volume_api.attachment_delete(self.context, attachment_id)
            self._created.discard(attachment_id)
