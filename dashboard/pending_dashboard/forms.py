# SPDX-License-Identifier: Apache-2.0

from django.utils.translation import gettext_lazy as _
from keystoneauth1 import exceptions as ksa_exceptions

from horizon import exceptions
from horizon import forms
from horizon import messages
from openstack_dashboard.dashboards.project.images import (
    utils as image_utils)
from openstack_dashboard.dashboards.project.instances import (
    utils as instance_utils)
from openstack_dashboard import policy

from pending_dashboard import api
from pending_dashboard import sentences

VERDICTS = {
    'now': _('There is room now.'),
    'after_ends': _('nova-reaper would end preemptible servers to make room, '
                    'once the servers wait.'),
    'later': _('The servers would wait.'),
    'never': _('There will be no room.'),
}

# The policies that Nova checks beside that of a rebuild, for another flavor.
_OTHER_FLAVOR = (('compute', 'os_compute_api:servers:create'),
                 ('compute', 'os_compute_api:servers:resize'))


class ProbeForm(forms.SelfHandlingForm):
    """Asks whether there is room for servers that are not created yet."""

    flavor = forms.ChoiceField(label=_('Flavor'))
    image = forms.ChoiceField(label=_('Boot source'), required=False)
    zone = forms.ChoiceField(label=_('Availability Zone'), required=False)
    count = forms.IntegerField(label=_('Number of servers'), initial=1,
                               min_value=1, max_value=20)

    def __init__(self, request, *args, **kwargs):
        super().__init__(request, *args, **kwargs)
        self.fields['flavor'].choices = instance_utils.sort_flavor_list(
            request, instance_utils.flavor_list(request))
        self.fields['image'].choices = [('', _('A volume'))] + [
            (image.id, image.name or image.id)
            for image in image_utils.get_available_images(
                request, request.user.project_id)]
        self.fields['zone'].choices = [('', _('Any'))] + [
            (zone, zone) for zone in self._zones(request)]

    @staticmethod
    def _zones(request):
        try:
            return api.list_zones(request)
        except Exception:
            exceptions.handle(
                request, _('Unable to retrieve the availability zones.'))
            return []

    def handle(self, request, data):
        """Ask nova-reaper, and show what it says."""
        try:
            said = api.probe(request, **{
                key: value for key, value in data.items() if value})
        except ksa_exceptions.HttpError as error:
            self.api_error(sentences.translate(str(error)))
            return False
        except Exception:
            exceptions.handle(request, _('Unable to ask for room.'))
            return False
        text = [VERDICTS.get(said['verdict'], said['verdict'])]
        if said['count'] > 1 and said['verdict'] != 'now':
            text.append(_('There is room for %(now)s of %(count)s servers '
                          'now, and for %(after_ends)s after ends.') % said)
        if said['room_by']:
            text.append(_('There will be room by %s.') %
                        sentences.local_time(said['room_by']))
        elif said['verdict'] == 'later':
            text.append(_('Nobody knows for how long.'))
        if said['verdict'] in ('later', 'never'):
            text.append(sentences.translate(said['detail']))
        show = (messages.success if said['verdict'] == 'now'
                else messages.info)
        show(request, ' '.join(map(str, text)))
        return True


class RehearseForm(forms.SelfHandlingForm):
    """Rehearses the end of a preemptible server."""

    def handle(self, request, data):
        """Ask nova-reaper for the rehearsal; returns whether it does it."""
        try:
            api.rehearse(request, self.initial['server'])
        except ksa_exceptions.HttpError as error:
            # The answer tells the owner why the end is not rehearsed.
            self.api_error(sentences.translate(str(error)))
            return False
        except Exception:
            exceptions.handle(request, _('Unable to rehearse the end of the '
                                         'server.'))
            return False
        messages.success(request, _('The rehearsal has begun.'))
        return True


class PauseForm(forms.SelfHandlingForm):
    """Pauses nova-reaper."""

    reason = forms.CharField(
        label=_('Why'), required=False, max_length=255,
        help_text=_('The journal of nova-reaper keeps the text.'))

    def handle(self, request, data):
        """Have nova-reaper pause; returns whether it does it."""
        try:
            api.pause(request, data['reason'])
        except Exception:
            exceptions.handle(
                request, _('nova-reaper does not take the request.'))
            return False
        messages.success(request, _('nova-reaper is paused.'))
        return True


class RebuildForm(forms.SelfHandlingForm):
    """Rebuilds a waiting server, with its own flavor or another flavor."""

    flavor = forms.ChoiceField(label=_('Flavor'), required=False)

    def __init__(self, request, *args, **kwargs):
        super().__init__(request, *args, **kwargs)
        choices = [('', _('The flavor that it has'))]
        if policy.check(_OTHER_FLAVOR, request):
            choices += instance_utils.sort_flavor_list(
                request, instance_utils.flavor_list(request))
        self.fields['flavor'].choices = choices

    def handle(self, request, data):
        """Ask Nova for the rebuild; returns whether it does it."""
        try:
            api.rebuild(request, self.initial['server'], data['flavor'])
        except ksa_exceptions.HttpError as error:
            # What Nova says tells the owner what to choose instead.
            self.api_error(str(error))
            return False
        except api.NotSupported:
            self.api_error(_('This cloud rebuilds a server with its own '
                             'flavor only.'))
            return False
        except Exception:
            exceptions.handle(request, _('Unable to rebuild the server.'))
            return False
        messages.success(request, _('The rebuild of the server is requested.'))
        return True
