# SPDX-License-Identifier: Apache-2.0

from oslo_upgradecheck import upgradecheck
from oslo_utils.fixture import uuidsentinel as uuids

from nova.cmd import manage
from nova.cmd import status
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.objects import service as service_obj
from nova.tests.functional import full_cloud


class UpgradeCheckPendingTestCase(full_cloud.FullCloudTestCase):
    """The check on the records that the services make of themselves."""

    def setUp(self):
        super().setUp()
        self.flags(host=self.conductor.host)

    def check(self):
        result = status._check_use_pending_state(status.UpgradeCommands())
        return result.code, result.details

    def test_all_have_started_with_it(self):
        """Each on a host of its own, as the harness starts them."""
        self.assertEqual((upgradecheck.Code.SUCCESS, None), self.check())

    def test_a_host_that_has_an_older_nova_and_is_gone(self):
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell0']) as cctxt:
            main_db_api.service_create(cctxt, {
                'host': 'gone', 'binary': 'nova-osapi_compute',
                'topic': None, 'uuid': uuids.record, 'report_count': 0,
                'version': service_obj.KNOWS_PENDING - 1})
        code, details = self.check()
        # The option is on.
        self.assertEqual(upgradecheck.Code.FAILURE, code)
        self.assertIn('nova-osapi_compute on gone', details)
        # The REST API deletes the record of an API although it lists none.
        record = details.split('(record ')[1].split(')')[0]
        self.admin_api.api_delete('/os-services/' + record)
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])

    def test_a_downgrade_that_is_not_finished(self):
        self.create_waiting()
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])
        self.flags(use_pending_state=False)
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('1 servers are in PENDING', details)

    def test_a_downgrade_leaves_no_record(self):
        self.flags(use_pending_state=False)
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])
        self.assertEqual(0, manage.PendingCommands().set_error(dry_run=True))
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])
        self.assertEqual(0, manage.PendingCommands().set_error())
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('nova-conductor on', details)
        self.assertIn('service version %d'
                      % (service_obj.UNDOES_REIMAGE - 1), details)
