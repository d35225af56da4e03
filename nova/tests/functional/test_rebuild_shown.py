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

import fixtures

from nova.compute import api as compute_api
from nova.compute import instance_list
from nova.conductor.tasks import recover_builds
from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report
from nova.tests.functional.api import client as api_client
from nova.tests.functional import rebuild_base


class RebuildShownTestCase(rebuild_base.RebuildInCell0Base):
    """A server leaves cell0 between two looks of one request at databases."""

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting(name='a server')
        self.other = self.create_waiting(name='b, another')
        # It stays a build request.
        self.useFixture(fixtures.MockPatch(
            'nova.conductor.rpcapi.ComputeTaskAPI.rebuild_instance_in_cell0'))

    def rebuilt_at(self, owner, name, after=False):
        """Let the server be rebuilt when a method is called the next time.

        :param after: whether it is rebuilt after the method has done its work
        """
        released = getattr(owner, name)
        self.rebuilds = []

        def around(*args, **kwargs):
            # The rebuild itself looks the server up.
            first = not self.rebuilds
            if first:
                self.rebuilds.append(name)
            if first and not after:
                self.rebuild(self.server)
            result = released(*args, **kwargs)
            if first and after:
                self.rebuild(self.server)
            return result

        self.useFixture(fixtures.MockPatchObject(owner, name, around))

    def test_show(self):
        self.rebuilt_at(compute_api.API, '_get_instance_from_cell')
        shown = self.api.get_server(self.server['id'])
        self.assertEqual(['_get_instance_from_cell'], self.rebuilds)
        self.assertEqual('BUILD', shown['status'])

    def test_list_is_made_once(self):
        """What moves while it is made is missing, as from any such list."""
        self.rebuilt_at(
            objects.BuildRequestList, 'get_by_filters', after=True)
        made = self.useFixture(fixtures.MockPatchObject(
            instance_list, 'get_instance_objects_sorted',
            side_effect=instance_list.get_instance_objects_sorted)).mock
        listed = self.api.get_servers(detail=False)
        self.assertEqual(['get_by_filters'], self.rebuilds)
        self.assertEqual(1, made.call_count)
        self.assertEqual([self.other['id']],
                         [server['id'] for server in listed])
        self.assertEqual({self.server['id'], self.other['id']},
                         {server['id'] for server in
                          self.api.get_servers(detail=False)})
        self.assertEqual(2, made.call_count)

    # The last server of a batch leaves cell0 before the next one is read.

    def listed(self, sort_key='display_name', **query):
        return [server['id'] for server in self.api.get_servers(
            detail=False, search_opts=dict(
                query, sort_key=sort_key, sort_dir='asc'))]

    def leaves_after_a_batch(self, size=None):
        if size is not None:
            self.useFixture(fixtures.MockPatchObject(
                instance_list, 'get_instance_list_cells_batch_size',
                return_value=size))
        self.rebuilt_at(
            instance_list.InstanceLister, 'get_by_filters', after=True)
        self.addCleanup(lambda: self.assertEqual(
            ['get_by_filters'], self.rebuilds))

    def test_last_of_the_list_leaves(self):
        """The others were listed again, as of a cell that is down."""
        self.created_long_ago(self.server)
        self.leaves_after_a_batch()
        self.assertEqual(
            [self.other['id'], self.server['id']],
            [server['id'] for server in self.api.get_servers(detail=False)])

    def test_last_of_a_batch_leaves(self):
        self.leaves_after_a_batch(size=1)
        self.assertEqual([self.server['id'], self.other['id']], self.listed())

    def test_last_of_a_batch_leaves_before_one_that_is_filtered_out(self):
        third = self.create_waiting(name='c server')
        self.leaves_after_a_batch(size=1)
        self.assertEqual([self.server['id'], third['id']],
                         self.listed(name='server'))

    def test_page_that_ends_with_who_has_left(self):
        third = self.create_waiting(name='c server')
        for order in ('', '&sort_key=display_name&sort_dir=asc',
                      '&sort_key=display_name&sort_dir=desc'):
            path = '/servers?status=PENDING' + order
            servers = [server['id'] for server in
                       self.api.api_get(path).body['servers']]
            self.assertEqual(
                {self.server['id'], self.other['id'], third['id']},
                set(servers))
            page = self.api.api_get(path + '&limit=2').body
            self.assertEqual(
                servers[:2], [server['id'] for server in page['servers']])
            self.rebuild({'id': servers[1]})
            href = page['servers_links'][0]['href']
            self.assertIn('marker=' + servers[1], href)
            following = self.api.api_get(
                '/servers?' + href.partition('?')[2]).body['servers']
            # Of one second none is told from another by default.
            self.assertEqual(servers[2:], [
                server['id'] for server in following
                if order or server['id'] != servers[0]])
            self.assertEqual((1, 0), recover_builds.recover(
                nova_context.get_admin_context(),
                report.SchedulerReportClient(), -1, None))

    def test_marker_that_has_left_where_its_value_has_changed(self):
        path = '/servers?status=PENDING&sort_key=task_state&marker='
        self.rebuild(self.server)
        exc = self.assertRaises(api_client.OpenStackApiException,
                                self.api.api_get, path + self.server['id'])
        self.assertEqual(400, exc.response.status_code)

    def test_marker_leaves(self):
        self.rebuilt_at(
            instance_list.InstanceLister, 'get_marker_record', after=True)
        self.assertEqual(
            [self.other['id']], self.listed(marker=self.server['id']))
        self.assertEqual(['get_marker_record'], self.rebuilds)
