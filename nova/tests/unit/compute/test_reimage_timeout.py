# SPDX-License-Identifier: Apache-2.0

from oslo_utils import units

from nova import test
from nova.volume import cinder


class ReimageTimeoutTestCase(test.NoDBTestCase):

    def check(self, seconds, image, volume_size):
        self.flags(reimage_timeout_per_gb=10)
        self.assertEqual(seconds, cinder.reimage_timeout(
            image, {'size': volume_size}))

    def test_size_of_the_image(self):
        self.check(30, {'size': 3 * units.Gi}, 1)
        self.check(10, {'size': 1, 'virtual_size': None}, 5)

    def test_compressed_image(self):
        self.check(30, {'size': 1, 'virtual_size': 2 * units.Gi + 1}, 1)

    def test_snapshot_of_a_volume_backed_server(self):
        """The image has the size 0 (bug 2062127)."""
        self.check(50, {'size': 0}, 5)

    def test_size_that_is_not_known(self):
        self.check(50, {'size': None}, 5)
        self.check(10, {}, None)
