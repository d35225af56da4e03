# SPDX-License-Identifier: Apache-2.0

"""What is answered, and to whom."""

import dataclasses
import datetime
import json
import pathlib
import re
from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exceptions
from keystonemiddleware import auth_token
from keystonemiddleware import opts
from oslo_config import cfg
import requests
import webob

from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.report import answers
from nova_reaper.report import health
from nova_reaper.report import http
from nova_reaper import tests
from nova_reaper.tests import fakes

UUID = '0e5c9a3e-7c4f-4b0c-8d5e-5d3d0f8f7c11'
VICTIMS = tuple(f'{number}{UUID[1:]}' for number in (1, 2, 3))
TIME = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
PAGE = (pathlib.Path(__file__).resolve().parents[4] /
        'doc/source/reference/reaper-api.rst')


def with_keystone() -> cfg.ConfigOpts:
    conf = fakes.configuration()
    for group, options in opts.list_auth_token_opts():
        conf.register_opts(options, group=group)
    conf.set_override('www_authenticate_uri', 'http://keystone',
                      'keystone_authtoken')
    return conf


class Source(http.Shown):
    """A queue of four: three of project p1, one of p2."""

    def __init__(self) -> None:
        super().__init__(fakes.configuration(), lambda: None)
        self.room = True
        self.active = True
        self.checks = [health.Check('nova', 'ok', 'microversion 2.107')]

    def entries(self) -> list[answers.Entry]:
        return [answers.Entry(
            model.Waiting(f's{number}', model.Shape.of({'VCPU': 1}), TIME,
                          project), number, 4, None, None, 'waiting',
            model.Decision(f's{number}', model.Verdict.PREEMPT, 'h1', ('v1',),
                           model.Reason.NO_ROOM, 'One would have to go.'),
            TIME) for number, project in enumerate(
                ('p1', 'p2', 'p1', 'p1'), 1)]

    def entry(self, server: str) -> answers.Entry | None:
        return next((entry for entry in self.entries()
                     if entry.waiting.id == server), None)

    def notices(self) -> list[dict[str, Any]]:
        return [{'server': 'v1', 'name': 'n', 'project_id': 'p2',
                 'action': 'delete', 'terminate_at': model.time_text(TIME),
                 'for': 's1', 'host': 'h1'}]

    def room_by(self, server: str) -> datetime.datetime | None:
        return TIME

    def servers(self, project: str | None, marker: str, most: int
                ) -> list[dict[str, Any]]:
        return [{'server': server, 'project_id': owner, 'host': 'h1'}
                for server, owner in zip(VICTIMS, ('p2', 'p1', 'p1'))
                if server > marker and project in (None, owner)][:most]

    def dry_run(self, server: str) -> dict[str, Any] | None:
        return {'victims': ['v1'], 'servers': [
            {'resources': {'VCPU': 1}}]} if self.room else None

    def health(self) -> health.Health:
        return health.Health(self.active, model.Mode.FILL, model.Mode.PREEMPT,
                           None, self.checks)

    def as_of(self) -> datetime.datetime | None:
        return TIME


def changed(entry: answers.Entry, **values: Any) -> answers.Entry:
    """An entry of another server, on which nothing is decided yet."""
    return dataclasses.replace(entry, decision=None, waiting=(
        dataclasses.replace(entry.waiting, **values)))


class ApiTestCase(tests.TestCase):
    """The application behind the check of the token."""

    def setUp(self) -> None:
        super().setUp()
        self.source = Source()
        conf = fakes.configuration()
        self.book = fakes.book(conf)
        self.api = http.Api(conf, self.source, self.book)

    def ask(self, path: str, roles: str = 'member,reader',
            project: str = 'p1', method: str = 'GET', **headers: str
            ) -> webob.Response:
        return webob.Request.blank(path, method=method, headers={
            'X-Project-Id': project, 'X-User-Id': 'u', 'X-Roles': roles,
            'X-Identity-Status': 'Confirmed', **headers}
        ).get_response(self.api)

    def get(self, path: str, status: int = 200, **who: str) -> Any:
        response = self.ask(path, **who)
        self.assertEqual(status, response.status_int, response.text)
        return response.json

    def ids(self, path: str, **who: str) -> list[str]:
        return [item['server'] for item
                in self.get(path, **who)['pending']]  # type: ignore[arg-type]

    def test_owners_see_their_own(self) -> None:
        answer = self.get('/v1/pending')
        self.assertEqual(['s1', 's3', 's4'],
                         [item['server'] for item in answer['pending']])
        self.assertEqual([1, 3, 4],
                         [item['position'] for item in answer['pending']])
        self.assertEqual(('fill', 'preempt', '2026-11-22T12:00:00Z'),
                         (answer['mode'], answer['configured_mode'],
                          answer['as_of']))

    def test_owners_see_neither_hosts_nor_victims(self) -> None:
        for item in (self.get('/v1/pending')['pending'][0],
                     self.get('/v1/pending/s1')['pending']):
            self.assertNotIn('host', item)
            self.assertNotIn('victims', item)
            self.assertEqual('no_room', item['reason'])
            self.assertEqual('Room can be made for it.', item['detail'])
            self.assertNotIn('queue_length', item)

    def test_methods(self) -> None:
        for path, known in (('/v1/pending', 'GET, HEAD'),
                            ('/v1/probe', 'POST'),
                            ('/v1/pause', 'GET, HEAD, PUT, DELETE')):
            response = self.ask(path, method='PATCH', roles='admin')
            self.assertEqual((405, known), (
                response.status_int, response.headers['Allow']))
        response = self.ask('/v1/pending', method='HEAD')
        self.assertEqual((200, b''), (response.status_int, response.body))
        self.get('/v1/nothing', 404, method='POST')

    def test_keys_are_given_once(self) -> None:
        self.get('/v1/pending?sort_dir=asc&sort_dir=desc', 400)
        self.get('/v1/pending/s1?dry_run=true&dry_run=false', 400,
                 roles='admin')
        self.get(f'/v1/history?server={UUID}&server={UUID}', 400)
        self.get(f'/v1/pending?server={UUID}&server={UUID}')

    def test_an_administrator_of_a_domain_is_none_of_the_cloud(self) -> None:
        for scope in ({'X-Domain-Id': 'd'}, {'OpenStack-System-Scope': 'all'}):
            who = {'roles': 'admin', 'project': '', **scope}
            self.get('/v1/pending?all_projects=true', 403, **who)
            self.get('/v1/pause', 403, **who, method='PUT')
        self.assertIsNone(self.book.store.switch())

    def test_of_others(self) -> None:
        self.get('/v1/pending/s2', 404)
        self.get('/v1/pending?project_id=p2', 403)
        self.get('/v1/pending?all_projects=true', 403)
        self.get('/v1/pending/s1?dry_run=true', 403)

    def test_without_the_role(self) -> None:
        self.get('/v1/pending', 403, roles='')
        self.get('/v1/pending/s1', 404, roles='')

    def test_administrators_see_all(self) -> None:
        self.assertEqual(
            ['s1', 's2', 's3', 's4'],
            self.ids('/v1/pending?all_projects=1', roles='admin'))
        self.assertEqual(
            ['s2'], self.ids('/v1/pending?project_id=p2', roles='service'))
        item = self.get('/v1/pending/s2', roles='admin')['pending']
        self.assertEqual(('h1', ['v1']), (item['host'], item['victims']))

    def test_pages(self) -> None:
        answer = self.get('/v1/pending?limit=2')
        self.assertEqual(['s1', 's3'],
                         [item['server'] for item in answer['pending']])
        following = answer['pending_links'][0]['href']
        self.assertEqual(['s4'], self.ids(following))
        self.assertNotIn('pending_links', self.get(following))

    def test_by_reason(self) -> None:
        self.assertEqual([], self.ids('/v1/pending?reason=quota'))
        self.assertEqual(3, len(self.ids('/v1/pending?reason=no_room')))
        self.assertEqual([], self.ids('/v1/pending?hindrance=not_asked'))
        for query in ('reason=xyz', 'reason=not_asked', 'hindrance=no_room'):
            self.get(f'/v1/pending?{query}', 400)

    def test_backwards(self) -> None:
        self.assertEqual(['s4', 's3', 's1'],
                         self.ids('/v1/pending?sort_dir=desc'))
        answer = self.get('/v1/pending?sort_dir=desc&limit=1&marker=s4')
        self.assertEqual(['s3'],
                         [item['server'] for item in answer['pending']])
        self.assertEqual(['s1'], self.ids(answer['pending_links'][0]['href']))
        self.assertEqual(['s1'], self.ids(
            '/v1/pending?sort_dir=asc&limit=1'))

    def test_by_state_and_name(self) -> None:
        entries = self.source.entries()
        with mock.patch.object(self.source, 'entries', return_value=[
                *entries[:2], changed(entries[2], shelved=True, name='Web-1'),
                changed(entries[3], failed=True, name='web-20')]):
            for query, found in (
                    ('state=pending', ['s1']), ('state=shelved', ['s3']),
                    ('state=error', ['s4']), ('name=WEB-', ['s3', 's4']),
                    ('name=web-2&state=error', ['s4']), ('name=b.', [])):
                self.assertEqual(found, self.ids(f'/v1/pending?{query}'))

    def test_by_server(self) -> None:
        ids = [UUID[:-1] + digit for digit in '1234']
        with mock.patch.object(self.source, 'entries', return_value=[
                changed(entry, id=uuid) for entry, uuid in zip(
                    self.source.entries(), ids, strict=True)]):
            # A server that does not wait, or belongs to others, is left out.
            query = '&'.join(
                f'server={uuid}' for uuid in (*ids[::-1], UUID))
            self.assertEqual(ids[:1] + ids[2:],
                             self.ids(f'/v1/pending?{query}'))
            self.assertEqual([], self.ids(f'/v1/pending?server={ids[1]}'))
            self.assertEqual(ids, self.ids(
                f'/v1/pending?{query}&all_projects=true', roles='admin'))
            following = self.get(f'/v1/pending?{query}&limit=1')[
                'pending_links'][0]['href']
            answer = self.get(following)
            self.assertEqual(ids[2:3], [
                item['server'] for item in answer['pending']])
            self.assertEqual(ids[3:], self.ids(
                answer['pending_links'][0]['href']))

    def test_a_page_of_many_is_small(self) -> None:
        one, ids = self.source.entries()[0], [
            f'{UUID[:-5]}{number:05}' for number in range(10000)]
        entries = [changed(one, id=uuid) for uuid in ids]
        whole = sum(len(json.dumps(entry.to_dict(True))) for entry in entries)
        with mock.patch.object(self.source, 'entries', return_value=entries):
            for query, number in (
                    ('limit=21&state=pending', 21),
                    (f'limit=21&marker={ids[5000]}&sort_dir=desc', 21),
                    ('&'.join(f'server={uuid}' for uuid in ids[-100:]), 100)):
                answer = self.get(f'/v1/pending?{query}', roles='admin')
                self.assertEqual(number, len(answer['pending']))
                self.assertLess(len(json.dumps(answer)), whole / 90)

    def test_bad_requests(self) -> None:
        for query, said in (
                ('server=s1', 'server is the ID of a server.'),
                (f'server={UUID}&server=', 'server is the ID of a server.'),
                ('&'.join(f'server={UUID[:-3]}{number:03}'
                          for number in range(101)),
                 'server is given 100 times at most.'),
                ('state=asleep', 'state is one of pending, error, shelved.'),
                ('sort_dir=up', 'sort_dir is one of asc, desc.')):
            answer = self.get(f'/v1/pending?{query}', 400)
            self.assertIn(said, answer['error']['message'])
        for query in ('limit=0', 'limit=1001', 'limit=x', 'marker=gone',
                      'limit=' + '1' * 5000, 'colour=red', 'colour=%ff',
                      'all_projects=perhaps'):
            answer = self.get(f'/v1/pending?{query}', 400)
            self.assertEqual(400, answer['error']['code'])
        for path, said in (
                ('/v1/notices', 'there are all_projects, project_id.'),
                ('/v1/servers/v2/rehearsal', 'this path has none.')):
            answer = self.get(f'{path}?x=1', 400, method=(
                'POST' if path.endswith('rehearsal') else 'GET'))
            self.assertIn(said, answer['error']['message'])
        self.get('/v1/pending', 405, method='POST')
        self.get('/v1/other', 404)
        self.get('/v1/pending/unknown', 404)
        self.get('/v1/pending/%ff', 400)

    def test_dry_run(self) -> None:
        answer = self.get('/v1/pending/s1?dry_run=true', roles='admin')
        self.assertEqual(['v1'], answer['dry_run']['victims'])
        self.assertEqual({'VCPU': 1},
                         answer['dry_run']['servers'][0]['resources'])
        self.source.room = False
        self.get('/v1/pending/s1?dry_run=true', 503, roles='admin')

    def test_notices(self) -> None:
        self.assertEqual([], self.get('/v1/notices')['notices'])
        notice, = self.get('/v1/notices', project='p2')['notices']
        self.assertEqual(
            {'server', 'name', 'project_id', 'action', 'terminate_at'},
            set(notice))
        notice, = self.get('/v1/notices?all_projects=true',
                           roles='admin')['notices']
        self.assertEqual(('s1', 'h1'), (notice['for'], notice['host']))

    def test_servers(self) -> None:
        answer = self.get('/v1/servers?limit=1')
        self.assertEqual([{'server': VICTIMS[1], 'project_id': 'p1'}],
                         answer['servers'])
        link, = answer['servers_links']
        answer = self.get(link['href'].removeprefix('http://localhost'))
        self.assertEqual([VICTIMS[2]], [
            server['server'] for server in answer['servers']])
        self.assertNotIn('servers_links', answer)
        answer = self.get('/v1/servers?all_projects=true', roles='admin')
        self.assertEqual(['h1'] * 3, [
            server['host'] for server in answer['servers']])
        self.get('/v1/servers?all_projects=true', 403)
        self.get('/v1/servers?project_id=p2', 403)
        self.get('/v1/servers?limit=0', 400)
        self.get('/v1/servers?marker=true', 400)

    def test_a_rehearsal(self) -> None:
        path = f'/v1/servers/{UUID}/rehearsal'
        post: dict[str, Any] = {'method': 'POST'}
        server = mock.Mock(id=UUID, project='p1')
        with mock.patch.multiple(
                self.source, find=mock.Mock(return_value=server),
                rehearse=mock.Mock(return_value=None)):
            rehearse: mock.Mock = self.source.rehearse  # type: ignore
            find: mock.Mock = self.source.find  # type: ignore
            self.get(path, 405)
            self.get(f'{path}?a=b', 400, **post)
            # A user rehearses no servers of other projects, and does not learn
            # that they exist.
            for who in ({'project': 'p2'}, {'roles': 'reader'},
                        {'roles': 'admin', 'project': 'p2'}):
                self.get(path, 404, **post | who)
            self.get('/v1/servers/x/rehearsal', 404, **post)
            find.return_value = None
            self.get(path, 404, **post)
            find.side_effect = rest.Unavailable('nova', 'x', 'No.')
            self.get(path, 503, **post)
            self.source.active = False
            self.get(path, 503, **post)
            rehearse.assert_not_called()
            find.side_effect, find.return_value = None, server
            self.source.active = True
            self.assertEqual({'rehearsal': {'server': UUID}},
                             self.get(path, **post))
            rehearse.assert_called_once_with(server)
            rehearse.return_value = 'The server does not run.'
            answer = self.get(path, 409, **post)
            self.assertEqual('The server does not run.',
                             answer['error']['message'])

    def test_when_there_will_be_room(self) -> None:
        self.assertEqual(model.time_text(TIME), self.get(
            '/v1/pending/s1')['pending']['room_by'])

    def test_one_that_stands_by(self) -> None:
        self.source.active = False
        for path in ('/v1/pending', '/v1/pending/s1', '/v1/notices',
                     '/v1/servers'):
            answer = self.get(path, 503)
            self.assertIn('stands by', answer['error']['message'])

    def test_a_fault_says_nothing_of_itself(self) -> None:
        del self.source.room
        answer = self.get('/v1/pending/s1?dry_run=true', 500, roles='admin')
        self.assertNotIn('room', answer['error']['message'])


class PageTestCase(tests.TestCase):

    def test_the_page_lists_each_rule(self) -> None:
        if not PAGE.exists():
            self.skipTest('This is no checkout: %s is missing.' % PAGE)
        text = PAGE.read_text()
        table = text.split('Who sees what\n===')[1].split('\n===')[0]
        listed = re.findall('``([a-z]+:[a-z:_]+)``', table)
        self.assertEqual(sorted(
            rule.name for rule in http.list_rules() if ':' in rule.name),
            sorted(listed))


class RootTestCase(tests.TestCase):
    """What needs no token, and what does."""

    def setUp(self) -> None:
        super().setUp()
        self.source = Source()
        self.conf = with_keystone()
        self.app = http.application(self.conf, self.source, health.Metrics(),
                                    fakes.book(self.conf))

    def get(self, path: str) -> Any:
        return webob.Request.blank(path).get_response(self.app)

    def test_no_token(self) -> None:
        for path in ('/v1/pending', '/v1/pending/s1', '/v1/notices'):
            self.assertEqual(401, self.get(path).status_int)

    def test_keystone_does_not_answer(self) -> None:
        for fault in (requests.ReadTimeout(), ks_exceptions.EndpointNotFound(),
                      auth_token.ksm_exceptions.ServiceError()):
            with mock.patch.object(auth_token.AuthProtocol, 'fetch_token',
                                   side_effect=fault):
                response = webob.Request.blank('/v1/pending', headers={
                    'X-Auth-Token': 't'}).get_response(self.app)
            self.assertEqual((503, 503), (
                response.status_int, response.json['error']['code']))
            self.assertIn('Keystone', response.json['error']['message'])

    def test_health(self) -> None:
        response = self.get('/healthz')
        self.assertEqual((200, 'ok'),
                         (response.status_int, response.json['status']))
        self.source.checks.append(health.Check('lists', 'degraded', ''))
        self.assertEqual(200, self.get('/healthz').status_int)
        self.source.checks.append(health.Check('lists', 'failed', ''))
        self.assertEqual(503, self.get('/healthz').status_int)

    def test_one_that_stands_by(self) -> None:
        self.source.active = False
        response = self.get('/healthz')
        self.assertEqual((200, False),
                         (response.status_int, response.json['active']))
        # What a load balancer looks for is in the documentation.
        self.assertIn('"active": false', response.text)
        self.assertEqual(200, self.get('/metrics').status_int)

    def test_metrics(self) -> None:
        response = self.get('/metrics')
        self.assertIn('nova_reaper_active', response.text)
        self.assertTrue(response.content_type.startswith('text/plain'))

    def test_links_are_those_of_the_proxy_in_front(self) -> None:
        headers = {'X-Forwarded-Proto': 'https', 'Host': 'cloud'}
        for scheme in 'http', 'https':
            [version] = webob.Request.blank('/', headers=headers).get_response(
                self.app).json['versions']
            self.assertEqual(f'{scheme}://cloud/v1/',
                             version['links'][0]['href'])
            self.conf.set_override('enable_proxy_headers_parsing', True,
                                   'oslo_middleware')

    def test_versions(self) -> None:
        [version] = self.get('/').json['versions']
        self.assertEqual(version, self.get('/v1/').json['version'])
        self.assertEqual(404, self.get('/v2').status_int)


class ServerTestCase(tests.TestCase):
    """Over a socket."""

    def start(self) -> str:
        conf = with_keystone()
        conf.set_override('port', 0, 'http')
        server = http.Server(conf, http.application(
            conf, Source(), health.Metrics(), fakes.book(conf)))
        port = server.start()
        self.addCleanup(server.stop)
        return f'http://127.0.0.1:{port}'

    def test_it_answers_and_ends(self) -> None:
        url = self.start()
        self.assertEqual(200, requests.get(
            f'{url}/healthz', timeout=10).status_code)
        self.assertEqual(401, requests.get(
            f'{url}/v1/pending', timeout=10).status_code)

    def test_what_is_too_long_is_not_read(self) -> None:
        url = self.start()
        for answer in (
                requests.get(f'{url}/{"a" * http.LONGEST}', timeout=10),
                requests.get(f'{url}/healthz', timeout=10, headers={
                    'X-Auth-Token': 'a' * http.LONGEST}),
                requests.post(f'{url}/healthz', timeout=10,
                              data='a' * (http.LONGEST + 1))):
            self.assertIn(answer.status_code, (413, 414))

    def test_a_certificate_that_is_none_is_named(self) -> None:
        conf = fakes.configuration()
        directory = self.useFixture(fixtures.TempDir()).path
        for name in ('certificate', 'private_key'):
            file = pathlib.Path(directory, name)
            file.write_text('none')
            conf.set_override(name, str(file), 'http')
        error = self.assertRaises(ValueError, http.Server, conf, None)
        self.assertIn(conf.http.certificate, str(error))
        self.assertIn(conf.http.private_key, str(error))
