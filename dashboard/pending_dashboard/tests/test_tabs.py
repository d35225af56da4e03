# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from django import urls
from openstack_dashboard.api import base
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
            attempts=3, position=2, queue_length=7, step='notice',
            room_by='2026-11-25T11:30:00Z', deadline='2026-11-26T11:30:00Z')
        text = self._tab('PENDING').render()
        for part in ('Other servers are under notice', 'Nov. 25', 'Nov. 26',
                     'No host has room', '&lt;b&gt;room&lt;/b&gt;', '2 of 7',
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


@mock.patch.object(api, 'list_notices', return_value=None)
@mock.patch.object(api, 'show_endable')
class EndTabTestCase(helpers.TestCase):

    url = urls.reverse('horizon:project:waiting_servers:rehearse',
                       args=['id-0']) + '?from=server'

    def _render(self, there=True, status='ACTIVE',
                group=project_tabs.InstanceDetailTabs):
        """Return the tab that is looked at, None if it is not shown."""
        self.request.GET = {group.param_name: '%s__%s' % (
            group.slug, tabs.EndTab.slug)}
        with mock.patch.object(group, 'tabs', ()), mock.patch.object(
                base, 'is_service_enabled', lambda request, kind: (
                    kind == api.REAPER and there)):
            tab = group(self.request, instance=mock.Mock(
                id='id-0', status=status)).get_tab(tabs.EndTab.slug)
            return tab and tab.render()

    def test_a_preemptible_server(self, shown, notices):
        shown.return_value = api.Endable(
            'id-0', 'batch', True, 'shelve', '2026-11-23T11:56:00Z')
        notices.return_value = [
            api.Notice(name, 'batch', '1', 'shelve', at, None, message)
            for name, at, message in (
                ('id-1', '2026-11-21T11:56:00Z', None),
                ('id-0', '2026-11-22T11:56:00Z', 'Its run time ends.'))]
        text = self._render()
        for part in ('Nov. 23', 'Its run time ends.', 'Nov. 22', 'Shelved',
                     'Yes', self.url):
            self.assertIn(part, text)
        self.assertNotIn('Nov. 21', text)
        shown.assert_called_once_with(mock.ANY, 'id-0', False)
        notices.assert_called_once_with(mock.ANY, False)

    def test_administrators_page(self, shown, notices):
        shown.return_value = api.Endable(
            'id-0', 'batch', True, 'shelve', '2026-11-23T11:56:00Z')
        text = self._render(group=admin_tabs.AdminInstanceDetailTabs)
        self.assertIn('Nov. 23', text)
        # Only its owner may rehearse the end.
        self.assertNotIn('Rehearse', text)
        shown.assert_called_once_with(mock.ANY, 'id-0', True)
        notices.assert_called_once_with(mock.ANY, True)

    def test_one_with_a_run_time_alone(self, shown, notices):
        shown.return_value = api.Endable(
            'id-0', 'gpu', False, 'delete', '2026-11-23T11:56:00Z')
        text = self._render()
        self.assertIn('Nov. 23', text)
        for part in ('Under notice', self.url):
            self.assertNotIn(part, text)

    def test_other_servers(self, shown, notices):
        shown.return_value = None
        self.assertIn('does not end this server', self._render())
        self.assertIsNone(self._render(status='PENDING'))
        self.assertIsNone(self._render(there=False))

    @mock.patch.object(exceptions, 'handle')
    def test_nova_reaper_fails(self, handle, shown, notices):
        shown.side_effect = ValueError
        text = self._render()
        for part in ('<dl', 'does not end'):
            self.assertNotIn(part, text)
        handle.assert_called_once_with(
            mock.ANY, 'Unable to retrieve when the server ends.')
