# SPDX-License-Identifier: Apache-2.0

"""Cinder's API, its scheduler and its volume manager in one process.

Its arguments are the port of the API and the file of the configuration of all
of them.
"""

import contextlib
import sys

from oslo_service import backend

from tools.cloud.embedded import transactions
from tools.cloud.embedded import wsgi

PORT, CONFIG_FILE = sys.argv[1:]
transactions.prepare()
# As the other services, and unlike Cinder's own by default.
backend.init_backend(backend.BackendType.THREADING)
APPLICATION = wsgi.load('cinder.wsgi.api', '--config-file', CONFIG_FILE)

# flake8: noqa: E402
from cinder.common import constants
from cinder import rpc
from cinder import service
import os_brick
from oslo_config import cfg

CONF = cfg.CONF

_get_rpc_server = rpc.messaging.get_rpc_server
# Cinder of 2026.1 names the executor of eventlet.
rpc.messaging.get_rpc_server = lambda *args, **kwargs: _get_rpc_server(
    *args, **dict(kwargs, executor='threading'))


class Scheduler(service.Service):
    """A cinder-scheduler that is not the only service of its process.

    The release keeps the identity of the service of this process in the
    class. It is to be that of cinder-volume, whose manager asks for it.
    """

    def start(self):
        with self._identity():
            super().start()

    def report_state(self):
        with self._identity():
            super().report_state()

    @contextlib.contextmanager
    def _identity(self):
        of_volume = service.Service.service_id
        service.Service.service_id = self.origin_service_id
        try:
            yield
        finally:
            service.Service.service_id = of_volume


def start_all():
    """Start the services beside the API, which has started the bus.

    cinder-scheduler waits at its start for what cinder-volume can do.
    """
    os_brick.setup(CONF)
    scheduler = Scheduler.create(binary=constants.SCHEDULER_BINARY)
    for backend in CONF.enabled_backends:
        service.Service.create(
            host='%s@%s' % (CONF.host, backend), service_name=backend,
            binary=constants.VOLUME_BINARY, coordination=True).start()
    scheduler.start()


def main():
    start_all()
    wsgi.serve(APPLICATION, int(PORT))


if __name__ == '__main__':
    main()
