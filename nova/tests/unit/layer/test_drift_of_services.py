# SPDX-License-Identifier: Apache-2.0

"""What a service says of replaced bodies when it has started."""

from unittest import mock

from nova import service
from nova import test
import nova_pending_check


class DriftTestCase(test.NoDBTestCase):

    def test_a_replaced_body_has_changed(self):
        """The sentence of each is logged when a service has started."""
        started = mock.Mock(binary='nova-compute')
        with mock.patch.object(
                nova_pending_check, 'drift',
                return_value=['nova.x.y replaces a body']), (
                mock.patch.object(service, 'released')), (
                mock.patch.object(service.LOG, 'warning')) as warning:
            service.Service.start(started)
        warning.assert_called_once_with(mock.ANY, 'nova.x.y replaces a body')

    def test_the_replaced_bodies_of_this_process(self):
        """Only those of modules that it has loaded are compared."""
        import nova.compute.manager  # noqa: F401
        with mock.patch.object(nova_pending_check, 'digest',
                               return_value='other'):
            found = list(nova_pending_check.drift())
        self.assertNotEqual([], found)
        for sentence in found:
            self.assertRegex(
                sentence, r'nova\.(compute\.manager\.ComputeManager|'
                r'compute\.resource_tracker\.ResourceTracker|'
                r'conductor\.manager\.ComputeTaskManager|'
                r'objects\.build_request\.BuildRequest)\.')
