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
