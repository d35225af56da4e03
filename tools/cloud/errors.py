# SPDX-License-Identifier: Apache-2.0

"""The ways in which a cloud can fail, each with its exit code."""

import signal


class CloudError(Exception):
    """A fault that is told to the user in a sentence, without a traceback."""

    exit_code = 3


class ServerMissing(CloudError):
    """A server that the cloud needs does not answer or refuses us."""

    exit_code = 1


class BadArgument(CloudError):
    """What the user asked for cannot be."""

    exit_code = 2


class StepFailed(CloudError):
    """A step of the demonstration was not as it should be."""

    exit_code = 4


class Stopped(CloudError):
    """Something was asked of a cloud that is being taken down."""


class Interrupted(BaseException):
    """A signal asked us to end.

    Not an Exception, so that no handler on the way takes it for a fault.
    """

    def __init__(self, signum):
        super().__init__('Ended by %s.' % signal.Signals(signum).name)
        self.exit_code = 128 + signum
