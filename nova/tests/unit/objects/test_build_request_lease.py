# SPDX-License-Identifier: Apache-2.0

import datetime

import fixtures
from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import build_request
from nova.objects import unbuilt_instance
from nova import test
from nova.tests.unit import fake_build_request
from nova.tests.unit import fake_request_spec


class _BuildRequestBase(test.TestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.cell = self.cell_mappings['cell1']
        self.now = datetime.datetime(2026, 1, 1)
        self.useFixture(fixtures.MockPatch(
            'oslo_utils.timeutils.utcnow', lambda *args: self.now))
        self.mapping = objects.InstanceMapping(
            self.context, instance_uuid=uuids.instance, project_id='p',
            cell_mapping=None)
        self.mapping.create()
        self.spec = fake_request_spec.fake_spec_obj()
        self.spec._context = self.context
        self.spec.instance_uuid = uuids.instance
        self.spec.instance_group = None
        delattr(self.spec, objects.base.get_attrname('id'))
        self.spec.create()

    def made(self):
        made = fake_build_request.fake_req_obj(self.context)
        made.instance_uuid = uuids.instance
        made.instance.uuid = uuids.instance
        made.instance = made.instance
        made.tags = objects.TagList(objects=[objects.Tag(
            resource_id=uuids.instance, tag='"nova_pending": "x"')])
        made.updated_at = self.now
        return made

    def made_for_rebuild(self):
        made = self.made()
        made.before = {'vm_state': 'pending', 'actions': [],
                       'reserve': False}
        return made

    def stored(self):
        return objects.BuildRequest.get_by_instance_uuid(
            self.context, uuids.instance)

    def mapped(self):
        return objects.InstanceMapping.get_by_instance_uuid(
            self.context, uuids.instance).cell_mapping

    def passes(self, **time):
        self.now += datetime.timedelta(**time)
        return self.now - datetime.timedelta(seconds=60)


class OutOfCellTestCase(_BuildRequestBase):

    def setUp(self):
        super().setUp()
        self.mapping.cell_mapping = self.cell
        self.mapping.save()

    def take_out(self, cell=None):
        self.made_for_rebuild().create_in_place_of_mapping(
            self.context, cell or self.cell, self.spec)

    def test_one_of_two_takes_the_server_out_of_its_cell(self):
        self.take_out()
        self.assertIsNone(self.mapped())
        self.assertEqual({'holder': None, 'cell': self.cell.uuid},
                         self.stored().lease)
        self.assertRaises(exception.InstanceMappingNotFound, self.take_out)

    def test_server_in_another_cell(self):
        self.assertRaises(exception.InstanceMappingNotFound, self.take_out,
                          self.cell_mappings['cell0'])
        self.assertEqual(self.cell.id, self.mapped().id)

    def test_server_that_is_being_deleted(self):
        self.mapping.queued_for_delete = True
        self.mapping.save()
        self.assertRaises(exception.InstanceMappingNotFound, self.take_out)
        self.assertEqual(self.cell.id, self.mapped().id)

    def test_all_of_it_or_nothing(self):
        self.spec.destroy()
        self.assertRaises(unbuilt_instance.ChangedMeanwhile, self.take_out)
        self.assertEqual(self.cell.id, self.mapped().id)
        self.assertRaises(exception.BuildRequestNotFound, self.stored)


class BuildRequestTestCase(_BuildRequestBase):

    def rebuild(self):
        made = self.made_for_rebuild()
        made.lease = {'holder': None, 'cell': self.cell.uuid}
        made.create()
        return self.stored()

    # The lease.

    def test_one_of_two_takes_it(self):
        first, second = self.rebuild(), self.stored()
        self.assertTrue(first.take())
        self.assertFalse(second.take())
        self.assertFalse(self.stored().take())
        first.renew()
        self.assertRaises(build_request.LeaseLost, second.renew)
        self.assertEqual(
            {'vm_state': 'pending', 'actions': [], 'reserve': False},
            self.stored().before)

    def test_a_stale_one_is_taken_from_who_has_it(self):
        first = self.rebuild()
        first.take()
        self.assertFalse(self.stored().take(self.passes(seconds=59)))
        before = self.passes(seconds=2)
        second, third = self.stored(), self.stored()
        self.assertTrue(second.take(before))
        self.assertFalse(third.take(before))
        self.assertRaises(build_request.LeaseLost, first.renew)

    def test_one_that_was_renewed_is_not_stale(self):
        first = self.rebuild()
        first.take()
        self.passes(seconds=50)
        first.renew()
        self.assertFalse(self.stored().take(self.passes(seconds=50)))

    def test_a_rename_leaves_it_to_who_has_it(self):
        first = self.rebuild()
        first.take()
        self.passes(seconds=10)
        renamed = self.stored()
        renamed.instance.display_name = 'renamed'
        renamed.instance = renamed.instance
        renamed.save()
        first.renew()
        self.assertEqual('renamed', self.stored().instance.display_name)
        self.assertEqual(['"nova_pending": "x"'],
                         [tag.tag for tag in self.stored().tags])

    def test_a_create_is_taken_when_it_is_old(self):
        self.made().create()
        created = self.stored()
        self.assertIsNone(created.lease)
        self.assertFalse(created.take())
        self.assertTrue(created.take(self.passes(hours=1)))
        self.assertIsNone(self.stored().before['vm_state'])
        self.assertIsNone(self.stored().lease['cell'])

    # What is interrupted.

    def interrupted(self, rebuilds=None, creates=None):
        return build_request.interrupted(
            self.context, rebuilds, creates, 10)

    def test_interrupted_rebuild(self):
        self.rebuild()
        self.assertEqual([], self.interrupted(rebuilds=self.now))
        before = self.passes(seconds=61)
        self.assertEqual([uuids.instance], self.interrupted(rebuilds=before))
        self.assertEqual([], self.interrupted(creates=before))
        self.assertEqual([], self.interrupted())

    def test_interrupted_create(self):
        self.made().create()
        # The database sets created_at to now.
        before = datetime.datetime(2100, 1, 1)
        self.assertEqual([uuids.instance], self.interrupted(creates=before))
        self.assertEqual([], self.interrupted(rebuilds=before))
        self.assertEqual([], self.interrupted(
            creates=datetime.datetime(2000, 1, 1)))

    def test_interrupted_recovery_of_a_create(self):
        self.made().create()
        self.assertTrue(self.stored().take(datetime.datetime(2100, 1, 1)))
        self.assertEqual([], self.interrupted(creates=self.now))
        before = self.passes(seconds=61)
        self.assertEqual([uuids.instance], self.interrupted(creates=before))
        self.assertEqual([uuids.instance], self.interrupted(rebuilds=before))

    # Into a cell.

    def convert(self, rebuild):
        updates = []
        rebuild.convert_to_mapping(self.cell, updates.append)
        return updates

    def test_converted_once(self):
        rebuild = self.rebuild()
        self.assertEqual([], self.convert(rebuild))
        self.assertRaises(exception.BuildRequestNotFound, self.stored)
        self.assertEqual(self.cell.id, self.mapped().id)
        self.assertRaises(build_request.LeaseLost, self.convert, rebuild)

    def test_changed_meanwhile(self):
        rebuild, changed = self.rebuild(), self.stored()
        changed.instance.display_name = 'renamed'
        changed.save()
        self.assertEqual([{'display_name': 'renamed'}],
                         self.convert(rebuild))

    def test_taken_meanwhile(self):
        rebuild, other = self.rebuild(), self.stored()
        self.assertTrue(other.take())
        self.assertRaises(build_request.LeaseLost, self.convert, rebuild)
        self.assertIsNone(self.mapped())
        self.convert(other)

    def create(self):
        """Return the build request of a create as the conductor has it."""
        self.made().create()
        mine = objects.BuildRequest.obj_from_primitive(
            self.stored().obj_to_primitive(), self.context)
        mine.record_cell = self.cell
        return mine

    def test_create_is_mapped_as_it_is_destroyed(self):
        self.create().destroy()
        self.assertEqual(self.cell.uuid, self.mapped().uuid)
        self.assertRaises(exception.BuildRequestNotFound, self.stored)

    def test_create_that_recovery_has_taken_is_not_mapped(self):
        mine = self.create()
        other = self.stored()
        self.assertTrue(other.take(self.passes(hours=1)))
        self.assertRaises(build_request.LeaseLost, mine.destroy)
        self.assertIsNone(self.mapped())
        other.convert_to_mapping(
            self.cell_mappings['cell0'], lambda changes: None)
        self.assertRaises(build_request.LeaseLost, mine.destroy)
        self.assertTrue(self.mapped().is_cell0())

    def test_create_that_was_deleted_is_not_mapped(self):
        mine = self.create()
        self.stored().destroy()
        self.assertRaises(exception.BuildRequestNotFound, mine.destroy)
        self.assertIsNone(self.mapped())

    # The look of a conductor that builds the server.

    def look_for(self, mine):
        self.context.builds = [mine]
        self.addCleanup(setattr, self.context, 'builds', ())
        return self.stored()

    def test_look_for_a_rebuild(self):
        mine, other = self.rebuild(), self.stored()
        mine.take()
        self.assertEqual(mine.id, self.look_for(mine).id)
        other = objects.BuildRequest.get_by_instance_uuid(
            nova_context.get_admin_context(), uuids.instance)
        other.take(self.passes(hours=1))
        self.assertRaises(build_request.LeaseLost, self.look_for, mine)
        self.convert(other)
        self.assertRaises(build_request.LeaseLost, self.look_for, mine)

    def test_look_for_a_create(self):
        self.made().create()
        self.mapping.destroy()
        mine, other = self.stored(), self.stored()
        self.assertEqual(mine.id, self.look_for(mine).id)
        self.assertTrue(other.take(self.passes(hours=1)))
        self.assertRaises(build_request.LeaseLost, self.look_for, mine)
        self.convert(other)
        # No mapping: the server was deleted.
        self.assertRaises(exception.BuildRequestNotFound, self.look_for, mine)
