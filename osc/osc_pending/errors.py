#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

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
