# SPDX-License-Identifier: Apache-2.0

"""What the reaper asks of Nova.

https://docs.openstack.org/api-ref/compute/ and, for what a microversion of
nova-pending has brought, the reference of nova-pending. The numbers of these
microversions are those of Nova 34; in Nova 33 each is lower by 1.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import enum
import re
import threading
import time
from typing import Any
from urllib import parse

from keystoneauth1 import plugin
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.clients import rest
from nova_reaper.cloud import model

LOG = log.getLogger(__name__)
# The last microversion of nova-pending in Nova 34.
NEWEST = '2.107'
# From 2.88 on Nova asks each nova-compute for the uptime of its host.
HYPERVISORS = '2.87'
# How many tokens of projects are kept: the newest.
KEPT = 500
# Seconds after which Keystone is asked again for a token that it refused.
AGAIN = 300.0
# A question for a verdict costs as much as verdicts on so many hosts.
QUESTION = 15
# The most servers without which Nova judges a host.
MOST_WITHOUT = 80


class Refusal(enum.Enum):
    """What an answer 403 of Nova is about; the message tells."""

    QUOTA = enum.auto()
    VOLUMES = enum.auto()  # or secrets, would be of the token's project
    RIGHTS = enum.auto()   # of the token, by a policy

    @classmethod
    def of(cls, error: rest.RequestFailed) -> 'Refusal':
        """Tell the kind of an answer 403."""
        if 'made when it is built' in error.message:
            return cls.VOLUMES
        if re.search('quota|over a limit|maximum number', error.message,
                     re.IGNORECASE):
            return cls.QUOTA
        return cls.RIGHTS


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """A flavor as a server has it embedded, or as the list shows it."""

    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int = 0
    swap: int = 0
    extra_specs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    id: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class NovaServer:
    """A server as the administrator sees it.

    :ivar image: the ID of its image, '' if it boots from a volume
    :ivar kind: what, beside flavor and project, lets Nova tell two servers
        apart
    :ivar asked: whether its owner has asked to wait, as far as Nova says so
    :ivar fault: the message of its last fault
    """

    id: str
    name: str
    project: str
    user: str
    status: str
    task_state: str | None
    host: str
    flavor: Flavor
    image: str
    created_at: datetime.datetime
    updated_at: datetime.datetime
    launched_at: datetime.datetime | None
    metadata: Mapping[str, str]
    locked: bool
    kind: str = ''
    asked: bool = False
    fault: str = ''

    @property
    def waits(self) -> bool:
        """Say whether the server waits for a host and nobody rebuilds it."""
        return self.status == 'PENDING' and not self.task_state

    @property
    def may_wait(self) -> bool:
        """Say whether the server waits, or is built and may wait again."""
        return not self.host and self.status in ('PENDING', 'BUILD', 'REBUILD')

    @property
    def failed(self) -> bool:
        """Say whether the build failed on hosts, so that it can be repeated.

        A server in ERROR for which no host was found was given up, or Nova
        lets nobody wait.
        """
        return (self.status == 'ERROR' and not self.task_state and
                not self.host and self.launched_at is None and
                bool(self.fault) and 'No valid host' not in self.fault)

    @property
    def shelved(self) -> bool:
        """Say whether the server is on no host, and can be unshelved."""
        return self.status == 'SHELVED_OFFLOADED' and not self.task_state


@dataclasses.dataclass(frozen=True, slots=True)
class Pending:
    """The answer of ``GET /servers/{id}/pending``.

    :ivar requests: query strings for ``GET /allocation_candidates``, in the
        order in which the scheduler tries them
    :ivar hosts: the first filter that refuses each host, by its name; None if
        none does
    :ivar unavailable: why requests and hosts are not known, '' if they are
    :ivar token_required: whether a rebuild is refused to the token, since it
        is of another project than the server
    """

    reason: model.Reason
    message: str
    advice: str
    requests: tuple[str, ...] = ()
    hosts: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    unavailable: str = ''
    token_required: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """An entry of a server's action list."""

    action: str
    project: str
    message: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Hypervisor:
    """A compute node: its UUID is that of its resource provider."""

    uuid: str
    host: str
    up: bool
    enabled: bool


# The status of a server of a cell that is down.
UNKNOWN = 'UNKNOWN'


class CellDown(rest.Unavailable):
    """Nova cannot reach the cell of a server, and knows little of it."""


def _action(name: str, body: Any = None) -> Callable[['Nova', str], None]:
    """Make a method that asks Nova for an action with a server."""
    def act(self: 'Nova', uuid: str) -> None:
        self.client.request('POST', f'/servers/{uuid}/action',
                            json={name: body})
    return act


class Client(rest.Client):
    """Requests to Nova, at the last microversion of nova-pending."""

    _microversion = ''

    @property
    def microversion(self) -> str:
        """Return the microversion in which Nova says why a server waits.

        :raises: rest.TooOld; rest.RequestFailed if Nova does not answer
        """
        if not self._microversion:
            self._microversion = self._ask_for_it()
        return self._microversion

    def look_again(self) -> None:
        """Ask for the microversion anew: Nova may be upgraded.

        What is known stays where Nova does not answer.

        :raises: rest.TooOld
        """
        try:
            found = self._ask_for_it()
        except (rest.Unavailable, rest.Forbidden) as error:
            LOG.info('The microversion of Nova is not known: %s', error)
            return
        if found != (self._microversion or found):
            LOG.info('Nova is used with microversion %s from now on.', found)
        self._microversion = found

    def _ask_for_it(self) -> str:
        try:
            said = self.request('GET', '/pending', microversion='latest')
        except rest.NotFound as error:
            raise rest.TooOld(
                'nova', 'GET /pending', f'nova-pending up to microversion '
                f'{NEWEST} (of Nova 34) is needed in nova-api', 404
            ) from error
        return str(said['pending']['microversions']['reason'])


class Nova:
    """Nova, as far as the reaper needs it.

    :param pace: of the hosts that Nova's schedulers are asked about
    """

    def __init__(self, client: Client, pace: rest.Pace | None = None) -> None:
        self.client = client
        self._pace = pace or rest.Pace(0)

    def with_auth(self, auth: plugin.BaseAuthPlugin) -> 'Nova':
        """Return a client of the same Nova with another token."""
        return Nova(self.client.with_auth(auth), self._pace)

    def servers(self, **query: Any) -> Iterator[NovaServer]:
        """Yield servers of all projects, except in cells that are down."""
        for item in self.client.list('/servers/detail', 'servers',
                                     all_tenants=True, **query):
            if item['status'] != UNKNOWN:
                yield server_from(item)

    def count_not_placed(self, since: datetime.datetime) -> int:
        """Count servers in ERROR, created since then, that found no host.

        With use_pending_state these servers would wait.
        """
        return sum(
            not item.get('OS-EXT-SRV-ATTR:host') and
            _time(item['created']) >= since and
            'No valid host' in item.get('fault', {}).get('message', '')
            for item in self.client.list(
                '/servers/detail', 'servers', all_tenants=True,
                status='ERROR', **{'changes-since': since.isoformat()}))

    def ids(self) -> Iterator[str]:
        """Yield the IDs of all servers of all projects."""
        for item in self.client.list('/servers', 'servers', all_tenants=True):
            yield item['id']

    def server(self, uuid: str) -> NovaServer:
        """Ask Nova for a server.

        :raises: rest.NotFound; CellDown
        """
        return server_from(
            self.client.request('GET', f'/servers/{uuid}')['server'])

    def find(self, uuid: str) -> NovaServer | None:
        """Ask Nova for a server; return None if the server is gone.

        :raises: CellDown
        """
        try:
            return self.server(uuid)
        except rest.NotFound:
            return None

    def pending(self, uuid: str, hosts: Collection[str] | None = None,
                without: Sequence[str] = ()) -> Pending:
        """Ask Nova why a server waits, and what the server needs.

        :param hosts: names of the hosts that the filters are asked for, None
            for all of them. For no names Nova looks for the reason, too, which
            costs more than 100 hosts
        :param without: IDs of servers of the only host, which Nova judges as
            if they had gone; IDs after the first MOST_WITHOUT are left out
        :raises: rest.NotFound if the server does not wait; rest.Conflict while
            it is being rebuilt, and if a server is not on the host
        """
        self._pace.wait(QUESTION + len(hosts or ()))
        pages = list(self.client.pages(
            f'/servers/{uuid}/pending', 'hosts', within='pending',
            host=list(hosts or ()) or None,
            without=list(without[:MOST_WITHOUT]) or None,
            limit=0 if hosts is not None and not hosts else None))
        first = pages[0]
        known = first['reason'] in set(model.Reason)
        return Pending(
            model.Reason(first['reason'] if known else 'unknown'),
            first['message'] or '', first['advice'] or '',
            tuple(first.get('requests') or ()),
            {item['host']: item['refused_by'] for page in pages
             for item in page.get('hosts') or ()},
            # A cell can fail after the first page.
            next(filter(None, (page.get('unavailable') for page in pages)),
                 ''),
            'rebuild_forbidden' in first)

    def judge(self, server: NovaServer, zone: str | None,
              hosts: Collection[str], without: Sequence[str] = ()
              ) -> tuple[tuple[str, ...], dict[str, str | None]]:
        """Ask Nova what a server that is not created would ask for.

        :param server: of which flavor, image and project count
        :param zone: its availability zone, None for none
        :param hosts: names of MOST_WITHOUT hosts at most, which are judged
        :param without: as of pending(), of all these hosts
        :returns: requests and hosts, as Pending has them; no requests if Nova
            refuses every host
        :raises: rest.BadRequest if Nova would refuse to create the server;
            rest.Conflict if a server of without is not on the hosts
        """
        self._pace.wait(QUESTION + len(hosts))
        asked = {'flavorRef': server.flavor.id, 'project_id': server.project}
        if server.image:
            asked['imageRef'] = server.image
        if zone is not None:
            asked['availability_zone'] = zone
        answer = self.client.request('POST', '/pending', json={'pending': {
            'server': asked, 'hosts': list(hosts),
            'without': list(without[:MOST_WITHOUT])}})['pending']
        return tuple(answer['requests']), {
            item['host']: item['refused_by'] for item in answer['hosts']}

    def actions(self, uuid: str) -> list[Action]:
        """Return what was done with a server, the oldest action first."""
        items = self.client.request(
            'GET', f'/servers/{uuid}/os-instance-actions')['instanceActions']
        # Nova names the newest action first, and times in whole seconds.
        return [
            Action(item['action'], item['project_id'] or '', item['message'])
            for item in sorted(
                reversed(items), key=lambda item: _time(item['start_time']))]

    def flavors(self) -> Iterator[Flavor]:
        """Yield all flavors, with the flavors of single projects."""
        for item in self.client.list('/flavors/detail', 'flavors',
                                     is_public='None'):
            yield _flavor(item, item['name'])

    def find_flavor(self, wanted: str, project: str) -> Flavor | None:
        """Find a flavor that a project may use, by ID or name, or None."""
        found = [item for item in self.client.list(
            '/flavors/detail', 'flavors', is_public='None')
            if wanted in (item['id'], item['name'])]
        # The name of a flavor may be the ID of another flavor.
        found.sort(key=lambda item: bool(item['id'] != wanted))
        for item in found[:1]:
            if item['os-flavor-access:is_public'] or any(
                    access['tenant_id'] == project for access
                    in self.client.request(
                        'GET', f'/flavors/{parse.quote(item["id"])}/'
                        'os-flavor-access')['flavor_access']):
                return _flavor(item, item['name'])
        return None

    def hypervisors(self) -> Iterator[Hypervisor]:
        """Yield all compute nodes."""
        for item in self.client.list('/os-hypervisors/detail', 'hypervisors',
                                     microversion=HYPERVISORS):
            yield Hypervisor(
                item['id'], item['service']['host'], item['state'] == 'up',
                item['status'] == 'enabled')

    # Have a server that waits built, as it was asked for.
    rebuild = _action('rebuild', {})
    # Have the guest shut down, and run a server that was stopped.
    stop = _action('os-stop')
    start = _action('os-start')
    # Delete a server at once, also if Nova reclaims deleted servers later.
    force_delete = _action('forceDelete')
    # Take a server off its host and keep it; shelve_offload does so if the
    # host still has the disk of a shelved server.
    shelve = _action('shelve')
    shelve_offload = _action('shelveOffload')

    def unshelve(self, uuid: str, host: str) -> None:
        """Bring a shelved server back, on this host."""
        _action('unshelve', {'host': host})(self, uuid)

    def reset_state(self, uuid: str, state: str) -> None:
        """Set a server's state, "active" or "error", and end its task."""
        _action('os-resetState', {'state': state})(self, uuid)

    def set_metadata(self, uuid: str, items: Mapping[str, str]) -> None:
        """Add to a server's metadata."""
        self.client.request('POST', f'/servers/{uuid}/metadata',
                            json={'metadata': dict(items)})

    def delete_metadata(self, uuid: str, keys: Iterable[str]) -> None:
        """Take keys out of a server's metadata; a key may be absent."""
        for key in keys:
            try:
                self.client.request(
                    'DELETE', f'/servers/{uuid}/metadata/{key}')
            except rest.NotFound:
                pass


def server_from(item: Mapping[str, Any]) -> NovaServer:
    """Read a server from an answer of Nova at 2.106 or later.

    :raises: CellDown
    """
    if item['status'] == UNKNOWN:
        raise CellDown('nova', f'server {item["id"]}',
                       'the cell of the server cannot be reached', 503)
    image = item.get('image') or {}
    launched = item.get('OS-SRV-USG:launched_at')
    # Forced hosts, destinations and what ports need are in no list: the answer
    # for the server itself is asked for before anything is done for it.
    kind = '|'.join((
        image.get('id', ''), repr(sorted(
            (image.get('properties') or {}).items())),
        item.get('pinned_availability_zone') or '',
        repr(sorted((item.get('scheduler_hints') or {}).items()))))
    return NovaServer(
        id=item['id'], name=item['name'], project=item['tenant_id'],
        user=item['user_id'], status=item['status'],
        task_state=item['OS-EXT-STS:task_state'],
        host=item.get('OS-EXT-SRV-ATTR:host') or '',
        flavor=_flavor(item['flavor'], item['flavor']['original_name']),
        image=image.get('id', ''), created_at=_time(item['created']),
        updated_at=_time(item['updated']),
        launched_at=_time(launched) if launched else None,
        metadata=item['metadata'], locked=item['locked'],
        kind=kind,
        asked=bool(item.get('asked_to_wait')),
        fault=(item.get('fault') or {}).get('message') or '')


def is_busy(error: rest.Conflict) -> bool:
    """Say whether Nova refuses a server for the state that it was in.

    Otherwise a lock, or something else that lasts, may be the cause.
    """
    return 'while it is in' in error.message


def is_interrupted(message: str) -> bool:
    """Say whether Nova tells of a host or service that died in a build.

    Faults of hosts may speak of interruptions, too, as of a download.
    """
    return 'The build of the server was interrupted' in message


def _flavor(item: Mapping[str, Any], name: str) -> Flavor:
    return Flavor(
        name, item['vcpus'], item['ram'], item['disk'],
        item.get('ephemeral', item.get('OS-FLV-EXT-DATA:ephemeral', 0)),
        item['swap'] or 0, item.get('extra_specs') or {}, item.get('id', ''))


def _time(text: str) -> datetime.datetime:
    time: datetime.datetime = timeutils.parse_isotime(text)
    return time


@dataclasses.dataclass(frozen=True, slots=True)
class _Login:
    """The token of a project, or why there is none."""

    auth: plugin.BaseAuthPlugin | None
    refusal: str
    at: float


class Owners:
    """Asks Nova in the name of projects; safe for threads.

    :param project: the ID of the reaper's own project
    :param log_in: gives a token of a project; see rest.log_in
    """

    def __init__(self, compute: Nova, project: str,
                 log_in: Callable[[str], plugin.BaseAuthPlugin]) -> None:
        self._nova = compute
        self._project = project
        self._log_in = log_in
        self._lock = threading.Lock()
        self._logins: dict[str, _Login] = {}

    def objection(self, server: NovaServer) -> str | None:
        """Say why a server that needs its project's token is not rebuilt.

        :returns: None if the server can be rebuilt
        :raises: rest.Unavailable if Keystone does not answer
        """
        if server.project == self._project:
            return None
        why = 'it is locked' if server.locked else self._refusal(server)
        return why and (f'It needs a rebuild by its owner, for volumes or '
                        f'secrets that are made when it is built: {why}')

    def _refusal(self, server: NovaServer) -> str:
        """Say why a server's project has no token, '' if it has a token."""
        login = self._login(server.project)
        if login.auth:
            try:
                # The token may have been revoked since it was given.
                self._nova.with_auth(login.auth).server(server.id)
            except rest.Forbidden:
                self._logins.pop(server.project, None)
                login = self._login(server.project)
        return login.refusal

    def rebuild(self, server: str, project: str) -> None:
        """Have a server that waits built, as it was asked for.

        The token of the project goes first. A build with the token of an
        administrator may do what the owner may not: it may make a port on an
        external network.

        :raises: rest.RequestFailed
        """
        login = self._login(project)
        if login.auth:
            try:
                self._nova.with_auth(login.auth).rebuild(server)
                return
            except (rest.Forbidden, rest.Conflict) as error:
                # The reaper's own token may do what a lock or a policy forbids
                # the project's token.
                may = ('is locked' in error.message
                       if isinstance(error, rest.Conflict)
                       else Refusal.of(error) == Refusal.RIGHTS)
                if not may:
                    raise
                if error.status == 401:
                    self._logins.pop(project, None)
                LOG.info('Server %s is rebuilt with the token of the reaper, '
                         'since that of project %s may not: %s', server,
                         project, error)
        self._nova.rebuild(server)

    def _login(self, project: str) -> _Login:
        if project == self._project:
            return _Login(None, '', 0.0)
        now = time.monotonic()
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
            self._logins.pop(project, None)
            self._logins[project] = made
            if len(self._logins) > KEPT:
                del self._logins[next(iter(self._logins))]
        return made
