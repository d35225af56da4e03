# SPDX-License-Identifier: Apache-2.0

"""Says how a command ends that fails, or whose server waits."""

from osc_lib import exceptions

from osc_pending import client as pending_client
from osc_pending.i18n import _

#: The exit code of a command that waited for a server which now waits itself.
#: 1 is any other failure of the client, 2 are wrong arguments.
SERVER_WAITS = 3


class ServerWaits(exceptions.CommandError):
    """A server is in PENDING, and somebody waited for something else.

    :param server: the openstack.compute.v2.server.Server
    """

    def __init__(self, server):
        self.server = server
        fault = (getattr(server, 'fault', None) or {}).get('message')
        super().__init__(_(
            'Server %(name)s waits in PENDING%(fault)s "openstack pending '
            'show %(id)s" says why.') % {
                'name': server.name, 'id': server.id,
                'fault': ': %s' % fault.strip() if fault else '.'})

    def explain(self, client):
        """Return what has happened, and what can be done.

        :param client: the client.Client
        """
        if not client.has_reaper:
            return _('%(text)s "openstack pending rebuild %(id)s" tries '
                     'again.') % {'text': self, 'id': self.server.id}
        try:
            answer = client.reaper_one(self.server.id)['pending']
        except pending_client.ReaperError:
            # nova-reaper may not have heard of the server yet.
            answer = {}
        return ' '.join(filter(None, (
            str(self), answer.get('advice'), answer.get('automatic'))))


class EndsOnPending:
    """A command whose --wait ends when the server waits in PENDING.

    The command shows the server all the same, and then says that it waits.
    """

    #: the ServerWaits that ended the command, None if there was none
    waits = None

    def run(self, parsed_args):
        """Return the exit code."""
        code = super().run(parsed_args)
        if self.waits is None:
            return code
        self.app.stdout.flush()
        self.log.error(self.waits.explain(
            self.app.client_manager.compute_pending))
        return SERVER_WAITS
