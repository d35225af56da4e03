# SPDX-License-Identifier: Apache-2.0

"""Whose token a rebuild is asked with, and what follows without a token."""

from typing import Any
from unittest import mock
from urllib import parse

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from requests_mock.contrib import fixture

from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper import tests
from nova_reaper.tests import acting
from nova_reaper.tests import fakes


class RebuildTestCase(acting.ActingTestCase):
    """A server waits, and there is room."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.waiting = self.nova.add_server('w', 4)

    def needs_owner(self, outcome: Outcome, detail: str) -> None:
        self.assertEqual(
            (Result.REFUSED, model.Hindrance.NEEDS_OWNER),
            (outcome.result, outcome.hindrance))
        self.assertIn(detail, outcome.detail)
        self.assertEqual({}, self.room.has(self.waiting))
        self.assertEqual('PENDING', self.nova.servers[self.waiting]['status'])

    def test_with_a_token_of_its_project(self) -> None:
        self.nova.to_make.add(self.waiting)
        self.assertEqual(Result.ACTIVE,
                         self.outcome(self.begin(self.waiting)).result)
        self.assertEqual(['owner'], self.nova.rebuilt_by)

    def test_its_project_is_that_of_the_reaper(self) -> None:
        own = self.nova.add_server('o', 4, project=fakes.SERVICE)
        self.nova.to_make.add(own)
        self.assertEqual(Result.ACTIVE, self.outcome(self.begin(own)).result)

    def test_no_token(self) -> None:
        self.nova.no_token_of.add('owner')
        self.assertEqual(Result.ACTIVE,
                         self.outcome(self.begin(self.waiting)).result)
        self.assertEqual([fakes.SERVICE], self.nova.rebuilt_by)

    def test_no_token_and_volumes(self) -> None:
        self.nova.no_token_of.add('owner')
        self.nova.to_make.add(self.waiting)
        outcome = self.outcome(self.begin(self.waiting))
        self.needs_owner(outcome, 'no access to the project')
        self.assertEqual([], self.actions())

    def test_nova_says_so_only_as_it_is_rebuilt(self) -> None:
        self.nova.no_token_of.add('owner')
        current = self.at(Step.REBUILD, self.begin(self.waiting))
        self.nova.to_make.add(self.waiting)
        self.needs_owner(self.outcome(current), 'made when it is built')
        self.assertEqual(['rebuild'], self.actions())

    def test_the_role_is_taken_away(self) -> None:
        current = self.at(Step.REBUILD, self.begin(self.waiting))
        self.nova.owners._login('owner')
        self.nova.no_token_of.add('owner')
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)
        self.assertEqual([fakes.SERVICE], self.nova.rebuilt_by)
        self.assertEqual({}, dict(self.nova.owners._logins))

    def test_locked(self) -> None:
        self.nova.servers[self.waiting]['locked'] = True
        self.assertEqual(Result.ACTIVE,
                         self.outcome(self.begin(self.waiting)).result)
        self.assertEqual([fakes.SERVICE], self.nova.rebuilt_by)

    def test_locked_and_volumes(self) -> None:
        self.nova.servers[self.waiting]['locked'] = True
        self.nova.to_make.add(self.waiting)
        self.needs_owner(self.outcome(self.begin(self.waiting)), 'is locked')
        self.assertEqual([], self.actions())

    def test_a_role_that_may_not(self) -> None:
        self.nova.before.append(('rebuild', 'action', lambda: self.nova.error(
            403, "Policy doesn't allow it to be performed.")))
        self.assertEqual(Result.ACTIVE,
                         self.outcome(self.begin(self.waiting)).result)
        self.assertEqual([fakes.SERVICE], self.nova.rebuilt_by)

    def test_the_quota_is_that_of_any_token(self) -> None:
        self.nova.before.append(('rebuild', 'action', lambda: self.nova.error(
            403, 'Quota exceeded for cores')))
        self.assertEqual(model.Reason.QUOTA,
                         self.outcome(self.begin(self.waiting)).reason)
        self.assertEqual([], self.actions())

    def test_keystone_does_not_answer(self) -> None:
        self.nova.to_make.add(self.waiting)
        current = self.at(Step.REBUILD, self.begin(self.waiting))
        self.nova.owners._logins.clear()
        failure = rest.Unavailable('keystone', 'token', 'no answer')
        with mock.patch.object(self.nova.owners, '_log_in',
                               side_effect=failure):
            again = self.actor.advance(current)
        self.assertEqual(Step.WATCH, getattr(again, 'step'))
        self.now += 5
        assert not isinstance(again, Outcome)
        self.assertEqual(Result.ACTIVE, self.outcome(again).result)


class VictimsTestCase(acting.ActingTestCase):
    """Nobody is ended for a server that only its owner can rebuild."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 4)
        self.waiting = self.nova.add_server('w', 4)
        self.victim = self.nova.add_server('v', 4, 'h1', preemptible=True)
        self.nova.to_make.add(self.waiting)

    def is_alone(self) -> None:
        self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                         self.room.has(self.victim))
        self.assertEqual({}, self.room.has(self.waiting))
        self.assertEqual({}, self.nova.servers[self.victim]['metadata'])
        self.assertEqual([], self.actions())

    def test_one_is_ended_with_a_token(self) -> None:
        outcome = self.outcome(
            self.begin(self.waiting, victims=(self.victim,)))
        self.assertEqual(Result.ACTIVE, outcome.result)

    def test_none_without(self) -> None:
        self.nova.no_token_of.add('owner')
        outcome = self.outcome(
            self.begin(self.waiting, victims=(self.victim,)))
        self.assertEqual(model.Hindrance.NEEDS_OWNER, outcome.hindrance)
        self.is_alone()

    def test_the_role_is_taken_away_in_the_grace(self) -> None:
        current = self.at(Step.SWAP, self.begin(
            self.waiting, victims=(self.victim,)))
        self.assertIn('reaper:for',
                      self.nova.servers[self.victim]['metadata'])
        self.nova.no_token_of.add('owner')
        outcome = self.outcome(current)
        self.assertEqual(model.Hindrance.NEEDS_OWNER, outcome.hindrance)
        self.is_alone()

    def test_locked_in_the_grace(self) -> None:
        current = self.at(Step.SWAP, self.begin(
            self.waiting, victims=(self.victim,)))
        self.nova.servers[self.waiting]['locked'] = True
        outcome = self.outcome(current)
        self.assertEqual(model.Hindrance.NEEDS_OWNER, outcome.hindrance)
        self.is_alone()


class KeptTestCase(tests.TestCase):
    """Tokens are asked for as seldom as that is right."""

    def setUp(self) -> None:
        super().setUp()
        self.now = 0.0
        self.nova = mock.Mock()
        self.log_in = mock.Mock()
        self.owners = nova.Owners(self.nova, 'service', self.log_in)
        self.useFixture(fakes.Clock(lambda: self.now))

    def test_once(self) -> None:
        self.owners.rebuild('s', 'p')
        self.owners.rebuild('t', 'p')
        self.log_in.assert_called_once_with('p')
        self.assertEqual([], self.nova.rebuild.mock_calls)

    def test_refused_ones_after_a_time(self) -> None:
        self.log_in.side_effect = rest.Forbidden('keystone', 'x', 'No.')
        for now, calls in (0, 1), (nova.AGAIN - 1, 1), (nova.AGAIN, 2):
            self.now = now
            self.owners.rebuild('s', 'p')
            self.assertEqual(calls, self.log_in.call_count)
        self.assertEqual(3, self.nova.rebuild.call_count)

    def test_not_more_than_so_many(self) -> None:
        for number in range(nova.KEPT + 10):
            self.owners.rebuild('s', f'p{number}')
        self.assertEqual(nova.KEPT, len(self.owners._logins))


class LogInTestCase(tests.TestCase):
    """Keystone is asked for a token of another project."""

    URL = 'http://keystone/v3'

    def setUp(self) -> None:
        super().setUp()
        self.requests: Any = self.useFixture(fixture.Fixture())
        self.requests.get(self.URL, json={'version': {
            'id': 'v3.14', 'status': 'stable',
            'links': [{'rel': 'self', 'href': self.URL}]}})
        self.token('p2')

    def token(self, project: str | None) -> None:
        self.requests.post(
            f'{self.URL}/auth/tokens', headers={'X-Subject-Token': 't'},
            status_code=201, json={'token': {
                'issued_at': '2026-11-22T10:00:00.000000Z',
                'expires_at': '2036-11-22T10:00:00.000000Z',
                'methods': ['password'],
                'user': {'id': 'u', 'name': 'u', 'domain': {
                    'id': 'default', 'name': 'Default'}},
                'project': {'id': project, 'name': 'p', 'domain': {
                    'id': 'default', 'name': 'Default'}}}})

    def log_in(self, auth_type: str = 'password', **options: Any) -> Any:
        conf = fakes.configuration()
        conf.set_override('auth_type', auth_type, group='nova_reaper')
        conf.register_opts(loading.get_auth_plugin_conf_options(auth_type),
                           group='nova_reaper')
        for name, value in options.items():
            conf.set_override(name, value, group='nova_reaper')
        own = token_endpoint.Token('http://nova', 'own')
        return rest.log_in(conf, session.Session(auth=own), 'p2')

    def password(self) -> Any:
        return self.log_in(auth_url=self.URL, username='reaper',
                           password='secret', user_domain_id='default',
                           project_name='service',
                           project_domain_id='default')

    def test_the_project_is_named(self) -> None:
        auth = self.password()
        asked = self.requests.last_request.json()['auth']
        self.assertEqual({'project': {'id': 'p2'}}, asked['scope'])
        self.assertEqual('reaper', asked['identity']['password']['user'][
            'name'])
        self.assertEqual(
            {'X-Auth-Token': 't', 'X-Service-Token': 'own'},
            auth.get_headers(session.Session()))

    def test_no_role(self) -> None:
        self.requests.post(
            f'{self.URL}/auth/tokens', status_code=401,
            headers={'Content-Type': 'application/json'}, json={'error': {
                'code': 401, 'message': 'User u has no access to p2.'}})
        error = self.assertRaises(rest.Forbidden, self.password)
        self.assertIn('no access to p2', error.message)

    def test_no_answer(self) -> None:
        self.requests.post(f'{self.URL}/auth/tokens', status_code=503)
        self.assertRaises(rest.Unavailable, self.password)
        self.requests.post(f'{self.URL}/auth/tokens',
                           exc=exceptions.ConnectFailure)
        self.assertRaises(rest.Unavailable, self.password)

    def test_too_many_requests(self) -> None:
        self.requests.post(f'{self.URL}/auth/tokens', status_code=429)
        self.assertRaises(rest.Unavailable, self.password)

    def test_an_auth_type_without_projects(self) -> None:
        error = self.assertRaises(rest.Forbidden, self.log_in,
                                  'http_basic')
        self.assertIn('knows no projects', error.message)

    def test_a_credential_is_bound_to_a_project(self) -> None:
        self.token('p1')
        error = self.assertRaises(
            rest.Forbidden, self.log_in, 'v3applicationcredential',
            auth_url=self.URL, application_credential_id='a',
            application_credential_secret='secret')
        self.assertIn('bound to project p1', error.message)


class Projects:
    """Answers GET /projects as Keystone does, with a limit for each page.

    :param paged: whether it knows pages; a release that does not answers all
    :param most: its max_db_limit
    """

    name = 'keystone'

    def __init__(self, count: int, paged: bool = True,
                 most: int = 1000) -> None:
        self.projects: list[dict[str, Any]] = [{'id': f'p{number:05}',
                                                'reaper:priority': number}
                                               for number in range(count)]
        self.paged = paged
        self.most = most
        self.refuses = False
        self.asked = 0

    def request(self, method: str, path: str) -> Any:
        self.asked += 1
        if self.refuses:
            raise rest.Forbidden('keystone', path, 'no', 403)
        query = dict(parse.parse_qsl(parse.urlsplit(path).query))
        after = query.get('marker', '') if self.paged else ''
        page = [project for project in self.projects if project['id'] > after]
        most = min(int(query.get('limit', self.most)), self.most)
        # No link to the next page, unless a limit was asked for.
        return {'projects': page[:most] if self.paged else page,
                'links': {'next': None}}


class ProjectsTestCase(tests.TestCase):
    """What operators have written on projects."""

    def test_of_more_projects_than_a_page_has(self) -> None:
        for count in (0, 3, 1000, 2500):
            for paged in (True, False):
                server: Any = Projects(count, paged)
                found = rest.Keystone(server).project_properties()
                self.assertEqual(count, len(found))
                self.assertLessEqual(server.asked, count // 1000 + 2)
        self.assertEqual({'reaper:priority': '2499'}, found['p02499'])

    def test_of_a_keystone_with_small_pages(self) -> None:
        server: Any = Projects(250, most=7)
        self.assertEqual(
            250, len(rest.Keystone(server).project_properties()))

    def test_a_refusal_resets_nothing(self) -> None:
        server: Any = Projects(3)
        identity = rest.Keystone(server)
        before = identity.project_properties()
        server.refuses = True
        with self.assertLogs('nova_reaper.clients.rest', 'WARNING') as log:
            for _ in range(2):
                self.assertEqual(before, identity.project_properties())
        self.assertEqual(1, len(log.output))
        self.assertEqual({}, rest.Keystone(server).project_properties())
