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

"""What the reaper tells others: notifications, and a web hook for notices."""

import socket
from typing import Any

from oslo_config import cfg
from oslo_log import log
import oslo_messaging
import requests

from nova_reaper import attempt

LOG = log.getLogger(__name__)
HOOK_TIMEOUT = 5


class Announcer:
    """Sends notices, withdrawals and give-ups; failures are logged only.

    Notifications go where [oslo_messaging_notifications] says, nowhere unless
    a driver is set there.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._notifier: Any = None

    def notice(self, victim: attempt.Victim, waiting: str, host: str,
               until: str) -> None:
        """Server victim will be ended at the time until."""
        payload = {'server': victim.id, 'project_id': victim.project,
                   'action': victim.action.value, 'terminate_at': until,
                   'for': waiting, 'host': host}
        self._notify('reaper.notice', payload)
        url = self._conf.reaper.notice_url
        if not url:
            return
        try:
            requests.post(url, json=payload, timeout=HOOK_TIMEOUT
                          ).raise_for_status()
        except requests.RequestException as error:
            # Its text could hold the URL, and that a secret.
            LOG.warning('The web hook was not told of the notice to server '
                        '%s: %s', victim.id, type(error).__name__)

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

    def _notify(self, event_type: str, payload: dict[str, str]) -> None:
        try:
            if self._notifier is None:
                transport = oslo_messaging.get_notification_transport(
                    self._conf, url=self._conf.notifications.transport_url)
                self._notifier = oslo_messaging.Notifier(
                    transport,
                    publisher_id=f'nova-reaper:{socket.gethostname()}')
            self._notifier.info({}, event_type, payload)
        except Exception as error:
            LOG.warning('%s was not sent: %s', event_type,
                        type(error).__name__)
