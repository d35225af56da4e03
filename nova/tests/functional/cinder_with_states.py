# SPDX-License-Identifier: Apache-2.0

"""The Cinder fixture with the states and refusals of Cinder.

The rules are those of cinder/volume/api.py, cinder/volume/manager.py and
volume_detached() of cinder/db/api.py.
"""

import copy
import functools

from cinderclient import exceptions as cinder_exception
import fixtures
from oslo_utils import uuidutils

from nova.tests import fixtures as nova_fixtures
from nova.volume import cinder

_check_attached = cinder.API.check_attached

# Which of the states of its attachments is that of a volume.
_BY_ATTACHMENT = (('attached', 'in-use'), ('attaching', 'attaching'),
                  ('reserved', 'reserved'))


def _call(translate):
    """Let a method fail as told, through what translates the failure."""
    def wrap(method):
        def call(self, context, *args, **kwargs):
            def called(_self, _context, *_args, **_kwargs):
                return self._called(method, context, *args, **kwargs)
            return translate(called)(None, context, *args, **kwargs)
        return functools.wraps(method)(call)
    return wrap


_volume_call = _call(cinder.translate_volume_exception)
_attachment_call = _call(cinder.translate_attachment_exception)


class CinderWithStates(nova_fixtures.CinderFixture):
    """Volumes that have the states that they have in Cinder.

    :ivar failures: for the name of a call a list with what its next calls
        raise, or call before they do their work if it is callable
    :ivar failures_after: the same for when they have done their work
    :ivar outcome: what a re-image ends in: 'done', 'lost' (done, and Nova is
        not told), 'error', 'downloading' (not yet), 'no image' (refused)
    :ivar calls: the names of the calls that were made
    """

    def __init__(self, test):
        super().__init__(test)
        self.failures = {}
        self.failures_after = {}
        self.outcome = 'done'
        self.calls = []
        self.known = {}
        self.attachments = {}

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.volume.cinder.API.check_attached', _check_attached))

    def _called(self, method, context, *args, **kwargs):
        name = method.__name__.removeprefix('fake_')
        self.calls.append(name)
        self._fail(self.failures.get(name))
        result = method(self, context, *args, **kwargs)
        self._fail(self.failures_after.get(name))
        return result

    @staticmethod
    def _fail(failures):
        failure = failures.pop(0) if failures else None
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            failure()

    # For the tests.

    def add_volume(self, image_id=None, size=1):
        """Make an available volume and return its ID."""
        volume_id = uuidutils.generate_uuid()
        self.known[volume_id] = {
            'id': volume_id, 'display_name': '', 'size': size,
            'status': 'available', 'availability_zone': 'nova',
            'multiattach': False, 'bootable': bool(image_id),
            'volume_image_metadata': {'image_id': image_id, 'min_disk': 1}
            if image_id else {}}
        return volume_id

    def status(self, volume_id):
        return self.known[volume_id]['status']

    def attached(self, volume_id):
        """Return the attachments of a volume, as (server, state, host)."""
        return [(attachment['instance'], attachment['status'],
                 (attachment['connector'] or {}).get('host'))
                for attachment in self.attachments.values()
                if attachment['volume_id'] == volume_id]

    def finish_reimage(self, volume_id, image_id):
        """Let Cinder be done with a re-image; Nova is not told."""
        volume = self.known[volume_id]
        volume['status'] = volume.pop('previous_status')
        volume['volume_image_metadata'] = {'image_id': image_id}

    # The calls.

    def _volume(self, volume_id):
        try:
            return self.known[volume_id]
        except KeyError:
            raise cinder_exception.NotFound(
                404, 'Volume %s could not be found.' % volume_id)

    def _attachment(self, attachment_id):
        try:
            return self.attachments[attachment_id]
        except KeyError:
            raise cinder_exception.NotFound(
                404, 'Volume attachment could not be found.')

    def _of(self, volume_id):
        return [attachment for attachment in self.attachments.values()
                if attachment['volume_id'] == volume_id]

    @_volume_call
    def fake_get(self, context, volume_id, microversion=None):
        volume = copy.deepcopy(self._volume(volume_id))
        # Others are not shown.
        attachments = [attachment for attachment in self._of(volume_id)
                       if attachment['status'] == 'attached']
        volume['attach_status'] = 'attached' if attachments else 'detached'
        if attachments:
            volume['attachments'] = {
                attachment['instance']: {'attachment_id': attachment['id'],
                                         'mountpoint': '/dev/vda'}
                for attachment in attachments}
        return volume

    @_volume_call
    def fake_attachment_create(self, context, volume_id, instance_uuid,
                               connector=None, mountpoint=None):
        volume = self._volume(volume_id)
        if volume['status'] in ('available', 'downloading'):
            volume['status'] = 'reserved'
        elif (volume['status'] not in ('in-use', 'reserved') or
                instance_uuid not in [
                    attachment['instance']
                    for attachment in self._of(volume_id)]):
            raise cinder_exception.BadRequest(
                400, 'Invalid volume: status must be available or '
                'downloading to reserve, but the current status is %s.'
                % volume['status'])
        attachment_id = uuidutils.generate_uuid()
        self.attachments[attachment_id] = {
            'id': attachment_id, 'volume_id': volume_id,
            'instance': instance_uuid, 'status': 'reserved',
            'connector': None}
        return {'id': attachment_id, 'connection_info': {}}

    def _refuse_in_error(self, volume):
        if 'error' in volume['status']:
            raise cinder_exception.ClientException(
                409, 'Volume attachments can not be updated if the volume is '
                'in an error state.')

    @_attachment_call
    def fake_attachment_update(self, context, attachment_id, connector,
                               mountpoint=None):
        attachment = self._attachment(attachment_id)
        volume = self._volume(attachment['volume_id'])
        self._refuse_in_error(volume)
        if len(self._of(volume['id'])) > 1 and any(
                other['connector'] for other in self._of(volume['id'])):
            raise cinder_exception.ClientException(
                409, 'duplicate connectors detected')
        attachment.update(connector=connector, status='attaching')
        volume['status'] = 'attaching'
        return {'id': attachment_id,
                'connection_info': self._find_connection_info(
                    volume['id'], attachment_id)}

    @_attachment_call
    def fake_attachment_complete(self, context, attachment_id):
        attachment = self._attachment(attachment_id)
        attachment['status'] = 'attached'
        self._volume(attachment['volume_id'])['status'] = 'in-use'

    @_attachment_call
    def fake_attachment_delete(self, context, attachment_id):
        # Nova's client takes one that is gone for deleted.
        attachment = self.attachments.pop(attachment_id, None)
        if attachment is None:
            return
        states = [other['status']
                  for other in self._of(attachment['volume_id'])]
        self._volume(attachment['volume_id'])['status'] = next(
            (status for state, status in _BY_ATTACHMENT if state in states),
            'available')

    @_attachment_call
    def fake_attachment_get(self, context, attachment_id):
        attachment = self._attachment(attachment_id)
        return {'id': attachment_id,
                'connection_info': self._find_connection_info(
                    attachment['volume_id'], attachment_id)
                if attachment['connector'] else {}}

    def fake_attachment_get_all(self, context, instance_id=None,
                                volume_id=None):
        return [
            {'id': attachment['id'], 'volume_id': attachment['volume_id'],
             'instance': attachment['instance'], 'connection_info': {},
             'status': attachment['status']}
            for attachment in self.attachments.values()
            if instance_id in (None, attachment['instance']) and
            volume_id in (None, attachment['volume_id'])]

    def fake_begin_detaching(self, context, volume_id):
        if self.status(volume_id) == 'in-use':
            self.known[volume_id]['status'] = 'detaching'

    def fake_roll_detaching(self, context, volume_id):
        if self.status(volume_id) == 'detaching':
            self.known[volume_id]['status'] = 'in-use'

    @_volume_call
    def fake_reimage_volume(self, context, volume_id, image_id,
                            reimage_reserved=False):
        volume = self._volume(volume_id)
        attachments = self._of(volume_id)
        if len(attachments) > 1:
            raise cinder_exception.ClientException(
                409, 'Cannot re-image a volume which is attached to more than '
                'one server.')
        allowed = ('available', 'error') + ('reserved',) * reimage_reserved
        if volume['status'] not in allowed:
            raise cinder_exception.BadRequest(
                400, 'Volume %s status must be %s, but current status is %s.'
                % (volume_id, ' or '.join(allowed), volume['status']))
        volume.update(status='downloading', previous_status=volume['status'])
        if self.outcome == 'no image':
            # The status stays.
            raise cinder_exception.NotFound(404, 'Image could not be found.')
        if self.outcome == 'error':
            volume['status'] = 'error'
        elif self.outcome in ('done', 'lost'):
            self.finish_reimage(volume_id, image_id)
            if volume['status'] == 'reserved' and self.outcome == 'done':
                self.tell_nova(volume_id)

    def tell_nova(self, volume_id, status='completed'):
        """Send the event that Cinder sends when a re-image is done."""
        self.test.admin_api.api_post('/os-server-external-events', {
            'events': [{'name': 'volume-reimaged', 'tag': volume_id,
                        'server_uuid': attachment['instance'],
                        'status': status}
                       for attachment in self._of(volume_id)]})
