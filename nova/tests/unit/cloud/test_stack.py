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

import pathlib
from unittest import mock

import fixtures
import testtools

from tools.cloud import errors
from tools.cloud import plan
from tools.cloud import settings
from tools.cloud import stack


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
        self.assertFalse((self.folder / 'state').exists())

    def test_check_tells_of_every_server_that_is_missing(self):
        self.server('databases.Databases',
                    check=errors.ServerMissing('no MariaDB'))
        self.server('bus.Bus', check=errors.ServerMissing('no RabbitMQ'))
        error = self.assertRaises(errors.ServerMissing, self.stack().check)
        self.assertEqual('no MariaDB\nno RabbitMQ', str(error))
        self.assertEqual([], list(self.folder.iterdir()))

    def test_directory_of_somebody_else_is_refused_before_anything(self):
        (self.folder / 'state').mkdir()
        (self.folder / 'state' / 'precious').touch()
        (self.folder / 'file').touch()
        for state in ('state', 'file'):
            self.assertRaises(errors.BadArgument, self.stack(state).check)
        self.assertEqual([], self.calls)

    def test_two_clouds_have_different_names(self):
        self.assertNotEqual(self.stack()._name, self.stack()._name)


class PlanOfStackTestCase(testtools.TestCase):
    """What the steps of a cloud need, without running any."""

    def setUp(self):
        super().setUp()
        cloud = stack.Stack('mysql+pymysql://root@h', 'rabbit://h/')
        cloud.settings = settings.Settings(
            state=pathlib.Path('/state'), databases=None, bus=None,
            ports=dict.fromkeys(settings.APIS, 20000))
        self.needs = cloud._plan(mock.Mock())._needs

    def before(self, step):
        """Return all steps that are done before a step."""
        found = set(self.needs[step])
        for need in self.needs[step]:
            found |= self.before(need)
        return found

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
