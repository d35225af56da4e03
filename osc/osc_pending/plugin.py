# SPDX-License-Identifier: Apache-2.0

"""Has what python-openstackclient asks of a plugin.

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
    :returns: the same parser
    """
    parser.add_argument(
        '--os-compute-pending-api-version',
        metavar='<compute-pending-api-version>',
        default=utils.env('OS_COMPUTE_PENDING_API_VERSION'),
        help=_('Version of the API of nova-reaper, default=%s '
               '(Env: OS_COMPUTE_PENDING_API_VERSION)') % DEFAULT_API_VERSION)
    return parser
