# SPDX-License-Identifier: Apache-2.0

"""What Horizon's page of a server has more if the server waits."""

from django.utils.translation import gettext_lazy as _

from horizon import exceptions
from horizon import tabs

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
                'position': tables.position_of(server)}


class AdminWaitTab(WaitTab):
    rebuild = admin_views.RebuildView
