# SPDX-License-Identifier: Apache-2.0

import pathlib
from unittest import mock

import fixtures
import testtools

from tools.cloud import screen


class ScreenTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.out = self.useFixture(fixtures.StringStream('out')).stream
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.out))
        self.screen = screen.Screen()

    def written(self):
        self.out.seek(0)
        return self.out.read()

    def test_step_is_shown_with_its_seconds(self):
        with self.screen.steps() as (done, started):
            started('keystone')
            done('keystone', 1.25)
        self.assertEqual('    1.2 s  keystone\n', self.written())

    def cloud(self, **alive):
        cloud = mock.Mock()
        cloud.settings.ports = {'nova': 8774, 'mariadb': 3307}
        cloud.processes.running.return_value = {
            name.replace('_', '-'): mock.Mock(
                alive=value, pid=number + 10, members=lambda: [1, 2])
            for number, (name, value) in enumerate(alive.items())}
        return cloud

    def test_services_are_shown_with_port_pid_and_memory(self):
        with mock.patch('tools.cloud.processes.memory',
                        return_value=3 * 2 ** 20):
            self.assertTrue(self.screen.services(
                self.cloud(mariadb=True, nova_api=True, nova_scheduler=True)))
        self.assertEqual([
            ['service', 'port', 'pid', 'processes', 'MiB'],
            ['mariadb', '3307', '10', '2', '3'],
            ['nova-api', '8774', '11', '2', '3'],
            ['nova-scheduler', '12', '2', '3'], ['in', 'all', '9']],
            [line.split() for line in self.written().splitlines()])

    def test_service_that_has_ended_is_told(self):
        self.assertFalse(self.screen.services(
            self.cloud(nova_api=False, nova_scheduler=True)))
        self.assertIn('has ended', self.written())

    def test_cloud_without_processes_does_not_run(self):
        self.assertFalse(self.screen.services(self.cloud()))

    def test_timeline_has_the_time_and_the_seconds_of_each_step(self):
        self.useFixture(fixtures.EnvironmentVariable('TZ', 'UTC'))
        self.screen.timeline([('A step', 0, 1.25)])
        self.assertRegex(self.written(),
                         r'\d\d:\d\d:\d\d     1\.2 s  A step\n')

    def test_next_line_names_a_directory_that_is_not_the_default(self):
        for name in ('CLOUD_STATE_DIR', 'XDG_STATE_HOME'):
            self.useFixture(fixtures.EnvironmentVariable(name))
        self.useFixture(fixtures.EnvironmentVariable('HOME', '/home/me'))
        self.assertTrue(screen.command(
            pathlib.Path('/home/me/.local/state/nova-pending/cloud'),
            'down').endswith(' -m tools.cloud down'))
        self.assertTrue(screen.command(
            pathlib.Path('/x y'), 'exec', 'openstack').endswith(
                " -m tools.cloud exec --state-dir '/x y' openstack"))
