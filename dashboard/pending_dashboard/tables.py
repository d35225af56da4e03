# SPDX-License-Identifier: Apache-2.0

"""The columns and buttons of servers that wait."""

from django.template import defaultfilters as template_filters
from django import urls
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy
from django.utils.translation import pgettext_lazy

from horizon import tables
from horizon.utils import filters
from openstack_dashboard import api as horizon_api
from openstack_dashboard.api import base

from pending_dashboard import api
from pending_dashboard import sentences

REASONS = {
    'no_room': _('No host has room'),
    'refused': _('Refused by the scheduler'),
    'no_such_host': _('The host does not exist'),
    'nothing_fits': _('Fits on no host'),
    'build_failed': _('The build failed'),
    'quota': _('Over the quota'),
    'unknown': _('Not known'),
    'protected': _('Others are protected for now'),
    'back_off': _('Tried again later'),
    'reserved': _('The room is kept for another server'),
    'mode': _('nova-reaper may not rebuild it'),
    'misses': _('Ends for servers like it came to nothing'),
    'deadline': _('Waited for too long'),
    'needs_owner': _('Its owner has to rebuild it'),
    'not_asked': _('Its owner has not asked to wait'),
    # Only the numbers of nova-reaper have this word.
    'none': _('Not looked at yet'),
}

# These tables have no server whose status is another word of Nova.
STATUS_DISPLAY_CHOICES = (
    ('pending', pgettext_lazy(
        'Current status of an Instance', 'Waiting for room')),
)


#: What nova-reaper says of its health, and what it looks at.
HEALTH = {'ok': _('ok'), 'degraded': _('degraded'), 'failed': _('failed')}
CHECKS = {
    'cloud': _('Cloud'), 'coordination': _('Coordination'),
    'journal': _('Journal'), 'lists': _('Lists'),
    'notifications': _('Notifications'), 'pause': _('Pause'),
}


class RebuildServers(tables.BatchAction):
    name = 'rebuild'
    icon = 'refresh'
    policy_rules = (('compute', 'os_compute_api:servers:rebuild'),)

    @staticmethod
    def action_present(count):
        return ngettext_lazy('Rebuild Server', 'Rebuild Servers', count)

    @staticmethod
    def action_past(count):
        return ngettext_lazy('Requested Rebuild of Server',
                             'Requested Rebuild of Servers', count)

    def action(self, request, obj_id):
        api.rebuild(request, obj_id)


class AskForRoom(tables.LinkAction):
    """Opens the dialog that asks for room before a server is created."""

    name = 'probe'
    verbose_name = _('Is There Room?')
    icon = 'question'
    classes = ('ajax-modal',)
    url = 'horizon:project:waiting_servers:probe'

    def allowed(self, request, datum=None):
        return base.is_service_enabled(request, api.REAPER)


class RebuildServer(tables.LinkAction):
    """Opens the dialog that says what a rebuild does, and offers flavors."""

    name = 'rebuild_server'
    verbose_name = _('Rebuild')
    icon = 'refresh'
    classes = ('ajax-modal',)
    url = 'horizon:project:waiting_servers:rebuild'
    policy_rules = (('compute', 'os_compute_api:servers:rebuild'),)


class RehearseServer(tables.LinkAction):
    """Opens the dialog that says what a rehearsal does."""

    name = 'rehearse'
    verbose_name = _('Rehearse')
    icon = 'hourglass-half'
    classes = ('ajax-modal',)
    url = 'horizon:project:waiting_servers:rehearse'

    def allowed(self, request, server=None):
        return server is None or server.preemptible


class AdminRebuildServer(RebuildServer):
    url = 'horizon:admin:waiting_servers:rebuild'


class DeleteServer(tables.DeleteAction):
    policy_rules = (('compute', 'os_compute_api:servers:delete'),)

    @staticmethod
    def action_present(count):
        return ngettext_lazy('Delete Server', 'Delete Servers', count)

    @staticmethod
    def action_past(count):
        return ngettext_lazy('Scheduled deletion of Server',
                             'Scheduled deletion of Servers', count)

    def delete(self, request, obj_id):
        horizon_api.nova.server_delete(request, obj_id)


def _link(server):
    return urls.reverse('horizon:project:instances:detail', args=[server.id])


def _admin_link(server):
    return urls.reverse('horizon:admin:instances:detail', args=[server.id])


def reason_of(server):
    """Return why a server waits in few words, None if that is not known."""
    if server.reason is None and server.hindrance is None:
        return None
    word = server.hindrance or server.reason
    return REASONS.get(word, word)


def why(server):
    """Return the sentences that say why, what helps and what is done."""
    said = [text.strip() for text in (
        server.message, server.advice, server.automatic) if text]
    # Some messages of Nova end without a full stop, or with a space.
    return sentences.translate(' '.join(
        text if text.endswith(('.', '!', '?')) else text + '.'
        for text in said if text)) or None


def position_of(server):
    """Return the place of a server in the queue, None without a place."""
    if server.position is None:
        return None
    if server.queue_length is None:
        return server.position
    return _('%(position)d of %(length)d') % {
        'position': server.position, 'length': server.queue_length}


class NameFilter(tables.FilterAction):
    """Asks for servers by their names, on all pages."""

    filter_type = 'server'
    filter_choices = (('name', _('Name'), True),)


class AdminNameFilter(NameFilter):
    # Each panel keeps a text of its own in the session.
    param_name = 'admin_q'


class WaitingTable(tables.DataTable):
    name = tables.WrappingColumn('name', link=_link, verbose_name=_('Name'))
    status = tables.Column(
        'status', verbose_name=_('Status'),
        display_choices=STATUS_DISPLAY_CHOICES)
    flavor = tables.Column('flavor', verbose_name=_('Flavor'))
    reason = tables.Column(reason_of, verbose_name=_('Reason'))
    # A WrappingColumn breaks sentences within words.
    why = tables.Column(why, verbose_name=_('Why it waits'))
    since = tables.Column(
        'since', verbose_name=_('Waiting for'),
        filters=(filters.parse_isotime, filters.timesince_sortable),
        attrs={'data-type': 'timesince'})
    position = tables.Column(position_of, verbose_name=_('Position'))
    next_attempt = tables.Column(
        'next_attempt', verbose_name=_('Next attempt not before'),
        filters=(filters.parse_isotime,))

    class Meta:
        name = 'waiting'
        verbose_name = _('Waiting Servers')
        table_actions = (NameFilter, AskForRoom, RebuildServers, DeleteServer)
        row_actions = (RebuildServer, DeleteServer)


class AdminWaitingTable(WaitingTable):
    project = tables.Column('project_name', verbose_name=_('Project'))
    name = tables.WrappingColumn('name', link=_admin_link,
                                 verbose_name=_('Name'))

    class Meta:
        name = 'waiting'
        verbose_name = _('Waiting Servers')
        columns = ('project', 'name', 'status', 'flavor', 'reason', 'why',
                   'since', 'position', 'next_attempt')
        table_actions = (AdminNameFilter, RebuildServers, DeleteServer)
        row_actions = (AdminRebuildServer, DeleteServer)


KINDS = (
    ('notice', _('Under notice')), ('withdrawal', _('Notice withdrawn')),
    ('end', _('Ended')), ('build', _('Built')), ('return', _('Brought back')),
    ('given_up', _('Given up')), ('pause', _('nova-reaper paused')),
    ('resume', _('nova-reaper resumed')))


RESULTS = (
    ('asked', _('Requested')), ('active', _('It runs')),
    ('pending', _('It waits again')), ('error', _('It failed')),
    ('refused', _('Nova refused it')), ('gone', _('It is gone')),
    ('timeout', _('It took too long')), ('stuck', _('A server did not end')),
    ('conflict', _('Something else was faster')),
    ('withdrawn', _('Not allowed any more')),
    ('delete', _('Deleted')), ('shelve', _('Shelved')),
    ('left', _('Not by nova-reaper')),
    # The result of a server that was given up is a reason.
    *REASONS.items())


#: What nova-reaper does for a server that waits, at the moment.
STEPS = {
    'waiting': _('It waits for room'), 'holding': _('Room is held for it'),
    'notice': _('Other servers are under notice'),
    'ending': _('Other servers are ended'), 'rebuilding': _('It is built'),
    'given_up': _('It was given up'),
}


def why_noticed(notice):
    """Return the sentence that says why a server is under notice."""
    return sentences.translate(notice.message or '') or None


def _for_server(record):
    return record.for_server or why_noticed(record)


class HistoryTable(tables.DataTable):
    at = tables.Column('at', verbose_name=_('Time'),
                       filters=(filters.parse_isotime,))
    name = tables.WrappingColumn('name', verbose_name=_('Name'))
    kind = tables.Column('kind', verbose_name=_('What was done'),
                         display_choices=KINDS)
    result = tables.Column('result', verbose_name=_('Result'),
                           display_choices=RESULTS)
    for_server = tables.Column(_for_server, verbose_name=_('For'))

    class Meta:
        name = 'history'
        verbose_name = _('What nova-reaper Did Last')
        multi_select = False

    def get_object_display(self, record):
        return record.name


class AdminHistoryTable(HistoryTable):
    project = tables.Column('project_name', verbose_name=_('Project'))
    host = tables.Column('host', verbose_name=_('Host'))

    class Meta:
        name = 'history'
        verbose_name = _('What nova-reaper Did Last')
        columns = ('at', 'project', 'name', 'kind', 'result', 'for_server',
                   'host')
        multi_select = False


ACTIONS = (('delete', _('Deleted')), ('shelve', _('Shelved')))


class EndableTable(tables.DataTable):
    name = tables.WrappingColumn('name', link=_link, verbose_name=_('Name'))
    ends_at = tables.Column(
        'ends_at', verbose_name=_('Run time ends'),
        filters=(filters.parse_isotime,))
    preemptible = tables.Column(
        'preemptible', verbose_name=_('Preemptible'),
        filters=(template_filters.yesno, template_filters.capfirst))
    action = tables.Column(
        'action', verbose_name=_('What happens'), display_choices=ACTIONS)

    class Meta:
        name = 'endable'
        verbose_name = _('Servers That nova-reaper May End')
        multi_select = False
        row_actions = (RehearseServer,)


class NoticesTable(tables.DataTable):
    name = tables.WrappingColumn('name', link=_link, verbose_name=_('Name'))
    action = tables.Column(
        'action', verbose_name=_('What happens'), display_choices=ACTIONS)
    terminate_at = tables.Column(
        'terminate_at', verbose_name=_('Not before'),
        filters=(filters.parse_isotime,))
    why = tables.Column(why_noticed, verbose_name=_('Why'))

    class Meta:
        name = 'notices'
        verbose_name = _('Servers Under Notice')
        multi_select = False


class AdminNoticesTable(NoticesTable):
    project = tables.Column('project_name', verbose_name=_('Project'))
    name = tables.WrappingColumn('name', link=_admin_link,
                                 verbose_name=_('Name'))
    for_server = tables.Column('for_server', verbose_name=_('For server'))

    class Meta:
        name = 'notices'
        verbose_name = _('Servers Under Notice')
        columns = ('project', 'name', 'action', 'terminate_at', 'why',
                   'for_server')
        multi_select = False
