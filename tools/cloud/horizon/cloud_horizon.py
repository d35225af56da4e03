# SPDX-License-Identifier: Apache-2.0

"""Horizon of a local cloud: what an operator writes into its settings.

Nothing is written into Horizon's package. The settings come in the variable
CLOUD_HORIZON, as a JSON object.

    python cloud_horizon.py collectstatic --noinput
"""

import json
import os
import sys
import types

from openstack_dashboard.local import enabled
import pending_dashboard.enabled

local = types.ModuleType('local.local_settings')
vars(local).update(json.loads(os.environ['CLOUD_HORIZON']))
sys.modules['local.local_settings'] = local
# As if the files had been copied.
enabled.__path__.extend(pending_dashboard.enabled.__path__)

if __name__ == '__main__':
    from django.core import management

    os.environ['DJANGO_SETTINGS_MODULE'] = 'openstack_dashboard.settings'
    management.execute_from_command_line(sys.argv)
else:
    from openstack_dashboard.wsgi import application  # noqa: F401
