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

"""Which of several reapers is the active one: whoever has a lock of tooz.

Two active ones do no harm, since Placement and Nova refuse the second of two
writers. So a backend that does not answer makes the active one stop, and that
is all.
"""

import os
import socket
import threading
import time
from typing import Any

from oslo_config import cfg
from oslo_log import log
import tooz
from tooz import coordination

LOG = log.getLogger(__name__)
FIRST = 5.0  # seconds for the first try


class Coordinator:
    """Tries to become active, and finds out that it is no more.

    :ivar active: set while this one is to act
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf.coordination
        self._stop = threading.Event()
        self._backend: Any = None
        self._lock: Any = None
        self._beat_at = 0.0
        self._thread: threading.Thread | None = None
        self._tried = threading.Event()
        self.active = threading.Event()
        self.error: str | None = None

    @property
    def alone(self) -> bool:
        """Whether there is no other reaper by configuration."""
        return not self._conf.backend_url

    def start(self) -> None:
        """Begin to try; the first try is waited for, but not for ever.

        Who is the active one at once need not look for what others did.
        """
        if self.alone:
            self.active.set()
            return
        self._thread = threading.Thread(
            target=self._run, name='coordinator', daemon=True)
        self._thread.start()
        self._tried.wait(FIRST)

    def stop(self) -> None:
        """Leave the place to another."""
        self._stop.set()
        if self._thread:
            self._thread.join(10)
        self.active.clear()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception as error:
                # tooz's drivers let errors of their own libraries through,
                # and a URL with a password may be in the text of one.
                self._lost(type(error).__name__)
            self._tried.set()
            self._stop.wait(self._conf.check_interval)
        self._close()

    def _turn(self) -> None:
        if self._backend is None:
            member = f'{socket.gethostname()}-{os.getpid()}'
            backend = coordination.get_coordinator(
                self._conf.backend_url, member.encode())
            backend.start()
            self._backend = backend
            self._lock = backend.get_lock(self._conf.lock_name.encode())
        last, self._beat_at = self._beat_at, time.monotonic()
        lasts = self._backend.heartbeat()
        if self.active.is_set():
            if not self._is_owner() or (
                    lasts and time.monotonic() - last >= lasts):
                self._lost('the lock has expired')
                return
        elif self._lock.acquire(blocking=False):
            LOG.info('This reaper is the active one now.')
            self.active.set()
        self.error = None

    def _is_owner(self) -> bool:
        try:
            return bool(self._lock.is_still_owner())
        except tooz.NotImplemented:
            # Of etcd: whether its lease has expired is told by the time.
            return bool(self._lock.acquired)

    def _lost(self, why: str) -> None:
        if self.active.is_set():
            LOG.warning('This reaper is not the active one any more: %s.', why)
        elif self.error != why:
            LOG.warning('The coordination does not answer: %s.', why)
        self.error = why
        self.active.clear()
        self._close()

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        lock, self._lock = self._lock, None
        if backend is None:
            return
        try:
            if lock is not None and lock.acquired:
                lock.release()
            backend.stop()
        except Exception as error:
            LOG.info('The coordination did not end well: %s.',
                     type(error).__name__)
