# SPDX-License-Identifier: Apache-2.0

from oslo_config import cfg

import nova_pending

released = nova_pending.released(__name__)

reimage_opts = [
    cfg.IntOpt(
        'reimage_timeout_extensions',
        default=5,
        min=0,
        help="""
How many times more to wait for a volume that is still being re-imaged.

When ``reimage_timeout_per_gb`` for each GiB of the image has passed,
nova-compute asks Cinder for the status of the volume. While Cinder is still
writing to it, the same time is waited again, so many times at the most. Then
the server is put in ``ERROR``, its volume stays reserved for it, and its owner
can rebuild it again once Cinder is done.

An image whose size is not known, such as a snapshot of a volume-backed server,
counts with the size of the volume, and each with 1 GiB at least.

Related options:

* ``reimage_timeout_per_gb``
"""),
]

ALL_OPTS = released.ALL_OPTS + reimage_opts
