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

"""A value for code that is called by released code, however deep."""

import contextlib


@contextlib.contextmanager
def within(variable, value):
    """Give a context variable a value within a with statement.

    :param variable: a contextvars.ContextVar
    :param value: what it has within. Afterwards it has what it had before.
    """
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
