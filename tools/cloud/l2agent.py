# SPDX-License-Identifier: Apache-2.0

"""A stand-in for the L2 agents of the compute hosts. It touches no switch.

Beside the guests only this is not real in the cloud: a machine
with fake guests has nothing to plug. One process reports the state of an Open
vSwitch agent for every host, so that Neutron's own mechanism driver binds
ports there, and reports each bound port as up, so that the port becomes
ACTIVE and Neutron sends its event to Nova.

Run as a file, with Neutron's ``--config-file``; ``[l2agent] hosts`` names the
hosts as Nova does.
"""

import sys
import threading
import time

from oslo_service import backend

# As Neutron's own agents do, before anything of Neutron is imported.
backend.init_backend(backend.BackendType.THREADING)

# flake8: noqa: E402
from neutron.agent import rpc as agent_rpc
from neutron.common import config as common_config
from neutron.conf.agent import common as agent_config
from neutron_lib.agent import topics
from neutron_lib import constants
from neutron_lib import context
from oslo_config import cfg
from oslo_log import log as logging
import oslo_messaging

LOG = logging.getLogger(__name__)

OPTS = [
    cfg.ListOpt('hosts', default=[],
                help='The hosts whose agents this process stands in for.'),
    cfg.IntOpt('report_interval', default=20,
               help='Seconds between two reports of the state.'),
]

_RETRY_SECONDS = 1


class Ports:
    """Takes Neutron's notices of ports, and reports bound ports as up."""

    target = oslo_messaging.Target(version='1.4')

    def __init__(self, hosts, plugin):
        self._hosts = hosts
        self._plugin = plugin

    def port_update(self, ctxt, port, **kwargs):
        host = port.get('binding:host_id')
        if (host in self._hosts and port.get('admin_state_up')
                and port.get('binding:vif_type') == 'ovs'
                and port.get('status') != constants.PORT_STATUS_ACTIVE):
            # Not in the thread that takes the notices: Neutron answers the
            # call, and may send the next notice before it does.
            threading.Thread(target=self._report_up, daemon=True,
                             args=(port['id'], host)).start()

    def port_delete(self, ctxt, **kwargs):
        """Do nothing: nothing was plugged."""

    def network_update(self, ctxt, **kwargs):
        """Do nothing: nothing was plugged."""

    def _report_up(self, port_id, host):
        try:
            self._plugin.update_device_up(
                context.get_admin_context_without_session(), port_id,
                'ovs-agent-' + host, host)
            LOG.info('Port %s is up on %s', port_id, host)
        except Exception:
            LOG.exception('Port %s on %s cannot be reported', port_id, host)


def state(host):
    """Return what an Open vSwitch agent says of itself."""
    return {
        'binary': 'neutron-openvswitch-agent',
        'host': host,
        'topic': constants.L2_AGENT_TOPIC,
        'agent_type': constants.AGENT_TYPE_OVS,
        'configurations': {
            'tunnel_types': ['vxlan'],
            'tunneling_ip': '127.0.0.1',
            'integration_bridge': 'br-int',
            'ovs_hybrid_plug': False,
            'datapath_type': 'system',
        },
    }


def report(reports, hosts, start):
    """Report the state of the agents of all hosts.

    :returns: whether Neutron took all of them
    """
    ctxt = context.get_admin_context_without_session()
    try:
        for host in hosts:
            flag = {'start_flag': True} if start else {}
            reports.report_state(ctxt, {**state(host), **flag}, use_call=True)
    except oslo_messaging.MessagingException as error:
        LOG.warning('The state of the agents cannot be reported: %s', error)
        return False
    return True


def register_options():
    """Register what is read of Neutron's configuration."""
    agent_config.register_agent_state_opts_helper(cfg.CONF)
    cfg.CONF.register_opts(OPTS, group='l2agent')


def run():
    """Stand in for the agents until the process ends."""
    hosts = cfg.CONF.l2agent.hosts
    agent_rpc.create_consumers(
        [Ports(hosts, agent_rpc.PluginApi(topics.PLUGIN))], topics.AGENT,
        [[topics.PORT, topics.UPDATE], [topics.PORT, topics.DELETE],
         [topics.NETWORK, topics.UPDATE]], start_listening=True)
    reports = agent_rpc.PluginReportStateAPI(topics.REPORTS)
    while not report(reports, hosts, start=True):
        time.sleep(_RETRY_SECONDS)
    while True:
        time.sleep(cfg.CONF.l2agent.report_interval)
        report(reports, hosts, start=False)


def main():
    common_config.register_common_config_options()
    register_options()
    common_config.init(sys.argv[1:])
    common_config.setup_logging()
    run()


if __name__ == '__main__':
    main()
