# SPDX-License-Identifier: Apache-2.0

"""Neutron's API, its RPC server and the stand-in of its agents in one process.

Its argument is the port of the API; OS_NEUTRON_CONFIG_DIR has the
configuration.
"""

import sys
import threading

from tools.cloud.embedded import transactions
from tools.cloud.embedded import wsgi

# Before anything of Neutron is imported: it takes the arguments of the
# process for its own.
PORT, = sys.argv[1:]
transactions.prepare()
APPLICATION = wsgi.load('neutron.wsgi.api')

# flake8: noqa: E402
from neutron_lib.plugins import directory

from tools.cloud import l2agent


def main():
    directory.get_plugin().start_rpc_listeners()
    l2agent.register_options()
    threading.Thread(target=l2agent.run, daemon=True).start()
    wsgi.serve(APPLICATION, int(PORT))


if __name__ == '__main__':
    main()
