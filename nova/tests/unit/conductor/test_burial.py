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
from oslo_db import exception as db_exc
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import vm_states
from nova.conductor import burial
from nova.conductor import manager
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import request_memory
from nova import test
from nova.tests.unit import fake_request_spec


class FoundNoHostTestCase(test.NoDBTestCase):

    def test_no_valid_host(self):
        self.assertTrue(burial.found_no_host(
            exception.NoValidHost(reason='')))

    def test_no_valid_host_that_crossed_the_bus(self):
        remote = type('NoValidHost_Remote', (exception.NoValidHost,), {})
        self.assertTrue(burial.found_no_host(remote(reason='')))

    def test_exhausted_retries_had_hosts(self):
        self.assertFalse(burial.found_no_host(
            exception.MaxRetriesExceeded(reason='')))
        remote = type('Remote', (exception.MaxRetriesExceeded,), {})
        self.assertFalse(burial.found_no_host(remote(reason='')))

    def test_other_failures(self):
        for exc in (exception.HostMappingNotFound(name='h'),
                    exception.TooManyInstances(overs='', req='', used='',
                                               allowed=''),
                    ValueError()):
            self.assertFalse(burial.found_no_host(exc))


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

    def recalled(self):
        spec = self.stored()
        spec.recall_request()
        return spec

    def asked_with(self, networks):
        spec = self.spec.obj_clone()
        spec.requested_networks = objects.NetworkRequestList(objects=networks)
        return spec

    def test_keeps_the_networks_in_order(self):
        burial.keep_request(self.context, uuids.instance, self.asked_with([
            objects.NetworkRequest(port_id=uuids.port, tag='one'),
            objects.NetworkRequest(network_id=uuids.net, address='10.0.0.9')]))
        spec = self.recalled()
        self.assertTrue(spec.is_buried)
        self.assertEqual(
            [(uuids.port, None, 'one'), (None, uuids.net, None)],
            [(n.port_id, n.network_id, n.tag)
             for n in spec.requested_networks])
        self.assertEqual('10.0.0.9', str(spec.requested_networks[1].address))

    def test_keeps_that_no_network_was_named(self):
        burial.keep_request(self.context, uuids.instance, self.spec)
        spec = self.stored()
        self.assertTrue(spec.is_buried)
        self.assertIsNone(spec.recall_request())
        self.assertNotIn('requested_networks', spec)

    def test_keeps_the_destination(self):
        asked = self.asked_with([])
        asked.requested_destination = objects.Destination(host='here')
        burial.keep_request(self.context, uuids.instance, asked)
        self.assertEqual('here', self.recalled().requested_destination.host)

    def test_keeps_the_files_for_who_asks_for_them(self):
        asked = self.asked_with([])
        asked.injected_files = [('/etc/motd', 'aGVsbG8=')]
        burial.keep_request(self.context, uuids.instance, asked)
        spec = self.recalled()
        self.assertEqual([['/etc/motd', 'aGVsbG8=']], spec.injected_files)
        # Neither a message on the bus nor a log has more than fields.
        self.assertNotIn('aGVsbG8=', jsonutils.dumps(
            [spec.obj_to_primitive(), repr(spec), str(spec)]))

    def test_keeps_what_the_networks_are_laid_over(self):
        asked = self.asked_with([
            objects.NetworkRequest(network_id=uuids.network)])
        asked.network_metadata = objects.NetworkMetadata(
            physnets={'physnet4'}, tunneled=False)
        burial.keep_request(self.context, uuids.instance, asked)
        metadata = self.recalled().requested_networks.metadata
        self.assertEqual({'physnet4'}, metadata.physnets)
        self.assertFalse(metadata.tunneled)

    def test_networks_of_an_older_burial_are_asked_again(self):
        burial.keep_request(self.context, uuids.instance, self.asked_with([
            objects.NetworkRequest(network_id=uuids.network)]))
        spec = self.stored()
        del spec.remembered['request']['network_metadata']
        self.assertIsNone(spec.recall_request().metadata)

    def test_is_not_loaded_for_who_does_not_ask(self):
        asked = self.asked_with([objects.NetworkRequest(port_id=uuids.port)])
        asked.requested_destination = objects.Destination(host='here')
        burial.keep_request(self.context, uuids.instance, asked)
        spec = self.stored()
        self.assertNotIn('requested_networks', spec)
        self.assertIsNone(spec.requested_destination)
        self.assertEqual((), spec.injected_files)

    def test_survives_a_save_by_released_code(self):
        burial.keep_request(self.context, uuids.instance, self.asked_with([
            objects.NetworkRequest(port_id=uuids.port)]))
        spec = self.stored()
        spec.availability_zone = 'other'
        spec.save()
        spec = self.recalled()
        self.assertEqual('other', spec.availability_zone)
        self.assertEqual(uuids.port, spec.requested_networks[0].port_id)

    def test_spec_that_is_not_buried_is_stored_as_released(self):
        spec = self.stored()
        self.assertFalse(spec.is_buried)
        spec.requested_networks = objects.NetworkRequestList(
            objects=[objects.NetworkRequest(port_id=uuids.port)])
        spec.availability_zone = 'other'
        spec.save()
        self.assertNotIn('requested_networks', self.stored())

    def test_failure_is_logged_and_does_not_stop_the_burial(self):
        with mock.patch.object(objects.RequestSpec, 'save',
                               side_effect=exception.NovaException('down')), \
                mock.patch.object(burial.LOG, 'exception') as logged:
            burial.keep_request(
                self.context, uuids.instance, self.asked_with([]))
        logged.assert_called_once_with(mock.ANY, instance_uuid=uuids.instance)
        self.assertFalse(self.stored().is_buried)

    def bury_and_map(self, cell):
        burial.keep_request(self.context, uuids.instance, self.asked_with([
            objects.NetworkRequest(port_id=uuids.port)]))
        objects.InstanceMapping(
            self.context, instance_uuid=uuids.instance, project_id='p',
            cell_mapping=cell).create()
        burial.settle(self.context, uuids.instance)

    def test_forgets_once_the_server_is_in_a_cell(self):
        self.bury_and_map(objects.CellMapping.get_by_uuid(
            self.context, self.cell_mappings['cell1'].uuid))
        spec = self.stored()
        self.assertFalse(spec.is_buried)
        self.assertNotIn('requested_networks', spec)
        self.assertEqual({}, request_memory.get(
            self.context, uuids.instance))

    def test_forgets_nothing_else(self):
        burial.keep_request(
            self.context, uuids.instance, self.asked_with([]))
        before = self.stored()
        before.availability_zone = 'other'
        before.save()
        request_memory.forget(self.context, uuids.instance)
        after = self.stored()
        self.assertFalse(after.is_buried)
        self.assertEqual(before.obj_to_primitive(), after.obj_to_primitive())

    def test_does_not_forget_a_server_that_was_buried_again(self):
        self.bury_and_map(objects.CellMapping.get_by_uuid(
            self.context, objects.CellMapping.CELL0_UUID))
        self.assertEqual(uuids.port,
                         self.recalled().requested_networks[0].port_id)

    def test_forgets_nothing_of_a_server_whose_request_was_not_kept(self):
        self.bury_and_map(None)
        spec = self.stored()
        spec.is_buried = False
        spec.touch()
        spec.save()
        objects.InstanceMapping.exchange_cell(
            self.context, uuids.instance, None,
            objects.CellMapping.get_by_uuid(
                self.context, objects.CellMapping.CELL0_UUID))
        burial.settle(self.context, uuids.instance)
        self.assertFalse(self.stored().is_buried)

    def test_does_not_forget_a_server_that_is_not_scheduled(self):
        self.bury_and_map(None)
        self.assertTrue(self.stored().is_buried)

    def test_forgets_nothing_of_a_deleted_server(self):
        burial.settle(self.context, uuids.other)
        request_memory.forget(self.context, uuids.other)
        self.assertEqual({}, request_memory.get(
            self.context, uuids.other))


class ServersNamedOnFailureTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.manager = manager.ComputeTaskManager.__new__(
            manager.ComputeTaskManager)

    def bury(self):
        with mock.patch.object(burial.LOG, 'error') as logged:
            try:
                self.manager._bury_in_cell0(
                    self.context, objects.RequestSpec(),
                    exception.NoValidHost(reason=''),
                    build_requests=[
                        objects.BuildRequest(instance_uuid=uuids.one),
                        objects.BuildRequest(instance_uuid=uuids.two)])
            finally:
                self.named = {call.kwargs['instance_uuid']
                              for call in logged.mock_calls}

    @mock.patch('nova.objects.CellMapping.get_by_uuid',
                side_effect=exception.CellMappingNotFound(uuid='0'))
    def test_no_cell0(self, _get):
        self.bury()
        self.assertEqual({uuids.one, uuids.two}, self.named)
        # As in the release.
        self.assertIn('No cell mapping found for cell0',
                      self.stdlog.logger.output)

    @mock.patch('nova.objects.CellMapping.get_by_uuid')
    def test_cell0_database_down(self, _get):
        with mock.patch('nova.objects.BuildRequest.get_new_instance',
                        side_effect=db_exc.DBConnectionError()):
            self.assertRaises(db_exc.DBConnectionError, self.bury)
        self.assertEqual({uuids.one, uuids.two}, self.named)


class OptionTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        bad = self.useFixture(fixtures.MockPatchObject(
            burial, 'CONF', mock.Mock(spec=[]))).mock
        type(bad).use_pending_state = mock.PropertyMock(
            side_effect=cfg.ConfigFileValueError('maybe is no boolean'))
        self.useFixture(fixtures.MockPatchObject(manager, 'CONF', bad))

    def test_bad_value_ends_the_start_of_the_service(self):
        self.assertRaises(cfg.ConfigFileValueError,
                          manager.ComputeTaskManager)

    def test_bad_value_after_a_reload_counts_as_off(self):
        self.assertIs(False, burial.use_pending_state())
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
            'nova.conductor.burial.keep_request')

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
