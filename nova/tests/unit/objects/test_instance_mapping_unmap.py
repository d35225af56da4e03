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

from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import rebuild_context
from nova import test


class UnmappedInstanceMappingTestCase(test.TestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.cell0 = objects.CellMapping.get_by_uuid(
            self.context, objects.CellMapping.CELL0_UUID)
        self.mapping = objects.InstanceMapping(
            self.context, instance_uuid=uuids.instance, project_id='p',
            cell_mapping=self.cell0)
        self.mapping.create()

    def stored(self):
        return objects.InstanceMapping.get_by_instance_uuid(
            self.context, uuids.instance)

    def unmap(self, cell):
        objects.InstanceMapping.unmap(self.context, uuids.instance, cell)

    def test_one_of_two_succeeds(self):
        self.unmap(self.cell0)
        self.assertIsNone(self.stored().cell_mapping)
        self.assertRaises(exception.InstanceMappingNotFound,
                          self.unmap, self.cell0)

    def test_refused_in_another_cell(self):
        self.assertRaises(exception.InstanceMappingNotFound,
                          self.unmap, self.cell_mappings['cell1'])
        self.assertEqual(self.cell0.id, self.stored().cell_mapping.id)

    def test_deleted_as_released(self):
        self.stored().destroy()
        self.assertRaises(exception.InstanceMappingNotFound, self.stored)

    def test_rebuild_deletes_only_what_has_no_cell(self):
        with rebuild_context.rebuilding():
            self.stored().destroy()
        self.assertEqual(self.cell0.id, self.stored().cell_mapping.id)
        self.unmap(self.cell0)
        with rebuild_context.rebuilding():
            self.stored().destroy()
        self.assertRaises(exception.InstanceMappingNotFound, self.stored)
