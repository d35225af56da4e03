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

"""Rebuilds are asked with a token of the project that the server belongs to.

A volume or a secret that is made when the server is built belongs to the
project of the token, so Nova refuses that to a token of another project. With
the reaper's own token all others can be rebuilt, and those whose project gives
it none are.
"""

import collections
from collections.abc import Callable
import dataclasses
import threading
import time

from keystoneauth1 import plugin
from oslo_log import log

from nova_reaper import clients
from nova_reaper import nova

LOG = log.getLogger(__name__)
# Projects of which the token is kept: the last that one was asked for.
KEPT = 500
# Seconds after which a project is asked for again that gave no token.
AGAIN = 300.0
# Servers kept in mind that were refused for their volumes or secrets.
REMEMBERED = 10000


@dataclasses.dataclass(frozen=True, slots=True)
class _Login:
    """The token of a project, or why there is none."""

    auth: plugin.BaseAuthPlugin | None
    refusal: str
    at: float


class Owners:
    """Asks Nova in the name of projects; safe for threads.

    :param project: the reaper's own
    :param log_in: gives a token of a project; see sessions.log_in
    """

    def __init__(self, compute: nova.Nova, project: str,
                 log_in: Callable[[str], plugin.BaseAuthPlugin],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._nova = compute
        self._project = project
        self._log_in = log_in
        self._clock = clock
        self._lock = threading.Lock()
        self._logins: collections.OrderedDict[str, _Login] = (
            collections.OrderedDict())
        self._refused: collections.OrderedDict[str, None] = (
            collections.OrderedDict())

    def objection(self, server: nova.NovaServer, needed: bool | None
                  ) -> str | None:
        """Why Nova would refuse a rebuild for the token, None if it would not.

        :param needed: whether a token of the owner's project is needed, None
            if Nova does not say so
        :raises: clients.Unavailable if Keystone does not answer
        """
        if needed is None:
            # A further volume or a secret that is made shows in no answer.
            needed = server.id in self._refused or not (
                server.image or server.volumes)
        if not needed or server.project == self._project:
            return None
        why = 'it is locked' if server.locked else self._refusal(server)
        return why and (f'It needs a rebuild by its owner, for volumes or '
                        f'secrets that are made when it is built: {why}')

    def _refusal(self, server: nova.NovaServer) -> str:
        """Why there is no token of a server's project, '' if there is one."""
        login = self._login(server.project)
        if login.auth:
            try:
                # One of an hour ago may have been revoked since.
                self._nova.with_auth(login.auth).server(server.id)
            except clients.Forbidden:
                self._forget(server.project)
                login = self._login(server.project)
        return login.refusal

    def rebuild(self, server: str, project: str) -> None:
        """Have a server that waits built, as it was asked for.

        :raises: clients.RequestFailed
        """
        login = self._login(project)
        if login.auth:
            try:
                self._nova.with_auth(login.auth).rebuild(server)
                return
            except (clients.Forbidden, clients.Conflict) as error:
                if not _is_for_rights(error):
                    raise
                if error.status == 401:
                    self._forget(project)
                LOG.info('Server %s is rebuilt with the token of the reaper, '
                         'since that of project %s may not: %s', server,
                         project, error)
        try:
            self._nova.rebuild(server)
        except clients.Forbidden as error:
            if nova.Refusal.of(error) == nova.Refusal.VOLUMES:
                self._remember(server)
            raise

    def _remember(self, server: str) -> None:
        with self._lock:
            self._refused[server] = None
            if len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)

    def _forget(self, project: str) -> None:
        with self._lock:
            self._logins.pop(project, None)

    def _login(self, project: str) -> _Login:
        if project == self._project:
            return _Login(None, '', 0.0)
        now = self._clock()
        with self._lock:
            kept = self._logins.get(project)
        if kept and (kept.auth or now - kept.at < AGAIN):
            return kept
        try:
            made = _Login(self._log_in(project), '', now)
        except clients.Unavailable:
            raise
        except clients.RequestFailed as error:
            made = _Login(None, f'Keystone gives no token of project '
                          f'{project}: {error.message}', now)
        if made.refusal and kept is None:
            LOG.warning('%s. Its servers are rebuilt with the token of the '
                        'reaper, but for those with volumes or secrets that '
                        'are made when they are built: they need a role of '
                        'the reaper in the project.', made.refusal)
        with self._lock:
            self._logins[project] = made
            self._logins.move_to_end(project)
            if len(self._logins) > KEPT:
                self._logins.popitem(last=False)
        return made


def _is_for_rights(error: clients.RequestFailed) -> bool:
    """Whether the reaper's own token may do what the project's may not."""
    if isinstance(error, clients.Conflict):
        return 'is locked' in error.message
    return nova.Refusal.of(error) == nova.Refusal.RIGHTS
