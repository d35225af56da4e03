# SPDX-License-Identifier: Apache-2.0

"""nova-api, nova-conductor, nova-scheduler and computes in one process.

They are the services of the release, each with the file of its configuration.
Its arguments are the port of the API and the file of each compute;
OS_NOVA_CONFIG_DIR has the configuration of the others.
"""

import signal
import sys
import threading

from tools.cloud.embedded import transactions
from tools.cloud.embedded import wsgi

# Before anything of Nova is imported: it takes the arguments of the process
# for its own.
PORT, *COMPUTES = sys.argv[1:]
transactions.prepare()
APPLICATION = wsgi.load('nova.wsgi.osapi_compute')

# flake8: noqa: E402
from nova.compute import rpcapi as compute_rpcapi
from nova.conductor import rpcapi as conductor_rpcapi
import nova.conf
from nova.db.main import api as main_db_api
from nova import objects
from nova.objects import base as objects_base
from nova.scheduler.client import report
from nova.scheduler import rpcapi as scheduler_rpcapi
from nova import service
from nova.virt import node
import os_brick
import os_vif
from oslo_log import log as logging

from tools.cloud.embedded import scopes

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


def prepare():
    """Give each compute what it would have in a process of its own."""
    scopes.prepare()
    CONF.__class__ = scopes.Configuration
    main_db_api.DISABLE_DB_ACCESS = scopes.InScopes(True)
    objects_base.NovaObject.indirection_api = scopes.InScopes(
        conductor_rpcapi.ConductorAPI())
    report.report_client_singleton = scopes.each(
        report.SchedulerReportClient)
    node.get_local_node_uuid = scopes.each(
        _forget_node(node.get_local_node_uuid))
    objects.Service.enable_min_version_cache()
    os_brick.setup(CONF)
    os_vif.initialize()


def _forget_node(released):
    def get_local_node_uuid():
        node.LOCAL_NODE_UUID = None
        return released()

    return get_local_node_uuid


class Services:
    """The services beside the API."""

    def __init__(self):
        self._computes = [scopes.Scope(path) for path in COMPUTES]
        self._started = []

    def start(self):
        """Start all. nova-compute asks nova-conductor, and comes last."""
        self._start(binary='nova-conductor', topic=conductor_rpcapi.RPC_TOPIC)
        self._start(binary='nova-scheduler', topic=scheduler_rpcapi.RPC_TOPIC)
        for compute in self._computes:
            compute.run(lambda: self._start(
                binary='nova-compute', topic=compute_rpcapi.RPC_TOPIC,
                topic_alt=compute_rpcapi.RPC_TOPIC_ALT))

    def _start(self, **names):
        started = service.Service.create(**names)
        started.start()
        self._started.append(started)

    def reset(self):
        """Read what may change of the configuration, as on SIGHUP."""
        CONF.mutate_config_files()
        for compute in self._computes:
            compute.read()
        for started in self._started:
            started.reset()


def main():
    prepare()
    services = Services()
    services.start()
    # Not in the handler: it may have come between a lock and its release.
    signal.signal(signal.SIGHUP, lambda signum, frame: threading.Thread(
        target=services.reset).start())
    wsgi.serve(APPLICATION, int(PORT))


if __name__ == '__main__':
    main()
