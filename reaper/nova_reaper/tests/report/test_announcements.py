# SPDX-License-Identifier: Apache-2.0

"""What is told to others, over a bus and a web hook that may be away."""

import base64
from collections.abc import Callable
import contextlib
import json
import threading
from typing import Any
from unittest import mock

import fixtures
import oslo_messaging
from oslo_messaging.notify import _impl_test
import requests

from nova_reaper.report import journal
from nova_reaper import tests
from nova_reaper.tests import fakes

TIME = '2026-11-22T12:00:00Z'
NOTICE = journal.Record(
    journal.Kind.NOTICE, 's1', 'p1', 's', 'w1', 'p2', 'h1',
    detail={'action': 'delete', 'terminate_at': TIME})
TOLD = (NOTICE, journal.Record(journal.Kind.WITHDRAWAL, 's1', 'p1'),
        journal.Record(journal.Kind.GIVEN_UP, 'w1', 'p2', result='deadline'))


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
        self.announcer = journal.Announcer(self.conf)

    def info(self, _context: Any, event_type: str, payload: Any) -> None:
        self.answers.wait()
        self.sent.append(f'{event_type} {payload["server"]}')

    def told(self, count: int = 1) -> None:
        """Tell the same three so many times; it fails if that takes long."""
        def tell() -> None:
            for _ in range(count):
                for told in TOLD:
                    self.announcer.tell(told)

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
        self.assertEqual(['reaper.notice s1', 'reaper.withdrawal s1',
                          'reaper.given_up w1'], self.sent)

    def test_the_bus_is_not_tried_for_ever(self) -> None:
        self.answers.set()
        self.told()
        self.announcer.flush()
        retry = self.notifier.call_args.kwargs['retry']
        self.assertTrue(0 < retry < 10, retry)

    def test_no_more_than_so_many_wait(self) -> None:
        self.useFixture(fixtures.MockPatchObject(journal, 'UNTOLD', 7))
        self.announcer = journal.Announcer(self.conf)
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
            journal, 'AT_THE_END', 0.1))
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


class HookTestCase(tests.TestCase):
    """The web hook, and who receives it."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.conf = fakes.configuration(hook_url='http://hook/x?secret')
        self.pauses: list[float] = []
        self.now = 0.0
        self.useFixture(fixtures.MockPatch('time.sleep', self.sleep))
        self.useFixture(fixtures.MockPatch('time.monotonic',
                                           lambda: self.now))
        self.posts = self.useFixture(fixtures.MockPatch(
            'requests.post')).mock
        self.answer(200)
        self.announcer = journal.Announcer(self.conf)

    def sleep(self, seconds: float) -> None:
        # A thread of another test may yield the processor at this time.
        if seconds:
            self.pauses.append(seconds)
            self.now += seconds

    def answer(self, *codes: int | Exception) -> None:
        """What the receiver answers; the last it answers for good."""
        left = list(codes)

        def post(*_: Any, **__: Any) -> Any:
            code = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(code, Exception):
                raise code
            return contextlib.nullcontext(mock.Mock(status_code=code))

        self.posts.side_effect = post

    def tell(self, told: journal.Record = NOTICE) -> None:
        self.announcer.tell(told)
        done = self.announcer._hook._payloads.all_tasks_done
        with done:
            self.assertTrue(done.wait_for(
                lambda: not self.announcer._hook._payloads.unfinished_tasks,
                10))

    def test_each_kind_is_told(self) -> None:
        book = journal.Journal(self.conf)
        told = [journal.Record(kind, 's1', 'p1') for kind in journal.Kind
                if kind not in journal.SWITCHES]
        book.write(*told)
        told += [book.switch(kind, 'u', 'x') for kind in journal.SWITCHES]
        book.work()
        book.leave()
        self.assertEqual(
            [record.to_dict(True) for record in told],
            [json.loads(call.kwargs['data'])
             for call in self.posts.call_args_list])
        self.assertEqual(list(journal.Kind), [record.kind for record in told])

    def test_a_notice(self) -> None:
        self.tell()
        (url,), more = self.posts.call_args
        self.assertEqual('http://hook/x?secret', url)
        self.assertTrue(more['timeout'])
        self.assertFalse(more['allow_redirects'])
        payload = json.loads(more['data'])
        self.assertEqual(
            {'server': 's1', 'project_id': 'p1', 'action': 'delete',
             'terminate_at': TIME, 'for': 'w1', 'host': 'h1',
             'kind': 'notice'},
            {key: payload[key] for key in (
                'server', 'project_id', 'action', 'terminate_at', 'for',
                'host', 'kind')})
        self.assertEqual(NOTICE.id, more['headers']['webhook-id'])
        self.assertNotIn('webhook-signature', more['headers'])

    def test_the_example_of_the_specification(self) -> None:
        """Receivers check signatures with what others have written."""
        self.assertEqual(
            'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
            journal.signed(
                'msg_p5jXN8AQM9LWM0D4loKWxJek', 1614265330,
                b'{"test": 2432232314}',
                'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'
            )['webhook-signature'])

    def test_a_post_is_signed_anew_each_time(self) -> None:
        secret = 'whsec_' + base64.b64encode(b'k' * 32).decode()
        self.conf.set_override('hook_secret', secret, 'reaper')
        self.answer(500, 200)
        with mock.patch('time.time', side_effect=[1000.0, 2000.0]):
            self.tell()
        for call, at in zip(self.posts.call_args_list, (1000, 2000)):
            headers = call.kwargs['headers']
            self.assertEqual(str(at), headers['webhook-timestamp'])
            self.assertEqual(
                journal.signed(NOTICE.id, at, call.kwargs['data'],
                                     secret)['webhook-signature'],
                headers['webhook-signature'])

    def test_what_fails_is_tried_again(self) -> None:
        self.answer(requests.ConnectionError('http://hook/x?secret'), 503,
                    429, 200)
        self.tell()
        self.assertEqual([1.0, 2.0, 4.0], self.pauses)
        self.assertEqual('', self.log.output)

    def test_it_is_not_tried_for_ever(self) -> None:
        self.answer(requests.ConnectionError('http://hook/x?secret'))
        self.tell()
        self.assertEqual(60.0, max(self.pauses))
        self.assertTrue(600 < sum(self.pauses) <= 900, self.pauses)
        self.assertIn('was not told of reaper.notice of server s1: '
                      'ConnectionError', self.log.output)
        self.assertNotIn('secret', self.log.output)

    def test_what_is_refused_is_not_tried_again(self) -> None:
        for code in (301, 400, 410):
            self.answer(code)
            self.tell()
            self.assertIn(f'HTTP {code}', self.log.output)
        self.assertEqual([], self.pauses)

    def test_it_is_turned_off_while_it_fails(self) -> None:
        self.answer(500)
        self.useFixture(fixtures.MockPatch(
            'time.sleep', lambda _: self.conf.set_override(
                'hook_url', None, 'reaper')))
        self.tell()
        self.assertIn('it was turned off', self.log.output)


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
        announcer = journal.Announcer(conf)
        announcer.tell(NOTICE)
        announcer.flush()
        (_context, message, priority, _retry), = _impl_test.NOTIFICATIONS
        self.assertEqual('INFO', priority)
        self.assertEqual('reaper.notice', message['event_type'])
        self.assertEqual(NOTICE.to_dict(True), message['payload'])
