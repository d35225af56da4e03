# SPDX-License-Identifier: Apache-2.0

"""Who is answered what of the journal, over HTTP and by commands."""

import json
import os
import threading
from typing import Any
from unittest import mock

import fixtures
import webob

from nova_reaper.cloud import model
from nova_reaper.report import health
from nova_reaper.report import http
from nova_reaper.report import journal
from nova_reaper.report.journal import Kind
from nova_reaper.report.journal import Record
from nova_reaper import tests
from nova_reaper.tests import fakes

VICTIM, OTHER, WAITER = (f'0000000{number}-0000-4000-8000-000000000000'
                         for number in range(3))


class HistoryTestCase(tests.TestCase):
    """A reaper that stands by: the journal is for every reaper."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.useFixture(fixtures.TempDir()).path
        self.url = f'sqlite:///{os.path.join(self.path, "journal")}'
        conf = fakes.configuration()
        conf.set_override('connection', self.url, 'database')
        self.told: list[Record] = []
        self.book = journal.Journal(conf, self.told.append)
        source = mock.Mock(health=lambda: health.Health(
            False, model.Mode.OBSERVE, model.Mode.PREEMPT, None, []))
        self.api = http.Api(conf, source, self.book)
        self.notice = Record(
            Kind.NOTICE, VICTIM, 'p1', 'v', WAITER, 'p2', 'h1',
            detail={'action': 'delete', 'terminate_at': '2026-11-22T12:00:00Z',
                    'decision': {'victims': [VICTIM, OTHER]}})
        self.end = Record(Kind.END, VICTIM, 'p1', 'v', WAITER, 'p2', 'h1',
                          'delete', {'action': 'delete'})
        self.own = Record(Kind.END, OTHER, 'p2', 'o', WAITER, 'p2', 'h1',
                          'shelve', {'action': 'shelve'})
        self.build = Record(Kind.BUILD, WAITER, 'p2', 'w', WAITER, 'p2', 'h1',
                            'active', {'why': 'It runs.'})
        self.book.write(self.notice, self.end, self.own, self.build)
        self.book.work()

    def ask(self, path: str, status: int = 200, roles: str = 'reader',
            project: str = 'p1', method: str = 'GET', body: bytes = b''
            ) -> Any:
        request = webob.Request.blank(
            path, method=method, body=body, headers={
                'X-Project-Id': project, 'X-User-Id': 'u', 'X-Roles': roles,
                'X-Identity-Status': 'Confirmed'})
        response = request.get_response(self.api)
        self.assertEqual(status, response.status_int, response.text)
        return response.json

    def found(self, query: str = '', **who: Any) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.ask(
            f'/v1/history{query}', **who)['history']
        return answer

    def test_the_owner_of_a_victim(self) -> None:
        answer = self.found()
        self.assertEqual([
            {'id': self.end.id, 'at': model.time_text(self.end.at),
             'kind': 'end', 'server': VICTIM, 'name': 'v', 'project_id': 'p1',
             'action': 'delete', 'result': 'delete', 'terminate_at': None,
             'for': None, 'for_own_project': False, 'cause': None,
             'message': 'A server of another project needs the room.'}],
            answer[:1])
        self.assertEqual(('notice', '2026-11-22T12:00:00Z'),
                         (answer[1]['kind'], answer[1]['terminate_at']))
        # Nothing of others: neither the other victim, nor a host.
        for secret in (WAITER, OTHER, 'p2', 'h1'):
            self.assertNotIn(secret, json.dumps(answer))

    def test_an_end_for_a_server_of_the_same_project(self) -> None:
        build, end = self.found(project='p2')
        self.assertEqual(('end', WAITER, True), (
            end['kind'], end['for'], end['for_own_project']))
        self.assertEqual('Another server needs the room.', end['message'])
        self.assertIsNone(build['message'])
        self.assertEqual('active', build['result'])
        self.assertNotIn(VICTIM, json.dumps([build, end]))

    def test_what_is_not_told_to_others(self) -> None:
        self.ask('/v1/history?all_projects=1', 403)
        self.ask('/v1/history?project_id=p2', 403)
        self.ask('/v1/history', 403, roles='nobody')
        self.assertEqual([], self.found(f'?server={WAITER}'))
        self.ask(f'/v1/history?marker={self.build.id}', 400)

    def test_an_administrator_sees_everything(self) -> None:
        answer = self.found('?all_projects=true', roles='admin')
        self.assertEqual([self.build.id, self.own.id, self.end.id,
                          self.notice.id], [item['id'] for item in answer])
        self.assertEqual(
            ('h1', WAITER, 'p2', [VICTIM, OTHER]), (
                answer[3]['host'], answer[3]['for'],
                answer[3]['for_project_id'],
                answer[3]['detail']['decision']['victims']))
        self.assertEqual(2, len(self.found('?project_id=p1', roles='admin')))
        self.assertEqual(4, len(self.found(
            f'?all_projects=1&server={WAITER}', roles='admin')))
        self.assertEqual(1, len(self.found(
            '?all_projects=1&kind=notice,return&since=1h', roles='admin')))
        self.assertEqual([], self.found(
            '?all_projects=1&until=2026-01-01T00:00:00%2B01:00',
            roles='admin'))

    def test_pages(self) -> None:
        path, found = '/v1/history?all_projects=1&limit=3', []
        while path:
            answer = self.ask(path, roles='admin')
            found += [item['id'] for item in answer['history']]
            path = answer.get('history_links', [{}])[0].get('href', '')
            path = path.removeprefix('http://localhost')
        self.assertEqual(4, len(set(found)))

    def test_bad_queries(self) -> None:
        for query in ('server=x', 'kind=notice,x', 'since=yesterday',
                      'until=99999999d', 'until=999999d',
                      'limit=0', 'marker=1', 'color=red',
                      f'marker={OTHER}', 'project_id=%00', 'since=-1d',
                      'kind=', 'since=0001-01-01T00:00:00%2B14:00'):
            answer = self.ask(f'/v1/history?all_projects=1&{query}', 400,
                              roles='admin')
            self.assertTrue(answer['error']['message'], query)
        self.ask('/v1/history', 405, method='POST')

    def test_the_database_is_away(self) -> None:
        self.useFixture(fixtures.MockPatchObject(
            self.book.store, '_connection', side_effect=OSError('p4ssword')))
        for path, method in (('/v1/history', 'GET'), ('/v1/pause', 'GET'),
                             ('/v1/pause', 'PUT')):
            answer = self.ask(path, 503, roles='admin', method=method)
            self.assertNotIn('p4ssword', json.dumps(answer))
        self.assertIsNone(self.book.pause)

    def test_a_database_that_hangs_takes_two_requests(self) -> None:
        hangs = threading.Event()
        self.addCleanup(hangs.set)
        asked = threading.Semaphore(0)

        def find(**query: Any) -> list[Record]:
            asked.release()
            hangs.wait(30)
            return []

        self.useFixture(fixtures.MockPatchObject(self.book.store, 'find',
                                                 find))
        self.useFixture(fixtures.MockPatchObject(http, 'PATIENCE', 0.05))
        threads = [threading.Thread(target=self.found) for _ in range(2)]
        for thread in threads:
            thread.start()
            self.assertTrue(asked.acquire(timeout=10))
        self.ask('/v1/history', 503)
        hangs.set()
        for thread in threads:
            thread.join()
        self.assertEqual([], self.found())

    def test_pause_and_resume(self) -> None:
        self.assertFalse(self.ask('/v1/pause', roles='admin')['pause'][
            'paused'])
        for body in (b'{', b'[]', b'{"why": "x"}', b'{"reason": 1}',
                     json.dumps({'reason': 'x' * 256}).encode()):
            self.ask('/v1/pause', 400, roles='admin', method='PUT', body=body)
        self.assertIsNone(self.book.pause)
        pause = self.ask('/v1/pause', roles='admin', method='PUT',
                         body=b'{"reason": "power"}')['pause']
        self.assertEqual((True, 'u', 'power'), (
            pause['paused'], pause['by'], pause['reason']))
        self.assertTrue(self.book.pause)
        # Who pauses again changes nothing.
        self.assertEqual(pause, self.ask(
            '/v1/pause', roles='admin', method='PUT')['pause'])
        self.assertEqual(1, len(self.found('?all_projects=1&kind=pause',
                                           roles='admin')))
        self.assertFalse(self.ask('/v1/pause', roles='admin',
                                  method='DELETE')['pause']['paused'])
        self.assertIsNone(self.book.pause)
        # Others are told of each once.
        self.assertEqual([Kind.PAUSE, Kind.RESUME],
                         [told.kind for told in self.told[-2:]])
        self.assertEqual('power', self.told[-2].detail['why'])

    def test_who_may_pause(self) -> None:
        for method, roles in (('GET', 'reader'), ('PUT', 'reader'),
                              ('PUT', 'service'), ('DELETE', 'manager')):
            self.ask('/v1/pause', 403, roles=roles, method=method)
        self.ask('/v1/pause', roles='service')
        self.ask('/v1/pause', 405, roles='admin', method='POST')
        self.ask('/v1/pause?x=1', 400, roles='admin', method='PUT')
        self.assertIsNone(self.book.pause)
