# SPDX-License-Identifier: Apache-2.0

from unittest import mock

import fixtures

from nova.tests.unit.cloud import base
from tools.cloud import demo
from tools.cloud import demo_libvirt
from tools.cloud import errors

SERVER = '5f1c0b7e-5d5e-4b0e-8b1e-2c6d3f0a9b11'


class DemoTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        for name in ('client.Client', 'client.Api'):
            self.useFixture(fixtures.MockPatch('tools.cloud.' + name))
        self.useFixture(fixtures.MockPatchObject(demo.Demo, '_run_steps'))
        self.demo = demo_libvirt.Demo(self.cloud, mock.Mock(), mock.Mock())
        self.demo._api.get = lambda path, version: {
            'server': {'status': self.status, 'id': SERVER},
            'servers': [{'name': name, 'id': SERVER} for name in self.names],
        }
        self.status, self.names = 'PENDING', ['guest-1', 'guest-2']
        self.demo._processes.wait_until = self.wait_until
        self.console = 'I am server %s\n' % SERVER
        self.demo._client.ask.side_effect = lambda command: self.console

    def wait_until(self, what, ready, names, seconds=0):
        found = ready()
        if not found:
            raise errors.CloudError('waited in vain')
        return found

    def test_console_of_the_right_guest(self):
        self.demo._look_at_console('guest-1')
        self.demo._client.run.assert_called_once_with(
            'console log show guest-1')

    def test_console_that_is_empty_or_of_another_guest(self):
        for text in ('', 'I am server 5f1c0b7e-0000\n', SERVER):
            self.console = text
            self.assertRaises(
                errors.CloudError, self.demo._look_at_console, 'guest-1')

    def test_second_guest_waits(self):
        self.assertEqual(SERVER, self.demo._create_waiting_guest())
        self.status = 'ACTIVE'
        self.assertRaises(
            errors.StepFailed, self.demo._create_waiting_guest)

    def test_demonstration_that_is_stopped(self):
        self.demo.stop()
        self.assertRaises(
            errors.Stopped, self.demo._look_at_console, 'guest-1')

    def test_it_comes_after_all_that_other_clouds_show(self):
        with mock.patch.multiple(
                self.demo, _create_waiting_guest=mock.DEFAULT,
                _make_room=mock.DEFAULT, _wait_until_active=mock.DEFAULT):
            self.demo._run_steps()
        demo.Demo._run_steps.assert_called_once_with()
        self.assertEqual(2, len(self.demo.timeline))
