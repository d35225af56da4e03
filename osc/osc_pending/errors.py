# SPDX-License-Identifier: Apache-2.0

"""How a command ends that does not end well."""

from osc_lib import exceptions

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
            'show %(id)s" says why, "openstack pending rebuild %(id)s" tries '
            'again.') % {
                'name': server.name, 'id': server.id,
                'fault': ': %s' % fault.strip() if fault else '.'})


class EndsOnPending:
    """A command whose --wait ends when the server waits itself.

    It shows the server all the same, and then says so.
    """

    #: the ServerWaits that ended it, if one did
    waits = None

    def run(self, parsed_args):
        """Return the exit code."""
        code = super().run(parsed_args)
        if self.waits is None:
            return code
        self.app.stdout.flush()
        self.log.error(str(self.waits))
        return SERVER_WAITS
