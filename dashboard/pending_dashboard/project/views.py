# SPDX-License-Identifier: Apache-2.0

from django.utils.translation import gettext_lazy as _

from horizon import tables

from pending_dashboard import tables as pending_tables
from pending_dashboard import views


class IndexView(views.WaitingMixin, tables.MultiTableView):
    table_classes = (pending_tables.WaitingTable,
                     pending_tables.NoticesTable,
                     pending_tables.HistoryTable)
    template_name = 'pending_dashboard/project.html'
    page_title = _('Waiting Servers')

    def get_waiting_data(self):
        return self.get_waiting()

    def get_notices_data(self):
        return self.get_notices()

    def get_history_data(self):
        return self.get_history()
