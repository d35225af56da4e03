# SPDX-License-Identifier: Apache-2.0

import dataclasses
import io
import signal
from unittest import mock
import urllib.error

from oslo_serialization import jsonutils

from nova.tests.unit.cloud import base
from tools.cloud import configuration
from tools.cloud import errors
from tools.cloud import reaper
from tools.cloud import settings
from tools.cloud import stack


class ReaperTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        self.cloud = dataclasses.replace(
            self.cloud, reaper=True,
            ports=dict.fromkeys([*settings.APIS, reaper.NAME], 20000))

    def test_environment_without_it(self):
        with mock.patch('importlib.util.find_spec', return_value=None):
            error = self.assertRaises(errors.CloudError, reaper.check)
        self.assertIn('./reaper', str(error))

    def test_only_where_it_is_asked_for(self):
        for chosen in (False, True):
            cloud = stack.Stack('mysql+pymysql://root@h', 'rabbit://h/',
                                reaper=chosen)
            cloud.settings = dataclasses.replace(self.cloud, reaper=chosen)
            steps = cloud._plan(mock.Mock())
            self.assertEqual(chosen, reaper.NAME in set(steps))
        self.assertEqual({'hosts'}, set(steps._needs[reaper.NAME]))
        # It is started again whatever else runs, and waited for apart.
        self.assertEqual({reaper.NAME}, set(steps._needs['reaper lists']))

    def test_nova_tells_it(self):
        for chosen in (False, True):
            cloud = dataclasses.replace(self.cloud, reaper=chosen)
            for sections in (configuration.nova_control(cloud),
                             configuration.nova_compute(cloud, 'compute1')):
                self.assertEqual(
                    [reaper.TOPIC] if chosen else None,
                    sections.get('notifications', {}).get(
                        'versioned_notifications_topics'))
                self.assertEqual(
                    'messagingv2' if chosen else 'noop',
                    sections['oslo_messaging_notifications']['driver'])

    def test_a_bus_inside_of_a_process_is_not_listened_to(self):
        self.cloud = dataclasses.replace(
            self.cloud, bus=mock.Mock(url='fake:///'))
        self.assertEqual({}, reaper.notifications(self.cloud))
        sections = reaper.configuration(self.cloud, {}, {})
        self.assertFalse(sections['notifications']['enabled'])

    def test_without_notifications_it_lists_more_often(self):
        with_bus = reaper.configuration(self.cloud, {}, {})
        self.cloud.bus.url = 'fake:///'
        without = reaper.configuration(self.cloud, {}, {})
        for name in ('pending_list_interval', 'full_list_interval'):
            self.assertLess(without['reaper'][name], with_bus['reaper'][name])

    def test_change(self):
        path = self.cloud.etc / 'nova-reaper/nova-reaper.conf'
        path.parent.mkdir(parents=True)
        sections = reaper.configuration(self.cloud, {}, {})
        path.write_text(configuration.render(sections))
        process, running = mock.Mock(), mock.Mock()
        running.running.return_value = {'nova-reaper': process}
        reaper.change(self.cloud, running, mode='observe', grace_period=7)
        process.send.assert_called_once_with(signal.SIGHUP)
        sections['reaper'].update(mode='observe', grace_period=7)
        self.assertEqual(configuration.render(sections).split(),
                         path.read_text().split())

    def is_ready(self, answer, *args):
        with mock.patch('urllib.request.urlopen', side_effect=[answer]):
            return reaper.is_ready(self.cloud, *args)

    def health(self, detail):
        return io.BytesIO(jsonutils.dump_as_bytes({
            'mode': 'observe', 'checks': [
                {'name': 'nova', 'detail': 'microversion 2.107'},
                {'name': 'lists', 'detail': detail}]}))

    def test_it_is_ready_when_it_has_read_the_cloud(self):
        run = mock.Mock()
        reaper.Reaper(self.cloud, run).wait()
        ready = run.wait.call_args.args[1]
        for detail, wanted in (('the first is being read', False),
                               ('last full list 0 s ago', True)):
            with mock.patch('urllib.request.urlopen',
                            return_value=self.health(detail)):
                self.assertIs(wanted, ready())

    def test_it_is_ready_in_the_mode_that_is_wanted(self):
        read = 'last full list 3 s ago'
        self.assertTrue(self.is_ready(self.health(read), 'observe'))
        self.assertFalse(self.is_ready(self.health(read), 'preempt'))

    def test_it_is_not_ready_while_it_does_not_answer(self):
        for answer in (urllib.error.URLError('refused'), io.BytesIO(b''),
                       TimeoutError()):
            self.assertFalse(self.is_ready(answer))
