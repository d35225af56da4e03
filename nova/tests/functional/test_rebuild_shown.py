# SPDX-License-Identifier: Apache-2.0

import fixtures

from nova.compute import api as compute_api
from nova.compute import instance_list
from nova.compute import rebuild_request
from nova.db.main import api as main_db_api
from nova import objects
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
        original = getattr(owner, name)
        self.rebuilds = []

        def around(*args, **kwargs):
            # The rebuild itself looks the server up.
            first = not self.rebuilds
            if first:
                self.rebuilds.append(name)
            if first and not after:
                self.rebuild(self.server)
            result = original(*args, **kwargs)
            if first and after:
                self.rebuild(self.server)
            return result

        self.useFixture(fixtures.MockPatchObject(owner, name, around))

    def test_show(self):
        self.rebuilt_at(compute_api.API, '_get_instance_from_cell')
        shown = self.api.get_server(self.server['id'])
        self.assertEqual(['_get_instance_from_cell'], self.rebuilds)
        self.assertEqual('BUILD', shown['status'])

    def test_rebuild(self):
        self.rebuilt_at(rebuild_request.Request, 'check', after=True)
        self.assertIn('try again', self.refused(409, self.server))
        self.assertEqual(['check'], self.rebuilds)
        self.assertEqual(
            'BUILD', self.api.get_server(self.server['id'])['status'])

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

    def test_marker_that_has_left(self):
        """A page ends with a server that is rebuilt before the next one."""
        path = '/servers?status=PENDING&limit=1'
        page = self.api.api_get(path).body
        last = page['servers'][0]['id']
        self.rebuild({'id': last})
        # As for a server that is deleted meanwhile.
        exc = self.assertRaises(api_client.OpenStackApiException,
                                self.api.api_get, path + '&marker=' + last)
        self.assertEqual(400, exc.response.status_code)
        self.assertIn('marker', exc.response.text)

    def test_list_goes_on_behind_a_server_that_has_moved(self):
        """The last record of a batch is gone as the next batch is asked for.

        Its cell does not count as down.
        """
        # The oldest is the last one.
        self.created_long_ago(self.server)
        original = main_db_api.instance_get_all_by_filters_sort
        rebuilt = []

        def around(context, *args, **kwargs):
            found = original(context, *args, **kwargs)
            if context.cell_uuid == objects.CellMapping.CELL0_UUID and (
                    not rebuilt):
                rebuilt.append(found[-1]['uuid'])
                self.rebuild({'id': found[-1]['uuid']})
            return found

        self.useFixture(fixtures.MockPatchObject(
            main_db_api, 'instance_get_all_by_filters_sort', around))
        listed = self.api.get_servers(detail=True)
        self.assertEqual([self.server['id']], rebuilt)
        # The list has the record that was read before.
        self.assertEqual(
            {self.server['id']: 'PENDING', self.other['id']: 'PENDING'},
            {server['id']: server['status'] for server in listed})
        self.assertEqual(2, len(listed))
