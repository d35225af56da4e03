# SPDX-License-Identifier: Apache-2.0

import functools
import pathlib
import subprocess
import sys
from unittest import mock

import fixtures
import testtools

from tools.cloud import errors
from tools.cloud import plan
from tools.cloud import private_servers
from tools.cloud import processes
from tools.cloud import profiles
from tools.cloud import settings
from tools.cloud import stack

ROOT = pathlib.Path(__file__).resolve().parents[4]


class StackTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.calls = []
        for name in ('databases.Databases', 'bus.Bus'):
            self.server(name)
        for name in ('services.check', 'configuration.write'):
            self.useFixture(fixtures.MockPatch('tools.cloud.' + name))
        self.step = lambda: None
        self.useFixture(fixtures.MockPatchObject(
            stack.Stack, '_plan', lambda cloud, run: self.plan()))

    def server(self, name, **fails):
        """Let the class of a server note what is asked of it."""
        server = mock.Mock(shared=False)
        for method in ('check', 'create', 'drop'):
            def call(method=method):
                self.calls.append('%s %s' % (name, method))
                if method in fails:
                    raise fails[method]
            setattr(server, method, call)
        self.useFixture(fixtures.MockPatch(
            'tools.cloud.' + name, return_value=server))

    def plan(self):
        steps = plan.Plan()
        steps.add('step', lambda: self.step())
        return steps

    def stack(self, state='state', **kwargs):
        return stack.Stack('db', 'mq', self.folder / state, **kwargs)

    def up(self, cloud):
        cloud.up(lambda name, seconds: self.calls.append(name))

    def test_up_and_down_leave_nothing(self):
        cloud = self.stack()
        cloud.check()
        self.up(cloud)
        self.assertTrue(cloud.settings.state.is_dir())
        cloud.down()
        self.assertEqual([
            'databases.Databases check', 'bus.Bus check',
            'bus.Bus create', 'databases.Databases create', 'step',
            'databases.Databases drop', 'bus.Bus drop'], self.calls)
        self.assertFalse(cloud.settings.state.exists())

    def test_without_a_directory_a_temporary_one_is_made_and_removed(self):
        cloud = stack.Stack('db', 'mq')
        self.up(cloud)
        state = cloud.settings.state
        self.assertTrue(state.is_dir())
        self.assertEqual(0o700, state.stat().st_mode & 0o777)
        cloud.down()
        self.assertFalse(state.exists())

    def test_kept_directory_stays_and_all_else_goes(self):
        cloud = self.stack(keep=True)
        self.up(cloud)
        cloud.down()
        self.assertTrue((cloud.settings.state / 'log').is_dir())
        self.assertIn('databases.Databases drop', self.calls)
        self.assertIn('bus.Bus drop', self.calls)

    def test_processes_end_before_what_they_use_is_removed(self):
        def start():
            self.started = cloud.processes.start('sleep', ['sleep', '60'])

        alive = []
        cloud = self.stack()
        cloud._databases.drop = lambda: alive.append(self.started.alive)
        self.step = start
        self.up(cloud)
        self.assertTrue(self.started.alive)
        cloud.down()
        self.assertEqual([False], alive)

    def test_step_that_fails_leaves_nothing_either(self):
        def fail():
            cloud.processes.start('sleep', ['sleep', '60'])
            self.started = cloud.processes.running()['sleep']
            raise errors.CloudError('no')

        cloud = self.stack()
        self.step = fail
        self.assertRaises(errors.CloudError, self.up, cloud)
        cloud.down()
        self.assertFalse(self.started.alive)
        self.assertFalse((self.folder / 'state').exists())
        self.assertIn('databases.Databases drop', self.calls)
        self.assertIn('bus.Bus drop', self.calls)

    def test_one_part_that_cannot_be_removed_does_not_keep_the_others(self):
        self.server('databases.Databases', drop=errors.CloudError('gone'))
        cloud = self.stack()
        self.up(cloud)
        self.assertRaises(errors.CloudError, cloud.down)
        self.assertIn('bus.Bus drop', self.calls)
        # What is left over can be removed later.
        self.assertTrue((self.folder / 'state' / 'cloud.json').exists())

    def test_check_tells_of_every_server_that_is_missing(self):
        self.server('databases.Databases',
                    check=errors.ServerMissing('no MariaDB'))
        self.server('bus.Bus', check=errors.ServerMissing('no RabbitMQ'))
        error = self.assertRaises(errors.ServerMissing, self.stack().check)
        self.assertEqual('no MariaDB\nno RabbitMQ', str(error))
        self.assertEqual([], list(self.folder.iterdir()))

    def test_what_real_guests_need_is_looked_for_before_anything(self):
        with mock.patch('tools.cloud.hypervisor.check',
                        side_effect=errors.ServerMissing('no QEMU')):
            self.stack().check()
            self.assertRaises(
                errors.ServerMissing, self.stack(libvirt=True).check)
        self.assertEqual([], list(self.folder.iterdir()))

    def test_directory_of_somebody_else_is_refused_before_anything(self):
        (self.folder / 'state').mkdir()
        (self.folder / 'state' / 'precious').touch()
        (self.folder / 'file').touch()
        for state in ('state', 'file'):
            self.assertRaises(errors.BadArgument, self.stack(state).check)
        self.assertEqual([], self.calls)

    def test_servers_of_its_own_are_there_before_anything_is_made_in_them(
            self):
        for name, prefix in (('Databases', 'databases'), ('Bus', 'bus')):
            server = getattr(private_servers, name)
            for method in ('check', 'create', 'drop'):
                self.useFixture(fixtures.MockPatchObject(
                    server, method, lambda server, note='own %s %s' % (
                        prefix, method): self.calls.append(note)))
            self.useFixture(fixtures.MockPatchObject(
                server, 'add_steps', lambda server, steps, *args: [
                    steps.add(each, lambda: None)
                    for each in server.processes[-1:]]))
        cloud = stack.Stack(None, None, self.folder / 'state')
        cloud.check()
        self.up(cloud)
        self.assertEqual(['own databases check', 'own bus check'],
                         self.calls[:2])
        self.assertEqual({'mariadb', 'rabbitmq'}, set(self.calls[2:4]))
        self.assertEqual(['own bus create', 'own databases create', 'step'],
                         self.calls[4:])
        self.calls.clear()
        again = profiles.load(self.folder / 'state')
        self.assertEqual(cloud.settings.databases.url('nova'),
                         again.settings.databases.url('nova'))
        self.assertEqual(cloud.settings.bus.url, again.settings.bus.url)
        # Those of the first one are held to its end.
        with mock.patch('tools.cloud.ports.Ports'):
            again.start(lambda name, seconds: self.calls.append(name))
        self.assertEqual({'mariadb', 'rabbitmq'}, set(self.calls[2:4]))
        self.assertEqual(['step'], self.calls[4:])
        self.calls.clear()
        cloud.down()
        self.assertEqual(['own databases drop', 'own bus drop'], self.calls)

    def test_two_clouds_have_different_names(self):
        self.assertNotEqual(self.stack()._name, self.stack()._name)


# Brings up a cloud whose one step starts a process and does not end.
KILLED = '''
import pathlib, sys, time
from unittest import mock
from tools.cloud import configuration, plan, services, stack

class Databases:
    def __init__(self, folder):
        self.folder = folder
    def check(self): pass
    def create(self): (self.folder / 'databases').touch()
    def drop(self): (self.folder / 'databases').unlink()

class Stack(stack.Stack):
    def servers(self, database_url, bus_url):
        return Databases(self.state.parent), mock.Mock(shared=False)
    def write_configuration(self): pass
    def _plan(self, run):
        def step():
            self.processes.start('service', ['sleep', '60'])
            print(self.processes.running()['service'].pid, flush=True)
            if sys.argv[2:] == ['endless']:
                time.sleep(60)
        steps = plan.Plan()
        steps.add('service', step)
        return steps

services.check = lambda *_: None
stack.Stack = Stack
if __name__ == '__main__':
    cloud = Stack('db', 'mq', sys.argv[1])
    cloud.check()
    cloud.up(lambda name, seconds: None)
'''


class AnotherProcessTestCase(testtools.TestCase):
    """What is left of a cloud when the process that made it is gone."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.state = self.folder / 'state'
        self.useFixture(fixtures.MonkeyPatch(
            'tools.cloud.stack.Stack', stack.Stack))
        self.useFixture(fixtures.MonkeyPatch(
            'tools.cloud.services.check', None))
        exec(KILLED, {'__name__': 'cloud'})

    def bring_up(self, *args):
        """Bring a cloud up in a process of its own.

        :returns: the process, and the number of that of its service
        """
        child = subprocess.Popen(
            [sys.executable, '-c', KILLED, self.state, *args], cwd=ROOT,
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        service = int(child.stdout.readline())
        self.addCleanup(
            lambda: self.state.exists() and profiles.load(self.state).down())
        return child, service

    def test_cloud_is_found_and_taken_down(self):
        child, service = self.bring_up()
        self.assertEqual(0, child.wait(20))
        cloud = profiles.load(self.state)
        self.assertTrue(cloud.made)
        self.assertEqual(service, cloud.find('service').pid)
        self.assertTrue(cloud.find('service').alive)
        self.assertTrue((self.folder / 'databases').exists())
        cloud.lock()
        cloud.down()
        self.assertIsNone(processes.start_time(service))
        self.assertEqual([], list(self.folder.iterdir()))

    def test_killed_way_up_is_cleaned_up(self):
        child, service = self.bring_up('endless')
        child.kill()
        child.wait()
        self.assertIsNotNone(processes.start_time(service))
        cloud = profiles.load(self.state)
        self.assertFalse(cloud.made)
        self.assertRaises(errors.BadArgument, cloud.start, None)
        cloud.down()
        self.assertIsNone(processes.start_time(service))
        self.assertEqual([], list(self.folder.iterdir()))

    def test_way_up_is_not_disturbed(self):
        child, service = self.bring_up('endless')
        cloud = profiles.load(self.state)
        self.assertRaises(errors.CloudError, cloud.lock)
        self.assertRaises(
            errors.BadArgument, stack.Stack('db', 'mq', self.state).check)
        self.assertIsNotNone(processes.start_time(service))

    def test_what_has_ended_is_started_again_and_the_rest_left_alone(self):
        child, service = self.bring_up()
        child.wait(20)
        cloud = profiles.load(self.state)
        cloud.find('service').kill()
        self.assertFalse(cloud.find('service').alive)
        done = []
        cloud.start(lambda name, seconds: done.append(name))
        self.assertEqual(['service'], done)
        again = cloud.find('service').pid
        self.assertNotEqual(service, again)
        profiles.load(self.state).start(
            lambda name, seconds: done.append(name))
        # It was alive.
        self.assertEqual(['service'], done)
        self.assertIsNotNone(processes.start_time(again))
        cloud.down()

    def test_service_is_started_again(self):
        child, service = self.bring_up()
        child.wait(20)
        cloud = profiles.load(self.state)
        cloud.restart('service', lambda *_: None)
        self.assertIsNone(processes.start_time(service))
        self.assertTrue(cloud.find('service').alive)
        self.assertRaises(
            errors.BadArgument, cloud.restart, 'nope', lambda *_: None)
        cloud.down()

    def _two_services(self):
        """Bring up a cloud of two, of which one waits for reports."""
        def plan_of(cloud, run):
            steps = plan.Plan()
            for name in ('nova-compute@host1', 'nova-compute@host2'):
                steps.add(name, functools.partial(
                    cloud.processes.start, name, [self.program, '60']))
            steps.add('hosts', lambda: (
                self.waited.append(True), cloud.processes.check()),
                'nova-compute@host1', 'nova-compute@host2')
            return steps

        self.waited = []
        self.program = 'sleep'
        self.useFixture(fixtures.MockPatchObject(
            stack.Stack, '_plan', plan_of))
        cloud = stack.Stack('db', 'mq', self.state)
        cloud.check()
        cloud.up(lambda *_: None)
        self.addCleanup(cloud.down)
        self.waited.clear()
        return cloud

    def test_service_is_started_again_though_another_has_ended(self):
        cloud = self._two_services()
        for name in ('nova-compute@host1', 'nova-compute@host2'):
            cloud.find(name).kill()
        cloud.restart('nova-compute@host1', lambda *_: None)
        self.assertTrue(cloud.find('nova-compute@host1').alive)
        self.assertEqual(['nova-compute@host2'], cloud.ended())
        # Its report could be what is waited for.
        self.assertEqual([], self.waited)
        cloud.restart('nova-compute@host2', lambda *_: None)
        self.assertEqual([], cloud.ended())
        self.assertEqual([True], self.waited)
        cloud.restart('nova-compute@host2', lambda *_: None, waits=False)
        self.assertTrue(cloud.find('nova-compute@host2').alive)
        self.assertEqual([True], self.waited)

    def test_service_that_does_not_come_up_ends_no_other(self):
        cloud = self._two_services()
        self.program = 'no-such-program'
        self.assertRaises(errors.CloudError, cloud.restart,
                          'nova-compute@host1', lambda *_: None)
        self.assertTrue(cloud.find('nova-compute@host2').alive)

    def test_stopped_cloud_keeps_what_it_made(self):
        child, service = self.bring_up()
        child.wait(20)
        cloud = profiles.load(self.state)
        cloud.stop()
        self.assertIsNone(processes.start_time(service))
        self.assertTrue((self.folder / 'databases').exists())
        cloud.start(lambda *_: None)
        self.assertTrue(cloud.find('service').alive)
        cloud.down()

    def test_there_is_no_cloud(self):
        error = self.assertRaises(
            errors.BadArgument, profiles.load, self.state)
        self.assertEqual('There is no cloud in %s.' % self.state, str(error))


class PlanOfStackTestCase(testtools.TestCase):
    """What the steps of a cloud need, without running any."""

    def setUp(self):
        super().setUp()
        cloud = stack.Stack('mysql+pymysql://root@h', 'rabbit://h/')
        cloud.settings = settings.Settings(
            state=pathlib.Path('/state'), databases=mock.Mock(), bus=None,
            ports=dict.fromkeys(settings.APIS, 20000))
        self.needs = cloud._plan(mock.Mock())._needs

    def before(self, step):
        """Return all steps that are done before a step."""
        found = set(self.needs[step])
        for need in self.needs[step]:
            found |= self.before(need)
        return found

    def test_each_host_waits_for_the_conductor_of_its_cell(self):
        cloud = stack.Stack('mysql+pymysql://root@h', 'rabbit://h/',
                            cells=2, conductors=2)
        cloud.settings = settings.Settings(
            state=pathlib.Path('/state'), databases=mock.Mock(),
            bus=mock.Mock(), ports=dict.fromkeys(settings.APIS, 20000),
            cells=2, conductors=2)
        needs = cloud._plan(mock.Mock())._needs
        self.assertIn('nova-conductor@cell1', needs['nova-compute@compute1'])
        self.assertIn('nova-conductor@cell2', needs['nova-compute@compute2'])
        self.assertLessEqual(
            {'nova-conductor', 'nova-conductor@control2',
             'nova-conductor@cell1', 'nova-conductor@cell2'},
            set(needs['hosts']))
        self.assertLessEqual(
            {'nova cell0 database', 'nova cell1 database',
             'nova cell2 database', 'nova cells'},
            set(needs['nova databases']))

    def test_host_with_real_guests(self):
        cloud = stack.Stack('mysql+pymysql://root@h', 'rabbit://h/',
                            libvirt=True)
        self.assertIn('libvirt', cloud.description)
        cloud.settings = settings.Settings(
            state=pathlib.Path('/state'), databases=mock.Mock(),
            bus=mock.Mock(), ports=dict.fromkeys(settings.APIS, 20000),
            libvirt=True)
        steps = cloud._plan(mock.Mock())
        self.needs = steps._needs
        self.assertLessEqual(
            {'libvirtd', 'nova-conductor', 'neutron'},
            self.before('nova-compute@compute3'))
        self.assertLessEqual(
            {'nova-compute@compute3', 'guest files', 'glance'},
            self.before('guest'))
        self.assertLessEqual({'guest', 'guest files'}, steps.once)

    def test_every_step_needs_only_steps_that_are_there(self):
        for needs in self.needs.values():
            self.assertLessEqual(set(needs), set(self.needs))

    def test_hosts_are_waited_for_when_all_of_nova_is_started(self):
        self.assertLessEqual(
            {'nova', 'nova-conductor', 'nova-scheduler',
             'nova-compute@compute1', 'nova-compute@compute2', 'placement',
             'neutron', 'identities'}, self.before('hosts'))

    def test_no_service_starts_before_its_database(self):
        for service, database in (
                ('keystone', 'keystone database'),
                ('placement', 'placement database'),
                ('glance', 'glance database'),
                ('neutron', 'neutron database'),
                ('neutron-rpc-server', 'neutron database'),
                ('nova', 'nova databases'),
                ('nova-conductor', 'nova databases'),
                ('nova-compute@compute1', 'nova databases')):
            self.assertIn(database, self.before(service))
