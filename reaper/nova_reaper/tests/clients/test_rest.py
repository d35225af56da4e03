# SPDX-License-Identifier: Apache-2.0

"""Requests, as they go over the wire."""

from email import utils
import logging
import time
from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import fixture as identity
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from oslo_config import cfg
import requests
import requests_mock
from requests_mock.contrib import fixture

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper import conf as reaper_conf
from nova_reaper.report import health
from nova_reaper import tests

URL = 'http://nova/v2.1'


class ClientTestCase(tests.TestCase):
    """A client of a Nova that answers what the test says."""

    def setUp(self) -> None:
        super().setUp()
        self.requests: Any = self.useFixture(fixture.Fixture())
        self.versions('2.107')
        self.metrics = health.Metrics()
        self.client = self.new_client()
        self.nova = nova.Nova(self.client)

    def new_client(self, **options: Any) -> nova.Client:
        auth = token_endpoint.Token(URL, 'secret')
        service = adapter.Adapter(
            session.Session(auth), service_type='compute',
            status_code_retry_delay=0.01)
        return nova.Client('nova', service,
                           observe=self.metrics.observe_request, **options)

    def versions(self, reason: str | None) -> None:
        """Let Nova tell the microversion of its answer, or tell none."""
        self.requests.get(
            f'{URL}/pending', status_code=200 if reason else 404,
            json={'pending': {'microversions': {'reason': reason}}})

    def count(self, code: str) -> float:
        return self.metrics.registry.get_sample_value(
            'nova_reaper_requests_total',
            {'service': 'nova', 'code': code}) or 0.0

    def test_microversion(self) -> None:
        self.versions('2.106')
        client = self.new_client()
        self.assertEqual('2.106', client.microversion)
        self.assertEqual('compute latest', self.requests.last_request.headers[
            'OpenStack-API-Version'])
        # Nova is upgraded.
        self.versions('2.107')
        client.look_again()
        self.assertEqual('2.107', client.microversion)

    def test_microversions_are_not_said(self) -> None:
        self.requests.get(f'{URL}/pending', status_code=503)
        client = self.new_client()
        self.assertRaises(rest.Unavailable, lambda: client.microversion)
        self.versions('2.107')
        self.assertEqual('2.107', client.microversion)
        self.requests.get(f'{URL}/pending', status_code=503)
        client.look_again()
        self.assertEqual('2.107', client.microversion)

    def test_too_old(self) -> None:
        self.versions(None)
        client = self.new_client()
        error = self.assertRaises(rest.TooOld, client.request, 'GET', '/x')
        self.assertIn('2.107', str(error))
        self.assertRaises(rest.TooOld, client.look_again)

    def test_it_is_sent(self) -> None:
        self.requests.get(f'{URL}/x', json={})
        self.client.request('GET', '/x')
        self.assertEqual(
            'compute 2.107', self.requests.last_request.headers[
                'OpenStack-API-Version'])

    def test_failures(self) -> None:
        for status, kind in ((400, rest.BadRequest),
                             (401, rest.Forbidden),
                             (403, rest.Forbidden),
                             (404, rest.NotFound),
                             (409, rest.Conflict),
                             (413, rest.RequestFailed),
                             (429, rest.Unavailable),
                             (500, rest.Unavailable)):
            self.requests.post(f'{URL}/x', status_code=status, json={
                'anything': {'message': 'Because.'}})
            error = self.assertRaises(kind, self.client.request, 'POST', '/x')
            self.assertEqual(('Because.', status),
                             (error.message, error.status))
        self.assertEqual(1, self.count('409'))
        self.assertEqual(2, self.count('5xx') + self.count('none') + 1)

    def test_where_the_connection_breaks_only_reads_are_repeated(self
                                                                ) -> None:
        auth = token_endpoint.Token(URL, 'secret')
        client = rest.Client('nova', adapter.Adapter(
            session.Session(auth), service_type='compute', connect_retries=2,
            connect_retry_delay=0.01))
        broken = mock.Mock(side_effect=requests.exceptions.ConnectionError)
        for method, times in (('GET', 3), ('POST', 1), ('DELETE', 1)):
            broken.reset_mock()
            self.requests.register_uri(method, f'{URL}/x', text=broken)
            self.assertRaises(rest.Unavailable, client.request, method,
                              '/x')
            self.assertEqual(times, broken.call_count, method)

    def test_a_failure_in_no_form(self) -> None:
        for status, kind, page in (
                (400, rest.BadRequest, rest.BadRequest),
                (403, rest.Forbidden, rest.Forbidden),
                (404, rest.NotFound, rest.Unavailable),
                (409, rest.Conflict, rest.Unavailable)):
            self.requests.post(f'{URL}/x', status_code=status, text='{"x": 1}')
            self.assertRaises(kind, self.client.request, 'POST', '/x')
            for text in ('', '<html>', '[]', 'null'):
                # Not of the service, as far as it can be told.
                self.requests.post(f'{URL}/x', status_code=status, text=text)
                self.assertRaises(page, self.client.request, 'POST', '/x')

    def test_an_answer_of_something_else(self) -> None:
        for text in ('<html>We are back soon.</html>', '[]', '"so"'):
            self.requests.get(f'{URL}/x', text=text)
            self.requests.post(f'{URL}/x', text=text)
            for method in 'GET', 'POST':
                error = self.assertRaises(
                    rest.Unavailable, self.client.request, method, '/x')
                self.assertEqual(
                    f'nova: {method} /x: 200: the answer is not a JSON '
                    'object; something else may answer at this address',
                    str(error))
        self.requests.get(f'{URL}/x', text='')
        self.assertRaises(rest.Unavailable, self.client.request, 'GET',
                          '/x')

    def test_reads_are_repeated(self) -> None:
        self.requests.get(f'{URL}/x', [
            {'status_code': 503}, {'status_code': 502}, {'json': {'a': 1}}])
        self.assertEqual({'a': 1}, self.client.request('GET', '/x'))

    def test_a_page_that_fails_is_repeated(self) -> None:
        self.requests.get(f'{URL}/x', [
            {'status_code': 500}, {'json': {'y': [1]}}])
        self.assertEqual([1], list(self.client.list('/x', 'y')))
        self.requests.get(f'{URL}/x', status_code=500)
        self.assertRaises(rest.RequestFailed, list,
                          self.client.list('/x', 'y'))

    def test_writes_are_not(self) -> None:
        self.requests.post(f'{URL}/x', [{'status_code': 503}, {'json': {}}])
        self.assertRaises(rest.Unavailable, self.client.request, 'POST',
                          '/x')

    def test_no_connection(self) -> None:
        self.requests.get(f'{URL}/x',
                          exc=requests.exceptions.ConnectTimeout)
        self.assertRaises(rest.Unavailable, self.client.request, 'GET',
                          '/x')
        self.assertEqual(1, self.count('none'))

    def test_keystone_gives_no_token_any_more(self) -> None:
        for status, kind in ((401, rest.Forbidden),
                             (429, rest.Unavailable)):
            failure = exceptions.from_response(
                requests_mock.create_response(
                    requests.Request('POST', URL), status_code=status),
                'POST', URL)
            client = self.new_client()
            with mock.patch.object(client._adapter, 'request',
                                   side_effect=failure):
                error = self.assertRaises(kind, client.request, 'GET', '/x')
            self.assertEqual(status, error.status)

    def test_pages(self) -> None:
        self.requests.get(f'{URL}/things?limit=1000', json={
            'things': [{'id': 1}], 'things_links': [{
                'rel': 'next', 'href':
                'https://outside/v2.1/things?marker=1&limit=1000'}]})
        self.requests.get(f'{URL}/things?limit=1000&marker=1', json={
            'things': [{'id': 2}]})
        # The last answer that is added is tried first.
        self.assertEqual([1, 2], [
            item['id'] for item in self.client.list('/things', 'things')])

    def verdict(self, last: dict[str, Any]) -> nova.Pending:
        """Ask for a verdict whose hosts come in two pages."""
        answer = {
            'since': '2026-11-22T11:30:00Z', 'attempts': 3,
            'last_attempt': '2026-11-22T11:50:00Z', 'reason': 'new_word',
            'message': '', 'advice': '', 'requests': ['resources=x']}
        first = {
            'hosts': [{'host': 'h1', 'uuid': 'h1', 'refused_by': None}],
            'hosts_links': [{
                'rel': 'next',
                'href': 'http://o/servers/s/pending?marker=h1'}]}
        self.requests.get(f'{URL}/servers/s/pending', json={
            'pending': answer | first})
        self.requests.get(f'{URL}/servers/s/pending?marker=h1', json={
            'pending': answer | last})
        return self.nova.pending('s')

    def test_hosts_of_a_verdict_come_in_pages(self) -> None:
        found = self.verdict({'hosts': [
            {'host': 'h2', 'uuid': 'h2', 'refused_by': None}]})
        self.assertEqual(['h1', 'h2'], list(found.hosts))
        self.assertEqual('unknown', found.reason)
        self.assertEqual('', found.unavailable)

    def test_nova_fails_between_the_pages_of_a_verdict(self) -> None:
        found = self.verdict({'hosts': None, 'unavailable': 'no scheduler'})
        self.assertEqual('no scheduler', found.unavailable)

    def test_hosts_are_not_asked_for_their_uptime(self) -> None:
        self.requests.get(f'{URL}/os-hypervisors/detail?limit=1000', json={
            'hypervisors': []})
        self.assertEqual([], list(self.nova.hypervisors()))
        self.assertEqual(
            'compute 2.87', self.requests.last_request.headers[
                'OpenStack-API-Version'])

    def test_how_far_the_clock_is_off(self) -> None:
        now, waits, date, late = 1e9, 0.0, 0.0, 0.0

        def answer(_request: Any, context: Any) -> str:
            nonlocal now
            now += waits
            context.headers['Date'] = utils.formatdate(
                now + date, usegmt=True)
            now += late
            return '{}'

        def off(client: rest.Client) -> float:
            client.request('GET', '/x')
            return client.clock_off

        self.requests.get(f'{URL}/x', text=answer)
        steps = 0.0
        with mock.patch.object(rest, '_now', lambda: now), mock.patch.object(
                time, 'monotonic', lambda: now - steps):
            for waits, date, late, expected in (
                    (0, 0, 0, 0), (0, 100, 0, 99), (40, 0, 0, 0),
                    (0, -100, 0, -99), (0, 0, 40, 0), (40, -30, 40, 0),
                    (0, 1.9, 0, 0), (0, 60, 40, 19), (40, -60, 0, -19),
                    (0, -1, 0, 0)):
                self.assertAlmostEqual(expected, off(self.new_client()), 3,
                                       (waits, date, late))
            waits = late = 0.0
            # The clock of some processes of the service is wrong.
            for date in 100, 0, 100, -100, 100:
                found = off(self.client)
            self.assertAlmostEqual(0, found, 3)
            for date in (100.0,) * rest.ANSWERS:
                found = off(self.client)
            self.assertAlmostEqual(99, found, 3)
            date = 0.0
            self.assertAlmostEqual(0, off(self.client), 3)
            # The clock here makes a step.
            now, steps = now + 3600, 3600.0
            self.assertLess(self.client.clock_off, -3500)
            self.assertAlmostEqual(0, off(self.client), 3)

    def test_the_pace(self) -> None:
        client = self.new_client(rate_limit=50)
        self.assertEqual('2.107', client.microversion)
        self.requests.get(f'{URL}/x', json={})
        # Threads of other tests may sleep meanwhile.
        with mock.patch.object(rest, 'time', mock.Mock(
                wraps=time, monotonic=lambda: 1e9, sleep=mock.Mock())) as now:
            for _ in range(5):
                client.request('GET', '/x')
        waited = [call.args[0] for call in now.sleep.call_args_list]
        self.assertEqual(4, len(waited))
        self.assertTrue(0 < waited[-1] <= 4 / 50)

    def test_an_idle_hour_is_not_saved_up(self) -> None:
        pace = rest.Pace(50)
        pace.wait()
        with mock.patch.object(time, 'monotonic', lambda: 1e9), (
                mock.patch.object(time, 'sleep')) as sleep:
            pace.wait()
            pace.wait()
        self.assertAlmostEqual(1 / 50, sleep.call_args.args[0], 5)


class SecretsTestCase(tests.TestCase):
    """What is logged where all of it is."""

    def test_no_secret_is_logged(self) -> None:
        url = 'http://keystone/v3'
        token = identity.V3Token(project_id='0' * 32)
        token.add_service('compute').add_standard_endpoints(
            public=URL, internal=URL)
        web: Any = self.useFixture(fixture.Fixture())
        web.get(url, json={'version': identity.V3Discovery(url)})
        web.post(f'{url}/auth/tokens', json=token,
                 headers={'X-Subject-Token': 'the-token'})
        web.get(f'{URL}/x', status_code=401,
                request_headers={'X-Auth-Token': 'the-token'})
        [path] = self.create_tempfiles([('reaper', f'''
[nova_reaper]
auth_type = password
auth_url = {url}
username = reaper
password = the-password
user_domain_id = default
project_id = {'0' * 32}
''')], ext='.conf')
        conf = cfg.ConfigOpts()
        reaper_conf.register_opts(conf)
        conf([], default_config_files=[path])
        logged = self.useFixture(fixtures.FakeLogger(
            level=logging.DEBUG, format='%(name)s %(message)s'))

        client = rest.load_client(
            rest.Client, conf, rest.load_session(conf), 'nova')
        error = self.assertRaises(
            rest.Forbidden, client.request, 'GET', '/x')

        # The requests and their headers are there.
        self.assertIn('X-Auth-Token', logged.output)
        for secret in ('the-token', 'the-password'):
            self.assertNotIn(secret, logged.output)
            self.assertNotIn(secret, str(error))
