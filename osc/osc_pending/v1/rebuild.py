# SPDX-License-Identifier: Apache-2.0

"""Commands that rebuild a waiting server, and that wait for it."""

import argparse
import time

from openstack import exceptions as sdk_exceptions
from osc_lib.command import command
from osc_lib import exceptions

from osc_pending import errors
from osc_pending.i18n import _
from osc_pending import microversions

# The client's own commands also wait for so many seconds between requests.
_INTERVAL = 5

# The rebuild has no result yet in these states: a server is in UNKNOWN (2.69)
# while its cell does not answer.
_UNDECIDED = ('PENDING', 'BUILD', 'REBUILD', 'UNKNOWN')


class RebuildPending(errors.EndsOnPending, command.ShowOne):
    _description = _(
        'Build a server under its own ID that waits or was never built. What '
        'no option names stays as it was at the create. "openstack server '
        'rebuild" has more options.')

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'server', metavar='<server>', help=_('Server (name or ID)'))
        parser.add_argument(
            '--image', metavar='<image>',
            help=_('Another image (name or ID)'))
        parser.add_argument(
            '--flavor', metavar='<flavor>',
            help=_('Another flavor (name or ID)'))
        parser.add_argument(
            '--availability-zone', metavar='<zone>',
            help=_('Another availability zone'))
        parser.add_argument(
            '--wait', action='store_true', default=False,
            help=_('Wait until the server runs. The exit code is %d if the '
                   'server waits in PENDING again.') % errors.SERVER_WAITS)
        return parser

    def take_action(self, parsed_args):
        client = self.app.client_manager.compute_pending
        corrected = parsed_args.flavor or parsed_args.availability_zone
        server, version = client.find(
            parsed_args.server, _('Another flavor or availability zone')
            if corrected else 'pending rebuild',
            microversions.REASON if corrected else microversions.REBUILD)
        if server.status not in ('PENDING', 'ERROR') or server.launched_at:
            raise exceptions.CommandError(_(
                'Server %(name)s (%(id)s) was built before, and is '
                '%(status)s: see "openstack server rebuild".' if
                server.launched_at else
                'Server %(name)s (%(id)s) does not wait: it is %(status)s.'
            ) % {'name': server.name, 'id': server.id,
                 'status': server.status})
        body = {}
        if parsed_args.image:
            body['imageRef'] = self.app.client_manager.image.find_image(
                parsed_args.image, ignore_missing=False).id
        if parsed_args.flavor:
            body['flavorRef'] = client.compute.find_flavor(
                parsed_args.flavor, ignore_missing=False).id
        if parsed_args.availability_zone:
            body['availability_zone'] = parsed_args.availability_zone
        # The SDK's rebuild has neither flavor nor zone.
        response = client.compute.post(
            '/servers/%s/action' % server.id, json={'rebuild': body},
            microversion=microversions.text(version))
        sdk_exceptions.raise_from_response(response)
        row = {key: response.json()['server'].get(key)
               for key in ('id', 'name', 'status', 'adminPass')}
        if row['adminPass'] is None:
            del row['adminPass']
        if parsed_args.wait:
            try:
                server = _wait(client, server.id, version)
            except errors.ServerWaits as error:
                self.waits, server = error, error.server
            row['status'] = server.status
        return zip(*row.items())


class WaitPending(command.Command):
    _description = _(
        'Wait until a waiting server runs. The command only reads the status: '
        'somebody else, nova-reaper for example, has to rebuild the server. '
        'The exit code is 0 if the server runs, 1 if it is in ERROR or '
        'deleted, and %d if the time is over.') % errors.SERVER_WAITS

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'server', metavar='<server>', help=_('Server (name or ID)'))
        parser.add_argument(
            '--timeout', metavar='<seconds>', type=_seconds,
            help=_('Wait at most so long, 0 or more'))
        return parser

    def take_action(self, parsed_args):
        client = self.app.client_manager.compute_pending
        server, version = client.find(parsed_args.server, 'pending wait')
        try:
            server = _wait(client, server.id, version, time.monotonic() + (
                float('inf') if parsed_args.timeout is None
                else parsed_args.timeout))
        except errors.ServerWaits as error:
            self.log.error(error.explain(client))
            return errors.SERVER_WAITS
        self.app.stdout.write(_(
            'Server %(name)s (%(id)s) is %(status)s.\n') % {
                'name': server.name, 'id': server.id,
                'status': server.status})
        return 0


def _seconds(text):
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float('inf'):
        raise argparse.ArgumentTypeError(
            _('"%s" is not a number of 0 or more.') % text)
    return seconds


def _wait(client, server_id, version, deadline=None):
    """Wait until nobody builds a server and the server does not wait.

    :param client: the client.Client
    :param server_id: its ID
    :param version: the microversion of the requests
    :param deadline: the time until which a server in PENDING is waited for
        (time.monotonic()); None if PENDING is an end
    :returns: the openstack.compute.v2.server.Server
    :raises: ServerWaits, CommandError if the server is in ERROR or deleted,
        NotFoundException if Nova does not know the server any more
    """
    while True:
        with microversions.used(client.compute, version):
            server = client.compute.get_server(server_id)
        if server.status == 'ERROR':
            raise exceptions.CommandError(_(
                'Server %(name)s (%(id)s) is in ERROR: %(fault)s') % {
                    'name': server.name, 'id': server.id,
                    'fault': (server.fault or {}).get('message')})
        if server.status in ('DELETED', 'SOFT_DELETED'):
            raise exceptions.CommandError(
                _('Server %s was deleted.') % server_id)
        if server.status == 'PENDING' and deadline is None:
            raise errors.ServerWaits(server)
        if server.status not in _UNDECIDED:
            return server
        if deadline is not None and time.monotonic() >= deadline:
            raise errors.ServerWaits(server)
        time.sleep(_INTERVAL if deadline is None else min(
            _INTERVAL, max(0, deadline - time.monotonic())))
