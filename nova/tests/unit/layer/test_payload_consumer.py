# SPDX-License-Identifier: Apache-2.0

"""What a consumer of the release reads of what the layer sends."""

import os
import subprocess
import sys

from oslo_serialization import jsonutils

from nova import test
from nova.tests.unit.notifications.objects import (
    test_payload_versions as payloads)

# A consumer that knows what the release knows.
CONSUMER = """
import json
import sys

from nova import objects
from nova.notifications.objects import compute_task  # noqa: F401
from nova.notifications.objects import instance  # noqa: F401
from nova.objects import base

objects.register_all()
base.NovaObjectRegistry.register_notification_objects()
answers = []
for primitive in json.load(sys.stdin):
    cls = base.NovaObject.obj_class_from_name
    try:
        cls = cls(primitive['nova_object.name'],
                  primitive['nova_object.version'])
        data = primitive['nova_object.data']
        answers.append(cls.fields['state'].coerce(None, 'state',
                                                  data['state']))
    except Exception as exc:
        answers.append(type(exc).__name__)
print(json.dumps(answers))
"""


class PayloadConsumerTestCase(test.NoDBTestCase):

    def test_a_consumer_of_the_release_reads_what_the_release_sends(self):
        classes = payloads.payload_classes().values()
        answers = jsonutils.loads(subprocess.run(
            [sys.executable, '-c', CONSUMER], check=True, text=True,
            env=dict(os.environ, NOVA_PENDING='off'), capture_output=True,
            input=jsonutils.dumps([payloads.make(cls, state).obj_to_primitive()
                              for cls in classes for state in payloads.STATES])
        ).stdout)
        # It tells a version that it does not know, and never meets a state
        # that it does not know.
        self.assertEqual(
            [state if state != 'pending' else 'IncompatibleObjectVersion'
             for cls in classes for state in payloads.STATES], answers)
