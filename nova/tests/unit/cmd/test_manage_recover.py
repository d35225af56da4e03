# SPDX-License-Identifier: Apache-2.0

from io import StringIO
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exc
from oslo_db import exception as db_exc

from nova.cmd import manage
from nova import exception
from nova import test


class RecoverTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.output = StringIO()
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.output))
        self.client = self.useFixture(fixtures.MockPatch(
            'nova.scheduler.client.report.report_client_singleton')).mock
        self.recover = self.useFixture(fixtures.MockPatch(
            'nova.conductor.tasks.recover_builds.recover',
            return_value=(0, 0))).mock

    def assertRun(self, code, text, **kwargs):
        self.assertEqual(code, manage.PendingCommands().recover(**kwargs))
        self.assertIn(text, self.output.getvalue())

    def test_nothing_to_do(self):
        self.assertRun(0, 'recovered: 0, failures: 0')
        self.recover.assert_called_once_with(
            mock.ANY, self.client.return_value, 600, None)

    def test_all_put_back(self):
        self.recover.return_value = (3, 0)
        self.assertRun(0, 'recovered: 3', older_than=0, creates_older_than=60)
        self.recover.assert_called_once_with(mock.ANY, mock.ANY, 0, 60)

    def test_some_not_put_back(self):
        self.recover.return_value = (3, 1)
        self.assertRun(1, 'failures: 1')

    def test_negative_age(self):
        self.assertRun(2, '--older-than', older_than=-1)
        self.assertRun(2, '--creates-older-than', creates_older_than=-1)
        self.recover.assert_not_called()

    def test_older_conductors_may_be_running(self):
        self.flags(conductor='3.0', group='upgrade_levels')
        self.assertRun(2, '[upgrade_levels] conductor')
        self.recover.assert_not_called()

    def test_no_cell0(self):
        self.recover.side_effect = exception.CellMappingNotFound(uuid='0')
        self.assertRun(3, 'map_cell0')

    def test_database_down(self):
        for error in (db_exc.DBConnectionError('gone'),
                      db_exc.CantStartEngineError('none')):
            self.recover.side_effect = error
            self.assertRun(3, 'run this again when it is up')

    def test_placement_down(self):
        self.client.side_effect = ks_exc.ConnectFailure('refused')
        self.assertRun(3, '[placement]')
        self.recover.assert_not_called()
