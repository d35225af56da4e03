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

"""What python-openstackclient asks of a plugin.

See "Plugins" in the developer documentation of python-openstackclient.
"""

from osc_lib import utils

from osc_pending import client
from osc_pending.i18n import _

API_NAME = 'compute_pending'
API_VERSION_OPTION = 'os_compute_pending_api_version'
API_VERSIONS = ('1',)
DEFAULT_API_VERSION = '1'


def make_client(instance):
    """Return the client of waiting servers.

    :param instance: the client's ClientManager
    """
    return client.Client(instance)


def build_option_parser(parser):
    """Add the options for all commands.

    :param parser: the argparse.ArgumentParser of the client
    :returns: the same
    """
    parser.add_argument(
        '--os-compute-pending-api-version',
        metavar='<compute-pending-api-version>',
        default=utils.env('OS_COMPUTE_PENDING_API_VERSION'),
        help=_('Version of the API of nova-reaper, default=%s '
               '(Env: OS_COMPUTE_PENDING_API_VERSION)') % DEFAULT_API_VERSION)
    return parser
