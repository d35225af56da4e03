# SPDX-License-Identifier: Apache-2.0

"""Has Cinder re-image a volume, and finds out what has become of it."""

import collections.abc
import math
import time

from cinderclient import exceptions as cinder_exception
from oslo_log import log as logging
from oslo_utils import units

import nova.conf
from nova import exception
from nova.i18n import _

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Seconds between two looks at the volume while no event comes.
_ASK_EVERY = 60

# Seconds between the tries of what needs Cinder.
_TRY_AGAIN_AFTER = (2, 8, 20)


class NotReimaged(exception.BuildAbortException):
    msg_fmt = _("Volume %(volume_id)s was not re-imaged: %(reason)s")


class ReimageFailed(exception.BuildAbortException):
    msg_fmt = _("Failed to rebuild volume backed instance. Re-image of volume "
                "%(volume_id)s failed: %(reason)s")


class Reimage:
    """One re-image of a volume, whose status decides what becomes of it.

    Cinder sends no event when a re-image fails, and its answer to the request
    can be lost.
    """

    def __init__(self, manager, context, instance, volume_id, image_id):
        self.manager = manager
        self.context = context
        self.instance = instance
        self.volume_id = volume_id
        self.image = manager.image_api.get(context, image_id)
        self.volume = manager.volume_api.get(context, volume_id)
        self.seconds = timeout(self.image, self.volume)
        self.limit = self.seconds * (1 + CONF.reimage_timeout_extensions)

    def run(self):
        """Ask for the re-image and wait until it is done.

        :raises: ReimageFailed if Cinder has accepted it
        """
        event = ('volume-reimaged', self.volume_id)
        end = time.monotonic() + self.limit
        asked = False
        while True:
            try:
                with self.manager.virtapi.wait_for_instance_event(
                        self.instance, [event],
                        timeout=min(self.seconds, _ASK_EVERY),
                        error_callback=self.manager._reimage_failed_callback):
                    if not asked:
                        self._ask()
                        asked = True
                    elif self._is_done(end):
                        self.manager.virtapi.exit_wait_early([event])
                return
            except exception.InstanceEventTimeout:
                LOG.debug('No event has come for volume %s.', self.volume_id,
                          instance=self.instance)
            except exception.ReimageException as exc:
                if asked:
                    raise self._failed(reason(exc))
                raise exception.NovaException(
                    _('nova-compute is being stopped'))

    def _ask(self):
        try:
            self.manager.volume_api.reimage_volume(
                self.context, self.volume_id, self.image['id'],
                reimage_reserved=True)
        except Exception as exc:
            if not self._has_begun(exc):
                raise

    def _has_begun(self, exc):
        """Whether Cinder re-images the volume though its answer denies it."""
        answer = _answer(exc)
        if answer is not None and 400 <= answer.code < 500:
            # Cinder sets the status before it looks for the image, and leaves
            # it. With 400 it refuses what it does for a request already.
            return (answer.code == 400 and
                    self._look()['status'] == 'downloading')
        for _last in tries():
            volume = self._look()
            if volume['status'] is not None:
                return (volume['status'] in ('downloading', 'error') or
                        _image_of(volume) == self.image['id'] !=
                        _image_of(self.volume))
        raise self._failed(_('%s, and its status is not known') % reason(exc))

    def _is_done(self, end):
        """Whether the re-image is done, which is to be so at the end."""
        status = self._look()['status']
        if status == 'reserved':
            LOG.warning('Volume %s was re-imaged, but Cinder has not said so: '
                        'look at its credentials for Nova.', self.volume_id,
                        instance=self.instance)
            return True
        if status not in ('downloading', None):
            raise self._failed(_('its status is %s') % status)
        if time.monotonic() >= end:
            raise self._failed(
                _('after %(seconds)d seconds its status is %(status)s')
                % {'seconds': self.limit, 'status': status or _('not known')})
        return False

    def _look(self):
        """Return the volume, with no status if that is not known."""
        try:
            return self.manager.volume_api.get(self.context, self.volume_id)
        except exception.VolumeNotFound:
            return {'status': 'deleted'}
        except Exception as exc:
            LOG.warning('The status of volume %s is not known: %s',
                        self.volume_id, exc, instance=self.instance)
            return {'status': None}

    def _failed(self, why):
        return ReimageFailed(volume_id=self.volume_id, reason=why)


def _image_of(volume):
    return volume.get('volume_image_metadata', {}).get('image_id')


def timeout(image: dict, volume: dict) -> int:
    """Return how many seconds Cinder is given for a re-image.

    The release takes the stored size of the image: 0 for a snapshot of a
    volume-backed server (bug 2062127), less than what is written for a
    compressed image, and a TypeError where the size is not known.

    :param image: the image, with size and virtual_size in bytes
    :param volume: the volume, with its size in GiB
    """
    size = max(image.get('size') or 0, image.get('virtual_size') or 0)
    gib = math.ceil(size / units.Gi) if size else volume.get('size') or 1
    return CONF.reimage_timeout_per_gb * max(gib, 1)


def tries() -> collections.abc.Iterator[bool]:
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


def reason(exc: BaseException) -> str:
    """Return why a call failed, in the words of Cinder if it said any."""
    answer = _answer(exc)
    if answer is not None:
        return str(answer)
    if isinstance(exc, exception.NovaException):
        return exc.format_message()
    return str(exc) or type(exc).__name__
