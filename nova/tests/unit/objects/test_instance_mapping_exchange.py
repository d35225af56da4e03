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
from nova.objects import rebuild_scope
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

    def exchange(self, old, new):
        objects.InstanceMapping.exchange_cell(
            self.context, uuids.instance, old, new)

    def test_taken_out_of_its_cell_and_put_back(self):
        self.exchange(self.cell0, None)
        self.assertIsNone(self.stored().cell_mapping)
        self.exchange(None, self.cell0)
        self.assertEqual(self.cell0.id, self.stored().cell_mapping.id)

    def test_refused_the_second_time(self):
        self.exchange(self.cell0, None)
        self.assertRaises(exception.InstanceMappingNotFound,
                          self.exchange, self.cell0, None)

    def test_refused_in_another_cell(self):
        self.assertRaises(
            exception.InstanceMappingNotFound, self.exchange,
            self.cell_mappings['cell1'], None)
        self.assertRaises(
            exception.InstanceMappingNotFound, self.exchange, None,
            self.cell_mappings['cell1'])
        self.assertEqual(self.cell0.id, self.stored().cell_mapping.id)

    def test_deleted_as_released(self):
        self.stored().destroy()
        self.assertRaises(exception.InstanceMappingNotFound, self.stored)

    def test_rebuild_deletes_only_what_has_no_cell(self):
        with rebuild_scope.rebuilding():
            self.stored().destroy()
        self.assertEqual(self.cell0.id, self.stored().cell_mapping.id)
        self.exchange(self.cell0, None)
        with rebuild_scope.rebuilding():
            self.stored().destroy()
        self.assertRaises(exception.InstanceMappingNotFound, self.stored)
