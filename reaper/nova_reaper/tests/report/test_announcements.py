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

"""What is told to others, over a bus and a web hook that may be away."""

from collections.abc import Callable
import threading
from typing import Any
from unittest import mock

import fixtures
import oslo_messaging
from oslo_messaging.notify import _impl_test
import requests

from nova_reaper.act import attempt
from nova_reaper.cloud import model
from nova_reaper.report import announcements
from nova_reaper import tests
from nova_reaper.tests import fakes

VICTIM = attempt.Victim('s1', 's', 'p1', model.Action.DELETE)
TIME = '2026-11-22T12:00:00Z'


class AnnouncerTestCase(tests.TestCase):
    """A bus that takes what it is given only when the test lets it."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.conf = fakes.configuration()
        self.answers = threading.Event()
        self.addCleanup(self.answers.set)
        self.sent: list[str] = []
        self.useFixture(fixtures.MockPatchObject(
            oslo_messaging, 'get_notification_transport'))
        self.notifier: Any = self.useFixture(fixtures.MockPatchObject(
            oslo_messaging, 'Notifier', return_value=mock.Mock(
                info=mock.Mock(side_effect=self.info)))).mock
        self.announcer = announcements.Announcer(self.conf)

    def info(self, _context: Any, event_type: str, payload: Any) -> None:
        self.answers.wait()
        self.sent.append(f'{event_type} {payload["server"]}')

    def told(self, count: int = 1) -> None:
        """Tell the same three so many times; it fails if that takes long."""
        def tell() -> None:
            for _ in range(count):
                self.announcer.notice(VICTIM, 'w1', 'h1', TIME)
                self.announcer.withdrawal(VICTIM)
                self.announcer.given_up('w1', 'p2', 'deadline', '')

        self.in_time(tell)

    def in_time(self, call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(10)
        self.assertFalse(thread.is_alive())

    def test_nobody_waits_for_the_bus(self) -> None:
        self.told()
        self.assertEqual([], self.sent)
        self.answers.set()
        self.announcer.flush()
        self.assertEqual(['reaper.notice s1', 'reaper.notice.withdrawn s1',
                          'reaper.given_up w1'], self.sent)

    def test_the_bus_is_not_tried_for_ever(self) -> None:
        self.answers.set()
        self.told()
        self.announcer.flush()
        retry = self.notifier.call_args.kwargs['retry']
        self.assertTrue(0 < retry < 10, retry)

    def test_no_more_than_so_many_wait(self) -> None:
        self.useFixture(fixtures.MockPatchObject(announcements, 'WAITING', 7))
        self.announcer = announcements.Announcer(self.conf)
        self.told(10)
        dropped = self.log.output.count('7 others wait to be.')
        # One may be on its way besides.
        self.assertIn(30 - dropped, (7, 8))
        self.assertIn('reaper.given_up of server w1 is not sent',
                      self.log.output)
        self.answers.set()
        self.announcer.flush()
        self.assertEqual(30 - dropped, len(self.sent))

    def test_the_end_does_not_wait_for_the_bus(self) -> None:
        self.useFixture(fixtures.MockPatchObject(
            announcements, 'PATIENCE', 0.1))
        self.told()
        self.in_time(self.announcer.flush)
        self.assertIn('3 notifications are not sent: the service ends.',
                      self.log.output)

    def test_nothing_was_told(self) -> None:
        self.announcer.flush()
        self.assertEqual('', self.log.output)

    def test_a_failure_is_only_logged(self) -> None:
        self.answers.set()
        for failure in (ValueError, None):
            self.notifier.side_effect = failure
            self.told()
            self.announcer.flush()
        self.assertIn('reaper.notice was not sent: ValueError',
                      self.log.output)
        self.assertEqual(3, len(self.sent))

    def test_the_web_hook(self) -> None:
        """It is told although the bus is away, and nobody waits for it."""
        self.conf.set_override('notice_url', 'http://hook/x', 'reaper')
        answers = threading.Event()
        self.addCleanup(answers.set)
        posted = threading.Event()

        def post(*args: Any, **more: Any) -> None:
            self.post = args, more
            posted.set()
            answers.wait()
            raise requests.ConnectionError('http://hook/x?secret')

        self.useFixture(fixtures.MockPatchObject(requests, 'post', post))
        self.told()
        self.assertTrue(posted.wait(10))
        self.assertEqual([], self.sent)
        (url,), more = self.post
        self.assertEqual('http://hook/x', url)
        self.assertEqual(
            {'server': 's1', 'project_id': 'p1', 'action': 'delete',
             'terminate_at': TIME, 'for': 'w1', 'host': 'h1'}, more['json'])
        self.assertTrue(more['timeout'])
        answers.set()
        self.answers.set()
        self.announcer.flush()
        self.assertIn('notice to server s1: ConnectionError',
                      self.log.output)
        self.assertNotIn('secret', self.log.output)


class BusTestCase(tests.TestCase):
    """With the notifier of oslo.messaging."""

    def test_what_is_sent(self) -> None:
        conf = fakes.configuration()
        oslo_messaging.Notifier(oslo_messaging.get_notification_transport(
            conf, url='fake:/'))
        conf.set_override('driver', ['test'],
                          'oslo_messaging_notifications')
        conf.set_override('transport_url', 'fake:/', 'notifications')
        _impl_test.reset()
        self.addCleanup(_impl_test.reset)
        announcer = announcements.Announcer(conf)
        announcer.given_up('w1', 'p2', 'deadline', 'It has waited.')
        announcer.flush()
        (_context, message, priority, _retry), = _impl_test.NOTIFICATIONS
        self.assertEqual('INFO', priority)
        self.assertEqual('reaper.given_up', message['event_type'])
        self.assertEqual(
            {'server': 'w1', 'project_id': 'p2', 'reason': 'deadline',
             'detail': 'It has waited.'}, message['payload'])
