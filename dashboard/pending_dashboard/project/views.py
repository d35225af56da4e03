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

from django.utils.translation import gettext_lazy as _

from horizon import tables

from pending_dashboard import tables as pending_tables
from pending_dashboard import views


class IndexView(views.WaitingMixin, tables.MultiTableView):
    table_classes = (pending_tables.WaitingTable, pending_tables.HistoryTable)
    template_name = 'pending_dashboard/project.html'
    page_title = _('Waiting Servers')

    def get_waiting_data(self):
        return self.get_waiting()

    def get_history_data(self):
        return self.get_history()
