# SPDX-License-Identifier: Apache-2.0
"""Waiting servers in lists: filters, sorting, paging."""

import contextlib
import itertools
import re
from unittest import mock
from urllib import parse

from nova import context as nova_context
from nova.db.main import api as db_api
from nova.db.main import models
from nova import objects
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import full_cloud
from nova.tests.functional import microversions

RELEASED = microversions.RELEASED
PENDING = microversions.PENDING

PORT = neutron_fixture.NeutronFixture.port_1['id']


class ListTestCase(full_cloud.FullCloudTestCase):
    """Servers of all kinds: not yet scheduled, in cell0, on a host."""

    def setUp(self):
        super().setUp()
        self.flags(use_pending_state=False)
        self.servers = {
            'error-1': self.create_waiting('ERROR', name='error-1')}
        self.flags(use_pending_state=True)
        self.servers['pending-1'] = self.create_waiting(
            name='pending-1', tags=['blue'],
            networks=[{'port': PORT}])
        self.servers['pending-2'] = self.create_waiting(name='pending-2')
        self.servers['pending-other'] = self.create_waiting(
            name='pending-other', api=self.other_tenant())
        self.servers['active'] = self._create_server(
            name='active', flavor_id=self.small, networks='none')
        self.servers['failed'] = self._create_server(
            name='failed', flavor_id=self.small, networks='none')
        self.admin_api.post_server_action(
            self.servers['failed']['id'], {'os-resetState': {
                'state': 'error'}})
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'schedule_and_build_instances'):
            self.servers['build'] = self.api.post_server({
                'server': self._build_server(
                    name='build', flavor_id=self.small, networks='none')})
        self.names = {server['id']: name
                      for name, server in self.servers.items()}

    def other_tenant(self):
        other = api_client.TestOpenStackClient(
            'other', self.api.base_url, project_id='other-project',
            roles=['reader', 'member'])
        other.microversion = self.api.microversion
        return other

    def names_of(self, answer):
        return [self.names[server['id']] for server in answer['servers']]

    def listed(self, query, api=None, detail=''):
        return self.names_of((api or self.api).api_get(
            '/servers%s?%s' % (detail, query)).body)

    def pages(self, query, api=None, detail=''):
        """Follow the next links; return the names on each page."""
        path = '/servers%s?%s' % (detail, query)
        pages = []
        while path:
            answer = (api or self.api).api_get(path).body
            pages.append(self.names_of(answer))
            path = None
            for link in answer.get('servers_links', ()):
                self.assertEqual('next', link['rel'])
                url = parse.urlsplit(link['href'])
                path = '/servers%s?%s' % (detail, url.query)
                self.assertCountEqual(
                    parse.parse_qsl(query),
                    [(key, value) for key, value in parse.parse_qsl(url.query)
                     if key != 'marker'])
        return pages

    @contextlib.contextmanager
    def stored_as_error(self):
        """Let the waiting servers be stored in ERROR."""
        self._store('pending', 'error', 'pending-%')
        try:
            yield
        finally:
            self._store('error', 'pending', 'pending-%')

    def _store(self, before, after, name):
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt:
            with db_api.get_context_manager(cctxt).writer.using(cctxt):
                changed = cctxt.session.query(models.Instance).filter(
                    models.Instance.vm_state == before,
                    models.Instance.display_name.like(name)).update(
                        {'vm_state': after,
                         'updated_at': models.Instance.updated_at},
                        synchronize_session=False)
        self.assertEqual(3, changed)

    def test_states(self):
        waiting = {'pending-1', 'pending-2'}
        failed = {'error-1', 'failed'}
        other = {'pending-other'}
        everything = set(self.servers) - other
        for version, query, tenant, admin in (
                # A status that the microversion does not know finds nothing,
                # and from 2.38 on it is refused.
                ('2.1', 'status=PENDING', set(), set()),
                ('2.37', 'status=pending', set(), set()),
                ('2.38', 'status=PENDING', 400, 400),
                ('2.73', 'status=PENDING', 400, 400),
                (RELEASED, 'status=Pending', 400, 400),
                (RELEASED, 'status=nonsense', 400, 400),
                (PENDING, 'status=nonsense', 400, 400),
                (PENDING, 'status=PENDING', waiting, waiting | other),
                (PENDING, 'status=pending', waiting, waiting | other),
                ('latest', 'status=Pending', waiting, waiting | other),
                ('2.1', 'status=ERROR', failed | waiting,
                 failed | waiting | other),
                ('2.73', 'status=error', failed | waiting,
                 failed | waiting | other),
                (RELEASED, 'status=ERROR', failed | waiting,
                 failed | waiting | other),
                (PENDING, 'status=ERROR', failed, failed),
                (PENDING, 'status=error', failed, failed),
                # Several at once, where an unknown one does not count.
                ('2.37', 'status=PENDING&status=ACTIVE', {'active'},
                 {'active'}),
                (RELEASED, 'status=PENDING&status=ACTIVE', {'active'},
                 {'active'}),
                (RELEASED, 'status=nonsense&status=ACTIVE', {'active'},
                 {'active'}),
                (RELEASED, 'status=ERROR&status=PENDING', failed | waiting,
                 failed | waiting | other),
                (PENDING, 'status=ERROR&status=PENDING', failed | waiting,
                 failed | waiting | other),
                (PENDING, 'status=PENDING&status=ACTIVE',
                 waiting | {'active'}, waiting | other | {'active'}),
                (PENDING, 'status=BUILD&status=PENDING',
                 waiting | {'build'}, waiting | other | {'build'}),
                # vm_state is a filter of the administrator, of everybody
                # from 2.83 on.
                ('2.1', 'vm_state=pending', everything, set()),
                ('2.82', 'vm_state=pending', everything, set()),
                ('2.83', 'vm_state=pending', set(), set()),
                (RELEASED, 'vm_state=pending', set(), set()),
                (RELEASED, 'vm_state=PENDING', set(), set()),
                (PENDING, 'vm_state=pending', waiting, waiting | other),
                ('2.1', 'vm_state=error', everything,
                 failed | waiting | other),
                ('2.82', 'vm_state=error', everything,
                 failed | waiting | other),
                ('2.83', 'vm_state=error', failed | waiting,
                 failed | waiting | other),
                (RELEASED, 'vm_state=error', failed | waiting,
                 failed | waiting | other),
                (PENDING, 'vm_state=error', failed, failed),
                (PENDING, 'vm_state=active', {'active'}, {'active'}),
                # The status wins over the vm_state.
                (RELEASED, 'vm_state=active&status=ERROR', failed | waiting,
                 failed | waiting | other),
                (PENDING, 'vm_state=active&status=PENDING', waiting,
                 waiting | other),
        ):
            self.speak(version)
            detail = '/detail' if version in ('2.1', PENDING) else ''
            for api, expected in ((self.api, tenant), (self.admin_api, admin)):
                path = '/servers%s?%s' % (detail, query)
                if api is self.admin_api:
                    path += '&all_tenants=1'
                answer = api.api_request(path)
                what = (version, path, answer.text)
                if expected == 400:
                    self.assertEqual(400, answer.status_code, what)
                    self.assertEqual(
                        'Invalid status value',
                        answer.json()['badRequest']['message'])
                else:
                    self.assertEqual(200, answer.status_code, what)
                    self.assertCountEqual(
                        expected, self.names_of(answer.json()), what)

    def test_with_other_filters(self):
        waits = self.servers['pending-1']
        ip = self.neutron.show_port(PORT)['port']['fixed_ips'][0]['ip_address']
        one = {'pending-1'}
        self.admin_api.post_server_action(
            waits['id'], {'lock': {'locked_reason': 'r'}})
        self.speak(PENDING)
        for query, expected in (
                ('name=pending-1', one),
                ('name=error', set()),
                ('tags=blue', one),
                ('tags=red', set()),
                ('not-tags=blue', {'pending-2'}),
                ('tags-any=red,blue', one),
                ('flavor=' + self.large, one | {'pending-2'}),
                ('flavor=' + self.small, set()),
                ('image=' + waits['image']['id'], one | {'pending-2'}),
                ('reservation_id=' +
                 waits['OS-EXT-SRV-ATTR:reservation_id'], one),
                ('locked=true', one),
                ('locked=false', {'pending-2'}),
                ('hostname=' + waits['OS-EXT-SRV-ATTR:hostname'], one),
                ('power_state=0', one | {'pending-2'}),
                ('power_state=1', set()),
                ('ip=' + ip, set()),
                ('ip=10.99.99.99', set()),
                ('changes-since=2020-01-01T00:00:00Z', one | {'pending-2'}),
                ('changes-since=2099-01-01T00:00:00Z', set()),
                ('changes-before=2099-01-01T00:00:00Z', one | {'pending-2'}),
                ('changes-before=2020-01-01T00:00:00Z', set()),
                ('vm_state=error', one | {'pending-2'})):
            self.assertCountEqual(
                expected, self.listed('status=PENDING&' + query), query)
            self.assertCountEqual(
                [], self.listed('status=ACTIVE&tags=blue&' + query), query)
        for query, expected in (
                ('host=compute', set()),
                ('node=compute', set()),
                ('availability_zone=nova', set()),
                ('user_id=fake', {'pending-1', 'pending-2'}),
                ('project_id=other-project', {'pending-other'}),
                ('tenant_id=other-project', {'pending-other'}),
                ('deleted=false',
                 {'pending-1', 'pending-2', 'pending-other'}),
                ('deleted=true', set()),
                ('uuid=' + waits['id'], one)):
            self.assertCountEqual(
                expected,
                self.listed('all_tenants=1&status=PENDING&' + query,
                            api=self.admin_api), query)
        # Only administrators list the servers of all.
        answer = self.api.api_request('/servers?all_tenants=1&status=PENDING')
        self.assertEqual(403, answer.status_code)

    def test_deleted(self):
        gone = self.servers['pending-2']
        self.api.delete_server(gone['id'])
        self._wait_until_deleted(gone)
        self.speak(PENDING)
        self.assertEqual(['pending-1'], self.listed('status=PENDING'))
        for version in (RELEASED, PENDING):
            self.speak(version)
            self.assertEqual(
                ['pending-2'],
                self.listed('status=DELETED&deleted=true&all_tenants=1',
                            api=self.admin_api))
            self.assertIn(
                'pending-2', self.listed('changes-since=2020-01-01T00:00:00Z'))
            self.assertEqual(
                [], self.listed('status=ERROR&deleted=true&all_tenants=1',
                                api=self.admin_api))

    def test_paging(self):
        self.speak(PENDING)
        for query, size in (
                ('status=PENDING', 1), ('status=PENDING', 10), ('', 1),
                ('vm_state=pending&sort_key=vm_state&sort_dir=asc', 1),
                ('sort_key=vm_state&sort_dir=desc', 2),
                ('status=BUILD&sort_key=display_name', 2)):
            everything = self.listed(query)
            pages = self.pages('%s&limit=%d' % (query, size))
            self.assertEqual(everything, list(itertools.chain(*pages)),
                             (query, size))
            self.assertLessEqual(max(map(len, pages)), size)
        self.assertEqual(
            [['pending-1'], ['pending-2'], ['pending-other'], []],
            self.pages('status=PENDING&all_tenants=1&limit=1'
                       '&sort_key=display_name&sort_dir=asc',
                       api=self.admin_api, detail='/detail'))
        # A marker need not be among what the filter finds.
        for marker, expected in (
                ('pending-2', ['pending-1']),
                ('pending-1', []),
                ('failed', []),
                ('active', [])):
            self.assertEqual(expected, self.listed(
                'status=PENDING&sort_key=display_name&marker=' +
                self.servers[marker]['id']), marker)

    def test_sorted_by_state(self):
        """The lists of several cells are merged by the state that is shown."""
        for version in RELEASED, PENDING:
            self.speak(version)
            for direction in 'asc', 'desc':
                states = [
                    server['OS-EXT-STS:vm_state']
                    for server in self.admin_api.api_get(
                        '/servers/detail?all_tenants=1&sort_key=vm_state'
                        '&sort_dir=' + direction).body['servers']
                    # A server in no cell comes before all others.
                    if server['id'] != self.servers['build']['id']]
                self.assertEqual(len(self.servers) - 1, len(states))
                self.assertEqual(
                    sorted(states, reverse=direction == 'desc'), states)

    def test_answers_of_earlier_microversions(self):
        """To the letter what they are if the servers are stored in ERROR."""
        queries = [
            '', 'all_tenants=1', 'status=ERROR&limit=2',
            'status=ERROR&limit=1&marker=' + self.servers['failed']['id'],
            'status=ERROR&marker=' + self.servers['pending-2']['id'],
            'status=ERROR&status=REBUILD', 'status=REBUILD',
            'status=PENDING', 'status=PENDING&status=ERROR', 'status=UNKNOWN',
            'vm_state=error&all_tenants=1', 'vm_state=Error',
            'vm_state=ERROR%20', 'vm_state=pending', 'vm_state=Pending',
            'vm_state=pending%20', 'vm_state=', 'vm_state=active',
            'vm_state=error&vm_state=pending',
            'vm_state=pending&vm_state=error',
            '_vm_state_hidden=error', 'sort_key=_vm_state_hidden',
            'deleted=true', 'changes-since=2020-01-01T00:00:00Z',
            'status=ERROR&changes-since=2020-01-01T00:00:00Z']
        for direction in 'asc', 'desc':
            sort = 'all_tenants=1&sort_key=vm_state&sort_dir=' + direction
            queries += [
                sort, sort + '&sort_key=display_name&sort_dir=desc&limit=4',
                sort + '&status=ERROR&limit=2']
            queries += ['%s&limit=3&marker=%s' % (sort, server['id'])
                        for server in self.servers.values()]

        def answers():
            found = {}
            for version, api in (('2.1', self.admin_api), ('2.1', self.api),
                                 (RELEASED, self.admin_api)):
                api.microversion = version
                for query in queries:
                    detail = '/detail' if 'limit' not in query else ''
                    path = '/servers%s?%s' % (detail, query)
                    answer = api.api_request(path)
                    # One without a time of change is shown with now.
                    found[version, api, path] = (
                        answer.status_code,
                        re.sub('"updated": "[^"]*"', '', answer.text))
            return found

        pending = answers()
        with self.stored_as_error():
            error = answers()
        for asked, answer in pending.items():
            self.assertEqual(error[asked], answer, asked)
            if 'state=' not in asked[2] and 'status=' not in asked[2]:
                self.assertNotIn('PENDING', answer[1])
                self.assertNotIn('"pending"', answer[1])
