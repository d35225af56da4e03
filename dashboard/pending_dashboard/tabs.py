# SPDX-License-Identifier: Apache-2.0

"""What Horizon's page of a server says of its wait and of its end."""

from django.utils.translation import gettext_lazy as _

from horizon import exceptions
from horizon import tabs
from openstack_dashboard.api import base

from pending_dashboard.admin import views as admin_views
from pending_dashboard import api
from pending_dashboard import tables
from pending_dashboard import views


class WaitTab(tabs.Tab):
    name = _('Why it waits')
    slug = 'why_it_waits'
    template_name = 'pending_dashboard/wait.html'
    rebuild = views.RebuildView

    def allowed(self, request):
        return self.tab_group.kwargs['instance'].status == 'PENDING'

    def get_context_data(self, request):
        try:
            server = api.show_server(
                request, self.tab_group.kwargs['instance'].id)
        except Exception:
            exceptions.handle(
                request, _('Unable to retrieve why the server waits.'))
            return {'server': None}
        return {'server': server, 'rebuild_url': self.rebuild.link(server.id),
                'reason': tables.reason_of(server),
                'why': tables.why(server),
                'position': tables.position_of(server),
                'step': tables.STEPS.get(server.step, server.step)}


class EndTab(tabs.Tab):
    name = _('When it ends')
    slug = 'when_it_ends'
    template_name = 'pending_dashboard/end.html'
    # nova-reaper is asked when somebody looks at the tab.
    preload = False
    all_projects = False

    def allowed(self, request):
        return self.tab_group.kwargs['instance'].status != 'PENDING' and (
            base.is_service_enabled(request, api.REAPER))

    def get_context_data(self, request):
        server_id = self.tab_group.kwargs['instance'].id
        try:
            server = api.show_endable(request, server_id, self.all_projects)
            notices = api.list_notices(request, self.all_projects) or ()
        except Exception:
            exceptions.handle(
                request, _('Unable to retrieve when the server ends.'))
            return {'failed': True}
        notice = next((notice for notice in notices
                       if notice.id == server_id), None)
        return {'server': server, 'action': server and dict(
            tables.ACTIONS).get(server.action, server.action),
            'notice': notice, 'why': notice and tables.why_noticed(notice),
            # The owner rehearses the end.
            'rehearse_url': None if self.all_projects else
            views.RehearseView.link(server_id)}


class AdminWaitTab(WaitTab):
    rebuild = admin_views.RebuildView


class AdminEndTab(EndTab):
    all_projects = True
