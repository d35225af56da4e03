# SPDX-License-Identifier: Apache-2.0

import collections

from django import shortcuts
from django import urls
from django.utils.translation import gettext_lazy as _
from django.views import generic

from horizon import exceptions
from horizon import forms
from horizon import messages
from horizon import tables
from openstack_dashboard import api as horizon_api

from pending_dashboard import api
from pending_dashboard import forms as pending_forms
from pending_dashboard import sentences
from pending_dashboard import tables as pending_tables
from pending_dashboard import views


class IndexView(views.WaitingMixin, tables.MultiTableView):
    table_classes = (pending_tables.AdminWaitingTable,
                     pending_tables.AdminNoticesTable,
                     pending_tables.AdminHistoryTable)
    template_name = 'pending_dashboard/admin.html'
    page_title = _('Waiting Servers')
    all_projects = True

    def get_waiting_data(self):
        return self._named(self.get_waiting())

    def get_notices_data(self):
        return self._named(self.get_notices())

    def get_history_data(self):
        return self._named(self.get_history())

    def get_context_data(self, **kwargs):
        context = super().get_context_data(**kwargs)
        try:
            reaper = api.overview(self.request)
        except Exception:
            reaper = None
            exceptions.handle(
                self.request, _('Unable to ask nova-reaper how it is.'))
        by_reason = reaper and reaper.by_reason
        context['reaper'] = reaper
        if reaper:
            context['health'] = pending_tables.HEALTH.get(
                reaper.status, reaper.status)
            context['safeguard'] = sentences.translate(reaper.safeguard or '')
            context['problems'] = [
                (pending_tables.CHECKS.get(name, name),
                 sentences.translate(problem))
                for name, problem in reaper.problems]
        # Without the metrics of nova-reaper only this page is counted.
        context['counted_page'] = not by_reason
        if not by_reason:
            by_reason = collections.Counter(
                server.reason or 'unknown'
                for server in context['waiting_table'].data)
        context['by_reason'] = [
            (pending_tables.REASONS.get(reason, reason), number)
            for reason, number in sorted(by_reason.items())]
        return context

    def _named(self, things):
        """Give servers the names of their projects."""
        if things and not hasattr(self, '_projects'):
            self._projects = {}
            try:
                found, _more = horizon_api.keystone.tenant_list(self.request)
                self._projects = {each.id: each.name for each in found}
            except Exception:
                exceptions.handle(
                    self.request,
                    _('Unable to retrieve the names of projects.'))
        for thing in things:
            thing.project_name = self._projects.get(
                thing.project_id, thing.project_id)
        return things


class RebuildView(views.RebuildView):
    dashboard = 'horizon:admin:'


class PauseView(forms.ModalFormView):
    """Asks whether nova-reaper is to be paused, and why."""

    form_class = pending_forms.PauseForm
    form_id = 'pause_nova_reaper'
    template_name = 'pending_dashboard/pause.html'
    page_title = modal_header = submit_label = _('Pause nova-reaper')
    submit_url = urls.reverse_lazy('horizon:admin:waiting_servers:pause')
    success_url = cancel_url = urls.reverse_lazy(
        'horizon:admin:waiting_servers:index')

    def get_context_data(self, **kwargs):
        return super().get_context_data(cancel_url=self.cancel_url, **kwargs)


class ResumeView(generic.View):
    """Has nova-reaper go on."""

    def post(self, request):
        try:
            api.resume(request)
        except Exception:
            exceptions.handle(
                request, _('nova-reaper does not take the request.'))
        else:
            messages.success(request, _('nova-reaper goes on.'))
        return shortcuts.redirect('horizon:admin:waiting_servers:index')
