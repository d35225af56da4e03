# SPDX-License-Identifier: Apache-2.0

"""Asks Nova and, where one runs, nova-reaper about servers that wait.

Nova shows these servers, rebuilds them, and says why each waits. Nova tells
the microversions of the three features. nova-reaper knows the order of the
servers, and when it tries each again. Without nova-reaper the panels have the
answers of Nova alone.
"""

import concurrent.futures
import dataclasses
import logging
import re

from horizon import exceptions as horizon_exceptions
from keystoneauth1 import exceptions
from openstack import utils as sdk_utils
from openstack_dashboard.api import _nova
from openstack_dashboard.api import base
from prometheus_client import parser as metrics_parser

LOG = logging.getLogger(__name__)

#: What Nova calls the features whose microversions show waiting servers,
#: rebuild them and say why they wait.
SHOWN, REBUILT, EXPLAINED = 'pending', 'rebuild', 'reason'

# No release has the features at an earlier microversion.
_FIRST = '2.104'
# The attribute of a request that keeps the microversions that Nova told.
_MICROVERSIONS = '_pending_dashboard_microversions'

#: The type of nova-reaper in the service catalog.
REAPER = 'compute-pending'

# A page can do without nova-reaper, and does not wait for it for long.
_REAPER_TIMEOUT = 5
# The attribute of a request that has waited for nova-reaper in vain.
_SILENT = '_pending_dashboard_reaper_is_silent'
_WORKERS = 8
# The panels show so many of the newest records of the journal.
_RECORDS = 20
# If so many servers wait at most, Nova lists all of them, and nova-reaper is
# asked for their positions by their IDs.
_DETAILED = 100


class NotSupported(horizon_exceptions.NotAvailable):
    """The cloud does not let servers wait."""


@dataclasses.dataclass
class WaitingServer:
    """A server that waits for room, as the tables show it.

    Times are strings in ISO 8601. An unknown value is None.
    """

    id: str
    name: str
    project_id: str
    status: str
    since: str
    flavor: str | None = None
    reason: str | None = None
    message: str | None = None
    advice: str | None = None
    hindrance: str | None = None
    automatic: str | None = None
    attempts: int | None = None
    last_attempt: str | None = None
    next_attempt: str | None = None
    position: int | None = None
    queue_length: int | None = None
    room_by: str | None = None
    deadline: str | None = None
    step: str | None = None


@dataclasses.dataclass
class Notice:
    """A server that is under notice, as the table shows it.

    :ivar message: a sentence of nova-reaper that says why
    """

    id: str
    name: str
    project_id: str
    action: str | None
    terminate_at: str
    for_server: str | None
    message: str | None = None


@dataclasses.dataclass
class Endable:
    """A server that nova-reaper may end, as the table shows it.

    :ivar ends_at: when its run time is over, None for an endless run time
    """

    id: str
    name: str
    preemptible: bool
    action: str
    ends_at: str | None


@dataclasses.dataclass
class Record:
    """What nova-reaper has done to a server, as the table shows it.

    :ivar server: the ID of the server, None for a pause
    :ivar message: a sentence of nova-reaper that says why
    """

    id: str
    at: str
    kind: str
    name: str
    project_id: str | None
    result: str | None
    for_server: str | None
    message: str | None
    host: str | None
    server: str | None = None


@dataclasses.dataclass
class Overview:
    """What nova-reaper says of itself. A value that it did not say is None.

    :ivar problems: pairs of a check's name and what is wrong
    """

    status: str | None = None
    mode: str | None = None
    configured_mode: str | None = None
    safeguard: str | None = None
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    by_reason: dict | None = None
    holds: int | None = None
    oldest_hold: int | None = None
    paused: bool = False


def _compute(request):
    """Return the compute proxy of a user, and the features of Nova.

    :returns: the proxy, and the microversions by SHOWN, REBUILT and EXPLAINED;
        a Nova may lack the last two
    :raises: NotSupported, keystoneauth1's exceptions
    """
    compute = _nova.computeclient(request)
    if not hasattr(request, _MICROVERSIONS):
        setattr(request, _MICROVERSIONS, _ask_microversions(compute))
    versions = getattr(request, _MICROVERSIONS)
    if SHOWN not in versions:
        raise NotSupported()
    return compute, versions


def _ask_microversions(compute):
    """Return the microversion of each feature as Nova tells it.

    The same number means something else in another release. A Nova without
    nova-pending does not know the request.
    """
    if not sdk_utils.supports_microversion(compute, _FIRST):
        return {}
    try:
        return _get(compute, '/pending', 'latest')['pending']['microversions']
    except exceptions.NotFound:
        return {}


def list_servers(request, limit, marker=None, backwards=False,
                 all_projects=False, name=''):
    """Return a page of the servers that wait.

    The servers are in the order of the queue of nova-reaper. Servers that are
    in no queue come last, the oldest first. Of many servers the last page has
    those of them that are among the newest, and may so exceed its size.

    :param request: the request of a user
    :param limit: the size of the page
    :param marker: the ID of the server that the page begins after
    :param backwards: whether the page ends before that server instead
    :param all_projects: whether servers of all projects are wanted, which
        only administrators may
    :param name: a text that the names of the servers contain
    :returns: a list of WaitingServer, and whether there are more
    :raises: NotSupported, keystoneauth1's exceptions
    """
    compute, versions = _compute(request)
    query = {'status': 'PENDING', 'sort_key': 'created_at'}
    if name:
        # Nova takes a regular expression.
        query['name'] = re.escape(name)
    if all_projects:
        query['all_tenants'] = 'True'
    asked = _of(all_projects) | ({'name': name} if name else {})
    found, more, queue = _page_by_position(
        request, compute, versions[SHOWN], query, asked, limit, marker,
        backwards) or _page_by_age(
            compute, versions[SHOWN], query, limit, marker, backwards)
    servers = [_waiting(server) for server in found]
    _explain(compute, versions, servers, queue)
    return servers, more


def _page_by_age(compute, version, query, limit, marker, backwards):
    """Return a page of Nova's list.

    :returns: the servers, whether there are more, and an empty queue
    """
    query = query | {'limit': limit + 1,
                     'sort_dir': 'desc' if backwards else 'asc'}
    if marker:
        query['marker'] = marker
    found = _get(compute, '/servers/detail', version, params=query)['servers']
    page = found[:limit]
    return page[::-1] if backwards else page, len(found) > limit, {}


def _page_by_position(request, compute, version, query, asked, limit, marker,
                      backwards):
    """Return a page in the order of the queue of nova-reaper.

    Nova knows no positions. Where few servers wait, nova-reaper tells the
    position of each. Where many wait, nova-reaper gives the IDs of the page.

    :param query: of Nova's list
    :param asked: the query of nova-reaper for the same servers
    :returns: the servers, whether there are more, and what nova-reaper says
        of servers by ID; None if nova-reaper does not tell their order
    """
    if _find_reaper(request) is None:
        return None
    listed = _get(compute, '/servers/detail', version, params=query | {
        'limit': _DETAILED + 1, 'sort_dir': 'asc'})['servers']
    if not listed:
        return [], False, {}
    details = {server['id']: server for server in listed}
    if len(listed) > _DETAILED:
        return _page_of_many(request, compute, version, details, query, asked,
                             limit, marker, backwards)
    queue, _more = _ask_queue(request, server=list(details), **asked)
    if queue is None:
        return None
    ids = sorted(details, key=lambda server_id: queue.get(server_id, {}).get(
        'position') or float('inf'))
    at = ids.index(marker) if marker in ids else -1
    if backwards and at >= 0:
        first, last, more = max(0, at - limit), at, at > limit
    else:
        first, last, more = at + 1, at + 1 + limit, len(ids) > at + 1 + limit
    return [details[each] for each in ids[first:last]], more, queue


def _page_of_many(request, compute, version, details, query, asked, limit,
                  marker, backwards):
    """Return a page of the queue of nova-reaper as _page_by_position does.

    :param details: servers as Nova's list has them, by ID; Nova is asked for
        each other server of the page
    """
    scope = asked
    asked = asked | {'state': 'pending', 'limit': limit}
    queue = None
    if marker:
        queue, more = _ask_queue(
            request, marker=marker, sort_dir='desc' if backwards else 'asc',
            **asked)
    if not queue:
        # There is no marker, or its server was built meanwhile.
        backwards = False
        queue, more = _ask_queue(request, **asked)
    if not queue:
        return None
    page = list(queue)
    if backwards:
        page.reverse()
    elif not more:
        # nova-reaper hears of a new server when it next reads Nova's list.
        newest = {server['id']: server for server in _get(
            compute, '/servers/detail', version, params=query | {
                'limit': _DETAILED, 'sort_dir': 'desc'})['servers']}
        known, _more = _ask_queue(request, server=list(newest), **scope)
        if known is not None:
            details.update(newest)
            page += [each for each in reversed(newest) if each not in known]

    def ask(server_id):
        try:
            server = _get(compute, '/servers/%s' % server_id,
                          version)['server']
        except exceptions.NotFound:
            # The server was deleted meanwhile.
            return
        if server['status'] == 'PENDING':
            details[server_id] = server

    _in_threads(ask, [each for each in page if each not in details])
    return [details[each] for each in page if each in details], more, queue


def _ask_queue(request, **query):
    """Return what nova-reaper says of servers that wait.

    :param query: of GET /v1/pending
    :returns: its answers by ID in the order of the queue, None if
        nova-reaper refuses or fails; and whether there are more
    """
    answer = _ask_reaper(request, '/v1/pending', **query)
    if answer is None:
        return None, False
    said = answer.json()
    return {entry['server']: entry for entry in said['pending']}, (
        'pending_links' in said)


def show_server(request, server_id):
    """Return the WaitingServer of an ID, with all that is known of it.

    :raises: NotSupported, keystoneauth1's exceptions
    """
    compute, versions = _compute(request)
    server = _waiting(_get(compute, '/servers/%s' % server_id,
                           versions[SHOWN])['server'])
    answer = _ask_reaper(request, '/v1/pending/%s' % server_id)
    if answer is not None:
        _take(server, answer.json()['pending'])
    if EXPLAINED in versions:
        _ask_nova(compute, versions, server)
    return server


def rebuild(request, server_id, flavor=None):
    """Ask Nova to build a server that waits.

    :param flavor: the ID of another flavor, None or '' for its own
    :raises: NotSupported, keystoneauth1's exceptions
    """
    compute, versions = _compute(request)
    needed = EXPLAINED if flavor else REBUILT
    if needed not in versions:
        raise NotSupported()
    compute.post('/servers/%s/action' % server_id,
                 json={'rebuild': {'flavorRef': flavor} if flavor else {}},
                 microversion=versions[needed], raise_exc=True)


def show_waiting(request, servers):
    """Give servers that wait the status PENDING, in place.

    Horizon asks for servers at a microversion that shows them in ERROR.
    If Nova does not answer they stay in ERROR. Nothing is raised.

    :param request: the request of a user
    :param servers: Horizon's servers
    """
    in_error = [server for server in servers if server.status == 'ERROR']
    if not in_error:
        return
    try:
        compute, versions = _compute(request)
    except NotSupported:
        return
    except Exception:
        # The table is Horizon's own: Horizon shows it as without the plugin.
        LOG.warning('Whether servers wait is not known.', exc_info=True)
        return

    def show(server):
        try:
            server.status = _get(compute, '/servers/%s' % server.id,
                                 versions[SHOWN])['server']['status']
        except Exception as error:
            LOG.info('Whether server %s waits is not known: %s',
                     server.id, error)

    _in_threads(show, in_error)


def list_notices(request, all_projects=False):
    """Return the Notices in force, None without a reaper.

    :param all_projects: whether notices of all projects are wanted, which
        only administrators may
    """
    answer = _ask_reaper(request, '/v1/notices', **_of(all_projects))
    return answer and [
        Notice(notice['server'], notice.get('name') or notice['server'],
               notice['project_id'], notice['action'],
               notice['terminate_at'], notice.get('for'),
               notice.get('message'))
        for notice in answer.json()['notices']]


def list_endable(request, all_projects=False, **query):
    """Return the Endables, the first end first, None without a reaper.

    :param all_projects: whether servers of all projects are wanted, which
        only administrators may
    :param query: more of GET /v1/servers
    """
    answer = _ask_reaper(request, '/v1/servers', **_of(all_projects), **query)
    return answer and sorted((
        Endable(server['server'], server['name'] or server['server'],
                server['preemptible'], server['action'], server['ends_at'])
        for server in answer.json()['servers']), key=lambda server: (
            server.ends_at is None, server.ends_at, server.name))


def show_endable(request, server_id, all_projects=False):
    """Return the Endable of an ID, None if nova-reaper does not end it."""
    # The list of nova-reaper begins after a marker, which need not be a whole
    # ID.
    for server in list_endable(request, all_projects, marker=server_id[:-1],
                               limit=16) or ():
        if server.id == server_id:
            return server
    return None


def rehearse(request, server_id):
    """Have nova-reaper rehearse the end of a server.

    :raises: keystoneauth1's exceptions, ServiceCatalogException
    """
    _nova.computeclient(request).session.post(
        '%s/v1/servers/%s/rehearsal' % (
            base.url_for(request, REAPER).rstrip('/'), server_id),
        timeout=_REAPER_TIMEOUT)


def list_history(request, all_projects=False):
    """Return the newest Records of the journal, None without a reaper.

    :param all_projects: whether records of all projects are wanted, which
        only administrators may
    """
    answer = _ask_reaper(request, '/v1/history', limit=_RECORDS,
                         **_of(all_projects))
    return answer and [
        Record(record['id'], record['at'], record['kind'],
               record['name'] or record['server'] or '-',
               record['project_id'], record['result'] or record['action'],
               record['for'] if record['for'] != record['server'] else None,
               record.get('message'), record.get('host'),
               record['server'])
        for record in answer.json()['history']]


def list_names(request, server_ids):
    """Return the names of servers by their IDs, None for a deleted server.

    Nova is asked about each server, of so many at most as a page has. A server
    is left out if Nova fails to tell its name.
    """
    compute = _nova.computeclient(request)
    names = {}

    def ask(server_id):
        try:
            names[server_id] = _get(
                compute, '/servers/%s' % server_id, None)['server']['name']
        except exceptions.NotFound:
            names[server_id] = None
        except Exception as error:
            LOG.info('The name of server %s is not known: %s',
                     server_id, error)

    _in_threads(ask, sorted(server_ids)[:_RECORDS])
    return names


def overview(request):
    """Return the Overview of nova-reaper, None if there is none."""
    health = _ask_reaper(request, '/healthz')
    if health is None:
        return None
    said = health.json()
    found = Overview(
        status=said['status'], mode=said.get('mode'),
        configured_mode=said.get('configured_mode'),
        safeguard=said.get('safeguard'),
        paused=any(check['name'] == 'pause'
                   for check in said.get('checks', ())),
        problems=[(check['name'], check['detail'])
                  for check in said.get('checks', ())
                  if check['status'] != 'ok'])
    metrics = _ask_reaper(request, '/metrics')
    if metrics is not None:
        _count(found, metrics.text)
    return found


def pause(request, reason):
    """Pause nova-reaper.

    :param reason: why, for the journal; '' for no reason
    :raises: keystoneauth1's exceptions, ServiceCatalogException
    """
    _set_pause(request, 'PUT', json={'reason': reason})


def resume(request):
    """Have nova-reaper go on.

    :raises: keystoneauth1's exceptions, ServiceCatalogException
    """
    _set_pause(request, 'DELETE')


def _set_pause(request, method, **kwargs):
    _nova.computeclient(request).session.request(
        base.url_for(request, REAPER).rstrip('/') + '/v1/pause', method,
        timeout=_REAPER_TIMEOUT, **kwargs)


def list_zones(request):
    """Return the names of the availability zones.

    :raises: keystoneauth1's exceptions
    """
    return sorted(zone['zoneName'] for zone in _get(
        _nova.computeclient(request), '/os-availability-zone', None)[
            'availabilityZoneInfo'])


def probe(request, **asked):
    """Return whether nova-reaper finds room for servers, a dictionary.

    :param asked: the body of POST /v1/probe
    :raises: keystoneauth1's exceptions, ServiceCatalogException
    """
    return _nova.computeclient(request).session.post(
        base.url_for(request, REAPER).rstrip('/') + '/v1/probe', json=asked,
        timeout=_REAPER_TIMEOUT).json()['probe']


def _count(found, text):
    found.by_reason = {}
    for family in metrics_parser.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == 'nova_reaper_pending' and sample.value:
                # The table has no shelved servers.
                if sample.labels['state'] == 'pending':
                    found.by_reason[sample.labels['reason']] = int(
                        sample.value)
            elif sample.name == 'nova_reaper_holds':
                found.holds = int(sample.value)
            elif sample.name == 'nova_reaper_hold_oldest_seconds':
                found.oldest_hold = int(sample.value)


def _get(compute, path, version, **kwargs):
    return compute.get(path, microversion=version, raise_exc=True,
                       **kwargs).json()


def _waiting(server):
    # If Nova does not explain the wait, only the fault says the reason.
    fault = server.get('fault') or {}
    return WaitingServer(
        id=server['id'], name=server['name'],
        project_id=server['tenant_id'], status=server['status'],
        since=server['created'],
        flavor=server['flavor'].get('original_name'),
        message=(fault.get('message') or '').strip() or None)


def _explain(compute, versions, servers, queue):
    """Add to servers why they wait and what is done for them.

    Nova is asked about each server that the reaper does not explain.
    """
    for server in servers:
        if server.id in queue:
            _take(server, queue[server.id])
    if EXPLAINED in versions:
        _in_threads(
            lambda server: _ask_nova(compute, versions, server),
            [server for server in servers if server.reason is None])


def _take(server, entry):
    """Add to a server what the reaper says of it."""
    server.message = entry['detail'] or server.message
    for name in ('since', 'reason', 'hindrance', 'next_attempt', 'position',
                 'queue_length', 'advice', 'automatic', 'room_by', 'deadline',
                 'step'):
        setattr(server, name, entry.get(name))


def _ask_nova(compute, versions, server):
    """Add to a server what Nova alone says of the server."""
    try:
        # Without the limit an administrator would get all hosts.
        said = _get(compute, '/servers/%s/pending' % server.id,
                    versions[EXPLAINED], params={'limit': 0})['pending']
    except exceptions.ClientException as error:
        # The server waits no more, or Nova is busy. The page shows the rest.
        LOG.info('Why server %s waits is not known: %s', server.id, error)
        return
    # The reaper counts its own attempts only.
    server.attempts = said['attempts']
    server.last_attempt = said['last_attempt']
    if server.automatic is None:
        server.since = said['since']
        # Administrators learn why Nova does not tell more.
        server.message = ' '.join(text.strip() for text in dict.fromkeys((
            said['message'], said.get('unavailable') or '')) if text)
    for name in ('reason', 'advice'):
        if getattr(server, name) is None:
            setattr(server, name, said[name])


def _of(all_projects):
    return {'all_projects': 'true'} if all_projects else {}


def _in_threads(function, things):
    with concurrent.futures.ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(function, things))


def _find_reaper(request):
    """Return the URL of nova-reaper, None without a reaper that answers."""
    if getattr(request, _SILENT, False):
        return None
    try:
        return base.url_for(request, REAPER).rstrip('/')
    except horizon_exceptions.ServiceCatalogException:
        return None


def _ask_reaper(request, path, **query):
    """Return the answer of nova-reaper, None if there is none or it fails.

    A page does not ask a nova-reaper again that has not answered.
    """
    url = _find_reaper(request)
    if url is None:
        return None
    session = _nova.computeclient(request).session
    try:
        # A reaper that is not well answers /healthz with 503.
        answer = session.get(url + path, params=query,
                             timeout=_REAPER_TIMEOUT, raise_exc=False)
    except exceptions.ClientException as error:
        LOG.warning('nova-reaper does not answer: %s', error)
        setattr(request, _SILENT, True)
        return None
    if answer.status_code == 200 or (
            path == '/healthz' and answer.status_code == 503):
        return answer
    LOG.warning('nova-reaper answers %s with %d.', path, answer.status_code)
    return None
