# SPDX-License-Identifier: Apache-2.0

import dataclasses
import pathlib
from unittest import mock

from oslo_serialization import jsonutils

from nova.tests.unit.cloud import base
from tools.cloud import dashboard
from tools.cloud import errors
from tools.cloud import settings
from tools.cloud import stack


class DashboardTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        self.run = mock.Mock()
        self.dashboard = dashboard.Dashboard(self.cloud, self.run)

    def test_environment_without_horizon(self):
        with mock.patch('importlib.util.find_spec', return_value=None):
            error = self.assertRaises(errors.CloudError, dashboard.check)
        self.assertIn('tools/cloud/dashboard-requirements.txt', str(error))

    def test_settings(self):
        self.dashboard.make()
        self.dashboard.start()
        made = self.run.command.call_args
        started = self.run.start_wsgi.call_args
        self.assertIn('collectstatic', made.args)
        # The files are collected where they are served from, and sessions
        # outlive a restart.
        self.assertEqual(made.kwargs['env'], started.args[2])
        said = jsonutils.loads(started.args[2]['CLOUD_HORIZON'])
        self.assertEqual(self.cloud.url('keystone'),
                         said['OPENSTACK_KEYSTONE_URL'])
        self.assertIn('/static=' + said['STATIC_ROOT'], started.args)
        self.assertEqual(64, len(said['SECRET_KEY']))
        self.assertTrue(pathlib.Path(said['SESSION_FILE_PATH']).is_dir())

    def test_only_where_it_is_asked_for(self):
        for chosen in (False, True):
            cloud = stack.Stack('mysql+pymysql://root@h', 'rabbit://h/',
                                dashboard=chosen)
            cloud.settings = dataclasses.replace(
                self.cloud, dashboard=chosen, ports=dict.fromkeys(
                    [*settings.APIS, dashboard.NAME], 20000))
            steps = cloud._plan(mock.Mock())
            self.assertEqual(chosen, dashboard.NAME in set(steps))
        self.assertIn('horizon files', steps.once)
        self.assertLessEqual(
            {'identities', 'horizon files'}, set(steps._needs['horizon']))
