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

"""When notifications are listened to: while this reaper is the active one."""

from collections.abc import Callable
import threading

from oslo_config import cfg
from oslo_log import log
import oslo_messaging

from nova_reaper import events

LOG = log.getLogger(__name__)


class Listening:
    """Listens and leaves; who calls does not wait for the bus."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._listener: oslo_messaging.MessageHandlingServer | None = None
        # Whether there can be none by these options.
        self._failed = False
        # Whether it has connected: until then it cannot be stopped.
        self._listens = False

    def listen(self, mailbox: events.Mailbox,
               observe: Callable[[events.Kind], None]) -> None:
        """Begin to listen, unless that was done or could not be done.

        :param observe: is told what kind of hint each notification was
        """
        if self._listener is not None or self._failed or (
                not self._conf.notifications.enabled):
            return

        try:
            self._listener = events.listener(self._conf, mailbox, observe)
        except Exception as error:
            self._not_listening(error)
            self._failed = True
            return
        # Without a bus it tries for ever.
        self._listens = False
        threading.Thread(target=self._begin, args=(self._listener,),
                         name='listens', daemon=True).start()

    def _begin(self, listener: oslo_messaging.MessageHandlingServer
               ) -> None:
        try:
            listener.start()
        except Exception as error:
            self._not_listening(error)
            return
        with self._lock:
            wanted = self._listener is listener
            self._listens = self._listens or wanted
        if not wanted:
            self._end(listener)

    def leave(self) -> threading.Thread | None:
        """Listen no more; returns who sees to that, if there is anything."""
        with self._lock:
            listener, self._listener = self._listener, None
            self._failed = False
            listens = self._listens
        if listener is None or not listens:
            return None
        # A bus that hangs must not hold up who stands by.
        thread = threading.Thread(target=self._end, args=(listener,),
                                  name='leaves', daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _end(listener: oslo_messaging.MessageHandlingServer) -> None:
        listener.stop()
        listener.wait()

    @staticmethod
    def _not_listening(error: Exception) -> None:
        # The text may hold the URL with its password.
        LOG.error('No notifications are listened to: %s. The reaper lives '
                  'from its lists.', type(error).__name__)
