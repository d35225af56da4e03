# SPDX-License-Identifier: Apache-2.0

from django.utils.translation import gettext_lazy as _

from horizon import tables

from pending_dashboard import api
from pending_dashboard import tables as pending_tables
from pending_dashboard import views


class IndexView(views.WaitingMixin, tables.MultiTableView):
    table_classes = (pending_tables.WaitingTable,
                     pending_tables.NoticesTable,
                     pending_tables.EndableTable,
                     pending_tables.HistoryTable)
    template_name = 'pending_dashboard/project.html'
    page_title = _('Waiting Servers')

    def get_waiting_data(self):
        return self.get_waiting()

    def get_notices_data(self):
        return self.get_notices()

    def get_endable_data(self):
        found = self._ask(api.list_endable, _(
            'Unable to retrieve the servers that nova-reaper may end.'))
        self._endable_known = found is not None
        return found or []

    def get_history_data(self):
        return self.get_history()

    def get_context_data(self, **kwargs):
        return super().get_context_data(
            endable_known=self._endable_known, **kwargs)
