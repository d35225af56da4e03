# SPDX-License-Identifier: Apache-2.0

import json
import re
from unittest import mock
from urllib import parse

from keystoneauth1 import exceptions
from openstack_dashboard.api import _nova
from openstack_dashboard.api import base
from openstack_dashboard.test import helpers
import requests_mock

from horizon import exceptions as horizon_exceptions
from pending_dashboard import api

REAPER = 'http://reaper.example.com:8782'
SERVERS = ('11111111-0000-4000-8000-000000000001',
           '11111111-0000-4000-8000-000000000002',
           '11111111-0000-4000-8000-000000000003')


def server(number, **values):
    return {'id': SERVERS[number], 'name': 'server-%d' % number,
            'tenant_id': 'p', 'status': 'PENDING',
            'created': '2026-11-22T11:30:00Z',
            'flavor': {'original_name': 'm1.large'},
            'fault': {'message': 'No valid host was found. '}, **values}


class APITestCase(helpers.TestCase):

    def setUp(self):
        super().setUp()
        self.nova = base.url_for(self.request, 'compute')
        self.http = requests_mock.Mocker()
        self.http.start()
        self.addCleanup(self.http.stop)
        self.versions('2.107')
        released = base.url_for
        self.reaper = None

        def url_for(request, service_type, *args, **kwargs):
            if service_type != api.REAPER:
                return released(request, service_type, *args, **kwargs)
            if self.reaper is None:
                raise horizon_exceptions.ServiceCatalogException(service_type)
            return self.reaper

        patch = mock.patch.object(base, 'url_for', url_for)
        patch.start()
        self.addCleanup(patch.stop)

    def versions(self, newest, **numbers):
        """Let Nova have a newest microversion, and tell those of features.

        By default they are those of Nova 34 that it has.
        """
        numbers = numbers or {
            feature: number for feature, number in (
                ('pending', '2.105'), ('rebuild', '2.106'),
                ('reason', '2.107')) if number <= newest}
        self.told = self.http.get(
            self.nova + '/pending', status_code=200 if numbers else 404,
            json={'pending': {'microversions': numbers}})
        self.http.get(self.nova, json={'version': {
            'id': 'v2.1', 'status': 'CURRENT', 'version': newest,
            'min_version': '2.1',
            'links': [{'rel': 'self', 'href': self.nova}]}})

    def lists(self, *servers):
        return self.http.get(self.nova + '/servers/detail',
                             json={'servers': list(servers)})

    def explains(self, number, **values):
        return self.http.get(
            '%s/servers/%s/pending' % (self.nova, SERVERS[number]),
            json={'pending': {
                'since': '2026-11-22T11:31:00Z', 'attempts': 2,
                'last_attempt': '2026-11-22T11:50:00Z', 'reason': 'no_room',
                'message': 'No host has room.', 'advice': 'Wait.',
                **values}})

    def test_page(self):
        asked = self.lists(server(0), server(1), server(2))
        for number in range(2):
            self.explains(number)
        servers, more = api.list_servers(self.request, 2, 'marker')
        self.assertEqual(SERVERS[:2], tuple(each.id for each in servers))
        self.assertTrue(more)
        self.assertEqual({
            'status': ['pending'], 'limit': ['3'], 'marker': ['marker'],
            'sort_key': ['created_at'], 'sort_dir': ['asc']},
            asked.last_request.qs)
        self.assertEqual('compute 2.105', asked.last_request.headers[
            'OpenStack-API-Version'])
        self.assertEqual('compute latest', self.told.last_request.headers[
            'OpenStack-API-Version'])

    def test_numbers_of_the_release(self):
        self.versions('2.106', pending='2.104', rebuild='2.105',
                      reason='2.106')
        listed = self.lists(server(0))
        self.explains(0)
        [found], _more = api.list_servers(self.request, 20)
        self.assertEqual('no_room', found.reason)
        rebuilt = self.http.post(
            '%s/servers/%s/action' % (self.nova, SERVERS[0]),
            status_code=202, json={})
        api.rebuild(self.request, SERVERS[0])
        self.assertEqual(
            ['compute 2.104', 'compute 2.105'],
            [asked.last_request.headers['OpenStack-API-Version']
             for asked in (listed, rebuilt)])
        self.assertEqual(1, self.told.call_count)

    def test_release_where_the_numbers_mean_something_else(self):
        self.versions('2.120')
        self.told = self.http.get(self.nova + '/pending', status_code=404)
        self.assertRaises(api.NotSupported, api.list_servers,
                          self.request, 20)
        self.assertEqual(1, self.told.call_count)

    def test_numbers_are_refused(self):
        self.http.get(self.nova + '/pending', status_code=500)
        self.assertRaises(exceptions.InternalServerError, api.list_servers,
                          self.request, 20)

    def test_page_backwards(self):
        asked = self.lists(server(1), server(0))
        for number in range(2):
            self.explains(number)
        servers, more = api.list_servers(
            self.request, 2, 'marker', backwards=True, all_projects=True)
        self.assertEqual(SERVERS[:2], tuple(each.id for each in servers))
        self.assertFalse(more)
        self.assertEqual(['desc'], asked.last_request.qs['sort_dir'])
        self.assertEqual(['true'], asked.last_request.qs['all_tenants'])

    def test_why_from_nova(self):
        self.lists(server(0))
        self.explains(0)
        [found], _more = api.list_servers(self.request, 20)
        self.assertEqual(api.WaitingServer(
            SERVERS[0], 'server-0', 'p', 'PENDING', '2026-11-22T11:31:00Z',
            'm1.large',
            'no_room', 'No host has room.', 'Wait.', attempts=2,
            last_attempt='2026-11-22T11:50:00Z'), found)

    def test_nova_does_not_tell_more(self):
        self.lists(server(0))
        for unavailable, message in (
                ('No scheduler tells.', 'No host has room. '
                 'No scheduler tells.'),
                ('No host has room.', 'No host has room.')):
            self.explains(0, unavailable=unavailable)
            [found], _more = api.list_servers(self.request, 20)
            self.assertEqual(message, found.message)

    def test_why_from_the_fault(self):
        self.versions('2.106')
        self.lists(server(0))
        [found], _more = api.list_servers(self.request, 20)
        self.assertEqual('No valid host was found.', found.message)
        self.assertIsNone(found.reason)

    def test_one_is_built_meanwhile(self):
        self.lists(server(0), server(1))
        self.explains(0)
        self.http.get('%s/servers/%s/pending' % (self.nova, SERVERS[1]),
                      status_code=409, json={})
        first, second = api.list_servers(self.request, 20)[0]
        self.assertEqual('no_room', first.reason)
        self.assertIsNone(second.reason)

    def test_order_from_the_reaper(self):
        self.reaper = REAPER + '/'
        self.lists(server(0))
        explained = self.explains(0)
        asked = self.http.get(REAPER + '/v1/pending', json={'pending': [{
            'server': SERVERS[0], 'detail': '812 of 1000 hosts.',
            'since': '2026-11-22T11:30:00Z', 'reason': 'no_room',
            'hindrance': 'protected', 'advice': 'Nothing has to be done.',
            'automatic': 'It is built as soon as there is room.',
            'attempts': 3, 'last_attempt': None,
            'next_attempt': '2026-11-22T11:54:00Z', 'position': 12,
            'queue_length': 40}]})
        [found], _more = api.list_servers(
            self.request, 20, all_projects=True)
        self.assertEqual(
            ('no_room', 'protected', '812 of 1000 hosts.',
             'Nothing has to be done.', 12, 40),
            (found.reason, found.hindrance, found.message, found.advice,
             found.position, found.queue_length))
        self.assertEqual(0, explained.call_count)
        self.assertEqual(['true'], asked.last_request.qs['all_projects'])
        self.assertEqual(self.request.user.token.id,
                         asked.last_request.headers['X-Auth-Token'])

    def queue(self, *numbers):
        """Let the reaper have servers in this order."""
        self.positions = [SERVERS[number] for number in numbers]
        self.reaper = REAPER
        return self.http.get(REAPER + '/v1/pending', json=self.in_queue)

    def in_queue(self, request, context):
        """Return what the reaper answers about its queue.

        All servers whose names are asked for are 'web' there.
        """
        query = parse.parse_qs(parse.urlsplit(request.url).query)
        wanted = [{
            'server': each, 'detail': '', 'reason': 'no_room',
            'position': position}
            for position, each in enumerate(self.positions, 1)
            if each in query.get('server', [each]) and
            query.get('name', ['web']) == ['web']]
        if query.get('sort_dir') == ['desc']:
            wanted.reverse()
        if 'marker' in query:
            ids = [entry['server'] for entry in wanted]
            if query['marker'][0] not in ids:
                context.status_code = 400
                return {'error': {'message': 'no such marker'}}
            del wanted[:ids.index(query['marker'][0]) + 1]
        limit = int(query.get('limit', ['1000'])[0])
        links = {'pending_links': [{'rel': 'next', 'href': 'http://other'}]}
        return {'pending': wanted[:limit]} | (
            links if len(wanted) > limit else {})

    def assert_page(self, numbers, more, *args, **kwargs):
        found, is_more = api.list_servers(self.request, *args, **kwargs)
        self.assertEqual(([SERVERS[number] for number in numbers], more),
                         ([each.id for each in found], is_more))

    def test_pages_in_the_order_of_the_queue(self):
        asked = self.lists(server(0), server(1), server(2))
        for number in range(3):
            self.explains(number)
        queue = self.queue(2, 1)
        # The oldest server is in no queue.
        self.assert_page([2, 1], True, 2)
        self.assertEqual({'server': list(SERVERS)}, queue.last_request.qs)
        self.assertEqual({
            'status': ['pending'], 'limit': ['101'],
            'sort_key': ['created_at'], 'sort_dir': ['asc']},
            asked.last_request.qs)
        self.assert_page([0], False, 2, SERVERS[1])
        self.assert_page([2, 1], False, 2, SERVERS[0], backwards=True)
        self.assert_page([1], True, 1, SERVERS[0], backwards=True)
        # A server that was built meanwhile leads to the first page.
        self.assert_page([2, 1], True, 2, 'gone', backwards=True)

    def wait_many(self, number):
        """Let many servers wait, the newest first in the queue.

        :returns: their IDs by their age, what asks the reaper for its queue,
            and what asks Nova for lists of servers and for servers
        """
        ids = [SERVERS[0][:-5] + '%05d' % each for each in range(number)]
        shown = {each: server(0, id=each) for each in ids}

        def show_list(request, context):
            limit = int(request.qs.get('limit', ['1000'])[0])
            newest_first = request.qs['sort_dir'] == ['desc']
            listed = list(shown)[::-1] if newest_first else ids
            return {'servers': [shown[each] for each in listed[:limit]]}

        def show(request, context):
            found = shown.get(request.path.rpartition('/')[2])
            context.status_code = 200 if found else 404
            return {'server': found}

        lists = self.http.get(re.compile(
            '^%s/servers(/detail)?[?]' % re.escape(self.nova)),
            json=show_list)
        shows = self.http.get(re.compile(
            '^%s/servers/[^/?]+$' % re.escape(self.nova)), json=show)
        asked = self.queue()
        self.positions = ids[::-1]
        self.shown = shown
        return ids, asked, lists, shows

    def assert_page_of_many(self, wanted, more, *args, **kwargs):
        found, is_more = api.list_servers(self.request, *args, **kwargs)
        self.assertEqual((wanted, more),
                         ([each.id for each in found], is_more))
        self.assertTrue(all(each.position for each in found))

    def test_cost_of_a_page_of_many(self):
        ids, asked, lists, shows = self.wait_many(10000)
        self.assert_page_of_many(ids[:-21:-1], True, 20, all_projects=True)
        self.assertEqual(
            (1, 1, 20),
            (asked.call_count, lists.call_count, shows.call_count))
        self.assertEqual(
            {'state': ['pending'], 'limit': ['20'], 'all_projects': ['true']},
            asked.last_request.qs)
        self.assertEqual(['101'], lists.last_request.qs['limit'])
        bytes_of_page = len(json.dumps(self.in_queue(
            asked.last_request, mock.Mock())))
        bytes_of_queue = len(json.dumps([{
            'server': each, 'detail': '', 'reason': 'no_room',
            'position': 10000} for each in ids]))
        self.assertLess(bytes_of_page, bytes_of_queue / 400)

    def test_pages_of_many(self):
        ids, asked, _lists, shows = self.wait_many(150)
        head = ids[::-1]
        self.assert_page_of_many(head[:60], True, 60)
        self.assert_page_of_many(head[60:120], True, 60, head[59])
        shows.reset()
        # Nova has told of the oldest servers in its list.
        self.assert_page_of_many(head[120:], False, 60, head[119])
        self.assertEqual(0, shows.call_count)
        self.assert_page_of_many(
            head[60:120], True, 60, head[120], backwards=True)
        self.assert_page_of_many(
            head[:60], False, 60, head[60], backwards=True)
        # A server that was built meanwhile leads to the first page.
        with self.assertLogs(api.LOG, 'WARNING'):
            self.assert_page_of_many(
                head[:60], True, 60, 'gone', backwards=True)
        self.assertNotIn('marker', asked.last_request.qs)
        self.assert_page_of_many(head[:60], True, 60, name='web')
        self.assertEqual(['web'], asked.last_request.qs['name'])

    def test_new_servers_after_the_end_of_a_long_queue(self):
        self.versions('2.106')
        ids, _asked, _lists, _shows = self.wait_many(150)
        head, new = ids[::-1], ['new', 'newer']
        self.shown.update((each, server(0, id=each)) for each in new)
        self.assert_page_of_many(head[:60], True, 60)
        found, more = api.list_servers(self.request, 60, head[119])
        self.assertEqual((head[120:] + new, False),
                         ([each.id for each in found], more))
        self.assert_page_of_many(
            head[:60], False, 60, head[60], backwards=True)

    def test_many_of_which_some_were_built(self):
        ids, _asked, _lists, _shows = self.wait_many(150)
        head = ids[::-1]
        del self.shown[head[1]]
        self.shown[head[2]]['status'] = 'BUILD'
        self.assert_page_of_many([head[0], head[3]], True, 4)

    def test_many_of_which_the_reaper_knows_none(self):
        self.versions('2.106')
        ids, _asked, lists, _shows = self.wait_many(150)
        self.positions = []
        found, more = api.list_servers(self.request, 20)
        self.assertEqual((ids[:20], True), ([each.id for each in found], more))
        self.assertEqual(['21'], lists.last_request.qs['limit'])

    def test_queue_of_a_reaper_that_knows_no_ids(self):
        asked = self.lists(server(0), server(1))
        self.queue()
        for number in range(2):
            self.explains(number)
        self.http.get(REAPER + '/v1/pending', status_code=400, json={
            'error': {'message': 'There is no query key "server" here.'}})
        with self.assertLogs(api.LOG, 'WARNING'):
            self.assert_page([0], True, 1)
        self.assertEqual(['2'], asked.last_request.qs['limit'])

    def test_nobody_waits(self):
        self.lists()
        asked = self.queue(0)
        self.assert_page([], False, 20)
        self.assertEqual(0, asked.call_count)

    def test_filter(self):
        asked = self.lists()
        api.list_servers(self.request, 20, name='web.1')
        self.assertEqual(['web\\.1'], asked.last_request.qs['name'])
        self.queue()
        api.list_servers(self.request, 20, name='web.1')
        self.assertEqual(['web\\.1'], asked.last_request.qs['name'])
        api.list_servers(self.request, 20)
        self.assertNotIn('name', asked.last_request.qs)

    def test_reaper_has_not_looked_yet(self):
        self.reaper = REAPER
        self.lists(server(0))
        explained = self.explains(0)
        self.http.get(REAPER + '/v1/pending', json={'pending': [{
            'server': SERVERS[0], 'detail': '', 'position': 12,
            'reason': None, 'advice': None,
            'automatic': 'It is built as soon as there is room.'}]})
        [found], _more = api.list_servers(self.request, 20)
        self.assertEqual(
            ('no_room', 'Wait.', 'No valid host was found.', 12),
            (found.reason, found.advice, found.message, found.position))
        # An administrator would get all hosts.
        self.assertEqual(['0'], explained.last_request.qs['limit'])

    def test_show_server(self):
        self.reaper = REAPER
        self.http.get('%s/servers/%s' % (self.nova, SERVERS[0]),
                      json={'server': server(0)})
        self.explains(0)
        self.http.get('%s/v1/pending/%s' % (REAPER, SERVERS[0]), json={
            'pending': {
                'server': SERVERS[0], 'detail': 'No host has room.',
                'since': '2026-11-22T11:30:00Z', 'reason': 'no_room',
                'advice': 'Nothing has to be done.', 'attempts': 1,
                'automatic': 'It is built as soon as there is room.',
                'position': 12, 'room_by': '2026-11-22T12:30:00Z',
                'deadline': '2026-11-23T11:30:00Z', 'step': 'waiting'}})
        found = api.show_server(self.request, SERVERS[0])
        # The reaper counts its own attempts, and Nova those of everybody.
        self.assertEqual(
            ('no_room', 'Nothing has to be done.', 12, 2,
             '2026-11-22T11:50:00Z', '2026-11-22T11:30:00Z'),
            (found.reason, found.advice, found.position, found.attempts,
             found.last_attempt, found.since))
        self.assertEqual(
            ('2026-11-22T12:30:00Z', '2026-11-23T11:30:00Z', 'waiting'),
            (found.room_by, found.deadline, found.step))

    def test_show_server_that_the_reaper_does_not_know(self):
        self.reaper = REAPER
        self.http.get('%s/servers/%s' % (self.nova, SERVERS[0]),
                      json={'server': server(0)})
        self.explains(0)
        self.http.get('%s/v1/pending/%s' % (REAPER, SERVERS[0]),
                      status_code=404, json={})
        with self.assertLogs(api.LOG, 'WARNING'):
            found = api.show_server(self.request, SERVERS[0])
        self.assertEqual(('no_room', 'Wait.', 2),
                         (found.reason, found.advice, found.attempts))

    def test_reaper_is_down(self):
        self.reaper = REAPER
        self.lists(server(0))
        self.explains(0)
        for answer in ({'status_code': 500},
                       {'exc': exceptions.ConnectTimeout}):
            self.http.get(REAPER + '/v1/pending', **answer)
            with self.assertLogs(api.LOG, 'WARNING'):
                [found], _more = api.list_servers(self.request, 20)
            self.assertEqual('no_room', found.reason)

    def test_silence_is_waited_for_once_a_page(self):
        self.reaper = REAPER
        self.lists(server(0))
        self.explains(0)
        asked = self.http.get(re.compile('^' + REAPER),
                              exc=exceptions.ConnectTimeout)
        with self.assertLogs(api.LOG, 'WARNING') as said:
            api.list_servers(self.request, 20)
            self.assertIsNone(api.list_notices(self.request))
            self.assertIsNone(api.overview(self.request))
        self.assertEqual(1, asked.call_count)
        self.assertEqual(1, len(said.records))

    def test_cloud_without_waiting_servers(self):
        self.versions('2.104')
        self.assertRaises(api.NotSupported, api.list_servers,
                          self.request, 20)

    def test_rebuild(self):
        asked = self.http.post(
            '%s/servers/%s/action' % (self.nova, SERVERS[0]),
            status_code=202, json={})
        api.rebuild(self.request, SERVERS[0])
        self.assertEqual({'rebuild': {}}, asked.last_request.json())
        self.assertEqual('compute 2.106', asked.last_request.headers[
            'OpenStack-API-Version'])

    def test_rebuild_with_a_flavor(self):
        asked = self.http.post(
            '%s/servers/%s/action' % (self.nova, SERVERS[0]),
            status_code=202, json={})
        api.rebuild(self.request, SERVERS[0], 'small')
        self.assertEqual({'rebuild': {'flavorRef': 'small'}},
                         asked.last_request.json())
        self.assertEqual('compute 2.107', asked.last_request.headers[
            'OpenStack-API-Version'])

    def test_rebuild_with_a_flavor_is_not_known(self):
        self.versions('2.106')
        asked = self.http.post(
            '%s/servers/%s/action' % (self.nova, SERVERS[0]))
        self.assertRaises(api.NotSupported, api.rebuild, self.request,
                          SERVERS[0], 'small')
        self.assertEqual(0, asked.call_count)

    def test_pause(self):
        self.reaper = REAPER
        asked = self.http.register_uri(
            requests_mock.ANY, REAPER + '/v1/pause', json={})
        api.pause(self.request, 'power')
        self.assertEqual(('PUT', {'reason': 'power'}), (
            asked.last_request.method, asked.last_request.json()))
        api.resume(self.request)
        self.assertEqual(('DELETE', None), (
            asked.last_request.method, asked.last_request.text))

    def test_pause_is_refused(self):
        self.reaper = REAPER
        self.http.put(REAPER + '/v1/pause', status_code=403, json={})
        self.assertRaises(exceptions.Forbidden, api.pause, self.request, '')

    def test_probe(self):
        self.reaper = REAPER + '/'
        asked = self.http.post(REAPER + '/v1/probe',
                               json={'probe': {'verdict': 'now'}})
        self.assertEqual({'verdict': 'now'}, api.probe(
            self.request, flavor='small', count=2))
        self.assertEqual({'flavor': 'small', 'count': 2},
                         asked.last_request.json())

    def test_probe_is_refused(self):
        self.reaper = REAPER
        self.http.post(REAPER + '/v1/probe', status_code=429, json={})
        self.assertRaises(exceptions.HttpError, api.probe, self.request,
                          flavor='small')

    def endable(self, number, **values):
        return {'server': SERVERS[number], 'name': 'server-%d' % number,
                'project_id': 'p', 'preemptible': True, 'action': 'shelve',
                'launched_at': None, 'ends_at': None, **values}

    def test_who_ends_and_when(self):
        self.assertIsNone(api.list_endable(self.request))
        self.reaper = REAPER + '/'
        ends_at = '2026-11-23T11:56:00Z'
        self.http.get(REAPER + '/v1/servers', json={'servers': [
            self.endable(0, name=''), self.endable(1, ends_at=ends_at),
            self.endable(2, ends_at='2026-11-22T11:56:00Z',
                         preemptible=False)]})
        found = api.list_endable(self.request)
        self.assertEqual([SERVERS[2], SERVERS[1], SERVERS[0]],
                         [server.id for server in found])
        self.assertEqual(api.Endable(
            SERVERS[1], 'server-1', True, 'shelve', ends_at), found[1])
        self.assertEqual(SERVERS[0], found[2].name)

    def test_when_one_ends(self):
        self.assertIsNone(api.show_endable(self.request, SERVERS[1]))
        self.reaper = REAPER
        asked = self.http.get(REAPER + '/v1/servers', json={
            'servers': [self.endable(0), self.endable(1)]})
        self.assertEqual('server-1', api.show_endable(
            self.request, SERVERS[1]).name)
        # Its own ID would be left out.
        self.assertLess(asked.last_request.qs['marker'][0], SERVERS[1])
        self.assertNotIn('all_projects', asked.last_request.qs)
        self.assertIsNone(api.show_endable(self.request, SERVERS[2], True))
        self.assertIn('all_projects', asked.last_request.qs)

    def test_rehearsal(self):
        self.reaper = REAPER + '/'
        url = '%s/v1/servers/%s/rehearsal' % (REAPER, SERVERS[0])
        asked = self.http.post(url, json={})
        api.rehearse(self.request, SERVERS[0])
        self.assertEqual(1, asked.call_count)
        self.http.post(url, status_code=409, json={})
        self.assertRaises(exceptions.Conflict, api.rehearse, self.request,
                          SERVERS[0])

    def test_zones(self):
        self.http.get(self.nova + '/os-availability-zone', json={
            'availabilityZoneInfo': [
                {'zoneName': 'nova', 'zoneState': {'available': True}},
                {'zoneName': 'az1', 'zoneState': {'available': True}}]})
        self.assertEqual(['az1', 'nova'], api.list_zones(self.request))

    def test_rebuild_is_refused(self):
        self.http.post('%s/servers/%s/action' % (self.nova, SERVERS[0]),
                       status_code=409, json={})
        self.assertRaises(exceptions.Conflict, api.rebuild, self.request,
                          SERVERS[0])

    def test_rebuild_is_not_known(self):
        self.versions('2.105')
        self.assertRaises(api.NotSupported, api.rebuild, self.request,
                          SERVERS[0])

    def test_those_in_error_that_wait(self):
        waits, fails, runs = (
            mock.Mock(id=SERVERS[number], status=status) for number, status
            in ((0, 'ERROR'), (1, 'ERROR'), (2, 'ACTIVE')))
        for number, status in ((0, 'PENDING'), (1, 'ERROR')):
            asked = self.http.get(
                '%s/servers/%s' % (self.nova, SERVERS[number]),
                json={'server': server(number, status=status)})
        api.show_waiting(self.request, [waits, fails, runs])
        self.assertEqual(('PENDING', 'ERROR', 'ACTIVE'),
                         (waits.status, fails.status, runs.status))
        self.assertEqual('compute 2.105', asked.last_request.headers[
            'OpenStack-API-Version'])

    def test_none_in_error_costs_nothing(self):
        before = self.http.call_count
        api.show_waiting(self.request, [mock.Mock(status='ACTIVE')])
        self.assertEqual(before, self.http.call_count)

    def test_those_in_error_of_a_stock_cloud(self):
        self.versions('2.104')
        fails = mock.Mock(status='ERROR')
        api.show_waiting(self.request, [fails])
        self.assertEqual('ERROR', fails.status)

    def test_those_in_error_where_nova_cannot_be_asked(self):
        for error in (AttributeError('computeclient'),
                      exceptions.ConnectFailure('no answer')):
            fails = mock.Mock(status='ERROR')
            with mock.patch.object(_nova, 'computeclient',
                                   side_effect=error), \
                    self.assertLogs(api.LOG, 'WARNING') as said:
                api.show_waiting(self.request, [fails])
            # Its traceback is for the operator.
            self.assertIs(error, said.records[0].exc_info[1])
            self.assertEqual('ERROR', fails.status)

    def test_one_in_error_of_which_nova_says_nonsense(self):
        fails = mock.Mock(id=SERVERS[0], status='ERROR')
        self.http.get('%s/servers/%s' % (self.nova, SERVERS[0]),
                      text='<html>')
        api.show_waiting(self.request, [fails])
        self.assertEqual('ERROR', fails.status)

    def test_notices(self):
        self.assertIsNone(api.list_notices(self.request))
        self.reaper = REAPER
        asked = self.http.get(REAPER + '/v1/notices', json={'notices': [{
            'server': 'v', 'name': 'batch', 'project_id': 'p',
            'action': 'shelve', 'terminate_at': '2026-11-22T11:56:00Z',
            'message': 'Another server needs the room.', 'for': 'w'}]})
        self.assertEqual(
            [api.Notice('v', 'batch', 'p', 'shelve', '2026-11-22T11:56:00Z',
                        'w', 'Another server needs the room.')],
            api.list_notices(self.request))
        self.assertNotIn('all_projects', asked.last_request.qs)
        api.list_notices(self.request, True)
        self.assertIn('all_projects', asked.last_request.qs)

    def test_history(self):
        self.assertIsNone(api.list_history(self.request))
        self.reaper = REAPER
        asked = self.http.get(REAPER + '/v1/history', json={'history': [
            {'id': 'r1', 'at': '2026-11-22T11:56:00Z', 'kind': 'notice',
             'server': 'v', 'name': None, 'project_id': 'p',
             'action': 'shelve', 'result': None, 'for': None,
             'for_own_project': False, 'message': 'Its run time ends.'},
            {'id': 'r2', 'at': '2026-11-22T11:57:00Z', 'kind': 'build',
             'server': 'w', 'name': 'web', 'project_id': 'p', 'action': None,
             'result': 'active', 'for': 'w', 'for_own_project': True,
             'message': None, 'host': 'compute1'}]})
        self.assertEqual([
            api.Record('r1', '2026-11-22T11:56:00Z', 'notice', 'v', 'p',
                       'shelve', None, 'Its run time ends.', None, 'v'),
            api.Record('r2', '2026-11-22T11:57:00Z', 'build', 'web', 'p',
                       'active', None, None, 'compute1', 'w')],
            api.list_history(self.request))
        self.assertNotIn('all_projects', asked.last_request.qs)
        api.list_history(self.request, True)
        self.assertIn('all_projects', asked.last_request.qs)

    def test_names(self):
        for number, code in ((0, 200), (1, 404), (2, 500)):
            self.http.get('%s/servers/%s' % (self.nova, SERVERS[number]),
                          status_code=code, json={'server': server(number)})
        self.assertEqual({SERVERS[0]: 'server-0', SERVERS[1]: None},
                         api.list_names(self.request, set(SERVERS)))

    def test_no_more_names_than_a_page(self):
        asked = self.http.get(
            re.compile('%s/servers/.*' % re.escape(self.nova)),
            json={'server': server(0)})
        api.list_names(self.request, set(map(str, range(1000))))
        self.assertEqual(20, asked.call_count)

    def test_overview(self):
        self.assertIsNone(api.overview(self.request))
        self.reaper = REAPER
        self.http.get(REAPER + '/healthz', status_code=503, json={
            'status': 'failed', 'active': True, 'mode': 'observe',
            'configured_mode': 'fill', 'safeguard': 'The list shrank.',
            'checks': [{'name': 'nova', 'status': 'ok', 'detail': 'fine'},
                       {'name': 'placement', 'status': 'failed',
                        'detail': 'No answer.'}]})
        self.http.get(REAPER + '/metrics', text='\n'.join((
            'nova_reaper_pending{state="pending",reason="no_room"} 3.0',
            'nova_reaper_pending{state="shelved",reason="no_room"} 1.0',
            'nova_reaper_pending{state="pending",reason="quota"} 0.0',
            'nova_reaper_holds 2.0',
            'nova_reaper_hold_oldest_seconds 31.5', '')))
        self.assertEqual(api.Overview(
            'failed', 'observe', 'fill', 'The list shrank.',
            [('placement', 'No answer.')], {'no_room': 3}, 2, 31),
            api.overview(self.request))

    def test_overview_of_a_paused_reaper(self):
        self.reaper = REAPER
        self.http.get(REAPER + '/healthz', json={
            'status': 'degraded', 'checks': [{
                'name': 'pause', 'status': 'degraded',
                'detail': 'an administrator has paused the reaper'}]})
        self.http.get(REAPER + '/metrics', text='')
        self.assertTrue(api.overview(self.request).paused)
