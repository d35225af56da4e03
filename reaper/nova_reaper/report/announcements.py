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

"""What the reaper tells others: each record, on a bus and by a web hook.

Who has something to tell does not wait until it is told: a bus that is away
would hold up the end of servers, and the engine with all that wait.
"""

import base64
from collections.abc import Callable
import hmac
import json
import queue
import socket
import threading
import time
from typing import Any

from oslo_config import cfg
from oslo_log import log
import oslo_messaging
import requests

from nova_reaper import conf as reaper_conf
from nova_reaper.report import store

LOG = log.getLogger(__name__)
HOOK_TIMEOUT = 5
# Seconds for which a record is posted again, and the longest pause between.
RETRY_FOR = 900.0
LONGEST = 60.0
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
    """Tells each record of the journal; failures are logged only.

    Notifications go where [oslo_messaging_notifications] says, nowhere unless
    a driver is set there.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._notifier: Any = None
        self._bus = _Outbox('notifications')
        self._hook = _Outbox('web hook')

    def tell(self, told: store.Record) -> None:
        """Have a record told; nobody waits for it."""
        payload = told.to_dict(True)
        what = f'reaper.{told.kind.value} of server {told.server}'
        self._bus.put(what, lambda: self._send(told.kind.value, payload))
        if self._conf.reaper.hook_url:
            self._hook.put(f'{what} by the web hook',
                           lambda: self._deliver(what, payload))

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

    def _send(self, kind: str, payload: dict[str, Any]) -> None:
        event_type = f'reaper.{kind}'
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

    def _deliver(self, what: str, payload: dict[str, Any]) -> None:
        """Post a record until that succeeds, or has no sense any more."""
        end, pause = time.monotonic() + RETRY_FOR, 1.0
        while self._conf.reaper.hook_url:
            why, again = self._post(payload)
            if not why:
                return
            if not again or time.monotonic() + pause > end:
                break
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        else:
            why = 'it was turned off'
        LOG.warning('The web hook was not told of %s: %s', what, why)

    def _post(self, payload: dict[str, Any]) -> tuple[str, bool]:
        """Post a record once.

        :returns: why it did not succeed, '' if it did; whether to try again
        """
        body = json.dumps(payload).encode()
        try:
            answer = requests.post(
                self._conf.reaper.hook_url, data=body, timeout=HOOK_TIMEOUT,
                allow_redirects=False, headers={
                    'content-type': 'application/json'} | signed(
                        payload['id'], int(time.time()), body,
                        self._conf.reaper.hook_secret))
        except Exception as error:
            # Its text could hold the URL, and that a secret.
            return type(error).__name__, True
        if answer.status_code < 300:
            return '', False
        return (f'HTTP {answer.status_code}', answer.status_code >= 500 or
                answer.status_code in (408, 425, 429))


def signed(uuid: str, at: int, body: bytes, secret: str | None
           ) -> dict[str, str]:
    """The headers of a web hook, by the Standard Webhooks specification.

    A receiver that sees the same ID again has the record already; one that
    checks the time cannot be sent an old one again by others.
    """
    headers = {'webhook-id': uuid, 'webhook-timestamp': str(at)}
    if secret:
        code = hmac.digest(reaper_conf.hook_key(secret),
                           f'{uuid}.{at}.'.encode() + body, 'sha256')
        headers['webhook-signature'] = f'v1,{base64.b64encode(code).decode()}'
    return headers
