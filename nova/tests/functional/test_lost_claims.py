# SPDX-License-Identifier: Apache-2.0

"""Creates whose scheduler answers when the conductor has given up."""

import datetime
from unittest import mock

import oslo_messaging as messaging

from nova.scheduler.client import query
from nova.tests.functional import integrated_helpers

SELECT = query.SchedulerQueryClient.select_destinations


class LostClaimsTestCase(integrated_helpers._IntegratedTestBase):

    # A cast that fails must fail as it does on a real bus: unseen.
    CAST_AS_CALL = False
    microversion = 'latest'

    def setUp(self):
        # No service reports in the database that another thread has targeted.
        self.flags(report_interval=3600, service_down_time=7200)
        super().setUp()

    def create(self, select):
        """Create a server whose conductor gets no answer."""
        def timeout(*args, **kwargs):
            select(*args, **kwargs)
            raise messaging.MessagingTimeout()

        with mock.patch.object(
                query.SchedulerQueryClient, 'select_destinations', timeout):
            server = self.api.post_server({
                'server': self._build_server(networks='none')})
            return self._wait_for_state_change(server, 'ERROR')

    def allocations(self, server):
        return self._get_allocations_by_server_uuid(server['id'])

    def test_claim_before_the_conductor_gives_up(self):
        server = self.create(SELECT)
        self._wait_for_assert(
            lambda: self.assertEqual({}, self.allocations(server)))

    def test_claim_after_the_server_is_in_cell0(self):
        asked = []
        server = self.create(
            lambda *args, **kwargs: asked.append((args, kwargs)))
        (args, kwargs), = asked
        context = args[1]
        context.timestamp -= datetime.timedelta(hours=1)
        SELECT(*args, **kwargs)
        self.assertEqual({}, self.allocations(server))

    def test_one_of_several_is_deleted_before_its_claim(self):
        def late(client, context, *args, **kwargs):
            context.timestamp -= datetime.timedelta(hours=1)
            self.api.delete_server(args[1][1])
            return SELECT(client, context, *args, **kwargs)

        with mock.patch.object(
                query.SchedulerQueryClient, 'select_destinations', late):
            self.api.post_server({'server': dict(
                self._build_server(networks='none'), min_count=3)})
            self._wait_for_assert(lambda: self.assertEqual(
                ['ACTIVE'] * 2,
                [server['status'] for server in self.api.get_servers()]))

    def test_server_that_moves(self):
        """A server that moves has no build request, and keeps its claim."""
        server = self.api.post_server({
            'server': self._build_server(networks='none')})
        server = self._wait_for_state_change(server, 'ACTIVE')
        self._start_compute('other')

        def late(client, context, *args, **kwargs):
            context.timestamp -= datetime.timedelta(hours=1)
            return SELECT(client, context, *args, **kwargs)

        with mock.patch.object(
                query.SchedulerQueryClient, 'select_destinations', late):
            self.admin_api.post_server_action(
                server['id'], {'migrate': None})
            self._wait_for_state_change(server, 'VERIFY_RESIZE')
        self.assertEqual(1, len(self.allocations(server)))
