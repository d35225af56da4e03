# SPDX-License-Identifier: Apache-2.0

"""The profiles: what a cloud can be made of."""

import importlib

from tools.cloud import errors
from tools.cloud import record

# Imported when asked for: a profile needs no library of another profile.
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
