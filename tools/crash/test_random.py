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

"""Processes are killed at random moments."""

import os
import random
import sys
import time

from tools.crash import base

_SERVERS = 4
_KILLS = 5

# Longer than a host waits for a conductor that is dead.
_STUCK_SECONDS = 60

#: Names the seed of an earlier run, to have its moments again.
_SEED = 'CRASH_SEED'


class RandomCrashTestCase(base.CrashTestCase):

    def test_nothing_is_lost(self):
        seed = int(os.environ.get(_SEED, random.randrange(2 ** 32)))
        # Also where the test passes.
        print('%s=%d' % (_SEED, seed), file=sys.stderr)
        moments = random.Random(seed)
        servers = self.cloud.make_waiting(
            *[({'uuid': self.cloud.network}, volume)
              for volume in self.make_volumes(_SERVERS)])
        self.patient = None
        self.before = self.cloud.show(servers[0])
        self.addCleanup(self.clean_up, *servers)
        self.cloud.set_room(True)
        with self.watched(*servers, may_fail=True) as seen:
            with self.cloud.recovery():
                for _ in range(_KILLS):
                    self._ask(servers)
                    time.sleep(moments.uniform(0, 2))
                    moments.choice((
                        lambda: self.cloud.kill('nova-api'),
                        lambda: self.cloud.kill('nova-conductor'),
                        self.cloud.cut_connections))()
                end = time.monotonic()
                self.cloud.wait_for(
                    'all servers to be back or with their cell',
                    lambda: all([self._has_settled(server, end)
                                 for server in servers]))
            # Nothing dies any more: each that waits is built now.
            for server in servers:
                if self.cloud.is_waiting(server) and (
                        self._cell(server) == 'cell0'):
                    self.can_be_rebuilt(server)
            for server in servers:
                self._is_consistent(server)
            for server in servers:
                seen.may_go(server)
                self.cloud.delete(server)
        for server in servers:
            self.assertEqual({}, self.cloud.leftovers(server))

    def _ask(self, servers):
        """Rebuild those that wait, as their owner would."""
        waiting = [server for server in servers
                   if self.cloud.is_waiting(server)]
        if waiting:
            self.cloud.at_once(*(
                lambda server=server: self.cloud.rebuild(server)
                for server in waiting))

    def _has_settled(self, server, since):
        """Whether a server waits again, or a host has it.

        A host gives a server up whose conductor dies, as in the release.
        """
        if self._cell(server) != 'cell1':
            return self._cell(server) and self.cloud.is_waiting(server)
        return (self.cloud.show(server)['status'] != 'BUILD' or
                self._has_host(server) and
                time.monotonic() - since > _STUCK_SECONDS)

    def _has_host(self, server):
        return any(host for (host,) in self.cloud.rows(
            'nova', 'SELECT host FROM instances WHERE uuid = :server',
            server))

    def _cell(self, server):
        return self.cloud.rows(
            'nova_api', 'SELECT cell_mappings.name FROM instance_mappings '
            'LEFT JOIN cell_mappings ON cell_id = cell_mappings.id '
            'WHERE instance_uuid = :server', server)[0][0]

    def _is_consistent(self, server):
        """The server is in one place, and was built once at most."""
        self.is_kept(server)
        self.assertEqual([], self.cloud.rows(
            'nova_api', 'SELECT id FROM build_requests '
            'WHERE instance_uuid = :server', server))
        for database, number in (('nova', 1), ('nova_cell0', 0)):
            self.assertEqual(number, len(self.cloud.rows(
                database, 'SELECT id FROM instances WHERE uuid = :server',
                server)), database)
        if self.cloud.show(server)['status'] == 'ACTIVE':
            self.assertEqual(1, self.cloud.builds(server))
            self.assertEqual(['attached'], self.cloud.attachments(server))
            self.assertNotIn('/etc/crash', self.spec_of(server))
