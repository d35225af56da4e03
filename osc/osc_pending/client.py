# SPDX-License-Identifier: Apache-2.0

"""Asks Nova and nova-reaper about waiting servers."""

import itertools
import urllib.parse

from keystoneauth1 import adapter
from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions as sdk_exceptions
from osc_lib import exceptions

from osc_pending.i18n import _
from osc_pending import microversions

#: The type of nova-reaper in the catalog.
SERVICE_TYPE = 'compute-pending'

_PLACEMENT = 'placement'

# The most that nova-reaper gives at once.
_PAGE = 1000

#: How many servers a request to nova-reaper names at most.
MOST_NAMED = 100


class ReaperError(exceptions.CommandError):
    """nova-reaper did not answer, or answered with a refusal.

    :param code: the status of the answer, None if there was none
    """

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code


class Client:
    """Tells what Nova and nova-reaper know of waiting servers.

    :param manager: the ClientManager of the openstack client
    """

    def __init__(self, manager):
        self._manager = manager
        #: the SDK's compute proxy
        self.compute = manager.compute
        endpoint = self._find_reaper()
        self.has_reaper = endpoint is not None
        self._reaper = self.has_reaper and self._adapter(
            SERVICE_TYPE, endpoint)

    def _adapter(self, service_type, endpoint=None):
        return adapter.Adapter(
            self._manager.session, service_type=service_type,
            region_name=self._manager.region_name,
            interface=self._manager.interface, endpoint_override=endpoint)

    def _find_reaper(self):
        where = (SERVICE_TYPE, self._manager.region_name,
                 self._manager.interface)
        if not self._manager.is_service_available(*where):
            return None
        try:
            return self._manager.get_endpoint_for_service_type(*where)
        except ksa_exceptions.CatalogException:
            # The service has its endpoints elsewhere, or they are disabled.
            return None

    def find(self, name_or_id, purpose, feature=microversions.PENDING):
        """Find a server.

        An administrator finds a server of another project by its name if no
        server of the administrator's own project has that name.

        :param name_or_id: the name or the ID of the server
        :param purpose: what needs the server, as an error names it
        :param feature: what the purpose needs (microversions)
        :returns: the openstack.compute.v2.server.Server, and the microversion
            for requests about it
        :raises: CommandError where there is no such microversion,
            NotFoundException
        """
        version = microversions.choose(self.compute, feature, purpose)
        with microversions.used(self.compute, version):
            found = self.compute.find_server(name_or_id, ignore_missing=True)
            return found or self._find_everywhere(name_or_id), version

    def _find_everywhere(self, name_or_id):
        try:
            return self.compute.find_server(
                name_or_id, ignore_missing=False, all_projects=True)
        except sdk_exceptions.ForbiddenException:
            return self.compute.find_server(name_or_id, ignore_missing=False)

    def waiting(self, purpose, sort_dir='asc', **query):
        """Return the servers that wait, by default the oldest first.

        :param purpose: as for find
        :param query: of the API's list of servers
        :returns: a list of openstack.compute.v2.server.Server
        """
        version = microversions.choose(
            self.compute, microversions.PENDING, purpose)
        with microversions.used(self.compute, version):
            return list(self.compute.servers(
                details=True, status='PENDING', sort_key='created_at',
                sort_dir=sort_dir, **query))

    def still_waiting(self, servers, known):
        """Return those of some servers that wait in PENDING now.

        :param servers: their IDs
        :param known: servers as waiting() returns them; Nova is asked for
            each other server
        :returns: as for waiting, in the order of the IDs
        """
        version = microversions.choose(
            self.compute, microversions.PENDING, 'pending list')
        found = {server.id: server for server in known}
        with microversions.used(self.compute, version):
            for server_id in servers:
                if server_id in found:
                    continue
                try:
                    found[server_id] = self.compute.get_server(server_id)
                except sdk_exceptions.NotFoundException:
                    # The server was deleted meanwhile.
                    pass
        return [found[each] for each in servers
                if each in found and found[each].status == 'PENDING']

    def reason(self, server, **query):
        """Return what Nova says of a server that waits.

        :param server: its ID
        :param query: host, limit, marker; limit=0 asks for no hosts
        :returns: the dictionary of GET /servers/{id}/pending, with the hosts
            of all pages; None if the cloud lacks the microversion, or the
            server does not wait any more
        :raises: HttpException for any other refusal
        """
        if not microversions.knows(self.compute, microversions.REASON):
            return None
        url = '/servers/%s/pending' % server
        answer, hosts = None, []
        while url:
            response = self.compute.get(
                url, params=query, microversion=microversions.text(
                    microversions.highest(self.compute)))
            if response.status_code == 404:
                break
            sdk_exceptions.raise_from_response(response)
            page = response.json()['pending']
            answer = answer or page
            hosts += page.get('hosts') or ()
            if 'unavailable' in page:
                # No scheduler answers any more, and there is no next page.
                answer['unavailable'] = page['unavailable']
            links = {link['rel']: link['href']
                     for link in page.get('hosts_links', ())}
            url, query = self._next(url, links), {}
        if answer and 'hosts' in answer:
            answer['hosts'] = hosts
        return answer

    @staticmethod
    def _next(url, links):
        """Return where the next page is, below the endpoint in use."""
        if 'next' not in links:
            return None
        return '%s?%s' % (url.partition('?')[0],
                          urllib.parse.urlsplit(links['next']).query)

    def lacking(self, server, asked, providers):
        """Return what hosts lack for a server, as Placement counts it.

        Room that is held for the server counts as free. A resource class of
        which the host's own provider has no inventory is left out: a nested
        or shared provider may have it.

        :param server: its ID
        :param asked: the amounts that the server asks for, by resource class
        :param providers: UUIDs of the resource providers of the hosts
        :returns: for each provider a dictionary of the lacking amounts by
            resource class, in units of Placement
        :raises: keystoneauth1's ClientException
        """
        placement = self._adapter(_PLACEMENT)

        def get(path, key):
            return placement.get(path).json()[key]

        held = get('/allocations/%s' % server, 'allocations')
        found = {}
        for uuid in providers:
            url = '/resource_providers/%s/' % uuid
            usages = get(url + 'usages', 'usages')
            own = held.get(uuid, {}).get('resources', {})
            inventories = get(url + 'inventories', 'inventories')
            found[uuid] = {}
            for name in asked.keys() & inventories:
                has = inventories[name]
                free = int((has['total'] - has['reserved']) *
                           has['allocation_ratio']) - usages.get(
                               name, 0) + own.get(name, 0)
                lack = asked[name] - min(free, has['max_unit'])
                if lack > 0:
                    found[uuid][name] = lack
        return found

    def reaper_all(self, all_projects=False, project_id=None, most=None,
                   **query):
        """Return what nova-reaper says of servers that wait, by ID.

        :param most: how many servers to return at most, None for all
        :param query: more of GET /v1/pending
        :returns: a dictionary in the order of the queue
        :raises: ReaperError
        """
        query['limit'] = min(most or _PAGE, _PAGE)
        if all_projects and not project_id:
            query['all_projects'] = 'true'
        if project_id:
            query['project_id'] = project_id
        url, found = '/v1/pending', {}
        while url and (most is None or len(found) < most):
            answer = self._ask(url, query)
            found.update((each['server'], each) for each in answer['pending'])
            url, query = self._next(url, {
                link['rel']: link['href']
                for link in answer.get('pending_links', ())}), {}
        return dict(itertools.islice(found.items(), most))

    def reaper_some(self, servers, **scope):
        """Return what nova-reaper says of some servers that wait, by ID.

        :param servers: their IDs
        :param scope: all_projects and project_id, as for reaper_all
        :raises: ReaperError
        """
        found = {}
        for at in range(0, len(servers), MOST_NAMED):
            found.update(self.reaper_all(
                server=servers[at:at + MOST_NAMED], **scope))
        return found

    def reaper_one(self, server, dry_run=False):
        """Return the answer of nova-reaper to a question about one server.

        :param server: its ID
        :param dry_run: whether to ask which servers would be ended for it
        :raises: ReaperError
        """
        return self._ask('/v1/pending/%s' % server,
                         {'dry_run': 'true'} if dry_run else {})

    def notices(self, all_projects=False):
        """Return the notices that are in force.

        :raises: ReaperError
        """
        return self._ask('/v1/notices', {'all_projects': 'true'}
                         if all_projects else {})['notices']

    def endable(self, all_projects=False):
        """Return the servers that nova-reaper may end.

        :raises: ReaperError
        """
        url, query = '/v1/servers', {'limit': _PAGE}
        if all_projects:
            query['all_projects'] = 'true'
        found = []
        while url:
            answer = self._ask(url, query)
            found += answer['servers']
            url, query = self._next(url, {
                link['rel']: link['href']
                for link in answer.get('servers_links', ())}), {}
        return found

    def rehearse(self, server):
        """Have nova-reaper rehearse the end of a server.

        :param server: its ID
        :raises: ReaperError
        """
        self._ask('/v1/servers/%s/rehearsal' % server, {}, 'POST')

    def history(self, limit, **query):
        """Return records of the journal of nova-reaper, the newest first.

        :param limit: how many records to return at most
        :param query: of GET /v1/history
        :raises: ReaperError
        """
        url, found = '/v1/history', []
        while url and len(found) < limit:
            query['limit'] = min(_PAGE, limit - len(found))
            answer = self._ask(url, query)
            found += answer['history']
            links = {link['rel']: link['href']
                     for link in answer.get('history_links', ())}
            if 'next' not in links:
                break
            query = dict(urllib.parse.parse_qsl(
                urllib.parse.urlsplit(links['next']).query))
        return found

    def probe(self, **asked):
        """Return whether nova-reaper finds room for servers.

        :param asked: the body of POST /v1/probe
        :raises: ReaperError
        """
        return self._ask('/v1/probe', {}, 'POST', asked)['probe']

    def pause(self, reason):
        """Pause nova-reaper, and return the pause.

        :raises: ReaperError
        """
        return self._ask('/v1/pause', {}, 'PUT', {'reason': reason})['pause']

    def resume(self):
        """End a pause of nova-reaper, and return what holds then.

        :raises: ReaperError
        """
        return self._ask('/v1/pause', {}, 'DELETE')['pause']

    def _ask(self, path, query, method='GET', body=None):
        try:
            response = self._reaper.request(
                path, method, params=query, json=body, raise_exc=False)
        except ksa_exceptions.ConnectionError as error:
            # The error names sockets and pools. "openstack --debug" shows it.
            raise ReaperError(_(
                'nova-reaper cannot be reached at %s. Try again later.') %
                self._reaper.get_endpoint()) from error
        except ksa_exceptions.ClientException as error:
            raise ReaperError(_('nova-reaper does not answer: %s') % error)
        if response.status_code == 200:
            return response.json()
        try:
            message = response.json()['error']['message']
        except (KeyError, TypeError, ValueError):
            message = response.reason
        raise ReaperError(
            _('nova-reaper answers %(code)s: %(message)s') % {
                'code': response.status_code, 'message': message},
            code=response.status_code)
