# SPDX-License-Identifier: Apache-2.0

"""What the tests of servers whose build failed in a cell share."""

from unittest import mock

from nova import exception
from nova.tests.functional import held_room_base
from nova.tests.functional import stopped_builds
from nova.virt import fake

SPAWN = 'nova.virt.fake.FakeDriver.spawn'


class FailedBuildsBase(stopped_builds.StoppedBuildsBase,
                       held_room_base.HeldRoomBase):
    """A host on which builds fail, with room for the large flavor."""

    def setUp(self):
        super().setUp()
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.flags(compute_driver='fake.FakeDriver')
        self._start_compute('bad')

    def spawn_fails(self, make_exc):
        spawn = fake.FakeDriver.spawn

        def failing(driver, context, instance, *args, **kwargs):
            if instance.host == 'bad':
                raise make_exc(instance)
            return spawn(driver, context, instance, *args, **kwargs)

        return mock.patch(SPAWN, failing)

    def abort(self):
        """Let the host give up what it builds."""
        return self.spawn_fails(lambda instance: (
            exception.BuildAbortException(
                instance_uuid=instance.uuid, reason='no such disk')))

    def reschedule(self):
        """Let the build fail in a way that is tried on another host."""
        return self.spawn_fails(lambda instance: (
            exception.InternalError(err='no such bridge')))

    def failed(self, failure=None, **server):
        """Create a server whose build fails in its cell."""
        with (failure or self.abort)():
            self.server = self.create_waiting('ERROR', **server)
        self._wait_for_assert(lambda: self.assertEqual({}, self.allocations()))
        self.assertTrue(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        return self.server
