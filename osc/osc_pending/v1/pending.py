# SPDX-License-Identifier: Apache-2.0

"""Commands that show servers which wait, and why."""

import argparse
import urllib.parse

from cliff import columns
from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions as sdk_exceptions
from osc_lib.cli import format_columns
from osc_lib.command import command
from osc_lib import exceptions

from osc_pending import client as pending_client
from osc_pending.i18n import _
from osc_pending import microversions

# The plugin sends Nova a request for the reason of each server.
_MOST_REASONS = 50

# The plugin sends Placement requests for the room of each host.
_MOST_HOSTS = 20

_REASONS = _(
    'Reasons: no_room (hosts could take the server, and none has room), '
    'refused (filters of the scheduler refuse the hosts that have room, or '
    'all hosts that could take the server), '
    'no_such_host (the host that the server was created for does not exist), '
    'nothing_fits (no host could ever take the server), build_failed (hosts '
    'took the server and could not build it), quota (the quota of the project '
    'does not allow the server), unknown. Hindrances, which only nova-reaper '
    'knows: protected, back_off, reserved, mode, misses, deadline, '
    'needs_owner, '
    'not_asked (the owner has not asked to wait).')


class HostsColumn(columns.FormattableColumn):
    """Hosts, each with what refuses it or what it lacks."""

    def human_readable(self):
        return '\n'.join(
            '%s: %s' % (host['host'], self._verdict(host))
            for host in self._value)

    @staticmethod
    def _verdict(host):
        if host['refused_by']:
            return _('refused by %s') % host['refused_by']
        if host['lacks'] is None:
            return _('no filter refuses it')
        return _('lacks %s') % ', '.join(
            '%d %s' % (amount, name)
            for name, amount in host['lacks'].items()
        ) if host['lacks'] else _('has room')


class LinesColumn(columns.FormattableColumn):
    """A list that has a line for each entry."""

    def human_readable(self):
        return '\n'.join(str(entry) for entry in self._value)


def project_id(manager, project_name):
    """Return the ID of a project."""
    try:
        return manager.sdk_connection.identity.find_project(
            project_name, ignore_missing=False).id
    except sdk_exceptions.ForbiddenException:
        # A user who may not look a project up can still name its ID.
        return project_name


class ListPending(command.Lister):
    _description = _('List servers that wait in PENDING.')
    _epilog = _REASONS

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--all-projects', action='store_true', default=False,
            help=_('Include all projects (admin only)'))
        parser.add_argument(
            '--project', metavar='<project>',
            help=_('Only servers of this project (name or ID, admin only)'))
        parser.add_argument(
            '--name', metavar='<name-regex>',
            help=_('Only servers whose name matches a regular expression'))
        parser.add_argument(
            '--marker', metavar='<server>',
            help=_('Begin after the server with this ID'))
        parser.add_argument(
            '--limit', metavar='<number>', type=positive,
            help=_('At most so many servers (default: all)'))
        parser.add_argument(
            '--long', action='store_true', default=False,
            help=_('List additional fields in output'))
        return parser

    def take_action(self, parsed_args):
        client = self.app.client_manager.compute_pending
        query = {'name': parsed_args.name}
        project = None
        if parsed_args.project:
            project = project_id(self.app.client_manager, parsed_args.project)
            query['project_id'] = project
        if parsed_args.all_projects or project:
            query['all_projects'] = True
        query = {key: value for key, value in query.items()
                 if value is not None}
        servers, found = self._by_position(
            client, parsed_args, query, project) or (
                self._by_age(client, parsed_args, query), {})
        known = self._known(client, servers, found)
        # The list has no attempts: Nova tells all attempts of a server in an
        # answer of its own, and nova-reaper counts only its own attempts.
        names = ['id', 'name', 'reason', 'hindrance', 'since', 'position',
                 'next_attempt']
        headers = ['ID', 'Name', 'Reason', 'Hindrance', 'Since', 'Position',
                   'Next Attempt']
        if parsed_args.long:
            names += ['last_attempt', 'message', 'flavor']
            headers += ['Last Attempt', 'Message', 'Flavor']
        if parsed_args.long or parsed_args.all_projects or project:
            names.append('project_id')
            headers.append('Project ID')
        rows = [_describe(server, *known[server.id]) for server in servers]
        return headers, [tuple(row[name] for name in names) for row in rows]

    @staticmethod
    def _by_age(client, parsed_args, query):
        """Return the servers that are asked for, the oldest first."""
        if parsed_args.marker:
            query['marker'] = parsed_args.marker
        if parsed_args.limit:
            query.update(limit=parsed_args.limit, paginated=False)
        return client.waiting('pending list', **query)

    def _by_position(self, client, parsed_args, query, project):
        """Return the servers that are asked for, in the order of the queue.

        Nova knows no positions. For a few of many servers nova-reaper gives
        this part of its queue, so that neither list is read as a whole.

        :param query: of Nova's list
        :param project: the ID of the project that is asked for, if any
        :returns: the servers, and what nova-reaper says of servers by ID;
            None if nova-reaper does not tell positions
        """
        if not client.has_reaper:
            return None
        most = pending_client.MOST_NAMED
        brief = parsed_args.limit and not parsed_args.name
        servers = client.waiting('pending list', **query, **(
            {'limit': most + 1, 'paginated': False} if brief else {}))
        scope = {'all_projects': parsed_args.all_projects,
                 'project_id': project}
        try:
            if len(servers) <= most or parsed_args.name:
                found = client.reaper_some(
                    [server.id for server in servers], **scope)
            elif brief:
                return self._page(client, servers, parsed_args, query, scope)
            else:
                found = client.reaper_all(**scope)
        except pending_client.ReaperError as error:
            self.log.warning(str(error))
            return None
        return self._part(servers, found, parsed_args), found

    def _page(self, client, servers, parsed_args, query, scope):
        """Return what _by_position does, for a part of a long queue.

        :param servers: some of the servers that wait
        :param query: of Nova's list
        """
        begin = {'marker': parsed_args.marker} if parsed_args.marker else {}
        try:
            found = client.reaper_all(
                most=parsed_args.limit, state='pending', **scope, **begin)
        except pending_client.ReaperError as error:
            if begin and error.code == 400:
                # In the order of their age other servers follow the marker.
                raise exceptions.CommandError(str(error)) from error
            raise
        if not found and not begin:
            # nova-reaper has only begun to read its queue.
            return None
        if len(found) < parsed_args.limit:
            self._count_unknown(client, query, scope)
        return client.still_waiting(list(found), servers), found

    def _count_unknown(self, client, query, scope):
        """Tell the user how many of the newest servers nova-reaper lacks.

        nova-reaper hears of a new server when it next reads Nova's list.

        :param query: of Nova's list
        """
        newest = [server.id for server in client.waiting(
            'pending list', sort_dir='desc', paginated=False,
            limit=pending_client.MOST_NAMED, **query)]
        unknown = len(newest) - len(client.reaper_some(newest, **scope))
        if unknown:
            self.log.warning(_(
                'Servers that are not shown, because nova-reaper has not '
                'heard of them yet: %d. Without --limit they are shown '
                'last.') % unknown)

    @staticmethod
    def _part(servers, found, parsed_args):
        """Return the servers that are asked for, in the order of the queue.

        Servers without a position come last, the oldest first.
        """
        servers = sorted(servers, key=lambda server: found.get(
            server.id, {}).get('position') or float('inf'))
        if parsed_args.marker:
            ids = [server.id for server in servers]
            if parsed_args.marker not in ids:
                raise exceptions.CommandError(_(
                    'Server %s is not in the list.') % parsed_args.marker)
            servers = servers[ids.index(parsed_args.marker) + 1:]
        return servers[:parsed_args.limit]

    def _known(self, client, servers, found):
        """Return what Nova and nova-reaper say, by the servers' IDs.

        Nova is asked for the reason of each server whose reason nova-reaper
        does not tell.
        """
        others = [server for server in servers
                  if not found.get(server.id, {}).get('reason')]
        if len(others) > _MOST_REASONS:
            self.log.warning(_(
                'Only the first %d servers have a reason: those that '
                'nova-reaper has not looked at take a request each. See '
                '--limit, --marker and "openstack pending show".')
                % _MOST_REASONS)
        reasons = {server.id: _reason(client, server)
                   for server in others[:_MOST_REASONS]}
        return {server.id: (reasons.get(server.id), found.get(server.id))
                for server in servers}


class ShowPending(command.ShowOne):
    _description = _('Show why a server waits in PENDING, and for what.')
    _epilog = _REASONS

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        _add_server(parser)
        return parser

    def take_action(self, parsed_args):
        client = self.app.client_manager.compute_pending
        server, version = client.find(parsed_args.server, 'pending show')
        waits = server.status == 'PENDING'
        if not waits and not client.has_reaper:
            _check_waits(server)
        reason = client.reason(server.id, limit=0) if waits else None
        if waits and not microversions.knows(
                client.compute, microversions.REASON):
            self.log.warning(_(
                'Why a server waits is told at a later microversion of the '
                'compute API than %s.') % microversions.text(version))
        answer, notices = None, None
        if client.has_reaper:
            try:
                answer = client.reaper_one(server.id)['pending']
                if 'victims' in answer:
                    notices = [
                        notice for notice in client.notices(all_projects=True)
                        if notice.get('for') == server.id]
            except pending_client.ReaperError as error:
                # With 404 nova-reaper has not heard of the server yet.
                if error.code != 404:
                    self.log.warning(str(error))
        if answer is None:
            # A server that nova-reaper brings back or builds again waits, too.
            _check_waits(server)
        row = _describe(server, reason, answer)
        if notices is not None:
            row['notices'] = format_columns.ListDictColumn(notices)
        return zip(*row.items())


class ExplainPending(command.ShowOne):
    _description = _(
        'Show what a waiting server asks for, which filter of the scheduler '
        'refuses each host, what the other hosts lack, and which servers '
        'would be ended for it (admin only).')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        _add_server(parser)
        parser.add_argument(
            '--host', metavar='<host>', action='append', default=[],
            dest='hosts',
            help=_('Only this host (repeat option for several)'))
        parser.add_argument(
            '--dry-run', action='store_true', default=False,
            help=_('Also show what nova-reaper would do for the server now, '
                   'and which preemptible servers it would end. Nothing '
                   'changes.'))
        return parser

    def take_action(self, parsed_args):
        client = self.app.client_manager.compute_pending
        server, _version = client.find(
            parsed_args.server, 'pending explain', microversions.REASON)
        _check_waits(server)
        if parsed_args.dry_run and not client.has_reaper:
            raise exceptions.CommandError(_(
                'The catalog of this cloud has no service of the type "%s": '
                '--dry-run needs nova-reaper.') % pending_client.SERVICE_TYPE)
        query = {'host': parsed_args.hosts} if parsed_args.hosts else {}
        reason = client.reason(server.id, **query)
        if reason is None:
            raise exceptions.CommandError(_(
                'Server %(name)s (%(id)s) does not wait any more.') % {
                    'name': server.name, 'id': server.id})
        if 'hosts' not in reason:
            raise exceptions.CommandError(_(
                'Only administrators can see hosts; "openstack '
                'pending show %s" shows the rest.') % server.id)
        if 'unavailable' in reason:
            self.log.warning(reason['unavailable'])
        else:
            unknown = set(parsed_args.hosts).difference(
                host['host'] for host in reason['hosts'])
            if unknown:
                raise exceptions.CommandError(
                    _('There is no compute host %s.') % ', '.join(
                        '"%s"' % host for host in sorted(unknown)))
        requests = reason.get('requests') or []
        self._add_lacks(client, server, requests, reason['hosts'])
        answer = self._ask_reaper(client, server, parsed_args.dry_run)
        row = {
            'id': server.id,
            'name': server.name,
            'project_id': server.project_id,
            **{key: value for key, value in _describe(
                server, reason, answer.get('pending')).items() if key in (
                    'reason', 'message', 'advice', 'automatic')},
            'requests': LinesColumn(
                [urllib.parse.unquote_plus(request) for request in requests]),
            'hosts': HostsColumn(reason['hosts']),
        }
        if parsed_args.dry_run:
            would = answer['dry_run']
            row.update(
                verdict=would['verdict'], detail=would['detail'],
                host=would['host'], would_end=format_columns.ListDictColumn(
                    would.get('servers') or
                    [{'server': each} for each in would['victims']]))
        return zip(*row.items())

    def _ask_reaper(self, client, server, dry_run):
        """Return the answer of nova-reaper, {} if a failure is no error."""
        if not client.has_reaper:
            return {}
        try:
            return client.reaper_one(server.id, dry_run)
        except pending_client.ReaperError as error:
            if dry_run:
                raise
            # With 404 nova-reaper has not heard of the server yet.
            if error.code != 404:
                self.log.warning(str(error))
            return {}

    def _add_lacks(self, client, server, requests, hosts):
        """Add to hosts what each lacks, and put the nearest first, in place.

        The nearest host lacks the smallest part of what the server asks for.
        What a host lacks is None if Placement was not asked about the host.
        These hosts stand after the others, and the hosts that a filter refuses
        stand last.
        """
        asked = dict(
            entry.split(':') for request in requests[:1]
            for entry in urllib.parse.parse_qs(request).get(
                'resources', [''])[0].split(',') if entry)
        asked = {name: int(amount) for name, amount in asked.items()}
        open_hosts = [host for host in hosts if not host['refused_by']]
        if len(open_hosts) > _MOST_HOSTS:
            self.log.warning(_(
                'What a host lacks is shown for the first %d hosts that no '
                'filter refuses; choose others with --host.') % _MOST_HOSTS)
        lacks = {}
        if asked and open_hosts:
            try:
                lacks = client.lacking(
                    server.id, asked,
                    [host['uuid'] for host in open_hosts[:_MOST_HOSTS]])
            except ksa_exceptions.ClientException as error:
                self.log.warning(
                    _('Placement does not say what hosts lack: %s') % error)
        for host in hosts:
            host['lacks'] = lacks.get(host['uuid'])
        hosts.sort(key=lambda host: (
            bool(host['refused_by']), host['lacks'] is None,
            max((lack / asked[name]
                 for name, lack in (host['lacks'] or {}).items()),
                default=0)))


class ProbePending(command.ShowOne):
    _description = _(
        'Show whether there is room for servers before you create them.')
    _epilog = _(
        'Verdicts: now (there is room), after_ends (nova-reaper would end '
        'preemptible servers once your server waits), later (your server '
        'would wait), never (no host could take your server). Quota, '
        'scheduler hints, ports and server groups are not looked at, and no '
        'room is kept.')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--flavor', metavar='<flavor>', required=True,
            help=_('Flavor of the servers (name or ID)'))
        parser.add_argument(
            '--image', metavar='<image>',
            help=_('Image of the servers (name or ID); without an image they '
                   'boot from volumes'))
        parser.add_argument(
            '--zone', '--availability-zone', metavar='<zone-name>',
            help=_('Availability zone of the servers'))
        parser.add_argument(
            '--count', metavar='<number>', type=positive, default=1,
            help=_('For how many servers there has to be room at once '
                   '(default: 1)'))
        return parser

    def take_action(self, parsed_args):
        client = client_of_reaper(self, _('nobody tells whether there is '
                                          'room'))
        asked = {'flavor': parsed_args.flavor, 'count': parsed_args.count}
        if parsed_args.image:
            asked['image'] = self.app.client_manager.image.find_image(
                parsed_args.image, ignore_missing=False).id
        if parsed_args.zone:
            asked['zone'] = parsed_args.zone
        return zip(*client.probe(**asked).items())


class _ListOfReaper(command.Lister):
    """Lists servers that nova-reaper ends.

    :cvar columns: the headers, by the keys of the answer
    :cvar admin_columns: the headers that --all-projects adds
    """

    columns: dict[str, str]
    admin_columns: dict[str, str]

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--all-projects', action='store_true', default=False,
            help=_('Include all projects (admin only)'))
        return parser

    def take_action(self, parsed_args):
        client = client_of_reaper(self, _('no server is ended'))
        columns = self.columns | (
            self.admin_columns if parsed_args.all_projects else {})
        return tuple(columns.values()), [
            tuple(server.get(name) for name in columns)
            for server in self.servers(client, parsed_args.all_projects)]


class ListNotice(_ListOfReaper):
    _description = _(
        'List servers that are under notice, and why: nova-reaper ends them '
        'when the notice is over, or rehearses their end.')
    columns = {'server': 'ID', 'name': 'Name', 'action': 'Action',
               'terminate_at': 'Not Before', 'message': 'Why'}
    admin_columns = {'for': 'For', 'host': 'Host', 'project_id': 'Project ID'}

    @staticmethod
    def servers(client, all_projects):
        return client.notices(all_projects)


class ListEndable(_ListOfReaper):
    _description = _(
        'List servers that nova-reaper may end: to make room, or when their '
        'run time is over.')
    columns = {'server': 'ID', 'name': 'Name', 'preemptible': 'Preemptible',
               'action': 'Action', 'ends_at': 'Ends At'}
    admin_columns = {'host': 'Host', 'project_id': 'Project ID'}

    @staticmethod
    def servers(client, all_projects):
        return client.endable(all_projects)


class RehearseServer(command.Command):
    _description = _(
        'Rehearse the end of a preemptible server: nova-reaper gives it '
        'notice, stops it when the notice is over, and starts it again. '
        '"openstack pending history" tells when that is done.')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        _add_server(parser)
        return parser

    def take_action(self, parsed_args):
        client = client_of_reaper(self, _('no end can be rehearsed'))
        server, _version = client.find(parsed_args.server, 'pending rehearse')
        client.rehearse(server.id)


def client_of_reaper(command, what):
    """Return the client where there is a reaper.

    :param what: what holds without a reaper, as an error says it
    """
    client = command.app.client_manager.compute_pending
    if not client.has_reaper:
        raise exceptions.CommandError(_(
            'The catalog of this cloud has no service of the type "%(type)s": '
            'without nova-reaper %(what)s.') % {
                'type': pending_client.SERVICE_TYPE, 'what': what})
    return client


def _add_server(parser):
    parser.add_argument(
        'server', metavar='<server>', help=_('Server (name or ID)'))


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            _('"%s" is not a whole number of 1 or more.') % text)
    return int(text)


def _check_waits(server):
    if server.status != 'PENDING':
        raise exceptions.CommandError(_(
            'Server %(name)s (%(id)s) does not wait: it is %(status)s.') % {
                'name': server.name, 'id': server.id,
                'status': server.status})


def _reason(client, server):
    try:
        return client.reason(server.id, limit=0)
    except sdk_exceptions.HttpException:
        # The server may be under rebuild. The list still has the others.
        return None


def _describe(server, reason, answer):
    """Bring together what is known of a waiting server.

    :param server: the openstack.compute.v2.server.Server
    :param reason: what Nova says, or None
    :param answer: what nova-reaper says, or None
    :returns: a dictionary whose order is that of the columns
    """
    reason, answer = reason or {}, answer or {}
    fault = server.fault or {}

    def first(key, default=None, among=(answer, reason)):
        for each in among:
            if each.get(key) is not None:
                return each[key]
        return default

    # The reaper may not have heard of the last attempts yet.
    nova_first = (reason, answer)

    row = {
        'id': server.id,
        'name': server.name,
        'project_id': server.project_id,
        'flavor': (server.flavor or {}).get('original_name'),
        'since': first('since', server.created_at),
        'attempts': first('attempts', None, nova_first),
        # An attempt that finds no host leaves only the fault.
        'last_attempt': first('last_attempt', fault.get('created'),
                              nova_first),
        'reason': first('reason'),
        'hindrance': answer.get('hindrance'),
        'message': reason.get('message') or fault.get('message'),
        'detail': answer.get('detail'),
        'advice': first('advice'),
        'automatic': answer.get('automatic'),
        'position': answer.get('position'),
        'next_attempt': answer.get('next_attempt'),
        'room_by': answer.get('room_by'),
        'deadline': answer.get('deadline'),
        'step': answer.get('step'),
    }
    return {**row, **{key: answer[key] for key in ('host', 'victims')
                      if key in answer}}
