# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
import subprocess
from unittest import mock

import fixtures
import testtools

from tools.cloud import errors
from tools.cloud import hypervisor
from tools.cloud import processes

# Listens where libvirtd does, and notes what it was started with.
LIBVIRTD = '''#!/bin/sh
env > %s
exec python3 -c "
import os, socket, time
folder = os.environ['XDG_RUNTIME_DIR'] + '/libvirt'
os.makedirs(folder, exist_ok=True)
server = socket.socket(socket.AF_UNIX)
server.bind(folder + '/libvirt-sock')
server.listen()
time.sleep(60)"
'''


class CheckTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.programs = self.patch('processes.find_program', '/here')
        self.guest = self.patch('guest.missing', {})
        for name, value in (
                ('platform.machine', 'x86_64'), ('glob.glob', ['/here']),
                ('importlib.util.find_spec', mock.Mock()),
                ('os.geteuid', 1000)):
            self.patch('hypervisor.' + name, value)

    def patch(self, name, value):
        return self.useFixture(fixtures.MockPatch(
            'tools.cloud.' + name, return_value=value)).mock

    def refused(self, error=errors.ServerMissing):
        return str(self.assertRaises(error, hypervisor.check))

    def test_all_is_there(self):
        hypervisor.check()

    def test_programs_that_are_missing_are_told_with_their_packages(self):
        self.programs.side_effect = lambda name: name != 'qemu-img' or None
        self.assertEqual(
            'A host with real guests needs qemu-img, which this machine has '
            'not (on Debian: apt install qemu-utils).', self.refused())
        self.programs.side_effect = None
        self.programs.return_value = None
        for word in ('qemu-system-x86_64', 'libvirtd', 'qemu-system-x86',
                     'libvirt-daemon'):
            self.assertIn(word, self.refused())

    def test_driver_that_is_missing(self):
        self.patch('hypervisor.glob.glob', [])
        self.assertIn('libvirt-daemon-driver-qemu', self.refused())

    def test_what_the_guest_needs(self):
        self.guest.return_value = {'a static busybox': 'busybox-static'}
        self.assertIn('needs a static busybox, which', self.refused())
        self.assertIn('apt install busybox-static)', self.refused())

    def test_module_that_is_missing(self):
        self.patch('hypervisor.importlib.util.find_spec', None)
        self.assertIn('pip install -r tools/cloud/libvirt-requirements.txt',
                      self.refused())

    def test_other_machine(self):
        self.patch('hypervisor.platform.machine', 'aarch64')
        self.assertIn('x86_64', self.refused(errors.CloudError))

    def test_root_without_user_namespaces(self):
        self.patch('hypervisor.os.geteuid', 0)
        run = self.patch('hypervisor.subprocess.run', mock.Mock(returncode=0))
        hypervisor.check()
        run.return_value.returncode = 1
        self.assertIn('as another user', self.refused(errors.CloudError))


class HypervisorTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.name = 'cloud_test_%d' % os.getpid()
        self.programs = self.state / 'programs'
        self.programs.mkdir()
        self.useFixture(fixtures.MockPatch(
            'tools.cloud.processes.find_program',
            lambda name: str(self.programs / name)))
        self.useFixture(fixtures.MockPatch(
            'os.geteuid', return_value=1000))
        self.program('libvirtd', LIBVIRTD % (self.state / 'environment'))
        self.program('qemu-system-x86_64', '#!/bin/sh\nenv\necho "$@"\n')
        self.processes = processes.Processes(self.state, self.name)
        self.addCleanup(self.processes.close)
        self.hypervisor = hypervisor.Hypervisor(
            self.state / ('deep/' * 20) / 'var/libvirt', self.name)
        self.addCleanup(self.hypervisor.drop)

    def program(self, name, text):
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def test_libvirtd_has_directories_of_its_own_and_short_ones(self):
        self.hypervisor.start(self.processes)
        environment = dict(
            line.split('=', 1) for line in
            (self.state / 'environment').read_text().splitlines())
        for name in ('HOME', 'XDG_RUNTIME_DIR', 'XDG_CONFIG_HOME',
                     'XDG_CACHE_HOME', 'XDG_DATA_HOME'):
            self.assertIn('/tmp/%s/' % self.name, environment[name])
            self.assertTrue(pathlib.Path(
                environment[name]).resolve().is_relative_to(self.state))
        self.assertEqual(
            'qemu+unix:///session?socket=/tmp/%s/run/libvirt/libvirt-sock'
            % self.name, self.hypervisor.uri)
        self.assertIn(hypervisor.PROCESS, self.processes.running())

    def test_guests_bear_the_mark_of_the_cloud(self):
        self.hypervisor.start(self.processes)
        answer = subprocess.run(
            ['qemu-system-x86_64', '-name', 'a b'], capture_output=True,
            text=True, env={'PATH': '/tmp/%s/bin:/usr/bin:/bin' % self.name})
        self.assertIn('%s=%s\n' % (processes.MARK, self.name), answer.stdout)
        self.assertTrue(answer.stdout.endswith('-name a b\n'))

    def test_root_is_another_user_for_libvirtd(self):
        running = mock.Mock()
        with mock.patch('os.geteuid', return_value=0):
            self.hypervisor.start(running)
        argv = running.start.call_args.args[1]
        self.assertEqual(('unshare', '--user'), tuple(argv[:2]))

    def test_nothing_is_left_outside_of_the_state_directory(self):
        self.hypervisor.start(self.processes)
        link = pathlib.Path('/tmp', self.name)
        self.assertTrue(link.is_symlink())
        self.hypervisor.drop()
        self.assertFalse(link.is_symlink())
        self.hypervisor.drop()

    def test_name_that_somebody_else_has(self):
        other = pathlib.Path('/tmp', self.name)
        other.mkdir()
        self.addCleanup(other.rmdir)
        self.assertRaises(
            errors.CloudError, self.hypervisor.start, self.processes)
        self.hypervisor.drop()
        self.assertTrue(other.exists())
