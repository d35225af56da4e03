# SPDX-License-Identifier: Apache-2.0

"""An update of the zone of a server, and a change of its request spec."""

from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import exception
from nova import objects
from nova import test
from nova.tests.unit import fake_request_spec


class UpdateOfTheZoneTestCase(test.TestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        spec = fake_request_spec.fake_spec_obj()
        spec.instance_uuid = uuids.server
        del spec.id
        del spec.instance_group
        created = objects.RequestSpec(self.context, **{
            name: getattr(spec, name) for name in spec.fields if name in spec})
        created.create()
        # Both have read the request spec before the other saves it.
        self.update, self.other = self.stored(), self.stored()

    def stored(self):
        return objects.RequestSpec.get_by_instance_uuid(
            self.context, uuids.server)

    def test_what_another_request_has_saved_stays(self):
        self.other.num_instances = 7
        self.other.save()
        self.update.availability_zone = 'east'
        self.update.save()
        stored = self.stored()
        self.assertEqual(('east', 7), (
            stored.availability_zone, stored.num_instances))
        self.assertEqual(7, self.update.num_instances)

    def test_zone_is_changed_with_another_field(self):
        """The request spec of the last request is saved as a whole."""
        self.other.num_instances = 7
        self.other.save()
        self.update.availability_zone = 'east'
        self.update.num_instances = 2
        self.update.save()
        stored = self.stored()
        self.assertEqual(('east', 2), (
            stored.availability_zone, stored.num_instances))

    def test_request_spec_that_is_deleted(self):
        self.other.destroy()
        self.update.availability_zone = 'east'
        self.assertRaises(exception.RequestSpecNotFound, self.update.save)
