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

from oslo_config import cfg

import nova_pending

released = nova_pending.released(__name__)

ALL_OPTS = released.ALL_OPTS + [
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
