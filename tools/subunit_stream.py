# SPDX-License-Identifier: Apache-2.0

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
