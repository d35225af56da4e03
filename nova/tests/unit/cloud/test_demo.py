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

import copy
from unittest import mock

from nova.tests.unit.cloud import base
from tools.cloud import demo
from tools.cloud import errors

SERVER = {
    'id': 'x', 'name': 'web', 'created': '2026-01-01T00:00:00Z',
    'tags': ['blue'], 'metadata': {'purpose': 'demo'}, 'status': 'PENDING',
    'fault': {'message': 'No valid host was found. '}, 'addresses': {},
    'key_name': 'key', 'OS-EXT-SRV-ATTR:user_data':
        'I2Nsb3VkLWNvbmZpZwpob3N0bmFtZTogd2ViCg=='}


class DemoTestCase(base.CloudTestCase):
    """That the demonstration notices what is not as it should be."""

    def setUp(self):
        super().setUp()
        for name in ('Client', 'Api'):
            patch = mock.patch('tools.cloud.client.' + name)
            patch.start()
            self.addCleanup(patch.stop)
        self.processes = mock.Mock()
        self.processes.wait_until = (
            lambda what, ready, names: ready() or 'BUILD')
        self.demo = demo.Demo(self.cloud, self.processes, lambda text: None)
        self.demo._api.get = self.get
        self.server = copy.deepcopy(SERVER)
        self.hidden = 'ERROR'
        self.actions = ['rebuild', 'rebuild', 'unlock', 'lock', 'create']
        self.ports = ['p']
        self.demo._client.ask.return_value = 'p\n'
        self.demo._port = 'p'
        self.lists = {('ERROR', '2.104'): ['x'], ('ERROR', '2.105'): [],
                      ('PENDING', '2.105'): ['x']}

    def get(self, path, version):
        if '?status=' in path:
            found = self.lists[path.rpartition('=')[2], version]
            return {'servers': [{'id': each} for each in found]}
        if path.endswith('/os-instance-actions'):
            return {'instanceActions': [
                {'action': each} for each in self.actions]}
        if path.endswith('/os-interface'):
            return {'interfaceAttachments': [
                {'port_id': each} for each in self.ports]}
        server = dict(self.server)
        if version in ('2.1', '2.104'):
            server['status'] = self.hidden
        if path == '/servers':
            return {'servers': [server]}
        return {'server': server}

    def fails(self, function, *args):
        return str(self.assertRaises(errors.StepFailed, function, *args))

    def test_tenant_is_who_owns_the_servers(self):
        self.demo._make_tenant()
        made = self.demo._client.run_together.call_args.args
        self.assertIn('project create owner', made[0])
        self.assertIn('user create --password %s owner' % self.cloud.password,
                      made[1])
        self.assertIn('--project owner --user owner member',
                      self.demo._client.run.call_args.args[0])

    def test_server_that_found_no_room_is_in_error_up_to_2104(self):
        self.assertEqual('x', self.demo._create_in_vain())
        self.hidden = 'PENDING'
        self.assertIn("'PENDING'", self.fails(self.demo._create_in_vain))

    def test_failed_create_is_one_for_which_there_was_no_room(self):
        for fault in ({}, {'message': 'Exceeded maximum number of retries'}):
            self.server['fault'] = fault
            self.fails(self.demo._create_in_vain)
        del self.server['fault']
        self.fails(self.demo._create_in_vain)

    def test_waiting_server(self):
        self.demo._look_at_waiting('x')

    def test_server_that_does_not_wait(self):
        self.server['status'] = 'ERROR'
        self.fails(self.demo._look_at_waiting, 'x')

    def test_waiting_server_without_what_its_owner_said(self):
        for name, value in (
                ('tags', []), ('metadata', {}), ('key_name', None),
                ('OS-EXT-SRV-ATTR:user_data', None)):
            self.server = dict(copy.deepcopy(SERVER), **{name: value})
            self.fails(self.demo._look_at_waiting, 'x')

    def test_refusals_are_those_that_are_promised(self):
        self.demo._try_in_vain('x')
        self.assertEqual(
            [409, 400, 409, 409],
            [call.args[4] for call in self.demo._api.post.call_args_list
             if len(call.args) > 4])
        self.demo._api.post.side_effect = errors.StepFailed('202')
        self.fails(self.demo._try_in_vain, 'x')

    def test_refusal_that_changes_the_server(self):
        self.server['status'] = 'ERROR'
        self.assertIn("'ERROR'", self.fails(self.demo._try_in_vain, 'x'))

    def test_lists_that_are_wrong(self):
        right = dict(self.lists)
        for key, found in right.items():
            self.lists = dict(right)
            self.lists[key] = [] if found else ['x']
            self.fails(self.demo._look_at_waiting, 'x')

    def rebuilt(self, **changes):
        self.demo._rebuild('x')
        self.server.update(
            status='ACTIVE', addresses={'net': [{'addr': '10.0.0.80'}]},
            **changes)

    def test_rebuilt_server(self):
        self.server['status'] = 'ACTIVE'
        self.rebuilt()
        self.demo._look_at_rebuilt('x')
        self.demo._api.post.assert_called_once_with(
            '/servers/x/action', '2.106', {'rebuild': {}}, mock.ANY)

    def test_server_that_waits_again_after_the_rebuild(self):
        self.fails(self.demo._rebuild, 'x')

    def test_server_that_does_not_come_up(self):
        self.server['status'] = 'BUILD'
        self.fails(self.demo._rebuild, 'x')

    def test_rebuilt_server_without_what_its_owner_said(self):
        for changes in (
                {'tags': []}, {'metadata': {}},
                {'created': '2026-01-01T00:00:09Z'}):
            self.server = dict(copy.deepcopy(SERVER), status='ACTIVE')
            self.rebuilt(**changes)
            self.assertIn(repr(list(changes.values())[0]), self.fails(
                self.demo._look_at_rebuilt, 'x'))

    def test_rebuilt_server_without_its_history(self):
        self.server['status'] = 'ACTIVE'
        self.rebuilt()
        self.actions = ['create']
        self.assertIn("['create']",
                      self.fails(self.demo._look_at_rebuilt, 'x'))

    def test_rebuilt_server_with_another_port(self):
        self.server['status'] = 'ACTIVE'
        self.rebuilt()
        self.ports = ['q']
        self.assertIn("['q']", self.fails(self.demo._look_at_rebuilt, 'x'))

    def test_rebuilt_server_with_another_address(self):
        self.server['status'] = 'ACTIVE'
        self.rebuilt()
        self.server['addresses'] = {'net': [{'addr': '10.0.0.9'}]}
        self.fails(self.demo._look_at_rebuilt, 'x')

    def test_filler_that_is_still_there_is_no_room(self):
        self.fails(self.demo._make_room, 'web')
        self.demo._make_room('filler-1')

    def test_service_that_ended_is_told_and_not_the_step(self):
        self.cloud.var.mkdir()
        self.demo._client.run_together.side_effect = errors.StepFailed('no')
        self.assertRaises(errors.StepFailed, self.demo.run)
        self.processes.check.side_effect = errors.CloudError('nova-api ended')
        error = self.assertRaises(errors.CloudError, self.demo.run)
        self.assertEqual('nova-api ended', str(error))

    def test_steps_that_passed_are_in_the_timeline(self):
        with self.demo._step('good'):
            pass
        try:
            with self.demo._step('bad'):
                raise errors.StepFailed('no')
        except errors.StepFailed:
            pass
        self.assertEqual(['good'],
                         [title for title, _, _ in self.demo.timeline])
