# SPDX-License-Identifier: Apache-2.0

from nova.compute import volume_reimage
from nova import exception
from nova.i18n import _
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.API)
class API:

    def rebuild(self, context, instance, image_href, admin_password,
                files_to_inject=None, reimage_boot_volume=False, **kwargs):
        # A server without an image has its root on a volume.
        if reimage_boot_volume and not instance.image_ref:
            volume_reimage.check_host(context, instance)
        elif volume_reimage.UNFINISHED in instance.system_metadata:
            raise exception.InvalidVolume(reason=_(
                'the last re-image of the root volume has failed: rebuild '
                'the server with microversion 2.93 or later'))
        released.API.rebuild(
            self, context, instance, image_href, admin_password,
            files_to_inject=files_to_inject,
            reimage_boot_volume=reimage_boot_volume, **kwargs)
