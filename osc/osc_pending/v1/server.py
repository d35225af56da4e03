# SPDX-License-Identifier: Apache-2.0

"""Gives stock commands of servers what they lack for PENDING.

Each command is the stock class with all its options. A request that concerns
no waiting server is the stock request, at the stock microversion.
"""

import contextlib

from openstack import exceptions as sdk_exceptions
from openstackclient.compute.v2 import server as stock

from osc_pending import errors
from osc_pending.i18n import _
from osc_pending import microversions

# Stands for the image that a server was created with.
_OWN_IMAGE = 'the-image-that-the-server-was-created-with'


class ListServer(stock.ListServer):

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        _add_choice(parser, '--status', 'PENDING')
        _add_choice(parser, '--vm-state', 'pending')
        return parser

    # How many of the servers that are shown in ERROR wait.
    _waiting = 0

    def run(self, parsed_args):
        """Return the exit code."""
        code = super().run(parsed_args)
        if self._waiting:
            self.app.stdout.flush()
            self.log.warning(_(
                'Servers in ERROR that wait for room: %d. "openstack pending '
                'list" shows them, and why they wait.') % self._waiting)
        return code

    def take_action(self, parsed_args):
        compute = self.app.client_manager.compute
        if 'PENDING' not in (parsed_args.status,
                             (parsed_args.vm_state or '').upper()):
            headers, rows = super().take_action(parsed_args)
            rows = list(rows)
            if parsed_args.formatter == 'table' and not microversions.given(
                    compute):
                self._waiting = _count_waiting(
                    compute,
                    bool(parsed_args.all_projects or parsed_args.project),
                    [row[0] for row in rows if 'ERROR' in row])
            return headers, rows
        version = microversions.choose(
            compute, microversions.PENDING, _('A list of waiting servers'))
        with microversions.used(compute, version):
            headers, rows = super().take_action(parsed_args)
            # The stock command reads them as they are written.
            return headers, list(rows)


def _shows_pending(compute):
    """Whether requests can be sent at a microversion that shows PENDING.

    The answer is False if Nova does not tell: the stock command needs none.
    """
    try:
        return microversions.knows(compute, microversions.PENDING)
    except sdk_exceptions.HttpException:
        return False


def _count_waiting(compute, all_projects, in_error):
    """Return how many of the servers that are shown in ERROR wait.

    :param compute: the SDK's compute proxy
    :param all_projects: whether the servers are those of all projects
    :param in_error: the IDs of the servers
    """
    if not in_error or not _shows_pending(compute):
        return 0
    try:
        with microversions.used(compute, microversions.highest(compute)):
            return len({server.id for server in compute.servers(
                details=False, status='PENDING', all_projects=all_projects)
            }.intersection(in_error))
    except sdk_exceptions.HttpException:
        # The client shows the stock list without this number.
        return 0


class _EndsOnPending(errors.EndsOnPending):
    """Lets the stock command wait, and ends the wait at PENDING."""

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        action = parser._option_string_actions['--wait']
        action.help += _(
            ' (also ends, with the exit code %d, when no host is found and '
            'the server waits in PENDING)') % errors.SERVER_WAITS
        return parser

    def take_action(self, parsed_args):
        if not parsed_args.wait:
            return super().take_action(parsed_args)
        compute = self.app.client_manager.compute
        get_server = compute.get_server
        try:
            with _replaced(compute, get_server=lambda *args, **kwargs: (
                    _raise_if_pending(
                        compute, get_server, get_server(*args, **kwargs)))):
                return super().take_action(parsed_args)
        except errors.ServerWaits as error:
            self.waits = error
            return self._show(error.server)

    def _show(self, server):
        """Return the columns and values of "server show"."""
        compute = self.app.client_manager.compute
        show = stock.ShowServer(self.app, self.app_args)
        with microversions.used(
                compute, microversions.highest(compute)), _found(
                    compute, server):
            return show.take_action(
                show.get_parser('server show').parse_args([server.id]))


class CreateServer(_EndsOnPending, stock.CreateServer):

    def take_action(self, parsed_args):
        compute = self.app.client_manager.compute
        if microversions.given(compute) or not _shows_pending(compute):
            return super().take_action(parsed_args)
        # A microversion that knows PENDING asks to wait.
        with microversions.used(compute, microversions.highest(compute)):
            return super().take_action(parsed_args)


class RebuildServer(_EndsOnPending, stock.RebuildServer):

    def take_action(self, parsed_args):
        compute = self.app.client_manager.compute
        server = compute.find_server(parsed_args.server, ignore_missing=False)
        if not _never_built(server) or not microversions.knows(
                compute, microversions.REBUILD):
            # The user may ask for a version that shows PENDING and no more.
            if server.status == 'PENDING':
                microversions.choose(compute, microversions.REBUILD, _(
                    'The rebuild of a waiting server'))
            with _found(compute, server):
                return super().take_action(parsed_args)
        with microversions.used(
                compute, microversions.highest(compute)), _as_failed(
                self.app.client_manager, compute.get_server(server.id),
                keep_image=not parsed_args.image):
            return super().take_action(parsed_args)


def _add_choice(parser, option, choice):
    """Let an option of a parser have one value more."""
    action = parser._option_string_actions[option]
    if action.choices is not None and choice not in action.choices:
        action.choices = (*action.choices, choice)
        action.help += _(
            ' (also %s where the cloud has nova-pending, without a '
            'microversion)') % choice


def _never_built(server):
    return server.status in ('PENDING', 'ERROR') and not server.launched_at


def _raise_if_pending(compute, get_server, server):
    """Return a server, or raise ServerWaits if it is in PENDING.

    A microversion that does not show PENDING shows the server in ERROR. A user
    who did not ask for such a microversion learns that the server waits.
    """
    if (server.status == 'ERROR' and not microversions.given(compute) and
            microversions.knows(compute, microversions.PENDING)):
        with microversions.used(compute, microversions.highest(compute)):
            server = get_server(server.id)
    if server.status == 'PENDING':
        raise errors.ServerWaits(server)
    return server


@contextlib.contextmanager
def _as_failed(manager, server, keep_image):
    """Let the stock command rebuild a server that was never built.

    The stock command refuses a server that is not in ACTIVE, SHUTOFF or ERROR,
    and asks for the image of a server that boots from a volume. Nova knows
    this image.

    :param manager: the ClientManager
    :param server: the server as the microversion of the rebuild shows it
    :param keep_image: whether no image was named
    """
    server.status = 'ERROR'
    if keep_image:
        server.image = {'id': _OWN_IMAGE}
    get_image = manager.image.get_image
    with _found(manager.compute, server), _replaced(
            manager.image, get_image=lambda image, *args, **kwargs: (
                None if image == _OWN_IMAGE
                else get_image(image, *args, **kwargs))):
        yield


def _found(compute, server):
    """Have find_server() return a server, until the end of a with block."""
    return _replaced(compute, find_server=lambda *args, **kwargs: server)


@contextlib.contextmanager
def _replaced(target, **methods):
    """Let methods of an object be others, until the end of a with block."""
    before = {name: getattr(target, name) for name in methods}
    for name, method in methods.items():
        setattr(target, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(target, name, method)
