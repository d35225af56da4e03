# SPDX-License-Identifier: Apache-2.0

"""What of a cloud comes up when: the steps, and what each of them needs."""

import functools
import pathlib

from tools.cloud import configuration
from tools.cloud import dashboard
from tools.cloud import guest
from tools.cloud import identity
from tools.cloud import plan
from tools.cloud import reaper
from tools.cloud import settings

_CINDER_FILE = 'cinder/cinder.conf'
_NEUTRON_FILES = ('neutron/neutron.conf', 'neutron/plugins/ml2/ml2_conf.ini')


class StackPlan:
    """Plans how the services of one cloud come up.

    :param cloud: its settings.Settings
    :param processes: its processes.Processes
    :param hypervisor: its hypervisor.Hypervisor, or None if it has none
    """

    def __init__(self, cloud, processes, hypervisor):
        self._cloud = cloud
        self._processes = processes
        self._hypervisor = hypervisor

    def make(self, run):
        """Return the plan.Plan.

        :param run: the services.Services that start what there is
        """
        steps = plan.Plan()
        self._plan_identity(steps, run)
        self._plan_placement(steps, run)
        self._plan_glance(steps, run)
        self._plan_neutron(steps, run)
        if self._cloud.cinder:
            self._plan_cinder(steps, run)
        self._plan_nova(steps, run)
        if self._cloud.dashboard:
            shown = dashboard.Dashboard(self._cloud, run)
            steps.add('horizon files', shown.make, once=True)
            steps.add(dashboard.NAME, shown.start,
                      'horizon files', 'identities')
        if self._cloud.reaper:
            service = reaper.Reaper(self._cloud, run)
            steps.add(reaper.NAME, service.start, 'hosts')
            steps.add('reaper lists', service.wait, reaper.NAME)
        return steps

    def _plan_identity(self, steps, run):
        manage = functools.partial(
            run.command, 'keystone-manage', 'keystone-manage',
            '--config-file', self._cloud.etc / 'keystone/keystone.conf')

        def make():
            manage('db_sync')
            manage('bootstrap',
                   '--bootstrap-username', configuration.ADMIN,
                   '--bootstrap-project-name', configuration.ADMIN,
                   '--bootstrap-password', self._cloud.password,
                   '--bootstrap-region-id', settings.REGION,
                   '--bootstrap-public-url', self._cloud.url('keystone'),
                   '--bootstrap-internal-url', self._cloud.url('keystone'))

        steps.add('keystone database', make, once=True)
        steps.add('keystone', functools.partial(run.start_api, 'keystone'),
                  'keystone database')
        steps.add('identities', functools.partial(
            identity.seed, self._cloud), 'keystone', once=True)

    def _plan_placement(self, steps, run):
        steps.add('placement database', functools.partial(
            run.command, 'placement-manage', 'placement-manage',
            '--config-file', self._cloud.etc / 'placement/placement.conf',
            'db', 'sync'), once=True)
        steps.add('placement', functools.partial(run.start_api, 'placement'),
                  'placement database')

    def _plan_glance(self, steps, run):
        steps.add('glance database', functools.partial(
            run.command, 'glance-manage', 'glance-manage', '--config-file',
            self._cloud.etc / 'glance/glance-api.conf', 'db_sync'),
            once=True)
        steps.add('glance', functools.partial(run.start_api, 'glance'),
                  'glance database')

    def _plan_neutron_database(self, steps, run):
        steps.add('neutron database', functools.partial(
            run.command, 'neutron-db-manage', 'neutron-db-manage',
            *(argument for path in _NEUTRON_FILES
              for argument in ('--config-file', self._cloud.etc / path)),
            'upgrade', 'heads'), once=True)

    def _plan_neutron(self, steps, run):
        self._plan_neutron_database(steps, run)
        steps.add('neutron', functools.partial(run.start_api, 'neutron'),
                  'neutron database')
        steps.add('neutron-rpc-server', functools.partial(
            run.start, 'neutron-rpc-server', 'neutron-rpc-server',
            *_NEUTRON_FILES,
            queue='q-reports-plugin'), 'neutron database')
        steps.add('l2agent', functools.partial(
            run.start, 'l2agent',
            pathlib.Path(__file__).with_name('l2agent.py'), _NEUTRON_FILES[0]),
            'neutron-rpc-server')
        steps.add('agents', run.wait_for_agents,
                  'l2agent', 'neutron', 'identities')

    def _plan_cinder_database(self, steps, run):
        steps.add('cinder database', functools.partial(
            run.command, 'cinder-manage', 'cinder-manage', '--config-file',
            self._cloud.etc / _CINDER_FILE, 'db', 'sync'), once=True)

    def _plan_cinder(self, steps, run):
        self._plan_cinder_database(steps, run)
        needs = ('cinder database', 'identities')
        steps.add('cinder', functools.partial(run.start_api, 'cinder'),
                  *needs)
        for name in ('cinder-scheduler', 'cinder-volume'):
            steps.add(name, functools.partial(
                run.start, name, name, _CINDER_FILE, queue=name), *needs)
        steps.add('volumes', run.wait_for_volumes,
                  'cinder', 'cinder-scheduler', 'cinder-volume')

    def _plan_nova_databases(self, steps, run):
        cloud = self._cloud

        def command(log, *args, env=None):
            run.command(log, 'nova-manage', '--config-file',
                        cloud.etc / 'nova/nova.conf', *args, env=env)

        def map_cells():
            log = 'nova-manage-cells'
            command(log, 'cell_v2', 'map_cell0', '--database_connection',
                    cloud.databases.url('nova_cell0'))
            for cell in cloud.cell_names:
                command(log, 'cell_v2', 'create_cell', '--name', cell,
                        '--transport-url', cloud.bus_url(cell),
                        '--database_connection',
                        cloud.databases.url(cloud.cell_database(cell)))

        # One after another they would take longest of all.
        steps.add('nova api database', functools.partial(
            command, 'nova-manage-api', 'api_db', 'sync'), once=True)
        made = []
        for cell in ('cell0', *cloud.cell_names):
            made.append('nova %s database' % cell)
            steps.add(made[-1], functools.partial(
                command, 'nova-manage-' + cell, 'db', 'sync', '--local_cell',
                env={'OS_DATABASE__CONNECTION': cloud.databases.url(
                    cloud.cell_database(cell))}), once=True)
        steps.add('nova cells', map_cells, 'nova api database', once=True)
        steps.add('nova databases', lambda: None, 'nova cells', *made,
                  once=True)

    def _plan_nova(self, steps, run):
        self._plan_nova_databases(steps, run)
        needs = ('nova databases', 'identities', 'placement')
        steps.add('nova', functools.partial(run.start_api, 'nova'), *needs)
        steps.add('nova-scheduler', functools.partial(
            run.start, 'nova-scheduler', 'nova-scheduler', 'nova/nova.conf',
            queue='scheduler'), *needs)
        conductors = {}
        for host in (*self._cloud.conductor_hosts,
                     *self._cloud.separate_cells):
            name = 'nova-conductor' + (
                '' if host == settings.CONTROL else '@' + host)
            conductors[host] = name
            steps.add(name, functools.partial(
                run.start, name, 'nova-conductor',
                self._cloud.nova_file(host), queue='conductor.' + host,
                cell=host), *needs)
        computes = {host: 'nova-compute@' + host
                    for host in self._cloud.hosts}
        for host, name in computes.items():
            # The conductor that it does not start without.
            near = conductors.get(
                self._cloud.cell_of(host), conductors[settings.CONTROL])
            steps.add(name, functools.partial(
                run.start, name, pathlib.Path(__file__).with_name(
                    'device_compute.py') if self._cloud.pci
                else 'nova-compute',
                self._cloud.nova_file(host)), near, 'neutron')
        if self._cloud.libvirt:
            host = self._cloud.libvirt_host
            computes[host] = self._plan_libvirt(steps, run, conductors.get(
                self._cloud.cell_of(host), conductors[settings.CONTROL]))
        steps.add('hosts', run.wait_for_hosts, 'nova', 'nova-scheduler',
                  *conductors.values(), *computes.values())

    def _plan_libvirt(self, steps, run, conductor):
        files = self._cloud.var / 'guest'
        steps.add('libvirtd', functools.partial(
            self._hypervisor.start, self._processes))
        steps.add('guest files', functools.partial(
            guest.make, files, self._processes), once=True)
        steps.add('guest', functools.partial(
            guest.register, self._cloud, files),
            'guest files', 'hosts', 'glance', once=True)
        host = self._cloud.libvirt_host
        name = 'nova-compute@' + host
        steps.add(name, functools.partial(
            run.start, name,
            pathlib.Path(__file__).with_name('libvirt_compute.py'),
            self._cloud.nova_file(host)), 'libvirtd', conductor, 'neutron')
        return name
