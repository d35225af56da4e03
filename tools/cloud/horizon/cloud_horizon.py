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
