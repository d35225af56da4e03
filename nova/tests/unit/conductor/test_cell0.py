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

from unittest import mock

import fixtures
from oslo_config import cfg
import oslo_messaging as messaging
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import vm_states
from nova.conductor import cell0
from nova.conductor import manager
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import persisted_request
from nova.objects import request_spec
from nova import test
from nova.tests.unit import fake_request_spec


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


class KeepRequestTestCase(test.TestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.spec = fake_request_spec.fake_spec_obj()
        self.spec._context = self.context
        self.spec.instance_uuid = uuids.instance
        self.spec.instance_group = None
        for unwanted in ('id', 'requested_networks'):
            if unwanted in self.spec:
                delattr(self.spec, objects.base.get_attrname(unwanted))
        self.spec.requested_destination = None
        self.spec.create()

    def stored(self):
        return objects.RequestSpec.get_by_instance_uuid(
            self.context, uuids.instance)

    def asked_with(self, networks):
        spec = self.spec.obj_clone()
        spec.requested_networks = objects.NetworkRequestList(objects=networks)
        return spec

    def test_keeps_the_networks_in_order(self):
        cell0.keep_request(self.context, uuids.instance, self.asked_with([
            objects.NetworkRequest(port_id=uuids.port, tag='one'),
            objects.NetworkRequest(network_id=uuids.net, address='10.0.0.9')]))
        spec = self.stored()
        self.assertIsNotNone(spec.rebuild_data)
        self.assertEqual(
            [(uuids.port, None, 'one'), (None, uuids.net, None)],
            [(n.port_id, n.network_id, n.tag)
             for n in spec.requested_networks])
        self.assertEqual('10.0.0.9', str(spec.requested_networks[1].address))

    def test_keeps_that_no_network_was_named(self):
        cell0.keep_request(self.context, uuids.instance, self.spec)
        spec = self.stored()
        self.assertIsNotNone(spec.rebuild_data)
        self.assertNotIn('requested_networks', spec)

    def test_keeps_the_destination(self):
        asked = self.asked_with([])
        asked.requested_destination = objects.Destination(host='here')
        cell0.keep_request(self.context, uuids.instance, asked)
        spec = self.stored()
        self.assertEqual('here', objects.Destination.obj_from_primitive(
            spec.rebuild_data['requested_destination']).host)
        # A row can be left with it by a conductor that does not know of it.
        self.assertIsNone(spec.requested_destination)

    def test_keeps_the_files_for_who_asks_for_them(self):
        asked = self.asked_with([])
        asked.injected_files = [('/etc/motd', 'aGVsbG8=')]
        cell0.keep_request(self.context, uuids.instance, asked)
        spec = self.stored()
        self.assertEqual([['/etc/motd', 'aGVsbG8=']],
                         spec.rebuild_data['injected_files'])
        self.assertEqual((), spec.injected_files)
        # Neither a message on the bus nor a log has more than fields.
        self.assertNotIn('aGVsbG8=', jsonutils.dumps(
            [spec.obj_to_primitive(), repr(spec), str(spec)]))

    def test_hints_of_its_owner_are_not_taken_for_it(self):
        """Their keys are free, and in the same row."""
        spec = self.stored()
        spec.scheduler_hints = {persisted_request.KEY: ['x'],
                                'nova_pending': ['x']}
        spec.save()
        self.assertIsNone(self.stored().rebuild_data)
        self.assertEqual({}, persisted_request.load(
            self.context, uuids.instance))
        persisted_request.clear(self.context, uuids.instance)
        self.assertEqual(spec.scheduler_hints, self.stored().scheduler_hints)

    def test_networks_are_the_field(self):
        cell0.keep_request(self.context, uuids.instance, self.asked_with([
            objects.NetworkRequest(port_id=uuids.port)]))
        row = objects.RequestSpec._get_by_instance_uuid_from_db(
            self.context, uuids.instance)
        networks = objects.NetworkRequestList.obj_from_primitive(
            jsonutils.loads(row.spec)['nova_object.data'][
                'requested_networks'])
        self.assertEqual(uuids.port, networks[0].port_id)
        with mock.patch.object(
                objects.RequestSpec, '_from_db_object',
                request_spec.released.RequestSpec._from_db_object):
            # Stock Nova.
            self.assertNotIn('requested_networks', self.stored())

    def test_survives_a_save_by_released_code(self):
        cell0.keep_request(self.context, uuids.instance, self.asked_with([
            objects.NetworkRequest(port_id=uuids.port)]))
        spec = self.stored()
        spec.availability_zone = 'other'
        spec.save()
        spec = self.stored()
        self.assertEqual('other', spec.availability_zone)
        self.assertEqual(uuids.port, spec.requested_networks[0].port_id)

    def test_spec_of_no_server_in_cell0_is_stored_as_released(self):
        spec = self.stored()
        self.assertIsNone(spec.rebuild_data)
        spec.requested_networks = objects.NetworkRequestList(
            objects=[objects.NetworkRequest(port_id=uuids.port)])
        spec.availability_zone = 'other'
        spec.save()
        self.assertNotIn('requested_networks', self.stored())

    def test_failure_is_logged_and_does_not_stop_the_conductor(self):
        with mock.patch.object(persisted_request, 'save',
                               side_effect=exception.NovaException('down')), \
                mock.patch.object(cell0.LOG, 'exception') as logged:
            cell0.keep_request(
                self.context, uuids.instance, self.asked_with([]))
        logged.assert_called_once_with(mock.ANY, instance_uuid=uuids.instance)
        self.assertIsNone(self.stored().rebuild_data)

    def test_forgets_nothing_else(self):
        cell0.keep_request(
            self.context, uuids.instance, self.asked_with([]))
        before = self.stored()
        before.availability_zone = 'other'
        before.save()
        persisted_request.clear(self.context, uuids.instance)
        after = self.stored()
        self.assertIsNone(after.rebuild_data)
        self.assertEqual(before.obj_to_primitive(), after.obj_to_primitive())

    def test_what_a_server_needs_on_its_way_survives(self):
        """Its conductor may die before the server is mapped to cell0."""
        cell0.keep_request(self.context, uuids.instance, self.asked_with([]))
        spec = self.stored()
        spec.rebuild_data = dict(spec.rebuild_data, vm_state='pending')
        spec.save_all()
        cell0.keep_request(self.context, uuids.instance, self.asked_with([]))
        self.assertEqual('pending', persisted_request.load(
            self.context, uuids.instance)['vm_state'])

    def test_forgets_nothing_of_a_deleted_server(self):
        persisted_request.clear(self.context, uuids.other)
        self.assertEqual({}, persisted_request.load(
            self.context, uuids.other))


class VmStateAfterTestCase(test.NoDBTestCase):
    """The state that a server in cell0 has when it was not built."""

    def setUp(self):
        super().setUp()
        self.flags(use_pending_state=True)
        self.load = self.useFixture(fixtures.MockPatch(
            'nova.objects.persisted_request.load', return_value={})).mock

    def state_after(self, exc, before=None):
        self.load.return_value = {'vm_state': before} if before else {}
        return cell0.vm_state_after(
            mock.sentinel.context, uuids.instance, exc)

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
        self.keep = self.patch(
            'nova.conductor.cell0.keep_request')
        self.patch('nova.objects.persisted_request.load').return_value = {}

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
        self.keep.assert_called_once_with(
            self.context, uuids.instance, mock.sentinel.spec)

    def test_error_for_other_failures(self):
        self.assertEqual(vm_states.ERROR, self.vm_state_set(
            exception.MaxRetriesExceeded(reason='')))
        self.keep.assert_called_once()

    def test_error_with_the_option_off(self):
        self.flags(use_pending_state=False)
        self.assertEqual(vm_states.ERROR, self.vm_state_set(
            exception.NoValidHost(reason='')))
        # It can be rebuilt from ERROR.
        self.keep.assert_called_once()

    def test_error_in_a_cell_with_hosts(self):
        self.context.cell_uuid = uuids.cell1
        self.assertEqual(vm_states.ERROR, self.vm_state_set(
            exception.NoValidHost(reason='')))
        self.keep.assert_not_called()
