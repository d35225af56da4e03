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

import datetime
from unittest import mock

from oslo_upgradecheck import upgradecheck
from oslo_utils.fixture import uuidsentinel as uuids
from oslo_utils import timeutils

from nova.cmd import status
from nova.compute import pending_rollout
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.objects import service as service_obj
from nova import test

API = 'nova-osapi_compute'
CONDUCTOR = 'nova-conductor'


class PendingStateCheckTestCase(test.TestCase):

    NUMBER_OF_CELLS = 2

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.flags(host='here')

    def record(self, binary, host, cell='cell1',
               version=service_obj.SERVICE_VERSION, last_seen_up=None):
        """Record a service in a cell; return the ID of the record."""
        values = {'binary': binary, 'host': host, 'topic': binary + host,
                  'uuid': getattr(uuids, host + binary + cell),
                  'version': version, 'last_seen_up': last_seen_up,
                  'report_count': 0}
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            main_db_api.service_create(cctxt, values)
        return values['uuid']

    def bury(self, cell='cell0', **values):
        values = dict({'vm_state': 'pending', 'uuid': uuids.server}, **values)
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            main_db_api.instance_create(cctxt, values)

    def check(self):
        result = status.UpgradeCommands()._check_use_pending_state()
        return result.code, result.details

    def test_it_is_one_of_the_checks(self):
        checks = [check for _name, check in
                  status.UpgradeCommands._upgrade_checks]
        self.assertIs(
            status.UpgradeCommands._check_use_pending_state, checks[-1])
        self.assertEqual(
            len(status.released.UpgradeCommands._upgrade_checks) + 1,
            len(checks))

    def test_all_on_this_host(self):
        self.record(API, 'here', cell='cell0')
        self.record(CONDUCTOR, 'here')
        for on, verdict in ((False, 'may be turned on'), (True, 'is on')):
            self.flags(use_pending_state=on)
            code, details = self.check()
            self.assertEqual(upgradecheck.Code.SUCCESS, code)
            self.assertIn(verdict, details)
            self.assertIn('started before that must be restarted', details)
            self.assertNotIn('by hand', details)

    def test_others_must_be_looked_up_by_hand(self):
        self.record(API, 'here', cell='cell0')
        api = self.record(API, 'there', cell='cell0')
        conductor = self.record(CONDUCTOR, 'far', cell='cell2')
        for on, verdict in ((False, 'Do not turn'), (True, 'is on')):
            self.flags(use_pending_state=on)
            code, details = self.check()
            self.assertEqual(upgradecheck.Code.WARNING, code)
            self.assertIn(verdict, details)
            self.assertIn(
                'Look up by hand: %s on far (record %s), %s on there '
                '(record %s).' % (CONDUCTOR, conductor, API, api), details)
            self.assertIn('"nova-pending status"', details)
            self.assertIn('2.105', details)
            self.assertIn('share one record', details)
            self.assertIn('compute service delete ID"', details)

    def test_another_service_version(self):
        self.record(API, 'here')
        self.record(CONDUCTOR, 'here')
        for number, (version, binary) in enumerate((
                (service_obj.SERVICE_VERSION - 1, API),
                (service_obj.SERVICE_VERSION - 1, CONDUCTOR),
                (service_obj.SERVICE_VERSION + 1, API))):
            host = 'host%d' % number
            record = self.record(binary, host, version=version)
            for on, expected, verdict in (
                    (False, upgradecheck.Code.WARNING, 'Do not turn'),
                    (True, upgradecheck.Code.FAILURE, 'must be off')):
                self.flags(use_pending_state=on)
                code, details = self.check()
                self.assertEqual(expected, code)
                self.assertIn(verdict, details)
                self.assertIn('%s on %s (record %s) has %d' % (
                    binary, host, record, version), details)
                self.assertNotIn('by hand', details)

    def test_a_service_that_is_no_matter(self):
        self.record(API, 'here')
        self.record(CONDUCTOR, 'here')
        for binary in ('nova-compute', 'nova-scheduler', 'nova-metadata'):
            self.record(binary, 'old', version=1)
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])

    def test_a_record_that_is_deleted(self):
        self.record(CONDUCTOR, 'here')
        self.record(API, 'here')
        self.record(API, 'gone', version=1)
        with nova_context.target_cell(
                self.context, self.cell_mappings['cell1']) as cctxt:
            main_db_api.service_destroy(cctxt, [
                one.id for one in main_db_api.service_get_all(cctxt)
                if one.host == 'gone'][0])
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])

    def test_a_conductor_that_is_not_seen(self):
        self.record(API, 'here')
        now = timeutils.utcnow()
        self.record(CONDUCTOR, 'here', last_seen_up=now)
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])
        record = self.record(
            CONDUCTOR, 'here', cell='cell2',
            last_seen_up=now - datetime.timedelta(seconds=120))
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('Not seen for more than 60 seconds: %s on here (record '
                      '%s)' % (CONDUCTOR, record), details)
        self.flags(service_down_time=300)
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])
        self.flags(service_down_time=60)
        # Where this does not keep the heartbeats nothing is known of them.
        self.flags(servicegroup_driver='mc')
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])

    def test_a_conductor_that_was_never_seen(self):
        self.record(API, 'here')
        self.record(CONDUCTOR, 'here')
        later = timeutils.utcnow() + datetime.timedelta(seconds=120)
        with mock.patch.object(timeutils, 'utcnow', return_value=later):
            code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('Not seen', details)
        # The API is as old, and that says nothing.
        self.assertNotIn(API, details.split('On this host')[0])

    def test_a_cell_that_cannot_be_read(self):
        self.record(API, 'here')
        self.record(CONDUCTOR, 'here')
        read = pending_rollout._read

        def fail(context):
            if context.cell_uuid == self.cell_mappings['cell2'].uuid:
                raise test.TestingException('the database is down')
            return read(context)

        with mock.patch.object(pending_rollout, '_read', fail):
            code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('Not read, so nothing is known of what runs in them: '
                      'cell2.', details)

    def test_a_cell_that_does_not_answer(self):
        cells = status.UpgradeCommands()._get_cell_mappings()
        with mock.patch.object(
                nova_context, 'scatter_gather_cells', return_value={
                    cell.uuid: nova_context.did_not_respond_sentinel
                    for cell in cells}):
            code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        for cell in self.cell_mappings:
            self.assertIn(cell, details)

    def test_nothing_recorded(self):
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('Not recorded in any cell that was read: '
                      'nova-osapi_compute, nova-conductor.', details)
        self.record(API, 'here')
        self.assertIn('that was read: nova-conductor.', self.check()[1])

    def test_servers_in_pending_with_the_option_off(self):
        self.record(API, 'here')
        self.record(CONDUCTOR, 'here')
        self.bury()
        self.bury(uuid=uuids.other)
        self.bury(uuid=uuids.failed, vm_state='error')
        self.bury(uuid=uuids.gone, deleted=1)
        self.bury(cell='cell1', uuid=uuids.elsewhere)
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('Servers in PENDING although', details)
        self.assertIn('configuration: 2. ', details)
        self.assertIn('"nova-manage pending set_error"', details)
        self.flags(use_pending_state=True)
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.SUCCESS, code)
        self.assertNotIn('set_error', details)

    def test_it_is_printed_and_sets_the_exit_code(self):
        self.flags(use_pending_state=True)
        self.record(API, 'old', version=1)
        cmd = status.UpgradeCommands()
        self.useFixture(test.fixtures.MonkeyPatch(
            'nova.cmd.status.UpgradeCommands._upgrade_checks',
            status.UpgradeCommands._upgrade_checks[-1:]))
        with mock.patch('builtins.print') as written:
            self.assertEqual(upgradecheck.Code.FAILURE, cmd.check())
        table = str(written.call_args.args[0])
        self.assertIn('Check: PENDING state', table)
        self.assertIn('Result: Failure', table)
