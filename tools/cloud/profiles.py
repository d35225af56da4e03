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

"""The profiles: what a cloud can be made of."""

import importlib

from tools.cloud import errors
from tools.cloud import record

# Imported when asked for: one profile needs no library of another one.
_MODULES = {
    'embedded': 'tools.cloud.embedded.stack',
    'services': 'tools.cloud.stack',
}

NAMES = tuple(_MODULES)
DEFAULT = 'embedded'


def find(name):
    """Return the class of the clouds of a profile, a stack.Stack."""
    return importlib.import_module(_MODULES[name]).Stack


def load(state):
    """Return the cloud in a state directory.

    :raises: BadArgument if there is none
    """
    facts = record.Record(state).read()
    if facts is None:
        raise errors.BadArgument('There is no cloud in %s.' % state)
    cloud = find(facts['profile'])(
        facts['database_url'], facts['bus_url'], state, facts['keep'],
        facts['ports'], facts['name'], **facts['choices'])
    cloud.adopt()
    return cloud
