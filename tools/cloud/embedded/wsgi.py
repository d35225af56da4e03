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

"""Serves one WSGI application.

Its arguments are the name of a module, which calls it ``application``, and the
port.
"""

import importlib
import signal
import sys

from cheroot import wsgi

from tools.cloud.embedded import transactions
from tools.cloud import ports

_THREADS = 8


def serve(application, port):
    """Serve an application until SIGTERM.

    :param application: the WSGI application
    :param port: the port to listen on
    :raises: OSError if the port is taken
    """
    server = wsgi.Server((ports.HOST, port), application,
                         numthreads=_THREADS, shutdown_timeout=1)
    server.prepare()
    signal.signal(signal.SIGTERM, _end)
    try:
        server.serve()
    finally:
        server.stop()


def load(module, *args):
    """Return the application of a module, which is made at its import.

    :param module: the name of the module
    :param args: what it finds as the arguments of the process
    """
    sys.argv[1:] = args
    return importlib.import_module(module).application


def _end(signum, frame):
    raise SystemExit(0)


def main():
    module, port = sys.argv[1:]
    transactions.prepare()
    serve(load(module), int(port))


if __name__ == '__main__':
    main()
