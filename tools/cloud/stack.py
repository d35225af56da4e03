# SPDX-License-Identifier: Apache-2.0

"""A cloud that comes up, is changed and goes down."""

import contextlib
import functools
import pathlib
import secrets
import shutil
import tempfile

from oslo_utils import units

from tools.cloud import bus
from tools.cloud import configuration
from tools.cloud import dashboard
from tools.cloud import databases
from tools.cloud import errors
from tools.cloud import hypervisor
from tools.cloud import plan
from tools.cloud import ports
from tools.cloud import private_servers
from tools.cloud import processes
from tools.cloud import reaper
from tools.cloud import record
from tools.cloud import services
from tools.cloud import settings
from tools.cloud import stack_plan

# What a new cloud may write before anything is done with it, with a reserve.
_NEEDED_MIB = 100

# Steps that start nothing, but wait for what other steps started.
_WAITS = ('agents', 'hosts', 'volumes', 'reaper lists')
_HAVE_QUEUES = ('nova-conductor', 'nova-scheduler')


def disk_room(path):
    """Return how many MiB are left where a path is or is to be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free // units.Mi


class Stack:
    """One cloud, from the check of its servers to its last trace.

    What is there is noted in the state directory (record.Record), so that
    another process can go on with the cloud: see profiles.load().

    :param database_url: where MariaDB or PostgreSQL answers, or None for a
        MariaDB of the cloud's own
    :param bus_url: where RabbitMQ answers, or None for one of the cloud's own
    :param state: the state directory, which must not be there or be empty; a
        temporary one if not given
    :param keep: whether the state directory stays after ``down()``
    :param given_ports: numbers, by API, in place of any free ports
    :param name: the name of a cloud that is there
    :param choices: of what settings.Settings has, what the user chose
    :raises: BadArgument for a URL that is none
    """

    #: The name of the profile.
    profile = 'services'

    #: What a cloud of it is made of, in sentences.
    description = (
        'nova-api, nova-conductor, nova-scheduler and each nova-compute are '
        'processes of their own, and so are Keystone, Placement, Glance and '
        'the services of Neutron and Cinder, with a database server and '
        'RabbitMQ.')

    #: What starts the services. Who wants some of them started otherwise
    #: has a subclass of it.
    service_class = services.Services

    #: What says in which order they come up.
    plan_class = stack_plan.StackPlan

    def __init__(self, database_url, bus_url, state=None, keep=False,
                 given_ports=None, name=None, **choices):
        self._name = name or 'cloud_%s' % secrets.token_hex(4)
        #: The state directory.
        self.state = pathlib.Path(state or pathlib.Path(
            tempfile.gettempdir(), 'nova-pending-' + self._name)).resolve()
        self._urls = database_url, bus_url
        self._keep = keep
        self._given_ports = given_ports or {}
        self._choices = choices
        self._databases, self._bus = self.servers(database_url, bus_url)
        # Those of the two that are servers of the cloud's own.
        self._private = [
            server for server in (self._databases, self._bus) if isinstance(
                server, (private_servers.Databases, private_servers.Bus))]
        self._hypervisor = hypervisor.Hypervisor(
            self.state / 'var/libvirt', self._name) if (
                choices.get('libvirt')) else None
        if self._hypervisor:
            self.description += (
                ' One nova-compute more has Nova\'s libvirt driver, and QEMU '
                'under it.')
        self._record = record.Record(self.state)
        self._undo = contextlib.ExitStack()
        self.processes = None
        self.services = None
        self.settings = None

    @staticmethod
    def find_urls(database_url, bus_url, private):
        """Return the URLs that a new cloud is made with.

        :param database_url: the URL that was given, if one was
        :param bus_url: the URL that was given, if one was
        :param private: whether servers of its own were asked for
        :raises: BadArgument if it cannot have them
        """
        return private_servers.find_urls(database_url, bus_url, private)

    def servers(self, database_url, bus_url):
        """Return the Databases and the Bus; nothing of them is made yet."""
        # Their names follow from how many cells were chosen.
        chosen = settings.Settings(
            state=self.state, databases=None, bus=None, ports={},
            **self._choices)
        names = [*databases.NAMES,
                 *map(chosen.cell_database, chosen.cell_names[1:])]
        prefix, cells = self._name + '_', chosen.separate_cells
        return (
            private_servers.Databases(chosen.var / 'mariadb', prefix, names)
            if database_url is None
            else databases.Databases(database_url, prefix, names),
            private_servers.Bus(chosen.var / 'rabbitmq', self._name, cells)
            if bus_url is None else bus.Bus(bus_url, self._name, cells))

    def write_configuration(self):
        """Write the configuration of all services."""
        configuration.write(self.settings)

    def check(self):
        """See that what a new cloud needs is there, and change nothing.

        :raises: ServerMissing with a sentence for each server that is not,
            CloudError for a program or the disk, BadArgument for a state
            directory that is somebody else's
        """
        if self._record.read() is not None:
            raise errors.BadArgument(
                'There is a cloud in %s already: take it down, or give '
                'another --state-dir.' % self.state)
        if not self._record.is_free():
            raise errors.BadArgument(
                '%s cannot be the state directory: it is not empty, or no '
                'directory.' % self.state)
        room = disk_room(self.state)
        needed = _NEEDED_MIB + sum(each.needed_mib for each in (
            *self._private, *filter(None, [self._hypervisor])))
        if room < needed:
            raise errors.CloudError(
                'The disk of %s has %d MiB left, and a cloud needs %d.' % (
                    self.state, room, needed))
        self.check_servers()

    def check_servers(self):
        """See that the programs and the servers of the cloud are there.

        :raises: ServerMissing, CloudError
        """
        services.check(self._choices.get('in_tree'))
        if self._choices.get('dashboard'):
            dashboard.check()
        if self._choices.get('reaper'):
            reaper.check()
        if self._hypervisor:
            hypervisor.check()
        missing = []
        for server in (self._databases, self._bus):
            try:
                server.check()
            except errors.ServerMissing as error:
                missing.append(str(error))
        if missing:
            raise errors.ServerMissing('\n'.join(missing))

    def up(self, done, started=lambda name: None):
        """Bring a new cloud up.

        :param done: called with the name and the seconds of each step
        :param started: called with the name of each step that begins
        :raises: CloudError if something does not come up; ``down()`` is to
            be called all the same
        """
        reserved = ports.Ports(
            [*settings.APIS,
             *([dashboard.NAME] if self._choices.get('dashboard') else []),
             *([reaper.NAME] if self._choices.get('reaper') else []),
             *(name for server in self._private for name in server.ports)],
            self._given_ports)
        self._undo.callback(reserved.release_all)
        self._make_state()
        self._record.write({
            'name': self._name, 'profile': self.profile,
            'database_url': self._urls[0], 'bus_url': self._urls[1],
            'keep': self._keep, 'choices': self._choices,
            'ports': reserved.numbers, 'password': secrets.token_hex(16),
            'shared': self._bus.shared, 'made': False})
        self._resume()
        self._start_servers(reserved, done, started, lambda steps: None)
        self._bus.create()
        self._record.update(shared=self._bus.shared)
        self._databases.create()
        self.write_configuration()
        self._run(reserved, done, started, lambda steps: None)
        self._record.update(made=True)

    def adopt(self):
        """Go on with the cloud that is noted in the state directory."""
        self._undo.push(self._remove_state)
        self._resume()

    def _resume(self):
        facts = self._record.read()
        self._bus.shared = facts['shared']
        for server in self._private:
            server.settle(facts['ports'], facts['password'])
        self.processes = processes.Processes(self.state, self._name, last={
            hypervisor.PROCESS, *(name for server in self._private
                                  for name in server.processes)})
        self.settings = settings.Settings(
            state=self.state, databases=self._databases, bus=self._bus,
            ports=facts['ports'], password=facts['password'],
            hypervisor=self._hypervisor, **self._choices)
        if self._hypervisor:
            self._undo.callback(self._hypervisor.drop)
        self._undo.callback(self._bus.drop)
        self._undo.callback(self._databases.drop)
        # Ends the processes before what they use is removed.
        self._undo.callback(self.processes.close)

    def lock(self):
        """Let no other process change the cloud before this one has ended.

        :raises: CloudError if another process does
        """
        self._record.lock()

    @property
    def made(self):
        """Say whether the cloud has come up once."""
        return bool((self._record.read() or {}).get('made'))

    def start(self, done, started=lambda name: None):
        """Start what does not run of a cloud that came up once.

        :param done: called with the name and the seconds of each step
        :param started: called with the name of each step that begins
        :raises: CloudError if something does not come up, or if the cloud
            never came up to its end
        """
        if not self.made:
            raise errors.BadArgument(
                'The cloud in %s never came up to its end: take it down.'
                % self.state)
        self.check_servers()
        alive = {name for name, process in self.processes.running().items()
                 if process.alive}
        self.processes.stop(set(self.processes.running()) - alive)

        def ended(name):
            return not {name, name + '-api'} & alive

        def choose(steps):
            return {name for name in steps
                    if name not in steps.once and ended(name)}

        reserved = ports.Ports((), {
            name: number for name, number in self.settings.ports.items()
            # One server has two ports.
            if ended(name.removesuffix('-dist')) and (
                name != 'cinder' or self.settings.cinder)})
        with contextlib.ExitStack() as held:
            held.callback(reserved.release_all)
            self._start_servers(reserved, done, started, choose)
            self._run(reserved, done, started, choose)

    def restart(self, service, done, started=lambda name: None, waits=True):
        """End a service and start it again, whatever the others do.

        If it does not come up it is ended, and the others go on.

        :param service: the name of its process
        :param done: called with the name and the seconds of each step
        :param started: called with the name of each step that begins
        :param waits: whether to wait for what it reports of itself
        :raises: BadArgument if there is no such service, CloudError if it
            does not come up
        """
        self.find(service)
        self.processes.stop({service})
        ended = self.ended()
        api = service.removesuffix('-api')
        reserved = ports.Ports((), {
            api: self.settings.ports[api]} if service != api else {})

        def choose(steps):
            # What has an API or a queue is waited for by the step that starts
            # it; what it reports of itself comes up to a minute later. What
            # would be asked for another's report may be what has ended.
            reports = {name for name in steps.needing(api)
                       if waits and service == api and name in _WAITS and
                       not ended and not service.startswith(_HAVE_QUEUES)}
            return ({api} | reports).intersection(steps)

        abort = functools.partial(self.processes.close, names={service})
        with contextlib.ExitStack() as held:
            held.callback(reserved.release_all)
            held.callback(self.processes.reopen)
            self._start_servers(reserved, done, started, choose, abort)
            self._run(reserved, done, started, choose, abort)

    def ended(self):
        """Return the names of the services that have ended by themselves."""
        return sorted(name for name, process in self.processes.running(
            ).items() if process.lasting and not process.alive)

    def find(self, service):
        """Return the processes.Process of a service.

        :raises: BadArgument if there is no such service
        """
        running = self.processes.running()
        if service not in running:
            raise errors.BadArgument(
                'The cloud in %s has no service %s; it has: %s.' % (
                    self.state, service, ', '.join(sorted(running)) or 'none'))
        return running[service]

    def stop(self):
        """End all processes, and leave what they made."""
        self.processes.close()
        self.processes.reopen()

    def down(self):
        """End and remove all that ``up()`` started and made, as far as it got.

        Each part is tried even where another one fails. The state directory
        stays then, so that it can be tried again.
        """
        self._undo.close()

    def _start_servers(self, reserved, done, started, choose, abort=None):
        steps = plan.Plan()
        for server in self._private:
            server.add_steps(steps, self.processes, reserved)
        steps.run(done, abort or self.processes.close, choose(steps), started)

    def _run(self, reserved, done, started, choose, abort=None):
        self.services = self.service_class(
            self.settings, self.processes, reserved)
        steps = self._plan(self.services)
        steps.run(done, abort or self.processes.close, choose(steps), started)

    def _plan(self, run):
        return self.plan_class(
            self.settings, self.processes, self._hypervisor).make(run)

    def _make_state(self):
        try:
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise errors.CloudError(
                'The state directory cannot be made: %s.' % error)
        self._record.lock()
        self._undo.callback(self._record.unlock)
        if not self._record.is_free():
            raise errors.BadArgument(
                'Somebody else has begun to use %s.' % self.state)
        self._undo.push(self._remove_state)

    def _remove_state(self, exc_type, *_):
        if exc_type is None:
            if self._keep:
                self._record.forget()
            else:
                shutil.rmtree(self.state, ignore_errors=True)
