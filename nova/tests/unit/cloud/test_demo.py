# SPDX-License-Identifier: Apache-2.0

import copy
from unittest import mock

from nova.tests.unit.cloud import base
from tools.cloud import demo
from tools.cloud import errors
from tools.cloud import reaper

SERVER = {
    'id': 'x', 'name': 'web', 'created': '2026-01-01T00:00:00Z',
    'tags': ['blue'], 'status': 'PENDING',
    'metadata': {'purpose': 'demo', 'reaper:wait': 'true'},
    'fault': {'message': 'No valid host was found. '}, 'addresses': {},
    'key_name': 'key', 'OS-EXT-SRV-ATTR:user_data':
        'I2Nsb3VkLWNvbmZpZwpob3N0bmFtZTogd2ViCg=='}


class DemoTestCase(base.CloudTestCase):
    """That the demonstration notices what is not as it should be."""

    def setUp(self):
        super().setUp()
        for name in ('client.Client', 'client.Api', 'reaper.change'):
            patch = mock.patch('tools.cloud.' + name)
            patch.start()
            self.addCleanup(patch.stop)
        self.processes = mock.Mock()
        self.processes.wait_until = self.wait_until
        self.demo = demo.Demo(self.cloud, self.processes, lambda text: None)
        self.demo._api.get = self.demo._api.show = self.get
        self.reason = 'no_room'
        # What is done between two looks of a wait, and how many there are.
        self.meanwhile = lambda: None
        self.looks = 3
        self.server = copy.deepcopy(SERVER)
        self.hidden = 'ERROR'
        self.actions = [('rebuild', 'reaper'), ('create', 'owner')]
        self.demo._port = '5f1c0b7e-5d5e-4b0e-8b1e-2c6d3f0a9b11'
        self.ports = [self.demo._port]
        self.demo._client.run.return_value = (
            '| id | 5f1c0b7e-5d5e-4b0e-8b1e-2c6d3f0a9b11 |')
        self.lists = {('ERROR', demo.RELEASED): ['x'],
                      ('ERROR', demo.PENDING): [],
                      ('PENDING', demo.PENDING): ['x']}

    def wait_until(self, what, ready, names, seconds):
        for _ in range(self.looks):
            found = ready()
            if found:
                return found
            self.meanwhile()
        with mock.patch('time.monotonic', return_value=float('inf')):
            return ready()

    def get(self, path, version):
        if '?status=' in path:
            found = self.lists[path.rpartition('=')[2], version]
            return {'servers': [{'id': each} for each in found]}
        if path.endswith('/os-instance-actions'):
            return {'instanceActions': [
                {'action': action, 'user_id': user}
                for action, user in self.actions]}
        if path.endswith('/pending'):
            return {'pending': {'reason': self.reason}}
        if path.endswith('/metadata'):
            return {'metadata': self.server['metadata']}
        if path.endswith('/os-interface'):
            return {'interfaceAttachments': [
                {'port_id': each} for each in self.ports]}
        server = dict(self.server)
        if version in ('2.1', demo.RELEASED):
            server['status'] = self.hidden
        if path == '/servers':
            return {'servers': [server]}
        return {'server': server}

    def fails(self, function, *args):
        return str(self.assertRaises(errors.StepFailed, function, *args))

    def test_samples(self):
        with mock.patch.multiple(self.demo, _prepare=mock.DEFAULT,
                                 _fill=mock.DEFAULT):
            self.demo.make_samples()
            self.assertTrue(self.demo._client.run.call_args[0][0].startswith(
                demo.AT_PENDING + ' server create '))
            self.server['status'] = 'ACTIVE'
            self.assertIn("'ACTIVE'", self.fails(self.demo.make_samples))

    def test_tenant_is_who_owns_the_servers(self):
        self.demo._make_tenant()
        made = self.demo._client.run_together.call_args.args
        self.assertIn('project create owner', made[0])
        self.assertIn('user create --password %s owner' % self.cloud.password,
                      made[1])
        self.assertIn('--project owner --user owner member',
                      self.demo._client.run.call_args.args[0])

    def test_server_that_found_no_room_is_in_error_up_to_the_release(self):
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
            [409, 400, 409],
            [call.args[4] for call in self.demo._api.post.call_args_list])
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

    def test_why_it_waits(self):
        self.demo._ask_why('x')
        self.reason = 'refused'
        self.assertIn("'refused'", self.fails(self.demo._ask_why, 'x'))

    def test_notice(self):
        self.meanwhile = lambda: self.server['metadata'].update({
            'reaper:terminate_at': '2026-01-01T00:00:09Z',
            'reaper:for': 'web'})
        self.demo._look_at_notice('x', 'web')
        self.assertIn("'other'", self.fails(
            self.demo._look_at_notice, 'x', 'other'))

    def test_no_notice(self):
        self.assertIn('until the server spot is under notice', self.fails(
            self.demo._look_at_notice, 'x', 'web'))

    def wait_for_room(self, *statuses):
        """Wait for web, with the statuses that it and then spot have."""
        left = list(statuses)
        servers = {'web': lambda: left.pop(0) if left else 'ACTIVE',
                   'spot': lambda: self.spot}
        self.demo._server = lambda server: {
            'status': servers[server](), 'created': 'then'}
        self.demo._wait_for_room('spot', 'web')

    def test_server_for_which_room_is_made(self):
        self.spot = 'SHELVED_OFFLOADED'
        self.wait_for_room('PENDING', 'PENDING', 'BUILD')
        self.assertEqual('then', self.demo._created)

    def test_server_that_never_runs(self):
        self.spot = 'SHELVED_OFFLOADED'
        for statuses in (['PENDING'] * 9, ['PENDING', 'ERROR']):
            self.fails(self.wait_for_room, *statuses)

    def test_server_that_runs_while_the_victim_does(self):
        self.spot = 'ACTIVE'
        self.fails(self.wait_for_room)

    def test_victim_that_comes_back(self):
        self.server.update(status='SHELVED_OFFLOADED', name='spot',
                           metadata={})
        self.meanwhile = lambda: self.server.update(status='ACTIVE')
        self.demo._wait_for_return('x')

    def test_victim_that_does_not_come_back(self):
        self.server.update(status='SHELVED_OFFLOADED', name='spot',
                           metadata={})
        self.assertIn('is in ACTIVE', self.fails(
            self.demo._wait_for_return, 'x'))

    def test_victim_that_is_back_and_under_notice(self):
        self.server.update(status='ACTIVE', name='spot', metadata={
            'reaper:shelved_at': '2026-01-01T00:00:09Z'})
        self.assertIn('nothing in the metadata', self.fails(
            self.demo._wait_for_return, 'x'))

    def test_wait_that_is_stopped(self):
        self.demo.stop()
        self.assertRaises(errors.Stopped, self.demo._wait_for, 'x', 'ACTIVE')

    def test_reaper_that_does_not_take_the_mode(self):
        with mock.patch('tools.cloud.reaper.health', return_value={
                'mode': 'fill', 'checks': []}):
            failed = self.fails(self.demo._wait_for_reaper, 'preempt')
        self.assertIn('works in the mode preempt', failed)
        self.assertIn("'mode': 'fill'", failed)

    def test_reaper_is_told_its_mode(self):
        self.demo._let_reaper('preempt')
        reaper.change.assert_called_once_with(
            self.cloud, self.processes, mode='preempt', grace_period=5,
            min_run_time=0)

    def built(self, **changes):
        self.demo._created = self.server['created']
        self.server.update(
            status='ACTIVE', addresses={'net': [{'addr': '10.0.0.80'}]},
            **changes)

    def test_built_server(self):
        self.built()
        self.demo._look_at_built('x')

    def test_built_server_without_what_its_owner_said(self):
        for changes in (
                {'tags': []}, {'metadata': {}},
                {'created': '2026-01-01T00:00:09Z'}):
            self.server = copy.deepcopy(SERVER)
            self.built(**changes)
            self.assertIn(repr(list(changes.values())[0]), self.fails(
                self.demo._look_at_built, 'x'))

    def test_built_server_without_its_history(self):
        self.built()
        self.actions = [('create', 'owner')]
        self.assertIn("['create']",
                      self.fails(self.demo._look_at_built, 'x'))

    def test_server_that_its_owner_had_to_have_rebuilt(self):
        self.built()
        self.actions = [('rebuild', 'owner'), ('create', 'owner')]
        self.assertIn('its owner asked',
                      self.fails(self.demo._look_at_built, 'x'))

    def test_built_server_with_another_port(self):
        self.built()
        self.ports = ['q']
        self.assertIn("['q']", self.fails(self.demo._look_at_built, 'x'))

    def test_built_server_with_another_address(self):
        self.built()
        self.server['addresses'] = {'net': [{'addr': '10.0.0.9'}]}
        self.fails(self.demo._look_at_built, 'x')

    def rebuild_given_up(self, *statuses):
        left = list(statuses)
        self.demo._server = lambda server: {'status': left.pop(0)}
        self.server['name'] = 'second'
        self.demo._rebuild_given_up('x')

    def test_rebuild_by_hand(self):
        self.rebuild_given_up('ERROR', 'BUILD', 'ACTIVE')
        self.demo._api.post.assert_called_with(
            '/servers/x/action', demo.REBUILD, {'rebuild': {}}, mock.ANY)

    def test_server_that_waits_again_after_the_rebuild(self):
        self.fails(self.rebuild_given_up, 'ERROR', 'PENDING')

    def test_server_that_does_not_come_up(self):
        self.fails(self.rebuild_given_up, 'ERROR', *['BUILD'] * 9)

    def test_server_that_cannot_be_given_up(self):
        self.fails(self.rebuild_given_up, 'PENDING')

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
