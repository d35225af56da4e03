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

"""Notices that no attempt works with, and holds without a server.

Who gave a notice may be alive, and end the server when it has run out. So in
the mode "preempt" it is kept until then, and withdrawn if nothing came of it.

Nova takes what is allocated to a server away with the server. A hold that is
written a moment later would stay for ever: none of Nova's lists leads to it,
and Placement has none of its consumers by their type.
"""

import bisect
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
import datetime
import itertools
import math
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act.attempt import Attempt
from nova_reaper.act.attempt import Stage
from nova_reaper.act.attempt import Victim
from nova_reaper.act import ending
from nova_reaper.act import holds
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import flavors
from nova_reaper.cloud import model
from nova_reaper.events import reader
from nova_reaper.report import metrics

LOG = log.getLogger(__name__)
# A reaper that is alive has swapped so many seconds after a notice ran out.
LATE = 30.0
# Of a notice; one of them is left where its withdrawal was interrupted.
MARKS = frozenset({flavors.TERMINATE_AT, flavors.FOR})
# Between two looks at a guest that shuts down.
SOON = 5.0
# So many consumers are asked for in one go.
LOOKS = 100


class Notices:
    """Withdraws them, or keeps them until they have run out.

    :param victim: gives a server as a victim at a stage
    """

    def __init__(self, conf: cfg.ConfigOpts, room: placement.Placement,
                 ends: ending.Victims,
                 victim: Callable[[nova.NovaServer, Stage], Victim],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._conf = conf.reaper
        self._placement = room
        self._ends = ends
        self._victim = victim
        self._clock = clock
        # When to look again at servers under notice, by their IDs.
        self._late: dict[str, float] = {}

    def withdraw(self, notices: Iterable[reader.Notice], mode: model.Mode
                 ) -> list[nova.NovaServer]:
        """Withdraw notices to those who have an allocation; the others."""
        taken: list[nova.NovaServer] = []
        for notice in notices:
            server = self._ends.find(notice.server.id)
            if server is None or not server.host or (
                    server.status in flavors.OFF_HOST):
                # On no host it has no allocation, and nobody has taken it.
                continue
            if not self._placement.consumer(server.id).amounts:
                taken.append(server)
            elif mode != model.Mode.PREEMPT or not self._keep(server):
                self._withdraw_from(server)
        return taken

    def _withdraw_from(self, server: nova.NovaServer) -> None:
        self._ends.withdraw([self._victim(server, Stage.NOTICED)],
                            server.metadata.get(flavors.FOR, ''),
                            'it was given by a reaper that has ended')

    @property
    def is_late(self) -> bool:
        """Whether a notice has run out that was kept."""
        while self._ends.later:
            self._late[self._ends.later.pop()] = self._clock() + SOON
        return min(list(self._late.values()),
                   default=math.inf) <= self._clock()

    def withdraw_late(self, attempts: Iterable[Attempt]) -> None:
        """Withdraw notices that have run out, and nobody has acted upon.

        :param attempts: of this process, whose notices are their affair
        """
        own = {victim.id for current in attempts
               for victim in current.victims}
        for uuid, at in list(self._late.items()):
            if at > self._clock():
                continue
            self._late[uuid] = self._clock() + LATE
            if uuid in own:
                continue
            try:
                server = self._ends.find(uuid)
                if (server and not MARKS.isdisjoint(server.metadata) and
                        self._placement.consumer(uuid).amounts):
                    if self._keep(server):
                        continue
                    # It may be one to look at anew after that.
                    del self._late[uuid]
                    self._withdraw_from(server)
                else:
                    del self._late[uuid]
            except rest.RequestFailed as error:
                LOG.warning('The notice to server %s is looked at later: %s',
                            uuid, error)
                self._late[uuid] = self._clock() + LATE

    def _keep(self, server: nova.NovaServer) -> bool:
        """Whether a reaper may wait at the moment for a notice to run out.

        It would end the server at that time, with the notice or without.
        """
        try:
            until: datetime.datetime = timeutils.parse_isotime(
                server.metadata[flavors.TERMINATE_AT])
        except (LookupError, ValueError):
            return False
        left = (until - timeutils.utcnow(True)).total_seconds()
        if not 0 < left <= float(self._conf.grace_period):
            return False
        if self._conf.strict_accounting:
            # It has its allocation until it has ended.
            left += self._conf.stop_timeout + self._conf.end_timeout
        self._late[server.id] = self._clock() + left + LATE
        return True


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
        except rest.RequestFailed as error:
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
        except rest.RequestFailed as error:
            LOG.warning('Holds of servers in ERROR are looked for later: %s',
                        error)
        return released

    def find_in_build(self, others: Collection[str]) -> set[str]:
        """IDs of servers that Nova builds, and that have a hold still.

        :param others: IDs of servers that are none of its affair
        """
        try:
            return {server.id for status in ('BUILD', 'REBUILD')
                    for server in self._nova.servers(status=status)
                    if server.id not in others and self._holds.find(server.id)}
        except rest.RequestFailed as error:
            LOG.warning('Holds of servers in build are looked for later: %s',
                        error)
            return set()

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
        except rest.RequestFailed as error:
            LOG.warning('Holds of servers that are gone are looked for '
                        'later: %s', error)
        return found
