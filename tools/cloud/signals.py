# SPDX-License-Identifier: Apache-2.0

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
