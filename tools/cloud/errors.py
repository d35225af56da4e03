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
