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
