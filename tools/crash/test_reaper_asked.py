# SPDX-License-Identifier: Apache-2.0

"""What owners and operators ask of nova-reaper later, and again and again."""

import contextlib
import json
import os
import secrets
import subprocess

from tools.cloud import databases
from tools.cloud import ports
from tools.cloud import reaper
from tools.cloud import settings
from tools.crash import reaping

# The microversion of a client that names no microversion.
_OLDEST = '2.1'


class OwnersTestCase(reaping.ReaperTestCase):
    """Owners who do not wait, and owners who do not wait quietly."""

    def create_by_old_client(self, flavor):
        """Return the ID of a server that a client at 2.1 asks for."""
        server = self.cloud.nova('POST', '/servers', {'server': {
            'name': 'forgotten', 'imageRef': self.cloud.image,
            'flavorRef': flavor}}, version=_OLDEST).json()['server']['id']
        self.servers.append(server)
        self.cloud.wait_for('%s to end in ERROR' % server, lambda: (
            self.cloud.nova('GET', '/servers/' + server, version=_OLDEST)
            .json()['server']['status'] == 'ERROR'))
        return server

    def test_who_gives_up_gets_no_server_later(self):
        victims = self.create_victims('delete')
        flavor = self.cloud.make_flavor('full', **{
            'resources:VCPU': str(self.cloud.settings.host_vcpus)})
        forgotten = [self.create_by_old_client(flavor) for _try in range(3)]
        waiting = self.create_waiting()
        self.start_reaper()
        # The server that asked is the last in the queue.
        self.lands(waiting)
        self.one_is_ended(victims)
        # A later rebuild asks, too.
        asks, *forgotten = forgotten
        self.assertEqual(202, self.cloud.rebuild(asks))
        self.wait_status(asks, 'PENDING')
        for server in waiting, *victims:
            self.cloud.delete(server)
        # There is room for two servers now.
        self.lands(asks)
        for server in forgotten:
            self.cloud.wait_for(
                'nova-reaper to tell why %s waits' % server,
                lambda server=server: self.hindrance(server) == 'not_asked')
        self.nothing_is_held()
        for server in forgotten:
            self.assertEqual('PENDING', self.cloud.show(server)['status'])
            self.assertEqual(0, self.cloud.builds(server))
            self.assertEqual(['create'], self.actions_of(server))

    def test_who_rebuilds_four_times_keeps_the_turn(self):
        # A failure that counted would cost ten minutes.
        self.reaper_options(mode='fill', retry_interval=600,
                            max_retry_interval=600)
        full = [self.create('full') for _host in self.cloud.settings.hosts]
        for server in full:
            self.wait_status(server, 'ACTIVE')
        first, second = self.create_waiting(), self.create_waiting()
        self.start_reaper()
        for _press in range(4):
            self.assertEqual(202, self.cloud.rebuild(first))
            self.wait_status(first, 'PENDING')
        self.cloud.delete(full[0])
        self.lands(first)
        self.assertEqual('PENDING', self.cloud.show(second)['status'])
        self.assertEqual(['rebuild'] * 5 + ['create'],
                         self.actions_of(first))
        self.cloud.delete(full[1])
        self.lands(second)
        self.nothing_is_held()


class JournalTestCase(reaping.ReaperTestCase):
    """The journal answers after restarts, and where a reaper stands by."""

    def setUp(self):
        super().setUp()
        self.addCleanup(self.configuration.write_text,
                        self.configuration.read_text())
        base = databases.Databases(
            os.environ.get('CLOUD_DATABASE_URL', settings.DATABASE_URL),
            'cloud_%s_' % secrets.token_hex(4), ['reaper'])
        base.create()
        self.addCleanup(base.drop)
        reaper.configure(self.cloud.settings, 'database',
                         connection=base.url('reaper'))
        reaper.configure(self.cloud.settings, 'coordination',
                         backend_url='file://%s' % (
                             self.cloud.settings.state / 'locks'))

    @property
    def configuration(self):
        return self.cloud.settings.etc / reaper.NAME / 'nova-reaper.conf'

    def history(self, url=''):
        """Return what the API has, for an administrator and for an owner.

        The command has what an administrator reads.

        :param url: of another reaper
        """
        command = json.loads(subprocess.run(
            [settings.PREFIX / 'bin/nova-reaper', 'history', '--config-file',
             self.configuration, '--json'],
            check=True, capture_output=True, timeout=60).stdout)['history']
        shown = self.ask(url + '/v1/history?all_projects=true')['history']
        self.assertEqual(command, shown[::-1])
        own = self.ask(url + '/v1/history', self.cloud.owner)['history']
        return shown, own

    @contextlib.contextmanager
    def standby(self):
        """Run a second reaper within a with block, and yield its URL."""
        port = ports.Ports(['standby'])
        number = port.numbers['standby']
        port.release_all()
        log = self.cloud.settings.state / 'log/standby.log'
        with log.open('w') as file, subprocess.Popen(
                [settings.PREFIX / 'bin/nova-reaper', 'run', '--config-file',
                 self.configuration], stderr=file,
                env={**os.environ, 'OS_HTTP__PORT': str(number)}) as process:
            try:
                yield 'http://%s:%d' % (ports.HOST, number)
            finally:
                process.kill()

    def test_it_knows_whom_it_ended(self):
        victims = self.create_victims('delete')
        self.reaper_options(mode='preempt', max_ends_per_hour=1)
        waiting = self.create_waiting()
        self.start_reaper()
        self.lands(waiting)
        self.one_is_ended(victims)
        ended, = self.ended(victims)
        found = self.history()
        (notice,), (end,) = (
            [each for each in found[0] if each['kind'] == kind]
            for kind in ('notice', 'end'))
        for each in notice, end:
            self.assertEqual((ended, waiting), (each['server'], each['for']))
        self.assertEqual('delete', end['result'])
        self.assertEqual('1 preemptible server on one host would have to go.',
                         notice['detail']['decision']['detail'])
        for _time in range(3):
            self.cloud.kill(reaper.NAME)
            self.cloud.wait_for('nova-reaper', lambda: reaper.is_ready(
                self.cloud.settings))
            self.assertEqual(found, self.history())
        # The ends of the last hour count after a restart.
        late = self.create_waiting()
        self.cloud.wait_for('the cap', lambda: (
            self.hindrance(late) == 'protected'))
        with self.standby() as url:
            self.cloud.wait_for('nova-reaper that stands by', lambda: (
                self.ask(url + '/v1/history')))
            self.assertIsNone(self.ask(url + '/v1/notices'))
            self.assertEqual(found, self.history(url))
            self.cloud.pause(reaper.NAME)
            self.cloud.wait_for('the other reaper to act', lambda: (
                self.hindrance(late, url) == 'protected'))
            self.assertEqual(found, self.history(url))
        self.assertEqual([ended], self.ended(victims))
