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

"""Tells code that is called by released code that a rebuild is asked for."""

import contextvars

from nova import context_value

_before = contextvars.ContextVar('before_rebuild', default=None)


def asking(before):
    """Mark what runs within as the request for a rebuild.

    :param before: a dict for what the rebuild changes
    """
    return context_value.within(_before, before)


def before_rebuild():
    """Return the dict that the caller runs within asking() of, or None."""
    return _before.get()
