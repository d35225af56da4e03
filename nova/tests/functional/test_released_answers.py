# SPDX-License-Identifier: Apache-2.0

"""With the option off the layer changes no answer of the release."""

import os
import subprocess
import sys
import tempfile

from oslo_serialization import jsonutils

from nova.compute import pending_reason
from nova import test
from nova.tests.functional import microversions

RELEASED = microversions.RELEASED
REASON = pending_reason.API_VERSION

RECORDER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'record_answers.py')


class ReleasedAnswersTestCase(test.NoDBTestCase):

    def record(self, target, **env):
        return subprocess.Popen(
            [sys.executable, RECORDER, target, RELEASED],
            env=dict(os.environ, **env), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_same_answers(self):
        answers = []
        with tempfile.TemporaryDirectory() as folder:
            recorded = [(name, self.record(os.path.join(folder, name), **env))
                        for name, env in (
                            ('released', {'NOVA_PENDING': 'off'}),
                            ('layered', {'NOVA_PENDING': ''}))]
            for name, process in recorded:
                output, _stderr = process.communicate()
                self.assertEqual(0, process.returncode, output[-5000:])
                with open(os.path.join(folder, name), 'rb') as source:
                    answers.append(jsonutils.load(source))
        released, layered = answers
        # The one was made without the layer and the other with it.
        self.assertEqual([RELEASED, REASON],
                         [released['newest'], layered['newest']])
        self.assertGreater(len(released['answers']), 300)
        self.assertEqual(len(released['answers']), len(layered['answers']))
        for expected, answer in zip(released['answers'], layered['answers']):
            self.assertEqual(expected, answer)
