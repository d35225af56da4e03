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

"""Holds of servers that do not wait, or that Nova does not have any more.

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
from nova_reaper import metrics
from nova_reaper import nova
from nova_reaper import placement

LOG = log.getLogger(__name__)
# So many consumers are asked for in one go.
LOOKS = 100


class Orphans:
    """Looks for them, a part of the cloud each time."""

    def __init__(self, compute: nova.Nova, room: placement.Placement,
                 held: holds.Holds, meters: metrics.Metrics) -> None:
        self._nova = compute
        self._placement = room
        self._holds = held
        self._metrics = meters
        self._last = ''

    def count(self) -> int:
        """How many holds there are, of whatever servers; 0 if nobody tells.
        """
        try:
            return self._placement.count_holds(self._holds.project)
        except clients.RequestFailed as error:
            LOG.warning('Holds cannot be counted: %s', error)
            return 0

    def release_in_error(self, others: Collection[str]) -> int:
        """Give the holds of servers free that are in ERROR without a host.

        :param others: IDs of servers that are none of its affair
        :returns: how many there were
        """
        released = 0
        try:
            for server in self._nova.servers(status='ERROR'):
                if not server.host and server.id not in others and (
                        self._holds.release(server.id)):
                    released += 1
                    self._metrics.holds_swept.inc()
                    LOG.info('The hold of server %s, which is in ERROR, is '
                             'given free.', server.id)
        except clients.RequestFailed as error:
            LOG.warning('Holds of servers in ERROR are looked for later: %s',
                        error)
        return released

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
