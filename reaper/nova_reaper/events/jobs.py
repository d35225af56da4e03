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

"""Work in other threads: jobs, and hosts that jobs read again.

The one thread that owns all takes the results. A host whose room may have
become free is read at once: somebody waits for it. A host on which room was
taken is read when there is time. What is decided by an old view of a host is
found out by Placement, which is asked before anything is done.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import queue
import time
from typing import TypeVar

from oslo_log import log

from nova_reaper.clients import rest
from nova_reaper.cloud import world
from nova_reaper.events import reader

LOG = log.getLogger(__name__)
T = TypeVar('T')

# Seconds until a host is read again that could not be.
AGAIN = 10.0


class Jobs:
    """Runs jobs in a pool; one of a name at a time.

    :param wake: is called when there is a result to take
    :param failed: is told the name of a job that failed, and why
    :param at_once: how many of those that may stand in line run at a time
    """

    def __init__(self, pool: futures.Executor, wake: Callable[[], None],
                 failed: Callable[[str, str], None], at_once: int = 4
                 ) -> None:
        self._pool = pool
        self._wake = wake
        self._failed = failed
        self._at_once = at_once
        self._running: set[str] = set()
        self._in_line: dict[str, Callable[[], bool]] = {}
        self._from_line: set[str] = set()
        self._again: dict[str, Callable[[], bool]] = {}
        self._results: queue.SimpleQueue[Callable[[], None]] = (
            queue.SimpleQueue())
        self.stopping = False

    def __contains__(self, name: str) -> bool:
        return name in self._running or name in self._in_line

    def runs(self, kind: str) -> bool:
        """Whether one runs whose name begins so."""
        return any(name.startswith(kind) for name in self._running)

    @property
    def waiting(self) -> bool:
        """Whether there is a result to take."""
        return not self._results.empty()

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is to be taken."""
        return not (self._running or self._in_line or self.waiting)

    def line_up(self, name: str, call: Callable[[], T],
                done: Callable[[T], None]) -> None:
        """Have a job done when it is its turn; once, if it is so already.

        Whatever is heard of many servers at once must not keep the steps of
        attempts from the pool. If one of its name runs, it is done after that.
        """
        if name in self._running:
            self.start(name, call, done, again=True)
        elif not self.stopping:
            self._in_line[name] = functools.partial(
                self.start, name, call, done)
            self._go_on()

    def start(self, name: str, call: Callable[[], T],
              done: Callable[[T], None], again: bool = False) -> bool:
        """Have a job done, unless one of its name runs.

        :param done: is called by :meth:`take` with what the job returned
        :param again: whether it is to be done after the one that runs, which
            may not see any more what it is done for
        :returns: whether it has begun
        """
        if name in self._running and again:
            self._again[name] = functools.partial(
                self.start, name, call, done)
        if name in self._running or self.stopping:
            return False
        self._running.add(name)
        self._pool.submit(self._work, name, call, done)
        return True

    def _work(self, name: str, call: Callable[[], T],
              done: Callable[[T], None]) -> None:
        try:
            found = call()
        except rest.RequestFailed as error:
            LOG.warning('%s: %s', name, error)
            why = str(error)
            self._put(name, lambda: self._failed(name, why))
        except Exception as error:
            if not self.stopping:
                LOG.exception('%s failed.', name)
            why = str(error)
            self._put(name, lambda: self._failed(name, why))
        else:
            self._put(name, lambda: done(found))

    def _put(self, name: str, result: Callable[[], None]) -> None:
        def finish() -> None:
            self._running.discard(name)
            again = self._again.pop(name, None)
            try:
                result()
            finally:
                if again:
                    again()

        self._results.put(finish)
        self._wake()

    def _go_on(self) -> None:
        """Begin what stands in line, as long as it is its turn."""
        self._from_line &= self._running
        while self._in_line and len(self._from_line) < self._at_once:
            name = next(iter(self._in_line))
            if self._in_line.pop(name)():
                self._from_line.add(name)

    def take(self) -> None:
        """Make the calls for all results that there are."""
        while not self._results.empty():
            self._results.get()()
        self._go_on()


class Hosts:
    """Has hosts read by jobs, each by one at a time.

    :ivar freed: when it was heard that room on a host may be free, by the
        monotonic clock
    :param apply: is told what was read, None for a host that is gone
    :param at_once: how many of those that have time are read at the same time
        while nothing else is to be done
    """

    def __init__(self, source: reader.Reader, known: world.World,
                 running: Jobs,
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

    def forget_freed(self) -> None:
        """Nobody that waits has use for room of which was heard so far."""
        self.freed = {
            host: at for host, at in self.freed.items()
            if host not in self._world.views or
            self._world.views[host].read_at < at}

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
