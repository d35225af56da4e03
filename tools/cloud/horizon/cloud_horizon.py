# SPDX-License-Identifier: Apache-2.0

"""Horizon of a local cloud: what an operator writes into its settings.

Nothing is written into Horizon's package. The settings come in the variable
CLOUD_HORIZON, as a JSON object.

    python cloud_horizon.py collectstatic --noinput

The wheel of Horizon has the sources of its catalogues only. They are compiled
into directories of LOCALE_PATHS, for the languages that the panels speak.
"""

import importlib.util
import json
import os
import pathlib
import sys
import types

from babel.messages import mofile
from babel.messages import pofile
from openstack_dashboard.local import enabled
import pending_dashboard.enabled

local = types.ModuleType('local.local_settings')
vars(local).update(json.loads(os.environ['CLOUD_HORIZON']))
sys.modules['local.local_settings'] = local
# As if the files had been copied.
enabled.__path__.extend(pending_dashboard.enabled.__path__)


def _compile():
    panels = pathlib.Path(*pending_dashboard.__path__)
    for target in map(pathlib.Path, local.LOCALE_PATHS):
        # The directory has the name of the package.
        [package] = importlib.util.find_spec(
            target.name).submodule_search_locations
        for language in panels.glob('locale/*/LC_MESSAGES'):
            made = target / language.relative_to(panels / 'locale')
            made.mkdir(parents=True)
            source = pathlib.Path(package) / language.relative_to(panels)
            for path in source.glob('*.po'):
                with path.open('rb') as file:
                    catalogue = pofile.read_po(file)
                with (made / path.name).with_suffix('.mo').open('wb') as file:
                    mofile.write_mo(file, catalogue)


if __name__ == '__main__':
    from django.core import management

    _compile()
    os.environ['DJANGO_SETTINGS_MODULE'] = 'openstack_dashboard.settings'
    management.execute_from_command_line(sys.argv)
else:
    from openstack_dashboard.wsgi import application  # noqa: F401
