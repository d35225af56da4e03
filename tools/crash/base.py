# SPDX-License-Identifier: Apache-2.0

"""What the tests share: the cloud, servers, and what must hold."""

import atexit
import functools
import os
import signal

import testtools

from tools.cloud import errors
from tools.cloud import reaper
from tools.crash import clouds
from tools.crash import crashing
from tools.crash import watch

#: Where everything is expected to be there, nothing may be skipped.
_REQUIRE_ALL = 'NOVA_PENDING_REQUIRE_ALL'

#: How long after the configured time a server may be back: the time between
#: two runs of the recovery, and the runs, on a machine that is busy.
_SLACK = 45


@functools.cache
def _cloud(pci):
    """Bring a cloud up, once for all tests that need such a cloud.

    :param pci: of clouds.Cloud
    :returns: the clouds.Cloud, and None or why it is not up
    """
    cloud = clouds.Cloud(pci=pci)
    try:
        cloud.check()
    except errors.ServerMissing as error:
        return cloud, error
    # The runner lets nothing else end a test at once.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    atexit.register(cloud.down)
    try:
        cloud.up()
        # Others than its own tests rebuild themselves.
        cloud.pause(reaper.NAME)
    except Exception as error:
        return cloud, error
    return cloud, None


def take_down(pci):
    """End the cloud that tests with these devices had."""
    _cloud(pci)[0].down()


class CrashTestCase(testtools.TestCase):
    """Tests on the cloud with faults."""

    #: Who keeps count of PCI devices (clouds.Cloud), None without devices.
    pci = None

    def setUp(self):
        super().setUp()
        self.cloud, error = _cloud(self.pci)
        if isinstance(error, errors.ServerMissing) and (
                os.environ.get(_REQUIRE_ALL) != '1'):
            self.skipTest(str(error))
        if error is not None:
            raise error

    def make_waiting(self):
        """Make two servers that wait, each with a volume of its owner.

        The first has a port of its owner, the network makes that of the
        second.
        """
        volumes = self.make_volumes(2)
        self.port = self.cloud.make_port()
        self.addCleanup(
            self.cloud.request, 'neutron', 'DELETE',
            '/v2.0/ports/' + self.port['id'])
        self.patient, self.other = self.servers = self.cloud.make_waiting(
            ({'port': self.port['id']}, volumes[0]),
            ({'uuid': self.cloud.network}, volumes[1]))
        self.before = self.cloud.show(self.patient)
        self.addCleanup(self.clean_up, *self.servers)

    def make_volumes(self, number):
        """Return volumes that must be free again at the end of the test."""
        volumes = self.cloud.at_once(*[self.cloud.make_volume] * number)
        for volume in volumes:
            self.addCleanup(self.cloud.delete_volume, volume)
        return volumes

    def clean_up(self, *servers):
        for server in servers:
            if self.cloud.show(server):
                self.cloud.delete(server)

    def watched(self, *servers, **options):
        """Watch servers until the end of a with block, and check it."""
        return _Watched(self, self.cloud, *servers, **options)

    def fail_at(self, where, how, *servers):
        """Rebuild servers all at once, and let all of them fail.

        :param where: where the services fail (faults.arm)
        :param how: how they fail
        """
        self.addCleanup(self.cloud.disarm)
        self.cloud.arm(where, how, count=len(servers))
        self.cloud.at_once(*(functools.partial(
            self.cloud.rebuild, server) for server in servers))
        self.cloud.wait_reached(where)

    def is_request_kept(self, server):
        """Say whether the database has what the create asked for."""
        return '"nova_pending.rebuild_data"' in self.cloud.rows(
            'nova_api', 'SELECT spec FROM request_specs '
            'WHERE instance_uuid = :server', server)[0][0]

    def actions_of(self, server):
        """Return the recorded actions of a server, the last one first."""
        return [each['action'] for each in self.cloud.nova(
            'GET', '/servers/%s/os-instance-actions' % server
        ).json()['instanceActions']]

    def back_in_time(self, server, seconds=crashing.TIMEOUT):
        """Wait until a server waits again, with nothing left elsewhere.

        As soon as it waits it has no allocation. What a build has left in a
        cell is deleted then.

        :param seconds: the configured time
        """
        self.cloud.wait_for(
            'server %s to be back' % server,
            functools.partial(self.cloud.is_waiting, server),
            seconds + _SLACK)
        left = self.cloud.leftovers(server)
        # A cell that does not answer must not keep the server from waiting.
        left.pop('instance in a cell', None)
        self.assertEqual({}, left)
        self.is_kept(server)
        self.cloud.wait_for(
            'nothing to be left of the rebuild of %s' % server,
            lambda: not self.cloud.leftovers(server), _SLACK)
        self.assertEqual(['reserved'], self.cloud.attachments(server))
        self.assertTrue(self.is_request_kept(server))

    def is_kept(self, server):
        """Check that the server is what its owner asked for."""
        shown = self.cloud.show(server)
        for key in ('name', 'tags', 'metadata', 'key_name', 'image',
                    'flavor'):
            self.assertEqual(self.before[key], shown[key], key)
        if server == self.patient:
            self.assertEqual(self.before['created'], shown['created'])

    def can_be_rebuilt(self, server):
        """Check that a rebuild builds the server once, with all it had."""
        self.cloud.set_room(True)
        self.assertEqual(202, self.cloud.rebuild(server))
        self.is_built(server)

    def is_built(self, server):
        """Wait until the server is ACTIVE, with all that it had."""
        self.cloud.wait_for(
            'server %s to be built' % server,
            lambda: self.cloud.show(server)['status'] == 'ACTIVE')
        self.is_kept(server)
        self.assertEqual(1, self.cloud.builds(server))
        self.assertEqual(1, len(self.cloud.rows(
            'nova', 'SELECT id FROM instances WHERE uuid = :server', server)))
        self.assertEqual([], self.cloud.rows(
            'nova_cell0', 'SELECT id FROM instances WHERE uuid = :server',
            server))
        ports = self.cloud.request(
            'neutron', 'GET', '/v2.0/ports?device_id=' + server,
            admin=True).json()['ports']
        self.assertEqual(1, len(ports))
        if server == self.patient:
            self.assertEqual(self.port['id'], ports[0]['id'])
            self.assertEqual(self.port['fixed_ips'], ports[0]['fixed_ips'])
        self.assertEqual(['attached'], self.cloud.attachments(server))
        # The rebuild that was interrupted may have been recorded, or not; an
        # administrator may have reset the state.
        actions = [action for action in self.actions_of(server)
                   if action != 'resetState']
        self.assertIn(actions, [
            ['rebuild', 'create'], ['rebuild', 'rebuild', 'create']])

    def is_gone(self, server, builds=0):
        """Check that nothing is left of a server that was deleted.

        :param builds: how often a host has built it
        """
        self.cloud.wait_for(
            'nothing to be left of %s' % server,
            lambda: not self.cloud.leftovers(server))
        self.assertEqual(builds, self.cloud.builds(server))


class _Watched(watch.Watch):

    def __init__(self, test, *args, **options):
        super().__init__(*args, **options)
        self._test = test

    def __exit__(self, *exc_info):
        super().__exit__(*exc_info)
        self._test.addDetail('statuses', testtools.content.text_content(
            str(dict(self.statuses))))
        if exc_info[0] is None:
            self._test.assertEqual([], self.wrong)
            self._test.assertNotEqual(0, self.answers)
