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
writing to the volume, nova-compute waits for the same time again, at most as
often as this option says. Then it sets the server to ``ERROR``. The volume
stays reserved for the server, and the owner can rebuild the server again once
Cinder is done.

If the size of the image is not known, as for a snapshot of a volume-backed
server, the size of the volume counts. At least 1 GiB counts in any case.

Related options:

* ``reimage_timeout_per_gb``
"""),
]

ALL_OPTS = released.ALL_OPTS + reimage_opts
