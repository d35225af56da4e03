# SPDX-License-Identifier: Apache-2.0

from django.utils.translation import gettext_lazy as _
from keystoneauth1 import exceptions as ksa_exceptions

from horizon import exceptions
from horizon import forms
from horizon import messages
from openstack_dashboard.dashboards.project.instances import (
    utils as instance_utils)
from openstack_dashboard import policy

from pending_dashboard import api

# The policies that Nova checks beside that of a rebuild, for another flavor.
_OTHER_FLAVOR = (('compute', 'os_compute_api:servers:create'),
                 ('compute', 'os_compute_api:servers:resize'))


class RebuildForm(forms.SelfHandlingForm):
    """Rebuilds a server that waits, with its own flavor or another one."""

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
