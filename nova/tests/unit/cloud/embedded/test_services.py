# SPDX-License-Identifier: Apache-2.0

"""What an embedded cloud starts."""

import dataclasses
import pathlib
import subprocess
import sys
from unittest import mock

import fixtures

from nova.tests.unit.cloud import base
from tools.cloud import configuration
from tools.cloud.embedded import databases
from tools.cloud.embedded import services
from tools.cloud.embedded import stack
from tools.cloud import errors
from tools.cloud import settings


class TestServices(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        self.services = services.Services(
            self.cloud, mock.Mock(), mock.Mock())

    def test_every_api_has_a_process(self):
        for api in settings.APIS:
            python, _, run, module, *args = map(
                str, self.services.api_program(api, 20000))
            self.assertEqual(str(settings.PREFIX / 'bin/python'), python)
            self.assertTrue(pathlib.Path(run).exists())
            self.assertTrue(pathlib.Path(run).with_name(
                module + '.py').exists(), module)
            self.assertIn('20000', args)

    def test_branch_of_nova(self):
        self.services._cloud = dataclasses.replace(
            self.cloud, in_tree='/in-tree')
        for api in settings.APIS:
            self.assertEqual(
                pathlib.Path('/in-tree' if api == 'nova' else settings.PREFIX,
                             'bin/python'),
                self.services.api_program(api, 20000)[0])

    def test_computes_share_the_process_of_the_api(self):
        program = self.services.api_program('nova', 20000)
        for host in self.cloud.hosts:
            self.assertIn(self.cloud.etc / host / 'nova.conf', program)

    def test_commands_are_those_of_the_release(self):
        self.assertEqual(
            [settings.PREFIX / 'bin/nova-manage'],
            self.services.program('nova-manage'))

    def test_run_finds_what_is_installed_first(self):
        # A directory of the layer called nova lies beside tools.
        code = ('import runpy, sys; runpy.run_module = lambda *a, **k: '
                'print(sys.path[-1], *sys.argv[1:], a[0]); '
                'runpy.run_path(sys.argv.pop(1))')
        found = subprocess.run(
            [sys.executable, '-P', '-c', code, services._RUN, 'wsgi', 'one'],
            capture_output=True, text=True, check=True, cwd=self.state)
        self.assertEqual(
            [str(pathlib.Path(services._RUN).parents[3]), 'one',
             'tools.cloud.embedded.wsgi'], found.stdout.split())


class TestStack(base.CloudTestCase):

    def test_no_server_is_needed(self):
        cloud = stack.Stack('not used', 'not used', self.state)
        for server in cloud.servers('not used', 'not used'):
            server.check()

    def test_real_guests_are_refused(self):
        cloud = stack.Stack('', '', self.state, libvirt=True)
        error = self.assertRaises(errors.BadArgument, cloud.check_choices)
        self.assertIn('--libvirt', str(error))

    def test_servers_of_its_own_are_refused(self):
        self.assertEqual(
            ('', ''), stack.Stack.find_urls('not used', None, private=False))
        error = self.assertRaises(
            errors.BadArgument, stack.Stack.find_urls, None, None, True)
        self.assertIn('--private-servers', str(error))

    def test_what_shares_a_process_is_not_more_than_one(self):
        for name in ('workers', 'conductors', 'cells'):
            stack.Stack('', '', self.state, **{name: 1}).check_choices()
            cloud = stack.Stack('', '', self.state, **{name: 2})
            error = self.assertRaises(
                errors.BadArgument, cloud.check_choices)
            self.assertIn('--' + name, str(error))

    def test_configuration_names_no_server(self):
        self.cloud = settings.Settings(
            state=self.state, databases=databases.Databases(
                self.cloud.var / 'db'), bus=databases.Bus(),
            ports=self.cloud.ports)
        prefix = self.useFixture(fixtures.TempDir()).path
        paste = pathlib.Path(prefix, 'etc/nova/api-paste.ini')
        paste.parent.mkdir(parents=True)
        paste.touch()
        self.useFixture(fixtures.MonkeyPatch(
            'tools.cloud.settings.PREFIX', pathlib.Path(prefix)))
        configuration.write(self.cloud)
        text = ''.join(path.read_text()
                       for path in self.cloud.etc.rglob('*.conf'))
        self.assertIn('connection = sqlite:///', text)
        self.assertIn('transport_url = fake:', text)
        self.assertNotIn('mysql', text)
        self.assertNotIn('rabbit:', text)
