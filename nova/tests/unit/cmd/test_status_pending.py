# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from oslo_upgradecheck import upgradecheck
from oslo_utils.fixture import uuidsentinel as uuids

from nova.cmd import status
from nova.compute import pending_rollout
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.objects import service as service_obj
from nova import test

API = 'nova-osapi_compute'
CONDUCTOR = 'nova-conductor'
SCHEDULER = 'nova-scheduler'


class PendingStateCheckTestCase(test.TestCase):

    NUMBER_OF_CELLS = 2

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.flags(host='here')

    def record(self, binary, host, cell='cell1',
               version=service_obj.KNOWS_PENDING):
        """Record a service in a cell; return the ID of the record."""
        values = {'binary': binary, 'host': host, 'topic': binary + host,
                  'uuid': getattr(uuids, host + binary + cell),
                  'version': version, 'report_count': 0}
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            main_db_api.service_create(cctxt, values)
        return values['uuid']

    def record_all(self):
        self.record(API, 'here', cell='cell0')
        self.record(CONDUCTOR, 'here')
        self.record(SCHEDULER, 'here', cell='cell0')

    def create_record(self, cell='cell0', **values):
        values = dict({'vm_state': 'pending', 'uuid': uuids.server}, **values)
        with nova_context.target_cell(
                self.context, self.cell_mappings[cell]) as cctxt:
            main_db_api.instance_create(cctxt, values)

    def check(self):
        result = status._check_use_pending_state(status.UpgradeCommands())
        return result.code, result.details

    def test_they_are_among_the_checks(self):
        checks = [check for _name, check in
                  status.UpgradeCommands._upgrade_checks]
        self.assertEqual(
            [status._check_use_pending_state, status._check_conductor_pin],
            checks[-2:])

    def test_all_have_started_with_it(self):
        self.record_all()
        self.record(API, 'there', cell='cell0')
        self.record(CONDUCTOR, 'far', cell='cell2')
        self.record(API, 'newer', version=service_obj.KNOWS_PENDING + 1)
        for on in (False, True):
            self.flags(use_pending_state=on)
            self.assertEqual((upgradecheck.Code.SUCCESS, None), self.check())

    def test_lower_service_version(self):
        self.record_all()
        for number, (version, binary) in enumerate((
                (service_obj.KNOWS_PENDING - 1, API),
                (service_obj.KNOWS_PENDING - 1, CONDUCTOR))):
            host = 'host%d' % number
            record = self.record(binary, host, version=version)
            for on, expected in ((False, upgradecheck.Code.WARNING),
                                 (True, upgradecheck.Code.FAILURE)):
                self.flags(use_pending_state=on)
                code, details = self.check()
                self.assertEqual(expected, code)
                self.assertIn('use_pending_state is on, and' if on else
                              'Leave use_pending_state off', details)
                self.assertIn('service delete RECORD"', details)
                self.assertIn('%s on %s (record %s) has service version %d' % (
                    binary, host, record, version), details)

    def test_a_service_that_is_no_matter(self):
        self.record_all()
        for binary in ('nova-compute', 'nova-metadata'):
            self.record(binary, 'old', version=1)
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])

    def test_an_option_without_a_valid_value(self):
        self.record_all()
        with mock.patch.object(
                status, 'CONF', mock.NonCallableMock(spec_set=())) as conf:
            type(conf).use_pending_state = mock.PropertyMock(
                side_effect=ValueError('no boolean'))
            self.assertEqual((upgradecheck.Code.FAILURE, 'no boolean'),
                             self.check())

    def test_a_record_that_is_deleted(self):
        self.record_all()
        self.record(API, 'gone', version=1)
        with nova_context.target_cell(
                self.context, self.cell_mappings['cell1']) as cctxt:
            main_db_api.service_destroy(cctxt, [
                one.id for one in main_db_api.service_get_all(cctxt)
                if one.host == 'gone'][0])
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])

    def test_a_cell_that_cannot_be_read(self):
        self.record_all()
        read = pending_rollout._read

        def fail(context):
            if context.cell_uuid == self.cell_mappings['cell2'].uuid:
                raise test.TestingException('the database is down')
            return read(context)

        with mock.patch.object(pending_rollout, '_read', fail):
            code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('cell %s could not be read'
                      % self.cell_mappings['cell2'].uuid, details)

    def test_a_cell_that_does_not_answer(self):
        with mock.patch.object(
                nova_context, 'scatter_gather_cells', return_value={
                    cell.uuid: nova_context.did_not_respond_sentinel
                    for cell in self.cell_mappings.values()}):
            code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        for cell in self.cell_mappings.values():
            self.assertIn(cell.uuid, details)

    def test_a_pin_that_is_forgotten(self):
        def check():
            return status._check_conductor_pin(status.UpgradeCommands())

        self.record(CONDUCTOR, 'here')
        old = self.record(CONDUCTOR, 'far', cell='cell2',
                          version=service_obj.KNOWS_PENDING - 1)
        self.assertEqual(upgradecheck.Code.SUCCESS, check().code)
        self.flags(conductor='1.26', group='upgrade_levels')
        # It is needed as long as one is not upgraded.
        self.assertEqual(upgradecheck.Code.SUCCESS, check().code)
        with nova_context.target_cell(
                self.context, self.cell_mappings['cell2']) as cctxt:
            main_db_api.service_update(
                cctxt, main_db_api.service_get_by_uuid(cctxt, old).id,
                {'version': service_obj.KNOWS_PENDING})
        result = check()
        self.assertEqual(upgradecheck.Code.WARNING, result.code)
        self.assertIn('[upgrade_levels] conductor', result.details)

    def test_nothing_recorded(self):
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        for binary in (API, CONDUCTOR, SCHEDULER):
            self.assertIn(binary + ' is recorded in no cell', details)
        self.record(API, 'here')
        self.assertNotIn(API, self.check()[1])

    def test_servers_in_pending_with_the_option_off(self):
        self.record_all()
        self.create_record()
        self.create_record(uuid=uuids.other)
        self.create_record(uuid=uuids.failed, vm_state='error')
        self.create_record(uuid=uuids.gone, deleted=1)
        self.create_record(cell='cell1', uuid=uuids.elsewhere)
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('2 servers are in PENDING although', details)
        self.assertIn('"nova-manage pending set_error"', details)
        self.flags(use_pending_state=True)
        code, details = self.check()
        self.assertEqual((upgradecheck.Code.SUCCESS, None), (code, details))

    def test_it_is_printed_and_sets_the_exit_code(self):
        self.flags(use_pending_state=True)
        self.record(API, 'old', version=1)
        cmd = status.UpgradeCommands()
        self.useFixture(test.fixtures.MonkeyPatch(
            'nova.cmd.status.UpgradeCommands._upgrade_checks',
            status.UpgradeCommands._upgrade_checks[-2:-1]))
        with mock.patch('builtins.print') as written:
            self.assertEqual(upgradecheck.Code.FAILURE, cmd.check())
        table = str(written.call_args.args[0])
        self.assertIn('Check: PENDING state', table)
        self.assertIn('Result: Failure', table)
