# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from openstack_dashboard import api as horizon_api
from openstack_dashboard.api import _nova
from openstack_dashboard.dashboards.admin.instances import (
    tables as admin_tables)
from openstack_dashboard.dashboards.project.instances import (
    tables as project_tables)
from openstack_dashboard.test import helpers

from pending_dashboard import api


class InstancesTestCase(helpers.TestCase):

    @mock.patch.object(api, 'show_waiting')
    @mock.patch.object(_nova, 'get_novaclient_with_instance_desc')
    def test_one_server(self, client, show_waiting):
        client.return_value.servers.get.return_value = (
            self.servers.first())
        found = horizon_api.nova.server_get(self.request, 'id')
        self.assertEqual(self.servers.first().id, found.id)
        show_waiting.assert_called_once_with(self.request, [found])

    @mock.patch.object(api, 'show_waiting')
    @mock.patch.object(horizon_api.nova, 'get_novaclient_with_locked_status')
    def test_page(self, client, show_waiting):
        client.return_value.servers.list.return_value = self.servers.list()
        found, _more, _prev = horizon_api.nova.server_list_paged(self.request)
        self.assertEqual(len(self.servers.list()), len(found))
        show_waiting.assert_called_once_with(self.request, found)

    def test_tables_know_the_status(self):
        for table in (project_tables.InstancesTable,
                      admin_tables.AdminInstancesTable):
            column = table.base_columns['status']
            self.assertIn(('pending', True), column.status_choices)
            self.assertEqual('Waiting for room', str(dict(
                column.display_choices)['pending']))
