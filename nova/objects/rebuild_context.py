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

"""Tells code that is called by released code that it serves a rebuild.

A server that comes out of cell0 is built by the same code as a new one.
"""

import contextvars

from nova import context_value

_rebuilding = contextvars.ContextVar('rebuilding_in_cell0', default=None)


def rebuilding(rebuild=None):
    """Mark what runs within as part of a rebuild out of cell0.

    It changes what released code does that is called from there, however
    deep: the mapping of the server and its build request change in one
    transaction only, and nothing is destroyed that somebody else has now.

    :param rebuild: the nova.conductor.cell0_rebuild.Rebuild, None where a
        server that was being rebuilt is deleted
    """
    return context_value.within(_rebuilding, (rebuild,))


def is_rebuild():
    """Whether the caller runs within rebuilding()."""
    return _rebuilding.get() is not None


def rebuild():
    """Return what rebuilding() was given, None outside of it."""
    return _rebuilding.get() and _rebuilding.get()[0]


def build_request():
    """Return the BuildRequest of the rebuild, None outside of one."""
    return rebuild() and rebuild().build_request
