# SPDX-License-Identifier: Apache-2.0

"""A stand-in for the storage behind Cinder: each volume is a sparse file.

What a volume holds is real, so that tests can see what was imaged, copied and
re-imaged. The way to a host is not real: nobody attaches the file to anything,
which is enough for guests that are not real either. Images must be raw.

cinder-volume has the directory of this file in PYTHONPATH.
"""

import os
import subprocess

from cinder.common import constants
from cinder import exception
from cinder.volume import driver
from oslo_utils import units


class FileDriver(driver.VolumeDriver):
    """Keeps volumes and snapshots as files below ``[DEFAULT] state_path``."""

    VERSION = '1.0.0'
    CI_WIKI_NAME = 'none'

    def do_setup(self, context):
        self._folder = self.configuration.safe_get('volumes_dir')
        os.makedirs(self._folder, exist_ok=True)

    def check_for_setup_error(self):
        """Do nothing: do_setup() has made the directory."""

    def local_path(self, volume):
        """Return the path of the file of a volume or of a snapshot."""
        return os.path.join(self._folder, volume.name)

    def create_volume(self, volume):
        with open(self.local_path(volume), 'wb') as file:
            file.truncate(volume.size * units.Gi)

    def delete_volume(self, volume):
        try:
            os.unlink(self.local_path(volume))
        except FileNotFoundError:
            # One whose creation failed.
            pass

    def extend_volume(self, volume, new_size):
        os.truncate(self.local_path(volume), new_size * units.Gi)

    def create_cloned_volume(self, volume, src_vref):
        self._copy(src_vref, volume)
        self.extend_volume(volume, volume.size)

    def create_snapshot(self, snapshot):
        self._copy(snapshot.volume, snapshot)

    def delete_snapshot(self, snapshot):
        self.delete_volume(snapshot)

    def create_volume_from_snapshot(self, volume, snapshot):
        self.create_cloned_volume(volume, snapshot)

    def revert_to_snapshot(self, context, volume, snapshot):
        self.create_cloned_volume(volume, snapshot)

    def clone_image(self, context, volume, image_location, image_meta,
                    image_service):
        # Cinder's own way asks qemu-img what the image is.
        self._copy_image(context, volume, image_service, image_meta['id'])
        return {}, True

    def copy_image_to_volume(self, context, volume, image_service, image_id,
                             disable_sparse=False):
        self._copy_image(context, volume, image_service, image_id)

    def copy_volume_to_image(self, context, volume, image_service,
                             image_meta):
        with open(self.local_path(volume), 'rb') as file:
            image_service.update(context, image_meta['id'], {}, file)

    def retype(self, context, volume, new_type, diff, host):
        return True, None

    def ensure_export(self, context, volume):
        """Do nothing: there is no way to a host."""

    def create_export(self, context, volume, connector):
        """Do nothing: there is no way to a host."""

    def remove_export(self, context, volume):
        """Do nothing: there is no way to a host."""

    def initialize_connection(self, volume, connector):
        return {'driver_volume_type': 'local',
                'data': {'device_path': self.local_path(volume),
                         'access_mode': 'rw'}}

    def terminate_connection(self, volume, connector, **kwargs):
        """Do nothing: there is no way to a host."""

    def _update_volume_stats(self):
        # A file is as large as what was written to it.
        self._stats = {
            'volume_backend_name':
                self.configuration.safe_get('volume_backend_name'),
            'vendor_name': 'nova-pending',
            'driver_version': self.VERSION,
            'storage_protocol': constants.FILE,
            'total_capacity_gb': 'infinite',
            'free_capacity_gb': 'infinite',
            'reserved_percentage': 0,
            'multiattach': True,
        }

    def _copy(self, source, target):
        try:
            subprocess.run(
                ['cp', '--sparse=always', '--', self.local_path(source),
                 self.local_path(target)], check=True, capture_output=True,
                text=True)
        except subprocess.CalledProcessError as error:
            raise exception.VolumeBackendAPIException(data=error.stderr)

    def _copy_image(self, context, volume, image_service, image_id):
        image = image_service.show(context, image_id)
        if image['disk_format'] != 'raw':
            raise exception.ImageUnacceptable(
                image_id=image_id, reason='this cloud has raw images only')
        with open(self.local_path(volume), 'wb') as file:
            image_service.download(context, image_id, file)
            if file.tell() > volume.size * units.Gi:
                raise exception.ImageTooBig(
                    image_id=image_id, reason='the volume is smaller')
            file.truncate(volume.size * units.Gi)
