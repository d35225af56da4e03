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

"""What the reaper tells others: notifications, and a web hook for notices.

Who has something to tell does not wait until it is told: a bus that is away
would hold up the end of servers, and the engine with all that wait.
"""

from collections.abc import Callable
import queue
import socket
import threading
import time
from typing import Any

from oslo_config import cfg
from oslo_log import log
import oslo_messaging
import requests

from nova_reaper.act import attempt

LOG = log.getLogger(__name__)
HOOK_TIMEOUT = 5
# Of a notification; None would be for ever.
RETRIES = 2
# So much may wait to be told; what comes then is dropped.
WAITING = 1000
# Seconds that the end of the process waits for what has not been told.
PATIENCE = 3.0


class _Outbox:
    """Makes calls in a thread of its own, one after the other.

    :param name: of the thread
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, what: str, call: Callable[[], None]) -> None:
        """Have a call made, or dropped if too many wait already.

        :param what: for the log
        :param call: raises nothing
        """
        with self._lock:
            if self._thread is None:
                # A daemon: the process does not wait for it to end.
                self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True)
                self._thread.start()
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            LOG.warning('%s is not sent: %d others wait to be.', what,
                        WAITING)

    def _run(self) -> None:
        while True:
            self._calls.get()()
            self._calls.task_done()

    def flush(self, timeout: float) -> int:
        """Wait until all calls are made, at most so many seconds.

        :returns: how many are not
        """
        done = self._calls.all_tasks_done
        with done:
            done.wait_for(lambda: not self._calls.unfinished_tasks, timeout)
            return self._calls.unfinished_tasks


class Announcer:
    """Sends notices, withdrawals and give-ups; failures are logged only.

    Notifications go where [oslo_messaging_notifications] says, nowhere unless
    a driver is set there.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._notifier: Any = None
        self._bus = _Outbox('notifications')
        self._hook = _Outbox('web hook')

    def notice(self, victim: attempt.Victim, waiting: str, host: str,
               until: str) -> None:
        """Server victim will be ended at the time until."""
        payload = {'server': victim.id, 'project_id': victim.project,
                   'action': victim.action.value, 'terminate_at': until,
                   'for': waiting, 'host': host}
        self._notify('reaper.notice', payload)
        url = self._conf.reaper.notice_url
        if url:
            self._hook.put(
                f'The notice to server {victim.id} by the web hook',
                lambda: self._post(url, payload))

    def withdrawal(self, victim: attempt.Victim) -> None:
        """The notice to victim is void."""
        self._notify('reaper.notice.withdrawn', {
            'server': victim.id, 'project_id': victim.project})

    def given_up(self, server: str, project: str, reason: str,
                 detail: str) -> None:
        """Server was set to ERROR."""
        self._notify('reaper.given_up', {
            'server': server, 'project_id': project, 'reason': reason,
            'detail': detail})

    def flush(self) -> None:
        """Wait a moment until all is told; the rest is dropped.

        To be called when the process is about to end.
        """
        end = time.monotonic() + PATIENCE
        left = sum(box.flush(max(0.0, end - time.monotonic()))
                   for box in (self._bus, self._hook))
        if left:
            LOG.warning('%d notifications are not sent: the service ends.',
                        left)

    def _notify(self, event_type: str, payload: dict[str, str]) -> None:
        self._bus.put(f'{event_type} of server {payload["server"]}',
                      lambda: self._send(event_type, payload))

    def _send(self, event_type: str, payload: dict[str, str]) -> None:
        try:
            if self._notifier is None:
                transport = oslo_messaging.get_notification_transport(
                    self._conf, url=self._conf.notifications.transport_url)
                self._notifier = oslo_messaging.Notifier(
                    transport, retry=RETRIES,
                    publisher_id=f'nova-reaper:{socket.gethostname()}')
            self._notifier.info({}, event_type, payload)
        except Exception as error:
            LOG.warning('%s was not sent: %s', event_type,
                        type(error).__name__)

    @staticmethod
    def _post(url: str, payload: dict[str, str]) -> None:
        try:
            requests.post(url, json=payload, timeout=HOOK_TIMEOUT
                          ).raise_for_status()
        except Exception as error:
            # Its text could hold the URL, and that a secret.
            LOG.warning('The web hook was not told of the notice to server '
                        '%s: %s', payload['server'], type(error).__name__)
