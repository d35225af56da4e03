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

"""How benchmarks print what they have measured."""


def print_row(what, *values):
    """Print a line: what was measured, and columns of values."""
    print('%-46s %s' % (what, ' '.join('%14s' % value for value in values)),
          flush=True)


def percentile(values, share):
    """Return the value that this share of the values does not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]
