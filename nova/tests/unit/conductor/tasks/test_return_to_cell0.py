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

from oslo_utils.fixture import uuidsentinel as uuids

from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova import objects
from nova import test


class AskAgainTestCase(test.NoDBTestCase):

    @mock.patch('nova.compute.rebuild_in_cell0.unmap_and_create_build_request')
    @mock.patch('nova.compute.cell0_record.unsaved_instance')
    @mock.patch.object(objects.RequestSpec, 'get_by_instance_uuid')
    @mock.patch.object(objects.BlockDeviceMappingList, 'get_by_instance_uuid')
    def test_devices_keep_their_order(self, bdms, spec, unsaved, exchange):
        context = nova_context.get_admin_context()
        # As a database may give them.
        bdms.return_value = [
            objects.BlockDeviceMapping(context, id=number, volume_id=volume)
            for number, volume in ((7, uuids.last), (5, uuids.first))]
        instance = objects.Instance(
            context, uuid=uuids.instance, created_at=None,
            tags=objects.TagList())
        return_to_cell0._ask_again(context, mock.sentinel.cell, instance)
        given = exchange.call_args.args[3]
        self.assertEqual([uuids.first, uuids.last],
                         [bdm.volume_id for bdm in given])
        self.assertEqual([False, False], ['id' in bdm for bdm in given])
