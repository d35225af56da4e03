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

"""The order in which a cloud comes up and goes down."""

import contextlib
import functools
import pathlib
import secrets
import shutil
import tempfile

from tools.cloud import bus
from tools.cloud import configuration
from tools.cloud import databases
from tools.cloud import errors
from tools.cloud import identity
from tools.cloud import plan
from tools.cloud import ports
from tools.cloud import processes
from tools.cloud import services
from tools.cloud import settings

_ML2 = 'neutron/plugins/ml2/ml2_conf.ini'


class Stack:
    """One cloud, from the check of its servers to its last trace.

    :param database_url: where MariaDB answers
    :param bus_url: where RabbitMQ answers
    :param state: the state directory, which must not be there or be empty; a
        temporary one if not given
    :param keep: whether the state directory stays after ``down()``
    :raises: BadArgument for a URL that is none
    """

    def __init__(self, database_url, bus_url, state=None, keep=False):
        self._state = state and pathlib.Path(state).resolve()
        self._keep = keep
        self._name = 'cloud_%s' % secrets.token_hex(4)
        self._databases = databases.Databases(database_url, self._name + '_')
        self._bus = bus.Bus(bus_url, self._name)
        self._undo = contextlib.ExitStack()
        self.processes = None
        self.settings = None

    def check(self):
        """See that what the cloud needs is there, and change nothing.

        :raises: ServerMissing with a sentence for each server that is not,
            CloudError for a program, BadArgument for a state directory that
            is somebody else's
        """
        if self._state and self._state.exists() and not (
                self._state.is_dir() and not any(self._state.iterdir())):
            raise errors.BadArgument(
                '%s cannot be the state directory: it is not empty, or no '
                'directory.' % self._state)
        services.check()
        missing = []
        for server in (self._databases, self._bus):
            try:
                server.check()
            except errors.ServerMissing as error:
                missing.append(str(error))
        if missing:
            raise errors.ServerMissing('\n'.join(missing))

    def up(self, done):
        """Bring the cloud up.

        :param done: called with the name and the seconds of each step
        :raises: CloudError if something does not come up; ``down()`` is to
            be called all the same
        """
        state = self._make_state()
        self.processes = processes.Processes(state)
        reserved = ports.Ports(settings.APIS)
        self._undo.callback(reserved.release_all)
        self._undo.callback(self._bus.drop)
        self._bus.create()
        self._undo.callback(self._databases.drop)
        self._databases.create()
        # Ends the processes before what they use is removed.
        self._undo.callback(self.processes.close)
        self.settings = settings.Settings(
            state=state, databases=self._databases, bus=self._bus,
            ports=reserved.numbers)
        configuration.write(self.settings)
        self._plan(services.Services(
            self.settings, self.processes, reserved)).run(
                done, self.processes.close)

    def down(self):
        """End and remove all that ``up()`` started and made, as far as it got.

        Each part is tried even where another one fails.
        """
        self._undo.close()

    def _make_state(self):
        try:
            if self._state:
                self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
            state = self._state or pathlib.Path(
                tempfile.mkdtemp(prefix='nova-pending-cloud-'))
        except OSError as error:
            raise errors.CloudError(
                'The state directory cannot be made: %s.' % error)
        if not self._keep:
            self._undo.callback(shutil.rmtree, state, ignore_errors=True)
        return state

    def _plan(self, run):
        steps = plan.Plan()
        self._plan_identity(steps, run)
        self._plan_placement(steps, run)
        self._plan_glance(steps, run)
        self._plan_neutron(steps, run)
        self._plan_nova(steps, run)
        return steps

    def _plan_identity(self, steps, run):
        manage = functools.partial(
            run.command, 'keystone-manage', 'keystone-manage',
            '--config-file', self.settings.etc / 'keystone/keystone.conf')

        def make():
            manage('db_sync')
            manage('bootstrap',
                   '--bootstrap-username', configuration.ADMIN,
                   '--bootstrap-project-name', configuration.ADMIN,
                   '--bootstrap-password', self.settings.password,
                   '--bootstrap-region-id', settings.REGION,
                   '--bootstrap-public-url', self.settings.url('keystone'),
                   '--bootstrap-internal-url', self.settings.url('keystone'))

        steps.add('keystone database', make)
        steps.add('keystone', functools.partial(run.start_api, 'keystone'),
                  'keystone database')
        steps.add('identities', functools.partial(
            identity.seed, self.settings), 'keystone')

    def _plan_placement(self, steps, run):
        steps.add('placement database', functools.partial(
            run.command, 'placement-manage', 'placement-manage',
            '--config-file', self.settings.etc / 'placement/placement.conf',
            'db', 'sync'))
        steps.add('placement', functools.partial(run.start_api, 'placement'),
                  'placement database')

    def _plan_glance(self, steps, run):
        steps.add('glance database', functools.partial(
            run.command, 'glance-manage', 'glance-manage', '--config-file',
            self.settings.etc / 'glance/glance-api.conf', 'db_sync'))
        steps.add('glance', functools.partial(run.start_api, 'glance'),
                  'glance database')

    def _plan_neutron(self, steps, run):
        files = ('neutron/neutron.conf', _ML2)
        options = [argument for path in files
                   for argument in ('--config-file', self.settings.etc / path)]
        steps.add('neutron database', functools.partial(
            run.command, 'neutron-db-manage', 'neutron-db-manage', *options,
            'upgrade', 'heads'))
        steps.add('neutron', functools.partial(run.start_api, 'neutron'),
                  'neutron database')
        steps.add('neutron-rpc-server', functools.partial(
            run.start, 'neutron-rpc-server', 'neutron-rpc-server', *files,
            queue='q-reports-plugin'), 'neutron database')
        steps.add('l2agent', functools.partial(
            run.start, 'l2agent',
            pathlib.Path(__file__).with_name('l2agent.py'), files[0]),
            'neutron-rpc-server')
        steps.add('agents', run.wait_for_agents,
                  'l2agent', 'neutron', 'identities')

    def _plan_nova(self, steps, run):
        manage = functools.partial(
            run.command, 'nova-manage', 'nova-manage', '--config-file',
            self.settings.etc / 'nova/nova.conf')

        def make():
            manage('api_db', 'sync')
            manage('cell_v2', 'map_cell0')
            manage('cell_v2', 'create_cell', '--name', 'cell1')
            manage('db', 'sync')

        steps.add('nova databases', make)
        needs = ('nova databases', 'identities', 'placement')
        steps.add('nova', functools.partial(run.start_api, 'nova'), *needs)
        for name in ('conductor', 'scheduler'):
            steps.add('nova-' + name, functools.partial(
                run.start, 'nova-' + name, 'nova-' + name, 'nova/nova.conf',
                queue=name), *needs)
        for host in self.settings.hosts:
            name = 'nova-compute@%s' % host
            steps.add(name, functools.partial(
                run.start, name, 'nova-compute', '%s/nova.conf' % host),
                'nova-conductor', 'neutron')
        steps.add('hosts', run.wait_for_hosts, 'nova', 'nova-scheduler',
                  *('nova-compute@%s' % host for host in self.settings.hosts))
