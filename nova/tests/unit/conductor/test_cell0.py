# SPDX-License-Identifier: Apache-2.0

from unittest import mock

import fixtures
from oslo_config import cfg
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import vm_states
from nova.conductor import cell0
from nova.conductor import manager
from nova import context as nova_context
from nova import exception
from nova import objects
from nova import test


class FoundNoHostTestCase(test.NoDBTestCase):

    def test_no_valid_host(self):
        self.assertTrue(cell0.found_no_host(
            exception.NoValidHost(reason='')))

    def test_no_valid_host_that_crossed_the_bus(self):
        remote = type('NoValidHost_Remote', (exception.NoValidHost,), {})
        self.assertTrue(cell0.found_no_host(remote(reason='')))

    def test_exhausted_retries_had_hosts(self):
        self.assertFalse(cell0.found_no_host(
            exception.MaxRetriesExceeded(reason='')))
        remote = type('Remote', (exception.MaxRetriesExceeded,), {})
        self.assertFalse(cell0.found_no_host(remote(reason='')))

    def test_other_failures(self):
        for exc in (exception.HostMappingNotFound(name='h'),
                    exception.TooManyInstances(overs='', req='', used='',
                                               allowed=''),
                    ValueError()):
            self.assertFalse(cell0.found_no_host(exc))


class VmStateAfterTestCase(test.NoDBTestCase):
    """The state that a server in cell0 has when it was not built."""

    def setUp(self):
        super().setUp()
        self.flags(use_pending_state=True)

    def state_after(self, exc, before=None):
        return cell0.vm_state_after(exc, *([before] if before else []))

    def test_no_valid_host_goes_by_the_option(self):
        for before in (None, vm_states.PENDING, vm_states.ERROR):
            self.flags(use_pending_state=True)
            self.assertEqual(vm_states.PENDING, self.state_after(
                exception.NoValidHost(reason=''), before))
            self.flags(use_pending_state=False)
            self.assertEqual(vm_states.ERROR, self.state_after(
                exception.NoValidHost(reason=''), before))

    def test_any_other_failure_leaves_the_state(self):
        for exc in (messaging.MessagingTimeout(),
                    exception.MaxRetriesExceeded(reason=''),
                    exception.HostMappingNotFound(name='h'), ValueError()):
            for before in (vm_states.PENDING, vm_states.ERROR):
                self.assertEqual(before, self.state_after(exc, before))
            # A create.
            self.assertEqual(vm_states.ERROR, self.state_after(exc))

    def test_none_gets_into_pending_with_the_option_off(self):
        self.flags(use_pending_state=False)
        self.assertEqual(vm_states.ERROR, self.state_after(
            messaging.MessagingTimeout(), vm_states.PENDING))

    def test_bad_value_after_a_reload_counts_as_off(self):
        bad = self.useFixture(fixtures.MockPatchObject(
            cell0, 'CONF', mock.Mock(spec=[]))).mock
        type(bad).use_pending_state = mock.PropertyMock(
            side_effect=cfg.ConfigFileValueError('maybe is no boolean'))
        self.assertEqual(vm_states.ERROR, self.state_after(
            exception.NoValidHost(reason='')))
        self.assertIn('maybe is no boolean', self.stdlog.logger.output)


class SetVmStateTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.flags(use_pending_state=True)
        self.manager = manager.ComputeTaskManager.__new__(
            manager.ComputeTaskManager)
        self.context = nova_context.get_admin_context()
        self.context.cell_uuid = objects.CellMapping.CELL0_UUID
        self.set = self.patch(
            'nova.scheduler.utils.set_vm_state_and_notify')

    def patch(self, target):
        patcher = mock.patch(target)
        self.addCleanup(patcher.stop)
        return patcher.start()

    def vm_state_set(self, exc):
        updates = {'vm_state': vm_states.ERROR, 'task_state': None}
        self.manager._set_vm_state_and_notify(
            self.context, uuids.instance, 'build_instances', updates, exc,
            mock.sentinel.spec)
        # The caller uses its dict for the next server too.
        self.assertEqual(vm_states.ERROR, updates['vm_state'])
        return self.set.call_args.args[4]['vm_state']

    def test_pending_in_cell0(self):
        self.assertEqual(vm_states.PENDING, self.vm_state_set(
            exception.NoValidHost(reason='')))

    def test_error_for_other_failures(self):
        self.assertEqual(vm_states.ERROR, self.vm_state_set(
            exception.MaxRetriesExceeded(reason='')))

    def test_error_with_the_option_off(self):
        self.flags(use_pending_state=False)
        self.assertEqual(vm_states.ERROR, self.vm_state_set(
            exception.NoValidHost(reason='')))

    def test_error_in_a_cell_with_hosts(self):
        self.context.cell_uuid = uuids.cell1
        self.assertEqual(vm_states.ERROR, self.vm_state_set(
            exception.NoValidHost(reason='')))
