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

from nova.objects import fields
import nova_pending

released = nova_pending.released(__name__)

# VM found no host with room, lies in cell0 and waits to be rebuilt
PENDING = fields.InstanceState.PENDING

# Where the API lets a server in ERROR pass its first check, one in PENDING
# passes too and is refused by the same later one: it was never launched.
ALLOW_HARD_REBOOT = released.ALLOW_HARD_REBOOT + [PENDING]
ALLOW_TRIGGER_CRASH_DUMP = released.ALLOW_TRIGGER_CRASH_DUMP + [PENDING]
