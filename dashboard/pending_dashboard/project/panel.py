# SPDX-License-Identifier: Apache-2.0

from django.utils.translation import gettext_lazy as _

import horizon


class WaitingServers(horizon.Panel):
    name = _('Waiting Servers')
    slug = 'waiting_servers'
    permissions = ('openstack.services.compute',)
    policy_rules = (('compute', 'os_compute_api:servers:detail'),)
