# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from oslo_utils.fixture import uuidsentinel as uuids

from nova.conductor import api
from nova.conductor import manager
from nova.conductor import rpcapi
from nova import context as nova_context
from nova import objects
from nova import test

ARGUMENTS = dict(
    build_request=mock.Mock(instance_uuid=uuids.server),
    request_spec=mock.sentinel.request_spec,
    image={'id': uuids.image},
    admin_password='secret',
    injected_files=[],
    requested_networks=mock.sentinel.networks,
    block_device_mapping=mock.sentinel.bdms,
    tags=mock.sentinel.tags)


class RebuildInCell0RPCTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.rpcapi = rpcapi.ComputeTaskAPI()
        self.rpcapi.client = mock.Mock()
        patcher = mock.patch(
            'nova.scheduler.client.report.drop_held_room')
        self.drop = patcher.start()
        self.addCleanup(patcher.stop)

    def test_the_manager_speaks_the_version_that_is_cast(self):
        self.assertEqual('1.27', manager.ComputeTaskManager.target.version)
        self.assertEqual('compute_task',
                         manager.ComputeTaskManager.target.namespace)

    def test_cast(self):
        self.rpcapi.rebuild_instance_in_cell0(self.context, **ARGUMENTS)
        self.rpcapi.client.prepare.assert_called_once_with(version='1.27')
        self.rpcapi.client.prepare.return_value.cast.assert_called_once_with(
            self.context, 'rebuild_instance_in_cell0', **ARGUMENTS)
        self.drop.assert_not_called()

    def test_pinned_version_gets_a_build(self):
        self.rpcapi.client.can_send_version.side_effect = (
            lambda version: version != '1.27')
        self.rpcapi.rebuild_instance_in_cell0(self.context, **ARGUMENTS)
        sent = self.rpcapi.client.prepare.return_value.cast
        self.assertEqual((self.context, 'schedule_and_build_instances'),
                         sent.call_args.args)
        self.assertEqual([ARGUMENTS['build_request']],
                         sent.call_args.kwargs['build_requests'])
        self.assertEqual([ARGUMENTS['request_spec']],
                         sent.call_args.kwargs['request_specs'])
        self.drop.assert_called_once_with(self.context, uuids.server)

    def test_upgrade_level_is_a_pin(self):
        self.flags(conductor='3.0', group='upgrade_levels')
        self.rpcapi.rebuild_instance_in_cell0(self.context, **ARGUMENTS)
        sent = self.rpcapi.client.prepare.return_value.cast
        self.assertEqual((self.context, 'schedule_and_build_instances'),
                         sent.call_args.args)

    def test_api_passes_all_of_it_on(self):
        conductor = api.ComputeTaskAPI()
        conductor.conductor_compute_rpcapi = mock.create_autospec(
            self.rpcapi, instance=True)
        conductor.rebuild_instance_in_cell0(self.context, **ARGUMENTS)
        cast = conductor.conductor_compute_rpcapi.rebuild_instance_in_cell0
        cast.assert_called_once_with(self.context, *ARGUMENTS.values())


class DevicesTestCase(test.NoDBTestCase):

    def test_others_of_the_request_keep_the_context_of_the_request(self):
        request = nova_context.get_admin_context()
        cell0_context = nova_context.get_admin_context()
        bdms = objects.BlockDeviceMappingList(objects=[
            objects.BlockDeviceMapping(request, volume_id=uuids.volume)])
        with mock.patch.object(
                manager.ComputeTaskManager,
                '_create_block_device_mapping') as create:
            manager.ComputeTaskManager()._create_devices(
                cell0_context, mock.Mock(), bdms)
        made = create.call_args.args[3]
        self.assertEqual([(uuids.volume, cell0_context)], [
            (bdm.volume_id, bdm._context) for bdm in made])
        self.assertIs(request, bdms[0]._context)
