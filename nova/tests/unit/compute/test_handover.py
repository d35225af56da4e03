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

from nova.compute import handover
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import rebuild_scope
from nova import test
from nova.tests.unit import fake_build_request


class GiveTestCase(test.TestCase):
    """A build request that is replaced by a mapping."""

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.build_request = self.make()
        objects.InstanceMapping(
            self.context, instance_uuid=self.build_request.instance_uuid,
            project_id='p', cell_mapping=None).create()
        self.updates = []

    def make(self):
        made = fake_build_request.fake_req_obj(self.context)
        made.instance_uuid = uuids.instance
        made.instance.uuid = uuids.instance
        made.instance = made.instance
        made.create()
        return self.stored()

    def stored(self):
        return objects.BuildRequest.get_by_instance_uuid(
            self.context, uuids.instance)

    def mapped(self):
        return objects.InstanceMapping.get_by_instance_uuid(
            self.context, uuids.instance).cell_mapping

    def give(self, save_spec=None):
        return handover.give(
            self.context, self.build_request, self.cell_mappings['cell1'],
            lambda build_request, changes: self.updates.append(changes),
            save_spec)

    def test_once(self):
        self.assertTrue(self.give())
        self.assertRaises(exception.BuildRequestNotFound, self.stored)
        self.assertEqual(self.cell_mappings['cell1'].id, self.mapped().id)
        self.assertFalse(self.give())
        self.assertEqual([], self.updates)

    def test_all_of_it_or_nothing(self):
        def fail():
            raise exception.RequestSpecNotFound(instance_uuid=uuids.instance)

        self.assertRaises(exception.RequestSpecNotFound, self.give, fail)
        self.assertEqual(self.build_request.id, self.stored().id)
        self.assertIsNone(self.mapped())

    def test_changed_meanwhile(self):
        changed = self.stored()
        changed.instance.display_name = 'renamed'
        changed.save()
        self.assertTrue(self.give())
        self.assertEqual([{'display_name': 'renamed'}], self.updates)

    def test_newer_build_request(self):
        self.build_request.destroy()
        # The number of the row is not used a second time.
        older, self.build_request = self.build_request, self.make()
        older.id = self.build_request.id - 1
        with rebuild_scope.rebuilding():
            self.assertRaises(exception.BuildRequestNotFound, older.destroy)
        self.build_request, newer = older, self.build_request
        self.assertFalse(self.give())
        self.assertEqual(newer.id, self.stored().id)
        self.assertIsNone(self.mapped())
