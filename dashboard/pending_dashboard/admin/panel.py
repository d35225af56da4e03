# SPDX-License-Identifier: Apache-2.0

from django.conf import settings
from django.utils.translation import gettext_lazy as _

import horizon


class WaitingServers(horizon.Panel):
    name = _('Waiting Servers')
    slug = 'waiting_servers'
    permissions = ('openstack.services.compute',)
    policy_rules = ((('compute', 'context_is_admin'),
                     ('compute', 'os_compute_api:servers:detail')),)

    def allowed(self, context):
        # The panel of instances checks this, too.
        if (('compute' in settings.SYSTEM_SCOPE_SERVICES) !=
                bool(context['request'].user.system_scoped)):
            return False
        return super().allowed(context)
