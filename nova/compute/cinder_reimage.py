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

"""Has Cinder re-image a volume, and finds out what has become of it.

Cinder says nothing when a re-image fails, and its answer to the request can be
lost: the status of the volume decides.
"""

import math
import time

from cinderclient import exceptions as cinder_exception
from oslo_log import log as logging
from oslo_utils import units

import nova.conf
from nova import exception
from nova.i18n import _
from nova import objects

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Seconds until the status is asked for, if no event comes.
_ASK_EVERY = 60

# Seconds between the tries of what needs Cinder.
_TRY_AGAIN_AFTER = (2, 8, 20)


class NotReimaged(exception.BuildAbortException):
    msg_fmt = _("Volume %(volume_id)s was not re-imaged: %(reason)s")


class ReimageFailed(exception.BuildAbortException):
    msg_fmt = _("Failed to rebuild volume backed instance. Re-image of volume "
                "%(volume_id)s failed: %(reason)s")


def tries():
    """Yield whether it is the last try, with some time between the tries."""
    for delay in _TRY_AGAIN_AFTER:
        yield False
        time.sleep(delay)
    yield True


def _answer(exc):
    """Return the answer of Cinder that a call failed with, None without."""
    while exc is not None and not isinstance(
            exc, cinder_exception.ClientException):
        exc = exc.__context__
    return exc


def is_refusal(exc):
    """Whether Cinder has said that it does not do what it was asked for.

    After any other answer, or none, it may be doing it.
    """
    answer = _answer(exc)
    return answer is not None and 400 <= answer.code < 500


def is_stuck(exc):
    """Whether a volume that Cinder has not begun with is left downloading.

    Cinder sets the status before it looks for the image. What it refuses for
    the status, with 400, it is doing for another request, or a repeated one.
    """
    return is_refusal(exc) and _answer(exc).code != 400


def reason(exc):
    """Return why a call failed, in the words of Cinder if it said any."""
    answer = _answer(exc)
    if answer is not None:
        return str(answer)
    if isinstance(exc, exception.NovaException):
        return exc.format_message()
    return str(exc) or type(exc).__name__


def not_reimaged(volume_id, exc):
    """Return the NotReimaged for what has failed.

    :param volume_id: the ID of the volume
    :param exc: what has failed, a NotReimaged possibly
    """
    if isinstance(exc, NotReimaged):
        return exc
    return NotReimaged(volume_id=volume_id, reason=reason(exc))


def timeout(image, volume):
    """Return how many seconds Cinder is given for a re-image.

    :param image: the image, a dict with size and virtual_size in bytes
    :param volume: the volume, a dict with its size in GiB
    """
    size = max(image.get('size') or 0, image.get('virtual_size') or 0)
    # That of a snapshot is 0, and all of it is copied.
    gib = math.ceil(size / units.Gi) if size else volume.get('size') or 1
    return CONF.reimage_timeout_per_gb * max(gib, 1)


class Reimage:
    """One re-image of a volume."""

    def __init__(self, manager, context, instance, attachment, volume, image):
        """Prepare for the event of Cinder.

        :param manager: the ComputeManager
        :param context: the context of the rebuild, elevated
        :param instance: the Instance
        :param attachment: the Attachment of the volume, reserved
        :param volume: the volume before the re-image, a dict
        :param image: the image, a dict
        :raises: NotReimaged if nova-compute is being stopped
        """
        self.manager = manager
        self.context = context
        self.instance = instance
        self.attachment = attachment
        self.volume = volume
        self.volume_id = attachment.bdm.volume_id
        self.image = image
        self._seconds = timeout(image, volume)
        self._limit = self._seconds * (1 + CONF.reimage_timeout_extensions)
        try:
            # Each wait is for this one: it is not missed between two of them.
            self._event = manager.instance_events.prepare_for_instance_event(
                instance, 'volume-reimaged', self.volume_id)
        except exception.NovaException as exc:
            raise not_reimaged(self.volume_id, exc)

    def run(self):
        """Ask for the re-image and wait until it is done.

        :raises: NotReimaged if Cinder has not accepted it, ReimageFailed
        """
        end = time.monotonic() + self._limit
        try:
            done = self._wait(self._ask)
            while not done:
                done = self._is_done(end) or self._wait(lambda: None)
        finally:
            self.manager.instance_events.pop_instance_event(
                self.instance, objects.InstanceExternalEvent(
                    name='volume-reimaged', tag=self.volume_id))

    def _wait(self, do):
        """Wait for the event a while.

        :param do: what to do before
        :returns: whether Cinder has said that it is done
        """
        try:
            with self.manager.virtapi.wait_for_instance_event(
                    self.instance, [('volume-reimaged', self.volume_id)],
                    timeout=min(self._seconds, _ASK_EVERY),
                    error_callback=self.manager._reimage_failed_callback):
                do()
            return True
        except (exception.InstanceEventTimeout, exception.ReimageException):
            return False

    def _ask(self):
        try:
            self.manager.volume_api.reimage_volume(
                self.context, self.volume_id, self.image['id'],
                reimage_reserved=True)
        except Exception as exc:
            LOG.debug('%s', exc, instance=self.instance)
            if not self._has_begun(exc):
                raise not_reimaged(self.volume_id, exc)

    def _has_begun(self, exc):
        """Whether Cinder has begun, though it has not said so.

        :param exc: what it has said instead
        :raises: ReimageFailed if it is not known
        """
        for _last in tries():
            status = self._status()
            if status is not None or is_refusal(exc):
                break
        else:
            raise self._failed(_('%s, and its status is not known')
                               % reason(exc))
        if is_refusal(exc) and status != 'downloading':
            return False
        if is_stuck(exc):
            # A new attachment makes it reserved.
            self.attachment.renew()
            return False
        return (status in ('downloading', 'error') or
                self._is_made_from_image())

    def _is_done(self, end):
        """Whether the re-image is done, whether Cinder says so or not.

        :param end: when it has to be
        :raises: ReimageFailed
        """
        status = self._status()
        said = self._event.wait(0).status if self._event.is_set() else None
        if said == 'completed':
            return True
        if status == 'reserved':
            if said is None:
                LOG.warning('Volume %s was re-imaged, but Cinder has not said '
                            'so: look at its credentials for Nova.',
                            self.volume_id, instance=self.instance)
            return True
        if status not in ('downloading', None):
            raise self._failed(_('its status is %s') % status)
        if said is not None:
            raise self._failed(_('Cinder has failed, or nova-compute is being '
                                 'stopped'))
        if time.monotonic() >= end:
            raise self._failed(
                _('after %(seconds)d seconds its status is %(status)s')
                % {'seconds': self._limit, 'status': status or _('not known')})
        return False

    def _status(self):
        """Return the status of the volume, None if it is not known."""
        try:
            return self._volume()['status']
        except exception.VolumeNotFound:
            return 'deleted'
        except Exception as exc:
            LOG.warning('The status of volume %s is not known: %s',
                        self.volume_id, exc, instance=self.instance)
            return None

    def _is_made_from_image(self):
        """Whether the volume was written since it was looked at."""
        try:
            before, now = (
                volume.get('volume_image_metadata', {}).get('image_id')
                for volume in (self.volume, self._volume()))
        except Exception:
            return False
        return now == self.image['id'] != before

    def _volume(self):
        return self.manager.volume_api.get(self.context, self.volume_id)

    def _failed(self, why):
        return ReimageFailed(volume_id=self.volume_id, reason=why)
