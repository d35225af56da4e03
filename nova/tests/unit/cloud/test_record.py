# SPDX-License-Identifier: Apache-2.0

import errno
import json
import pathlib
from unittest import mock

import fixtures
import testtools

from tools.cloud import errors
from tools.cloud import record


class RecordTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.record = record.Record(self.state)
        self.addCleanup(self.record.unlock)

    def test_facts_are_found_by_another_process(self):
        self.record.write({'name': 'cloud_1', 'made': False})
        self.record.update(made=True)
        self.assertEqual({'name': 'cloud_1', 'made': True},
                         record.Record(self.state).read())

    def test_nobody_else_can_read_the_password(self):
        self.record.write({'password': 'secret'})
        self.assertEqual(
            0o600, (self.state / 'cloud.json').stat().st_mode & 0o777)

    def test_there_is_no_cloud(self):
        self.assertIsNone(self.record.read())
        self.assertIsNone(record.Record(self.state / 'none').read())
        self.record.write({})
        self.record.forget()
        self.assertIsNone(self.record.read())

    def test_file_without_facts_is_told(self):
        (self.state / 'cloud.json').write_text('{"name')
        error = self.assertRaises(errors.CloudError, self.record.read)
        self.assertIn('cloud.json cannot be read', str(error))

    def test_full_disk_leaves_the_facts_that_were_there(self):
        self.record.write({'name': 'cloud_1'})

        def dump(facts, file, **kwargs):
            file.write('{"na')
            file.flush()
            raise OSError(errno.ENOSPC, 'No space left on device')

        with mock.patch.object(json, 'dump', dump):
            error = self.assertRaises(
                errors.CloudError, self.record.update, made=True)
        self.assertIn('No space left on device', str(error))
        self.assertEqual({'name': 'cloud_1'}, self.record.read())

    def test_directory_is_free(self):
        self.assertTrue(record.Record(self.state / 'none').is_free())
        self.assertTrue(self.record.is_free())
        # What a process leaves that was killed at once.
        (self.state / 'lock').touch()
        (self.state / 'cloud.json.new').touch()
        self.assertTrue(self.record.is_free())

    def test_directory_is_not_free(self):
        (self.state / 'precious').touch()
        self.assertFalse(self.record.is_free())
        self.assertFalse(record.Record(self.state / 'precious').is_free())

    def test_only_one_process_changes_a_cloud(self):
        self.record.lock()
        self.record.lock()
        other = record.Record(self.state)
        error = self.assertRaises(errors.CloudError, other.lock)
        self.assertIn(str(self.state), str(error))
        self.record.unlock()
        other.lock()
        other.unlock()

    def test_default_directory(self):
        for name in ('CLOUD_STATE_DIR', 'XDG_STATE_HOME'):
            self.useFixture(fixtures.EnvironmentVariable(name))
        self.useFixture(fixtures.EnvironmentVariable('HOME', '/home/me'))
        self.assertEqual('/home/me/.local/state/nova-pending/cloud',
                         str(record.default_state()))
        self.useFixture(fixtures.EnvironmentVariable('XDG_STATE_HOME', '/x'))
        self.assertEqual('/x/nova-pending/cloud', str(record.default_state()))
        self.useFixture(fixtures.EnvironmentVariable('CLOUD_STATE_DIR', '/c'))
        self.assertEqual('/c', str(record.default_state()))
