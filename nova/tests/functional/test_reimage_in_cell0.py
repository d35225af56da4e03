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

"""Rebuilds in cell0 that write an image to a volume that is there already."""

import time
from unittest import mock

import fixtures

from nova.conductor import recovery
from nova import context as nova_context
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import cinder_with_states
from nova.tests.functional import rebuild_base
from nova.tests.functional import test_volume_reimage

IMAGE = test_volume_reimage.IMAGE
OTHER_IMAGE = test_volume_reimage.OTHER_IMAGE
REFUSALS = test_volume_reimage.REFUSALS


class ReimageInCell0TestCase(rebuild_base.RebuildInCell0Base):

    def setUp(self):
        with mock.patch.object(nova_fixtures, 'CinderFixture',
                               cinder_with_states.CinderWithStates):
            super().setUp()
        self.flags(reimage_timeout_per_gb=1, reimage_timeout_extensions=0)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.conductor.volume_reimage._ASK_EVERY', 0.05))
        # There is nobody to wait for the event.
        self.cinder.outcome = 'lost'
        self.root = self.cinder.add_volume(IMAGE)
        self.server = self.bury(imageRef='', block_device_mapping_v2=[{
            'source_type': 'volume', 'destination_type': 'volume',
            'boot_index': 0, 'uuid': self.root}])

    def image_of_volume(self):
        return self.cinder.known[self.root]['volume_image_metadata'][
            'image_id']

    def assertReserved(self, status='reserved'):
        self.assertEqual(status, self.cinder.status(self.root))
        self.assertEqual([(self.server['id'], 'reserved', None)],
                         self.cinder.attached(self.root))

    def built(self):
        self.make_room()
        self.rebuild(self.server, imageRef=OTHER_IMAGE)
        server = self.wait_for(self.server, 'ACTIVE')
        self.assertEqual('', server['image'])
        self.assertEqual(OTHER_IMAGE, self.image_of_volume())
        self.assertEqual([(self.server['id'], 'attached', 'roomy')],
                         self.cinder.attached(self.root))

    def again(self, **body):
        """Rebuild, and wait until the server waits again."""
        self.rebuild(self.server, **body)
        return self.wait_for(self.server, 'PENDING')

    def test_built(self):
        self.built()
        self.assertEqual(1, self.cinder.calls.count('reimage_volume'))

    def test_no_host_again(self):
        """It is re-imaged once, and waits with its new image."""
        server = self.again(imageRef=OTHER_IMAGE)
        self.assertIn('No valid host', server['fault']['message'])
        self.assertEqual(OTHER_IMAGE, self.image_of_volume())
        self.assertReserved()
        self.again()
        self.again(imageRef=OTHER_IMAGE)
        self.assertEqual(1, self.cinder.calls.count('reimage_volume'))
        self.built()

    def test_same_image(self):
        """Nothing is written where nothing is to be replaced."""
        self.make_room()
        self.rebuild(self.server, imageRef=IMAGE)
        self.wait_for(self.server, 'ACTIVE')
        self.assertNotIn('reimage_volume', self.cinder.calls)

    def test_refused(self):
        for kind in ('bad state', 'policy', 'over its limits', 'unreachable',
                     'broken'):
            exc = REFUSALS[kind]
            self.cinder.failures['reimage_volume'] = [exc]
            server = self.again(imageRef=OTHER_IMAGE)
            self.assertIn(getattr(exc, 'message', 'Unable to'),
                          server['fault']['message'], kind)
            self.assertEqual(IMAGE, self.image_of_volume())
            self.assertReserved()
        self.built()

    def test_no_such_image(self):
        """Cinder leaves a volume that it does not write to downloading."""
        self.cinder.outcome = 'no image'
        server = self.again(imageRef=OTHER_IMAGE)
        self.assertIn('Image could not be found', server['fault']['message'])
        self.assertReserved()
        self.cinder.outcome = 'lost'
        self.built()

    def test_no_such_image_and_cinder_is_gone(self):
        self.cinder.outcome = 'no image'
        self.cinder.failures['attachment_create'] = [REFUSALS['unreachable']]
        server = self.again(imageRef=OTHER_IMAGE)
        self.assertIn('Image could not be found', server['fault']['message'])
        self.assertReserved('downloading')

    def test_no_such_image_and_the_answer_is_lost(self):
        """The attachment that is not known is deleted before the next try."""
        self.cinder.outcome = 'no image'
        self.cinder.failures_after['attachment_create'] = [
            REFUSALS['unreachable']]
        self.again(imageRef=OTHER_IMAGE)
        self.assertEqual(2, len(self.cinder.attached(self.root)))
        self.cinder.outcome = 'lost'
        self.built()

    def test_refused_and_rebuilt_as_it_was(self):
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        self.again(imageRef=OTHER_IMAGE)
        self.make_room()
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(IMAGE, self.image_of_volume())

    def test_without_pending_state(self):
        self.flags(use_pending_state=False)
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        self.rebuild(self.server, imageRef=OTHER_IMAGE)
        server = self.wait_for(self.server, 'ERROR')
        self.assertIn('Policy', server['fault']['message'])
        self.assertReserved()

    def test_failed(self):
        self.cinder.outcome = 'error'
        server = self.again(imageRef=OTHER_IMAGE)
        self.assertIn(self.root, server['fault']['message'])
        self.assertReserved('error')
        # What is on the volume is of no use.
        self.assertIn('error', self.refused(400, self.server))
        self.again(imageRef=IMAGE)
        self.assertReserved('error')
        self.cinder.outcome = 'lost'
        self.built()

    def test_still_writing(self):
        self.cinder.outcome = 'downloading'
        server = self.again(imageRef=OTHER_IMAGE)
        self.assertIn('downloading', server['fault']['message'])
        self.assertIn('downloading', self.refused(
            400, self.server, imageRef=OTHER_IMAGE))
        self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.built()

    def test_deleted_meanwhile(self):
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'
        self.rebuild(self.server, imageRef=OTHER_IMAGE)
        self._wait_for_assert(lambda: self.assertEqual(
            'downloading', self.cinder.status(self.root)))
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self._wait_for_assert(
            lambda: self.assertEqual({}, self.cinder.attachments))

    def test_taken_by_another_while_in_error(self):
        self.cinder.outcome = 'error'
        self.again(imageRef=OTHER_IMAGE)
        self.cinder.failures['attachment_create'] = [REFUSALS['bad state']]
        server = self.again(imageRef=OTHER_IMAGE)
        self.assertIn('its status is wrong', server['fault']['message'])
        self.assertEqual([], self.cinder.attached(self.root))
        # As long as it is free, its server may have it again.
        self.cinder.fake_attachment_create(
            nova_context.get_admin_context(), self.root, 'another server')
        self.assertIn('not reserved', self.refused(
            400, self.server, imageRef=OTHER_IMAGE))
        self.cinder.attachments.clear()
        self.cinder.known[self.root]['status'] = 'available'
        self.assertIn('not reserved', self.refused(400, self.server))
        self.cinder.outcome = 'lost'
        self.built()

    def test_volume_was_let_go(self):
        """What the owner has taken away from the server is not written to."""
        self.cinder.attachments.clear()
        self.cinder.known[self.root]['status'] = 'available'
        self.assertIn('not reserved', self.refused(
            400, self.server, imageRef=OTHER_IMAGE))

    def test_attachment_is_made_and_the_answer_lost(self):
        self.cinder.outcome = 'error'
        self.again(imageRef=OTHER_IMAGE)
        self.cinder.failures_after['attachment_create'] = [
            REFUSALS['unreachable']]
        self.again(imageRef=OTHER_IMAGE)
        self.assertReserved()
        self.cinder.outcome = 'lost'
        self.built()

    def recover(self, age):
        return recovery.recover(
            nova_context.get_admin_context(),
            self.conductor.manager.compute_task_mgr.report_client, age)

    def downloading(self):
        """Rebuild, and wait until Cinder is writing."""
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'
        self.rebuild(self.server, imageRef=OTHER_IMAGE)
        self._wait_for_assert(lambda: self.assertEqual(
            'downloading', self.cinder.status(self.root)))

    def test_longer_than_the_recovery_waits(self):
        """What a conductor waits for is not taken for left by a dead one."""
        self.make_room()
        self.downloading()
        end = time.monotonic() + 4
        while time.monotonic() < end:
            self.assertEqual((0, 0), self.recover(2))
            time.sleep(0.2)
        self.assertEqual(
            'BUILD', self.api.get_server(self.server['id'])['status'])
        self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, self.cinder.calls.count('reimage_volume'))

    def test_conductor_dies_as_it_waits(self):
        """The server waits again, and its volume is not written twice."""
        def die(*_args):
            raise test_volume_reimage.Killed
        with mock.patch('nova.conductor.burial.keep_current', die):
            self.downloading()
        time.sleep(1.1)
        self.assertEqual((1, 0), self.recover(1))
        self.wait_for(self.server, 'PENDING')
        self.assertIn('downloading', self.refused(
            400, self.server, imageRef=OTHER_IMAGE))
        self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.built()
        self.assertEqual(1, self.cinder.calls.count('reimage_volume'))

    def test_put_back_as_it_waits(self):
        """A conductor that has lost the server does not build it."""
        self.make_room()
        with mock.patch('nova.conductor.volume_reimage._ASK_EVERY', 3):
            self.downloading()
            time.sleep(1.1)
            self.assertEqual((1, 0), self.recover(1))
            self.cinder.finish_reimage(self.root, OTHER_IMAGE)
            with mock.patch.object(
                    self.conductor.manager.compute_task_mgr,
                    'schedule_and_build_instances') as build:
                time.sleep(3)
                build.assert_not_called()
        self.wait_for(self.server, 'PENDING')
        self.assertReserved()

    def test_snapshot_or_blank(self):
        """A volume that is yet to be made is made from what was asked for."""
        server = self.bury(imageRef='', block_device_mapping_v2=[{
            'source_type': 'blank', 'destination_type': 'volume',
            'boot_index': 0, 'volume_size': 1}])
        self.assertIn('or from nothing', self.refused(
            400, server, imageRef=OTHER_IMAGE))
