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

"""The signals that ask a command to end, which is not to leave things halfway.
"""

import signal

from tools.cloud import errors

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def catch():
    """Have the first of them raise errors.Interrupted."""
    for signum in _SIGNALS:
        signal.signal(signum, _interrupt)


def _interrupt(signum, frame):
    # The way down is not to be left in the middle.
    ignore()
    raise errors.Interrupted(signum)


def ignore():
    """Have none of them do anything any more."""
    for signum in _SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
