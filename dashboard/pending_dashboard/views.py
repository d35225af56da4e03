# SPDX-License-Identifier: Apache-2.0

"""What the two panels of servers that wait have in common."""

from django import shortcuts
from django import urls
from django.utils.translation import gettext_lazy as _

from horizon import exceptions
from horizon import forms
from horizon import tables
from openstack_dashboard.utils import settings as utils

from pending_dashboard import api
from pending_dashboard import forms as pending_forms


# The query of the dialog that is opened on the page of a server.
_FROM_SERVER = 'from=server'


class WaitingMixin(tables.PagedTableMixin):
    """Fills a table with a page of the servers that wait."""

    #: Whether servers of all projects are shown.
    all_projects = False

    def get_notices(self):
        """Return the Notices in force that the user may see."""
        found = self._ask(
            api.list_notices, _('Unable to retrieve the notices in force.'))
        # An empty table would say that nobody is under notice.
        self._notices_known = found is not None
        return found or []

    def get_history(self):
        """Return what nova-reaper did last, as far as the user may see."""
        found = self._ask(
            api.list_history,
            _('Unable to retrieve what nova-reaper has done.'))
        # An empty table would say that nothing was done.
        self._history_known = found is not None
        return found or []

    def _ask(self, function, failure):
        """Return what nova-reaper says, None if there is none or it fails.

        :param function: of the api module
        :param failure: what the user is told if the function fails
        """
        try:
            return function(self.request, self.all_projects)
        except Exception:
            exceptions.handle(self.request, failure)
            return None

    def has_prev_data(self, table):
        return table.name == 'waiting' and self._has_prev_data

    def has_more_data(self, table):
        return table.name == 'waiting' and self._has_more_data

    def get_context_data(self, **kwargs):
        context = super().get_context_data(**kwargs)
        context['notices_known'] = self._notices_known
        context['history_known'] = self._history_known
        notices = context['notices_table'].data
        history = context['history_table'].data
        names = {record.server: record.name for record in history}
        names.update((server.id, server.name)
                     for server in context['waiting_table'].data)
        wanted = {thing.for_server for thing in (*notices, *history)}
        wanted -= {None, *names}
        if wanted:
            names.update(
                (server, name or _('%s (deleted)') % server) for server, name
                in api.list_names(self.request, wanted).items())
        names.pop(None, None)
        for thing in (*notices, *history):
            thing.for_server = names.get(thing.for_server, thing.for_server)
        return context

    def post(self, request, *args, **kwargs):
        """Take the filter, or do as Horizon does."""
        changed = self.handle_server_filter(
            request, self.get_tables()['waiting'])
        if changed or 'action' not in request.POST:
            # The page of a GET can refresh itself without a question.
            return shortcuts.redirect(request.path)
        return super().post(request, *args, **kwargs)

    def get_waiting(self):
        """Return the page of WaitingServer that the request asks for."""
        table = self.get_tables()['waiting']
        self.update_server_filter_action(self.request, table)
        marker, sort_dir = self._get_marker()
        # The mixin's words are for tables whose newest row comes first.
        backwards = sort_dir == 'asc'
        try:
            servers, more = api.list_servers(
                self.request, utils.get_page_size(self.request), marker,
                backwards, self.all_projects,
                table.get_filter_string().strip())
        except api.NotSupported:
            exceptions.handle(
                self.request,
                _('This cloud does not let servers wait for room.'))
            return []
        except Exception:
            exceptions.handle(
                self.request, _('Unable to retrieve the waiting servers.'))
            return []
        self._has_prev_data = more if backwards else bool(marker)
        self._has_more_data = True if backwards else more
        return servers


class _ServerView(forms.ModalFormView):
    """A dialog about one server."""

    #: The name of the URL of the dialog.
    name = None
    #: The namespace with which the URLs of the dashboard begin.
    dashboard = 'horizon:project:'

    @classmethod
    def link(cls, server_id):
        """Return the link that opens the dialog from the page of a server.

        The dialog leads back to this page.
        """
        return '%s?%s' % (cls._reverse(cls.name, server_id), _FROM_SERVER)

    @classmethod
    def _reverse(cls, name, *args):
        return urls.reverse(
            cls.dashboard + 'waiting_servers:' + name, args=args)

    @property
    def _is_from_server(self):
        return self.request.GET.urlencode() == _FROM_SERVER

    def get_success_url(self):
        if self._is_from_server:
            return urls.reverse(self.dashboard + 'instances:detail',
                                args=[self.kwargs['server_id']])
        return self._reverse('index')

    def get_initial(self):
        return {'server': self.kwargs['server_id']}

    def get_context_data(self, **kwargs):
        context = super().get_context_data(**kwargs)
        server_id = self.kwargs['server_id']
        context['submit_url'] = (
            self.link(server_id) if self._is_from_server
            else self._reverse(self.name, server_id))
        context['cancel_url'] = self.get_success_url()
        return context


class RebuildView(_ServerView):
    """Asks with which flavor a server is to be rebuilt."""

    name = 'rebuild'
    form_class = pending_forms.RebuildForm
    form_id = 'rebuild_waiting_server'
    template_name = 'pending_dashboard/rebuild.html'
    page_title = modal_header = _('Rebuild a Waiting Server')
    submit_label = _('Rebuild')


class RehearseView(_ServerView):
    """Asks whether the end of a server is to be rehearsed."""

    name = 'rehearse'
    form_class = pending_forms.RehearseForm
    form_id = 'rehearse_end_of_server'
    template_name = 'pending_dashboard/rehearse.html'
    page_title = modal_header = _('Rehearse the End of a Server')
    submit_label = _('Rehearse')


class ProbeView(forms.ModalFormView):
    """Asks whether there is room for servers that are not created yet."""

    form_class = pending_forms.ProbeForm
    form_id = 'ask_for_room'
    template_name = 'pending_dashboard/probe.html'
    page_title = modal_header = _('Is There Room?')
    submit_label = _('Ask')
    submit_url = urls.reverse_lazy('horizon:project:waiting_servers:probe')
    success_url = cancel_url = urls.reverse_lazy(
        'horizon:project:waiting_servers:index')

    def get_context_data(self, **kwargs):
        return super().get_context_data(cancel_url=self.cancel_url, **kwargs)
