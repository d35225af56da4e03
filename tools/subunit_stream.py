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

"""Follows the tests that another process runs."""

import subprocess

import subunit
import testtools

#: What subunit calls a test that did not end well. One whose process died is
#: in progress, or exists and was never begun.
FAILED = ('fail', 'uxsuccess', 'inprogress', 'unknown', 'exists')


def follow(command, take, **kwargs):
    """Run a command that writes subunit, to its end.

    :param command: the command and its arguments
    :param take: called with what testtools.StreamToDict makes of each test
    :param kwargs: what subprocess.Popen takes beside
    """
    stream = testtools.StreamToDict(take)
    stream.startTestRun()
    with subprocess.Popen(
            command, stdout=subprocess.PIPE, **kwargs) as process:
        subunit.ByteStreamToStreamResult(
            process.stdout, non_subunit_name='output').run(stream)
    stream.stopTestRun()
