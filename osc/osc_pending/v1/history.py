# SPDX-License-Identifier: Apache-2.0

"""Commands that ask the journal of nova-reaper, and pause it."""

from osc_lib.command import command

from osc_pending.i18n import _
from osc_pending.v1 import pending

_KINDS = ('notice', 'withdrawal', 'end', 'build', 'return', 'given_up',
          'pause', 'resume')


class ListHistory(command.Lister):
    _description = _(
        'List what nova-reaper has done to servers, the newest first: which '
        'it gave notice, ended, built or brought back, and when.')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--server', metavar='<server-id>',
            help=_('Only what was done to the server with this ID; for '
                   'administrators also what was done for it. The server may '
                   'be gone.'))
        parser.add_argument(
            '--kind', metavar='<kind>', action='append', choices=_KINDS,
            help=_('Only records of this kind: %s (repeat option for '
                   'several)') % ', '.join(_KINDS))
        parser.add_argument(
            '--since', metavar='<time>',
            help=_('Only from this time on: 2026-11-22T12:00:00Z, or 90m, '
                   '12h, 7d before now'))
        parser.add_argument(
            '--until', metavar='<time>', help=_('Only before this time'))
        parser.add_argument(
            '--all-projects', action='store_true', default=False,
            help=_('Include all projects (admin only)'))
        parser.add_argument(
            '--project', metavar='<project>',
            help=_('Only servers of this project (name or ID, admin only)'))
        parser.add_argument(
            '--limit', metavar='<number>', type=pending.positive, default=100,
            help=_('At most so many records (default: 100)'))
        return parser

    def take_action(self, parsed_args):
        client = pending.client_of_reaper(self, _('there is no journal'))
        query = {'server': parsed_args.server, 'since': parsed_args.since,
                 'until': parsed_args.until}
        if parsed_args.kind:
            query['kind'] = ','.join(parsed_args.kind)
        if parsed_args.project:
            query['project_id'] = pending.project_id(
                self.app.client_manager, parsed_args.project)
        elif parsed_args.all_projects:
            query['all_projects'] = 'true'
        found = client.history(parsed_args.limit, **{
            key: value for key, value in query.items() if value is not None})
        names = ['at', 'kind', 'server', 'name', 'result', 'reason_for']
        headers = ['Time', 'What', 'Server', 'Name', 'Result', 'For']
        if parsed_args.all_projects or parsed_args.project:
            names += ['host', 'project_id', 'why']
            headers += ['Host', 'Project ID', 'Why']
        return headers, [tuple(_row(record)[name] for name in names)
                         for record in found]


def _row(record):
    """Return the columns of a record."""
    detail = record.get('detail') or {}
    other = record['for'] if record['for'] != record['server'] else None
    return {
        **record, 'result': record['result'] or record['action'],
        'reason_for': other or record.get('message'),
        'host': record.get('host'),
        'why': detail.get('why') or (
            detail.get('decision') or {}).get('detail')}


class PauseReaper(command.ShowOne):
    _description = _(
        'Pause nova-reaper until "openstack pending resume" (admin only). '
        'nova-reaper withdraws its notices, and finishes the ends that it has '
        'begun.')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--reason', metavar='<text>', default='',
            help=_('Why nova-reaper is paused; the journal records the text'))
        return parser

    def take_action(self, parsed_args):
        client = pending.client_of_reaper(self, _('nothing can be paused'))
        return zip(*client.pause(parsed_args.reason).items())


class ResumeReaper(command.ShowOne):
    _description = _('Let nova-reaper go on after a pause (admin only).')

    def take_action(self, parsed_args):
        client = pending.client_of_reaper(self, _('nothing can be paused'))
        return zip(*client.resume().items())
