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

"""Which hosts are read again, and when.

A host whose room may have become free is read at once: somebody waits for it.
One on which room was taken is read when there is time. What is decided by an
old view of it is found out by Placement, which is asked before anything is
done.
"""

from collections.abc import Callable
import functools
import time

from nova_reaper import jobs
from nova_reaper import reader
from nova_reaper import world

# Seconds until a host is read again that could not be.
AGAIN = 10.0


class Hosts:
    """Has hosts read by jobs, each by one at a time.

    :ivar freed: when it was heard that room on a host may be free, by the
        monotonic clock
    :param apply: is told what was read, None for a host that is gone
    :param at_once: how many of those that have time are read at the same time
        while nothing else is to be done
    """

    def __init__(self, source: reader.Reader, known: world.World,
                 running: jobs.Jobs,
                 apply: Callable[[str, reader.HostView | None], None],
                 at_once: int) -> None:
        self._reader = source
        self._world = known
        self._jobs = running
        self._apply = apply
        self._at_once = at_once
        # Whether their inventory is to be read, too.
        self._again: dict[str, bool] = {}
        self._later: dict[str, None] = {}
        self._slow: set[str] = set()
        self._failed: dict[str, float] = {}
        self.freed: dict[str, float] = {}

    def read(self, host: str, whole: bool = False) -> None:
        """Read a host now.

        :param whole: its inventory, too, and not only what is allocated of it
        """
        self._later.pop(host, None)
        if host not in self._reader.hypervisors:
            return
        before = None if whole else self._world.views.get(host)
        if not self._jobs.start(
                f'host {host}', functools.partial(
                    self._reader.read_host, host, before=before),
                functools.partial(self._read, host)):
            self._again[host] = whole or self._again.get(host, False)

    def read_later(self, host: str) -> None:
        """Read a host when there is time for it."""
        self._later.setdefault(host)

    def go_on(self, busy: bool) -> None:
        """Begin to read those for which there is time now.

        :param busy: whether attempts ask the same services
        """
        now = time.monotonic()
        for host in [host for host, at in self._failed.items() if at <= now]:
            del self._failed[host]
            self.read_later(host)
        at_once = 1 if busy else self._at_once
        self._slow = {host for host in self._slow
                      if f'host {host}' in self._jobs}
        while self._later and len(self._slow) < at_once:
            host = next(iter(self._later))
            self._slow.add(host)
            self.read(host)

    def failed(self, host: str) -> None:
        """A host could not be read: what was heard of it still counts."""
        self._failed[host] = time.monotonic() + AGAIN

    def forget(self) -> None:
        """Another reaper acts: what is left to read is in its lists."""
        self._failed.clear()
        self._later.clear()
        self._again.clear()
        self.freed.clear()

    def _read(self, host: str, view: reader.HostView | None) -> None:
        self._apply(host, view)
        if host in self._again:
            self.read(host, self._again.pop(host))
