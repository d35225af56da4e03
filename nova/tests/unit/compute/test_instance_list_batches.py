# SPDX-License-Identifier: Apache-2.0

"""Lists of which a record goes between two batches of a cell."""

import fixtures
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import instance_list
from nova import context as nova_context
from nova import exception
from nova import test


class BatchesTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.context.cell_uuid = uuids.cell
        self.stored = list('abcdef')
        self.useFixture(fixtures.MockPatch(
            'nova.db.main.api.instance_get_all_by_filters_sort', self.find))
        self.lister = instance_list.InstanceLister(['uuid'], ['asc'])

    def find(self, context, filters, limit, marker, **kwargs):
        if marker is not None and marker not in self.stored:
            raise exception.MarkerNotFound(marker=marker)
        found = [{'uuid': uuid} for uuid in self.stored
                 if marker is None or uuid > marker]
        return found[:limit]

    def batch(self, marker=None):
        return ''.join(record['uuid'] for record in self.lister.get_by_filters(
            self.context, {}, 2, marker))

    def test_all_records_stay(self):
        self.assertEqual(['ab', 'cd', 'ef', ''], [
            self.batch(marker) for marker in (None, *'bdf')])

    def test_last_record_goes(self):
        self.batch()
        self.stored.remove('b')
        self.assertEqual('cd', self.batch('b'))
        self.stored.remove('d')
        self.assertEqual('ef', self.batch('d'))

    def test_whole_batch_goes(self):
        """The cell counts as down, as in the release."""
        self.batch()
        self.stored = list('cdef')
        self.assertRaises(exception.MarkerNotFound, self.batch, 'b')

    def test_batch_of_another_cell(self):
        self.batch()
        self.context.cell_uuid = uuids.other_cell
        self.stored.remove('b')
        self.assertRaises(exception.MarkerNotFound, self.batch, 'b')

    def test_marker_of_the_request(self):
        self.assertRaises(exception.MarkerNotFound, self.batch, 'x')
        self.batch()
        self.assertRaises(exception.MarkerNotFound, self.batch, 'x')
