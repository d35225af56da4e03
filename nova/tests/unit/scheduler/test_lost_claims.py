# SPDX-License-Identifier: Apache-2.0

import datetime
from unittest import mock

import fixtures
from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import build_request
from nova.scheduler import lost_claims
from nova import test

CELL0 = objects.CellMapping.CELL0_UUID
BUILT = build_request.Place(uuids.cell, False)
GONE = build_request.Place(None, False)
TO_BE_BUILT = build_request.Place(None, True)
IN_CELL0 = build_request.Place(CELL0, False)


class LostClaimsTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.context.timestamp -= datetime.timedelta(hours=1)
        self.place_of = self.useFixture(fixtures.MockPatchObject(
            build_request, 'place_of')).mock
        self.client = mock.Mock()
        self.client.get.return_value.status_code = 404
        self.client.get_allocs_for_consumer.return_value = {
            'allocations': {uuids.provider: {'resources': {'VCPU': 1}}},
            'consumer_generation': 1, 'project_id': uuids.project,
            'user_id': uuids.user}

    def deleted(self):
        """Say whether the claim was deleted, as it was read."""
        put = self.client.put_allocations
        was_deleted = put.called
        if was_deleted:
            put.assert_called_once_with(self.context, uuids.server, {
                'allocations': {}, 'consumer_generation': 1,
                'project_id': uuids.project, 'user_id': uuids.user})
        put.reset_mock()
        return was_deleted

    def test_server_that_nobody_builds(self):
        for place in None, GONE, IN_CELL0:
            self.place_of.return_value = place
            lost_claims.delete(self.context, self.client, uuids.server)
            self.assertTrue(self.deleted(), place)

    def test_server_that_is_built(self):
        for place in TO_BE_BUILT, BUILT:
            self.place_of.return_value = place
            lost_claims.delete(self.context, self.client, uuids.server)
            self.assertFalse(self.deleted(), place)

    def test_nothing_is_claimed(self):
        self.client.get_allocs_for_consumer.return_value['allocations'] = {}
        lost_claims.delete(self.context, self.client, uuids.server)
        self.assertFalse(self.deleted())
        self.place_of.assert_not_called()

    def test_placement_is_down(self):
        self.place_of.return_value = IN_CELL0
        self.client.get_allocs_for_consumer.side_effect = (
            exception.ConsumerAllocationRetrievalFailed(
                consumer_uuid='', error=''))
        lost_claims.delete(self.context, self.client, uuids.server)
        lost_claims.check(self.context, self.client, uuids.server)
        self.assertFalse(self.deleted())

    def test_late_claim(self):
        for place in None, GONE, IN_CELL0:
            self.place_of.return_value = place
            lost_claims.check(self.context, self.client, uuids.server)
            self.assertTrue(self.deleted(), place)

    def test_slow_claim(self):
        self.place_of.return_value = TO_BE_BUILT
        lost_claims.check(self.context, self.client, uuids.server)
        self.assertFalse(self.deleted())

    def test_claim_in_time(self):
        """No conductor has given up, so that nobody has to look."""
        self.context.timestamp += datetime.timedelta(hours=1)
        lost_claims.check(self.context, self.client, uuids.server)
        self.place_of.assert_not_called()
        self.assertFalse(self.deleted())
