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

"""Holds of servers that Nova does not have any more.

Nova takes what is allocated to a server away with the server. A hold that is
written a moment later would stay for ever: none of Nova's lists leads to it,
and Placement has none of its consumers by their type.
"""

import bisect
from collections.abc import Collection
import itertools

from oslo_log import log

from nova_reaper import clients
from nova_reaper import holds
from nova_reaper import nova

LOG = log.getLogger(__name__)
# So many consumers are asked for in one go.
LOOKS = 100


class Orphans:
    """Looks for them, a part of the cloud each time."""

    def __init__(self, compute: nova.Nova, held: holds.Holds) -> None:
        self._nova = compute
        self._holds = held
        self._last = ''

    def find(self, consumers: Collection[str], wanted: int) -> set[str]:
        """IDs of consumers that are holds and no server of Nova's.

        It costs Nova a list of all servers, without details. What is left
        then, migrations most of all, Placement is asked for one by one.

        :param consumers: where to look
        :param wanted: how many there may be at most
        """
        found: set[str] = set()
        try:
            known = set(self._nova.ids())
            suspects = sorted(set(consumers) - known)
            begin = bisect.bisect_right(suspects, self._last)
            for server in itertools.islice(
                    suspects[begin:] + suspects[:begin], LOOKS):
                if len(found) >= wanted:
                    break
                if self._holds.find(server):
                    found.add(server)
                self._last = server
        except clients.RequestFailed as error:
            LOG.warning('Holds of servers that are gone are looked for '
                        'later: %s', error)
        return found
