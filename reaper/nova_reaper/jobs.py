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

"""What is asked in other threads, and answered in the one that owns all."""

from collections.abc import Callable
from concurrent import futures
import functools
import queue
from typing import TypeVar

from oslo_log import log

from nova_reaper import clients

LOG = log.getLogger(__name__)
T = TypeVar('T')


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
        except clients.RequestFailed as error:
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
