# SPDX-License-Identifier: Apache-2.0

import gzip
import pathlib
import stat
import subprocess
from unittest import mock

import fixtures
import testtools

from nova.tests.unit.cloud import base
from tools.cloud import errors
from tools.cloud import guest
from tools.cloud import processes

DEPENDS = 'linux-image-cloud-amd64\n  Depends: linux-image-6.1-cloud-amd64\n'


class GuestTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        self.busybox = self.state / 'busybox'
        self.busybox.write_bytes(b'\x7fELF')
        self.kernels = self.useFixture(fixtures.MockPatch(
            'tools.cloud.guest.glob.glob', return_value=[])).mock
        self.useFixture(fixtures.MockPatchObject(
            guest, '_BUSYBOX', self.busybox))
        self.apt = self.useFixture(fixtures.MockPatch(
            'tools.cloud.guest.subprocess.run')).mock
        self.apt.return_value.stdout = DEPENDS
        self.useFixture(fixtures.MockPatch(
            'tools.cloud.guest.shutil.which', return_value='/here'))

    def kernel(self):
        path = self.state / 'vmlinuz-6.1'
        path.write_bytes(b'kernel')
        self.kernels.return_value = [str(path)]

    def test_nothing_is_missing(self):
        self.assertEqual({}, guest.missing())
        self.apt.return_value.stdout = ''
        self.kernel()
        self.assertEqual({}, guest.missing())

    def test_busybox_that_needs_libraries(self):
        self.busybox.write_bytes(b'\x7fELF/lib64/ld-linux-x86-64.so.2\0')
        self.assertEqual({'a static busybox': 'busybox-static'},
                         guest.missing())
        self.busybox.unlink()
        self.assertIn('a static busybox', guest.missing())

    def test_kernel_that_nobody_has(self):
        self.apt.return_value.stdout = ''
        self.assertEqual(['linux-image-cloud-amd64'],
                         list(guest.missing().values()))

    def test_installed_kernel_is_taken(self):
        self.kernel()
        running = mock.Mock()
        guest.make(self.state / 'guest', running)
        running.run.assert_not_called()
        self.assertEqual(
            b'kernel', (self.state / 'guest/kernel').read_bytes())
        self.assertEqual(
            1024 * 1024, (self.state / 'guest/disk').stat().st_size)
        ramdisk = gzip.decompress(
            (self.state / 'guest/ramdisk').read_bytes())
        self.assertTrue(ramdisk.startswith(b'070701'))
        self.assertIn(b'product_uuid', ramdisk)

    def test_kernel_is_fetched_and_its_modules_are_dropped(self):
        called = []

        def run(log, argv):
            called.append(argv[3:])
            folder = self.state / 'guest'
            if 'download' in argv:
                (folder / 'linux_6.1.deb').touch()
            else:
                (folder / 'package/boot').mkdir(parents=True)
                (folder / 'package/boot/vmlinuz-6.1').write_bytes(b'fetched')
            return 0, ''

        guest.make(self.state / 'guest', mock.Mock(run=run))
        self.assertEqual(
            ['apt-get', 'download', 'linux-image-6.1-cloud-amd64'], called[0])
        self.assertEqual(['disk', 'kernel', 'ramdisk'], sorted(
            path.name for path in (self.state / 'guest').iterdir()))
        self.assertEqual(
            b'fetched', (self.state / 'guest/kernel').read_bytes())

    def test_kernel_that_cannot_be_fetched(self):
        running = mock.Mock()
        running.run.return_value = 100, 'no network'
        error = self.assertRaises(
            errors.CloudError, guest.make, self.state / 'guest', running)
        self.assertIn('no network', str(error))

    def test_servers_that_do_not_ask_for_a_real_guest_are_kept_away(self):
        self.kernel()
        guest.make(self.state / 'guest', mock.Mock())
        with mock.patch('tools.cloud.identity.connect') as connect:
            guest.register(self.cloud, self.state / 'guest')
        asked = [call.kwargs.get('json') for call
                 in connect.return_value.post.call_args_list]
        wanted = {'trait:CUSTOM_REAL_GUEST': 'required'}
        self.assertIn({'extra_specs': wanted}, asked)
        self.assertIn({'set_metadata': {'metadata': wanted}}, asked)
        self.assertEqual(3, connect.return_value.put.call_count)


class ArchiveTestCase(testtools.TestCase):

    def read(self, archive):
        """Return the mode and the content of each file in an archive.

        As the kernel's document buffer-format.rst describes it.
        """
        found, start = {}, 0
        while 'TRAILER!!!' not in found:
            self.assertEqual(b'070701', archive[start:start + 6])
            numbers = [int(archive[position:position + 8], 16) for position
                       in range(start + 6, start + 110, 8)]
            mode, size, name_size = numbers[1], numbers[6], numbers[11]
            name_end = start + 110 + name_size
            self.assertEqual(0, archive[name_end - 1])
            name = archive[start + 110:name_end - 1].decode()
            content_start = name_end + -name_end % 4
            content_end = content_start + size
            found[name] = mode, archive[content_start:content_end]
            start = content_end + -content_end % 4
        self.assertEqual(start, len(archive))
        del found['TRAILER!!!']
        return found

    def test_archive_holds_the_files(self):
        files = {'bin': None, 'bin/tool': b'abc', 'init': b'#!/bin/tool\n'}
        self.assertEqual({
            'bin': (stat.S_IFDIR | 0o755, b''),
            'bin/tool': (stat.S_IFREG | 0o755, b'abc'),
            'init': (stat.S_IFREG | 0o755, b'#!/bin/tool\n')},
            self.read(guest.archive(files)))


class MarkTestCase(base.CloudTestCase):
    """A guest that only its mark tells is one of the cloud."""

    def test_guest_ends_with_the_cloud(self):
        child = subprocess.Popen(
            ['sleep', '60'], start_new_session=True,
            env={processes.MARK: 'cloud_mark', 'PATH': '/usr/bin:/bin'})
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        processes.Processes(pathlib.Path(self.state), 'cloud_mark').close()
        self.assertEqual(-9, child.wait(10))
