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


import copy
import datetime
from unittest import mock

import fixtures
from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova import objects
from nova.objects import build_request_lease
from nova.objects import rebuild_context
from nova import test
from nova.tests.unit import fake_build_request


class ConvertToMappingTestCase(test.TestCase):

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

    def convert(self, save_spec=None):
        return self.build_request.convert_to_mapping(
            self.cell_mappings['cell1'], self.updates.append, save_spec)

    def test_once(self):
        self.assertTrue(self.convert())
        self.assertRaises(exception.BuildRequestNotFound, self.stored)
        self.assertEqual(self.cell_mappings['cell1'].id, self.mapped().id)
        self.assertFalse(self.convert())
        self.assertEqual([], self.updates)

    def test_all_of_it_or_nothing(self):
        def fail():
            raise exception.RequestSpecNotFound(instance_uuid=uuids.instance)

        self.assertRaises(exception.RequestSpecNotFound, self.convert, fail)
        self.assertEqual(self.build_request.id, self.stored().id)
        self.assertIsNone(self.mapped())

    def test_changed_meanwhile(self):
        changed = self.stored()
        changed.instance.display_name = 'renamed'
        changed.save()
        self.assertTrue(self.convert())
        self.assertEqual([{'display_name': 'renamed'}], self.updates)

    def test_taken_by_another(self):
        self.build_request.lease = {'owner': None}
        self.build_request.tags = self.build_request.tags
        self.build_request.save()
        other = self.stored()
        self.assertTrue(other.take())
        self.assertFalse(self.convert())
        self.assertFalse(self.build_request.renew_lease())
        self.assertIsNone(self.mapped())
        self.build_request = other
        self.assertTrue(self.convert())


class LeaseTestCase(test.TestCase):
    """Who has the build request of a rebuild."""

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.now = datetime.datetime(2026, 1, 1)
        self.useFixture(fixtures.MockPatch(
            'oslo_utils.timeutils.utcnow', lambda *args: self.now))

    def make(self, lease={'owner': None}):
        made = fake_build_request.fake_req_obj(self.context)
        made.instance_uuid = uuids.instance
        made.instance.uuid = uuids.instance
        made.instance = made.instance
        made.tags = objects.TagList(objects=[objects.Tag(
            resource_id=uuids.instance, tag='"nova_pending": "x"')])
        made.updated_at = self.now
        made.lease = lease
        made.create()
        return self.stored()

    def stored(self):
        return objects.BuildRequest.get_by_instance_uuid(
            self.context, uuids.instance)

    def passes(self, **time):
        self.now += datetime.timedelta(**time)
        return self.now - datetime.timedelta(seconds=60)

    def found(self, **kwargs):
        with api_db_api.context_manager.reader.using(self.context) as session:
            return session.query(api_models.BuildRequest).filter(
                build_request_lease.of_rebuilds(**kwargs)).count()

    def test_one_of_two_takes_it(self):
        first, second = self.make(), self.stored()
        self.assertTrue(first.take())
        self.assertFalse(second.take())
        self.assertFalse(self.stored().take())
        self.assertTrue(first.renew_lease())
        self.assertFalse(second.renew_lease())

    def test_a_stale_one_is_taken_from_who_has_it(self):
        first = self.make()
        first.take()
        before = self.passes(seconds=59)
        self.assertFalse(self.stored().take(before))
        before = self.passes(seconds=2)
        # Both find it in the same second.
        second, third = self.stored(), self.stored()
        self.assertTrue(second.take(before))
        self.assertFalse(third.take(before))
        self.assertFalse(first.renew_lease())

    def test_one_that_was_renewed_is_not_stale(self):
        first = self.make()
        first.take()
        self.passes(seconds=50)
        self.assertTrue(first.renew_lease())
        self.assertFalse(self.stored().take(self.passes(seconds=50)))

    def test_a_rename_leaves_it_to_who_has_it(self):
        first = self.make()
        first.take()
        self.passes(seconds=10)
        renamed = self.stored()
        renamed.instance.display_name = 'renamed'
        renamed.instance = renamed.instance
        renamed.save()
        self.assertTrue(first.renew_lease())
        self.assertEqual('renamed', self.stored().instance.display_name)
        self.assertEqual(['"nova_pending": "x"'],
                         [tag.tag for tag in self.stored().tags])

    def test_a_create_has_none(self):
        created = self.make(lease=None)
        self.assertFalse(created.take())
        self.assertFalse(created.take(self.passes(hours=1)))
        self.assertEqual(0, self.found(including_pinned=True))

    def test_one_that_a_stock_conductor_may_have(self):
        pinned = self.make({'owner': None, 'pinned': True})
        self.assertEqual(0, self.found(including_pinned=False))
        self.assertEqual(1, self.found(including_pinned=True))
        pinned.take()
        self.assertEqual(1, self.found(including_pinned=False))

    def test_within_its_rebuild_no_other_is_read(self):
        mine = self.make()
        mine.take()
        with rebuild_context.rebuilding(mock.Mock(build_request=mine)):
            self.assertEqual(mine.id, self.stored().id)
            other = copy.copy(mine)
            other.renew_lease()
            self.stored()
            self.passes(hours=1)
            other.take(self.now)
            self.assertRaises(build_request_lease.LeaseLost, self.stored)
            other.destroy()
            self.assertRaises(build_request_lease.LeaseLost, self.stored)
        self.assertRaises(exception.BuildRequestNotFound, self.stored)
