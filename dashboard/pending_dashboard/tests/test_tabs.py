# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from django import urls
from openstack_dashboard.dashboards.admin.instances import (
    tabs as admin_tabs)
from openstack_dashboard.dashboards.project.instances import (
    tabs as project_tabs)
from openstack_dashboard.test import helpers

from horizon import exceptions
from pending_dashboard import api
from pending_dashboard import tabs
from pending_dashboard.tests import test_panels


class WaitTabTestCase(helpers.TestCase):

    def _tab(self, status, group=project_tabs.InstanceDetailTabs):
        """Return the tab of a server, None if it is not shown."""
        # The tabs of Horizon ask other services.
        with mock.patch.object(group, 'tabs', ()):
            return group(
                self.request, instance=mock.Mock(id='id-0', status=status)
            ).get_tab(tabs.WaitTab.slug)

    @mock.patch.object(api, 'show_server')
    def test_waiting_server(self, shown):
        shown.return_value = test_panels.waiting(
            attempts=3, position=2, queue_length=7)
        text = self._tab('PENDING').render()
        for part in ('No host has room', '&lt;b&gt;room&lt;/b&gt;', '2 of 7',
                     '<dd>3</dd>', urls.reverse(
                         'horizon:project:waiting_servers:rebuild',
                         args=['id-0']) + '?from=server'):
            self.assertIn(part, text)
        shown.assert_called_once_with(mock.ANY, 'id-0')

    @mock.patch.object(api, 'show_server')
    def test_administrators_page(self, shown):
        shown.return_value = test_panels.waiting()
        tab = self._tab('PENDING', admin_tabs.AdminInstanceDetailTabs)
        self.assertIn(urls.reverse(
            'horizon:admin:waiting_servers:rebuild', args=['id-0']),
            tab.render())

    def test_other_servers(self):
        for status in ('ACTIVE', 'ERROR', 'BUILD'):
            self.assertIsNone(self._tab(status))

    @mock.patch.object(exceptions, 'handle')
    @mock.patch.object(api, 'show_server', side_effect=ValueError)
    def test_nova_fails(self, shown, handle):
        self.assertNotIn('<dl', self._tab('PENDING').render())
        handle.assert_called_once_with(
            mock.ANY, 'Unable to retrieve why the server waits.')
