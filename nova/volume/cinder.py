# SPDX-License-Identifier: Apache-2.0

import math

from oslo_utils import units

import nova.conf

CONF = nova.conf.CONF


def reimage_timeout(image: dict, volume: dict) -> int:
    """Return how many seconds Cinder is given for a re-image.

    The stored size of an image is 0 for a snapshot of a volume-backed server
    (bug 2062127), less than what is written for a compressed image, and None
    where the size is not known.

    :param image: the image, with size and virtual_size in bytes
    :param volume: the volume, with its size in GiB
    """
    size = max(image.get('size') or 0, image.get('virtual_size') or 0)
    gib = math.ceil(size / units.Gi) if size else volume.get('size') or 1
    return CONF.reimage_timeout_per_gb * max(gib, 1)
