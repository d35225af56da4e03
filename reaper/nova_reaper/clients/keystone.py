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

"""Logging in to Keystone, for the service and for owners of servers."""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import threading
import time
from typing import Any

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from keystoneauth1 import plugin
from oslo_config import cfg
from oslo_log import log

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper import conf as reaper_conf

LOG = log.getLogger(__name__)
PREFIX = 'reaper:'
# Projects of which the token is kept: the last that one was asked for.
KEPT = 500
# Seconds after which a project is asked for again that gave no token.
AGAIN = 300.0
# Servers kept in mind that were refused for their volumes or secrets.
REMEMBERED = 10000


def load_session(conf: cfg.ConfigOpts) -> Any:
    """A session with Keystone, by the options of [nova_reaper].

    :raises: keystoneauth1.exceptions.ClientException where they are wrong
    """
    auth = loading.load_auth_from_conf_options(conf, reaper_conf.AUTH_GROUP)
    return loading.load_session_from_conf_options(
        conf, reaper_conf.AUTH_GROUP, auth=auth)


def log_in(conf: cfg.ConfigOpts, session: Any, project: str
           ) -> plugin.BaseAuthPlugin:
    """A token of another project for the user of [nova_reaper].

    :raises: clients.Unavailable if Keystone does not answer,
        clients.Forbidden if it gives none
    """
    group = conf[reaper_conf.AUTH_GROUP].auth_section or reaper_conf.AUTH_GROUP
    scope = dict.fromkeys((
        'project_name', 'project_domain_id', 'project_domain_name',
        'tenant_id', 'tenant_name', 'domain_id', 'domain_name',
        'system_scope', 'trust_id')) | {'project_id': project}
    known = {option.dest for option
             in loading.get_plugin_options(conf[group].auth_type)}
    what = 'token of a project'
    if 'project_id' not in known:
        raise rest.Forbidden(
            'keystone', what, f'the auth_type {conf[group].auth_type} '
            f'knows no projects')
    try:
        auth = loading.load_auth_from_conf_options(
            conf, reaper_conf.AUTH_GROUP, **{
                name: value for name, value in scope.items()
                if name in known})
        got = auth.get_access(session).project_id
    except exceptions.ClientException as error:
        refused = isinstance(error, exceptions.AuthPluginException) or (
            isinstance(error, exceptions.HTTPClientError) and
            error.http_status != 429)
        raise (rest.Forbidden if refused else rest.Unavailable)(
            'keystone', what, str(error)) from error
    if got != project:
        raise rest.Forbidden(
            'keystone', what, f'the auth_type {conf[group].auth_type} '
            f'is bound to project {got}')
    return auth


def load_client(conf: cfg.ConfigOpts, session: Any, name: str, *,
                oldest: str | None = None, newest: str | None = None,
                observe: rest.Observer | None = None) -> rest.Client:
    """The client of the service whose options are in the group name."""
    group = conf[name]
    service = loading.load_adapter_from_conf_options(
        conf, name, session=session, auth=session.auth,
        concurrency=group.concurrency)
    return rest.Client(name, service, oldest=oldest, newest=newest,
                          rate_limit=group.rate_limit, observe=observe)


class Keystone:
    """Keystone, as far as the reaper needs it."""

    def __init__(self, client: rest.Client) -> None:
        self.client = client
        self._refused = False
        self._known: Mapping[str, Mapping[str, str]] = {}

    def project_properties(self) -> Mapping[str, Mapping[str, str]]:
        """The properties whose names begin with ``reaper:``, by project.

        Where the reaper may not list projects, what it knew before holds, and
        it says so once.
        """
        try:
            self._known = self._read_properties()
            self._refused = False
        except rest.Forbidden as error:
            if not self._refused:
                LOG.warning('Priorities and other properties of projects are '
                            'those of before, if there were any: %s', error)
            self._refused = True
        return self._known

    def _projects(self) -> Iterator[dict[str, Any]]:
        """All projects, page by page.

        Keystone gives max_db_limit of them at most, and a link to the next
        page is not for sure: the last page is one with nothing new. A release
        that knows no pages answers the same twice.
        """
        seen: set[str] = set()
        marker: str | None = None
        while True:
            page = self.client.request('GET', rest.with_query(
                '/projects', limit=rest.PAGE, marker=marker))['projects']
            new = [project for project in page if project['id'] not in seen]
            if not new:
                return
            yield from new
            seen.update(project['id'] for project in new)
            marker = page[-1]['id']

    def _read_properties(self) -> dict[str, dict[str, str]]:
        projects = self._projects()
        found: dict[str, dict[str, str]] = {}
        for project in projects:
            properties = {key: str(value) for key, value in project.items()
                          if key.startswith(PREFIX)}
            if properties:
                found[project['id']] = properties
        return found


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
            except rest.Forbidden:
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
            except (rest.Forbidden, rest.Conflict) as error:
                if not _is_for_rights(error):
                    raise
                if error.status == 401:
                    self._forget(project)
                LOG.info('Server %s is rebuilt with the token of the reaper, '
                         'since that of project %s may not: %s', server,
                         project, error)
        try:
            self._nova.rebuild(server)
        except rest.Forbidden as error:
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
        except rest.Unavailable:
            raise
        except rest.RequestFailed as error:
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


def _is_for_rights(error: rest.RequestFailed) -> bool:
    """Whether the reaper's own token may do what the project's may not."""
    if isinstance(error, rest.Conflict):
        return 'is locked' in error.message
    return nova.Refusal.of(error) == nova.Refusal.RIGHTS
