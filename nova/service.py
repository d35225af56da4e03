# SPDX-License-Identifier: Apache-2.0

from oslo_log import log as logging

import nova_pending
import nova_pending_check

LOG = logging.getLogger(__name__)

released = nova_pending.released(__name__)


@nova_pending.over(released.Service)
class Service:

    def start(self):
        released.Service.start(self)
        for sentence in nova_pending_check.drift():
            LOG.warning('The release has changed below nova-pending, whose '
                        'code runs in its place: %s', sentence)
