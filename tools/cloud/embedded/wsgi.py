# SPDX-License-Identifier: Apache-2.0

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
