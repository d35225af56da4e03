# SPDX-License-Identifier: Apache-2.0

"""Several servers of a request, of which the second cannot be built."""

from unittest import mock

from nova.conductor import manager
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.tests.functional import integrated_helpers

BIND = manager.ComputeTaskManager._create_and_bind_arq_for_instance


class SeveralServersTestCase(integrated_helpers._IntegratedTestBase):

    # A cast that fails must fail as it does on a real bus: unseen.
    CAST_AS_CALL = False
    microversion = 'latest'

    def setUp(self):
        # No service reports in the database that another thread has targeted.
        self.flags(report_interval=3600, service_down_time=7200)
        super().setUp()

    def devices(self, server):
        """Return the devices of a server, as its cell has them."""
        context = nova_context.get_admin_context()
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, server['id']).cell_mapping
        with nova_context.target_cell(context, cell) as cctxt:
            return objects.BlockDeviceMappingList.get_by_instance_uuid(
                cctxt, server['id'])

    def test_accelerators_of_the_second_server_fail(self):
        first = []

        def bind(conductor, context, instance, *args):
            if not first:
                first.append({'id': instance.uuid})
                return BIND(conductor, context, instance, *args)
            self._wait_for_state_change(first[0], 'ACTIVE')
            raise exception.AcceleratorRequestOpFailed(op='bind', msg='down')

        with mock.patch.object(
                manager.ComputeTaskManager,
                '_create_and_bind_arq_for_instance', bind):
            self.api.post_server({'server': {
                **self._build_server(networks='none'),
                'min_count': 2, 'max_count': 2}})
            self._wait_for_assert(lambda: self.assertEqual(1, len(first)))
            first, = first
            second, = (server for server in self.api.get_servers()
                       if server['id'] != first['id'])
            self._wait_for_state_change(second, 'ERROR')
        self.assertEqual(
            'ACTIVE', self.api.get_server(first['id'])['status'])
        self.assertEqual(1, len(self.devices(first)))
        # A server that runs can be moved by its request spec alone.
        objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), first['id'])
        # A delete of the server frees each volume once.
        self.assertEqual(1, len(self.devices(second)))
