# SPDX-License-Identifier: Apache-2.0

"""Limits, repeats and counts requests, and logs in for them.

All requests to OpenStack go this way; nova.py and placement.py say what is
asked of the two, and Keystone is asked here.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import copy
from email import utils
import threading
import time
from typing import Any
from typing import Self
from typing import TypeVar
from urllib import parse

from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import loading
from keystoneauth1 import plugin
from keystoneauth1 import service_token
from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils
import requests

from nova_reaper import conf as reaper_conf

LOG = log.getLogger(__name__)
PAGE = 1000
PREFIX = 'reaper:'
# The last so many answers tell how far the clock of a service is off.
ANSWERS = 20

# Is called after each request with the service, the HTTP status (None where no
# answer came) and the seconds.
Observer = Callable[[str, int | None, float], None]


class RequestFailed(Exception):
    """A request was refused or got no answer.

    :ivar status: of HTTP, None if there was no answer
    """

    def __init__(self, service: str, what: str, message: str,
                 status: int | None = None) -> None:
        super().__init__(f'{service}: {what}: {status or "no answer"}: '
                         f'{message}')
        self.message = message
        self.status = status


class BadRequest(RequestFailed):
    """400."""


class Forbidden(RequestFailed):
    """401 or 403."""


class NotFound(RequestFailed):
    """404."""


class Conflict(RequestFailed):
    """409: something has changed meanwhile, or the state does not allow it."""


class Unavailable(RequestFailed):
    """No answer came in time, or the service answers that it has a fault."""


class TooOld(RequestFailed):
    """The service does not have the microversion that the request needs."""


FAILURES: dict[int, type[RequestFailed]] = {
    400: BadRequest, 401: Forbidden, 403: Forbidden, 404: NotFound,
    409: Conflict}


class Pace:
    """Lets requests start, at most ``rate`` a second.

    keystoneauth's rate_limit saves up what an idle client has not used, and
    lets a flood through after an idle hour.
    """

    def __init__(self, rate: float) -> None:
        self._interval = 1.0 / rate if rate else 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self, count: int = 1) -> None:
        """Wait until a request may start that counts as so many starts."""
        if not self._interval:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + count * self._interval
        if start > now:
            time.sleep(start - now)


class Client:
    """Requests to one service.

    :param name: of its group in the configuration
    :param observe: is called after each request
    """

    def __init__(self, name: str, service: adapter.Adapter, *,
                 rate_limit: float = 0, observe: Observer | None = None
                 ) -> None:
        self.name = name
        self._adapter = service
        self._pace = Pace(rate_limit)
        self._observe = observe
        # By how many seconds the clock of each answer was ahead of the
        # monotonic clock here, the newest first.
        self._ahead: tuple[float, ...] = ()

    def with_auth(self, auth: plugin.BaseAuthPlugin) -> Self:
        """Copy the client with another token; both share their limits."""
        other = copy.copy(self)
        other._adapter = copy.copy(self._adapter)
        other._adapter.auth = auth
        return other

    @property
    def microversion(self) -> str | None:
        """Return the microversion of requests, None without microversions."""
        return None

    def request(self, method: str, path: str, *, json: Any = None,
                microversion: str | None = None,
                repeated: Sequence[int] = (502, 503, 504)
                ) -> dict[str, Any] | Any:
        """Send a request, and return the body of the answer.

        An answer without a body gives None.

        The client repeats reads on some answers, and if the connection broke.
        Callers repeat writes: Nova and Placement tell whether a write was
        done.

        :param repeated: the status codes on which the client repeats a read
        :raises: RequestFailed
        """
        # A connection may break after the write as well as before it.
        repeat = {'status_code_retries': 3} if method == 'GET' else {
            'status_code_retries': 0, 'connect_retries': 0}
        what = f'{method} {path.partition("?")[0]}'
        status: int | None = None
        begun, sent_at = time.monotonic(), _now()
        self._pace.wait()
        try:
            response = self._adapter.request(
                path, method, json=json, raise_exc=False,
                microversion=microversion or self.microversion,
                retriable_status_codes=repeated,
                headers={'Accept': 'application/json'}, **repeat)
            status = response.status_code
            self._compare_clocks(response.headers.get('Date'), sent_at)
        except exceptions.HTTPClientError as error:
            # Keystone gives no token any more.
            status = error.http_status
            raise _kind(status)(self.name, what, str(error), status) from error
        except exceptions.ClientException as error:
            raise Unavailable(self.name, what, str(error)) from error
        finally:
            if self._observe:
                self._observe(self.name, status, time.monotonic() - begun)
        if status >= 400:
            raise _failure(self.name, what, response)
        if not response.content and method != 'GET':
            return None
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            # A page of a proxy says nothing of what was done.
            raise Unavailable(
                self.name, what, 'the answer is not a JSON object; something '
                'else may answer at this address', status)
        return body

    @property
    def clock_off(self) -> float:
        """Say by how many seconds the service's clock is ahead, at least.

        The value is less than 0 if the service's clock is behind. The last
        answer that agrees best with the clock here counts: a process of the
        service may have a wrong clock, and a wrong clock here agrees with no
        answer. A step of the clock here shows at once.
        """
        here = _now() - time.monotonic()
        return min((ahead - here for ahead in self._ahead), key=abs,
                   default=0.0)

    def _compare_clocks(self, date: str | None, sent_at: float) -> None:
        """Note an answer, which was made between sent_at and now."""
        try:
            made_at = utils.parsedate_to_datetime(date or '').timestamp()
        except ValueError:
            return
        now = _now()
        # The header has no fractions of a second.
        off = made_at - min(max(made_at, sent_at - 1), now + 1)
        self._ahead = (off + now - time.monotonic(),
                       *self._ahead[:ANSWERS - 1])

    def pages(self, path: str, key: str, *, within: str = '',
              microversion: str | None = None, **query: Any
              ) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list.

        :param key: the key of the list
        :param within: the key of the object that has the list, '' for the
            whole answer
        :param query: parameters; a parameter that is None is left out
        """
        page: str | None = with_query(path, **query)
        while page:
            # A page that failed would spoil all pages that were read before.
            answer = self.request('GET', page, microversion=microversion,
                                  repeated=(500, 502, 503, 504))
            answer = answer[within] if within else answer
            yield answer
            # The link may name a host that only clients outside can reach.
            page = next((f'{path}?{parse.urlsplit(link["href"]).query}'
                         for link in answer.get(f'{key}_links') or ()
                         if link.get('rel') == 'next'), None)

    def list(self, path: str, key: str, **query: Any
             ) -> Iterator[dict[str, Any]]:
        """Yield all items of a list, with the parameters of pages()."""
        for page in self.pages(path, key, limit=PAGE, **query):
            yield from page[key]


AnyClient = TypeVar('AnyClient', bound=Client)


def _now() -> float:
    """Return the seconds by the wall clock."""
    now: float = timeutils.utcnow(True).timestamp()
    return now


def with_query(path: str, **query: Any) -> str:
    """Add a query to a path; a parameter that is None is left out."""
    given = {key: value for key, value in query.items() if value is not None}
    if not given:
        return path
    return f'{path}?{parse.urlencode(given, doseq=True)}'


def _kind(status: int) -> type[RequestFailed]:
    return FAILURES.get(status, Unavailable if status >= 500 or status == 429
                        else RequestFailed)


def _failure(service: str, what: str, response: requests.Response
             ) -> RequestFailed:
    message, body = response.reason or '', None
    try:
        body = response.json()
        if isinstance(body, dict) and 'errors' in body:  # Placement
            message = body['errors'][0].get('detail', '').strip()
        elif isinstance(body, dict):  # Nova, Keystone
            message = next(iter(body.values())).get('message', message)
    except (ValueError, AttributeError, LookupError, StopIteration):
        pass
    kind = _kind(response.status_code)
    if kind in (NotFound, Conflict) and not isinstance(body, dict):
        # A proxy, or a web server without the service, has answered: nothing
        # may be taken for gone by that.
        kind = Unavailable
    return kind(service, what, message, response.status_code)


def load_session(conf: cfg.ConfigOpts) -> Any:
    """Make a session with Keystone, by the options of [nova_reaper].

    :raises: keystoneauth1.exceptions.ClientException where they are wrong
    """
    auth = loading.load_auth_from_conf_options(conf, reaper_conf.AUTH_GROUP)
    return loading.load_session_from_conf_options(
        conf, reaper_conf.AUTH_GROUP, auth=auth)


def log_in(conf: cfg.ConfigOpts, session: Any, project: str
           ) -> plugin.BaseAuthPlugin:
    """Get a token of another project for the user of [nova_reaper].

    The user's own token goes along as the token of a service. Nova takes a
    rebuild with the token of the project alone for a rebuild by the owner, who
    asks to wait with it.

    :param session: the session of the user
    :raises: Unavailable if Keystone does not answer, Forbidden if it gives
        none
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
        raise Forbidden(
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
        raise (Forbidden if refused else Unavailable)(
            'keystone', what, str(error)) from error
    if got != project:
        raise Forbidden(
            'keystone', what, f'the auth_type {conf[group].auth_type} '
            f'is bound to project {got}')
    return service_token.ServiceTokenAuthWrapper(auth, session.auth)


def load_client(kind: type[AnyClient], conf: cfg.ConfigOpts, session: Any,
                name: str, observe: Observer | None = None) -> AnyClient:
    """Make the client of the service with the options of group ``name``."""
    group = conf[name]
    service = loading.load_adapter_from_conf_options(
        conf, name, session=session, auth=session.auth,
        concurrency=group.concurrency)
    return kind(name, service, rate_limit=group.rate_limit, observe=observe)


class Keystone:
    """Keystone, as far as the reaper needs it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._refused = False
        self._known: Mapping[str, Mapping[str, str]] = {}

    def project_properties(self) -> Mapping[str, Mapping[str, str]]:
        """Ask for the properties that begin with ``reaper:``, by project.

        If the reaper may not list projects, the properties that it knew hold,
        and it logs this once.
        """
        try:
            found = {project['id']: {
                key: str(value) for key, value in project.items()
                if key.startswith(PREFIX)} for project in self._projects()}
            self._known = {project: properties for project, properties
                           in found.items() if properties}
            self._refused = False
        except Forbidden as error:
            if not self._refused:
                LOG.warning('Priorities and other properties of projects are '
                            'those of before, if there were any: %s', error)
            self._refused = True
        return self._known

    def _projects(self) -> Iterator[dict[str, Any]]:
        """Yield all projects, page by page.

        Keystone gives max_db_limit projects at most, and not always a link to
        the next page. So the last page is a page without new projects. A
        release without pages gives the same answer twice.
        """
        seen: set[str] = set()
        marker: str | None = None
        while True:
            page = self.client.request('GET', with_query(
                '/projects', limit=PAGE, marker=marker))['projects']
            new = [project for project in page if project['id'] not in seen]
            if not new:
                return
            yield from new
            seen.update(project['id'] for project in new)
            marker = page[-1]['id']
