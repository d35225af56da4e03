# SPDX-License-Identifier: Apache-2.0

"""nova-reaper on the cloud with faults, and what must hold whatever dies."""

import secrets
import urllib.parse

from keystoneauth1 import exceptions

from tools.cloud import reaper
from tools.crash import base

_FULL_LIST = 5
_HOLD_TIMEOUT = 60

#: Two sweeps, the second of what was left alone by the first.
SWEEPS = 2 * (_FULL_LIST + _HOLD_TIMEOUT)

_OPTIONS = {
    'grace_period': 3, 'stop_timeout': 5, 'end_timeout': 60,
    'min_run_time': 0, 'repeat_protection': 0, 'hold_timeout': _HOLD_TIMEOUT,
    'pending_list_interval': 5, 'full_list_interval': _FULL_LIST,
    'retry_interval': 2, 'max_retry_interval': 10, 'rebuild_timeout': 60,
    # As long as it is not what the test is about.
    'strict_accounting': False}


class ReaperTestCase(base.CrashTestCase):
    """Each host has room for one server, and nobody asks for rebuilds."""

    def setUp(self):
        super().setUp()
        self.servers = []
        self.reaper_options(mode='preempt')
        self.addCleanup(self._clean_up)

    def _clean_up(self):
        self.cloud.disarm()
        # It would rebuild what waits as soon as the first is deleted.
        self.cloud.pause(reaper.NAME)
        self.clean_up(*self.servers)

    def reaper_options(self, **options):
        reaper.configure(self.cloud.settings, **{**_OPTIONS, **options})

    def start_reaper(self):
        self.cloud.resume(reaper.NAME)

    def ask(self, path, who=None):
        """Return what the reaper answers, None without a good answer.

        :param path: or a URL of another reaper
        :param who: by default the administrator
        """
        try:
            return (who or self.cloud.admin).get(urllib.parse.urljoin(
                reaper.url(self.cloud.settings), path)).json()
        except (exceptions.ConnectFailure, exceptions.HttpError):
            return None

    def hindrance(self, server, url=''):
        """Return the reaper's hindrance of a server, None if there is none.

        :param url: of another reaper
        """
        found = self.ask('%s/v1/pending/%s' % (url, server))
        return found and found['pending']['hindrance']

    # Servers.

    def create(self, name, **extra_specs):
        """Return the ID of a new server, one of which fills a host."""
        kind = '%s-%s' % (name, secrets.token_hex(4))
        flavor = self.cloud.make_flavor(kind, **{
            'resources:VCPU': str(self.cloud.settings.host_vcpus),
            **extra_specs})
        server = self.cloud.nova('POST', '/servers', {'server': {
            'name': name, 'imageRef': self.cloud.image, 'flavorRef': flavor,
            'networks': 'none'}}).json()['server']['id']
        self.servers.append(server)
        return server

    def create_victims(self, action):
        """Return the IDs of preemptible servers that fill the cloud."""
        victims = [self.create('victim', **{
            'reaper:preemptible': 'true', 'reaper:action': action})
            for _host in self.cloud.settings.hosts]
        for server in victims:
            self.wait_status(server, 'ACTIVE')
        return victims

    def create_waiting(self):
        """Return the ID of a server that waits."""
        server = self.create('patient')
        self.wait_status(server, 'PENDING')
        return server

    def wait_status(self, server, status, seconds=150):
        def is_so():
            shown = self.cloud.show(server)
            return shown and shown['status'] == status and (
                not shown['OS-EXT-STS:task_state'])

        self.cloud.wait_for('%s to be %s' % (server, status), is_so, seconds)

    # What must hold.

    def lands(self, server):
        """Check that the server runs, built once, and has its room once."""
        self.wait_status(server, 'ACTIVE', 300)
        self.assertEqual(1, self.cloud.builds(server))
        for database, number in (('nova', 1), ('nova_cell0', 0)):
            self.assertEqual(number, len(self.cloud.rows(
                database, 'SELECT id FROM instances WHERE uuid = :server '
                'AND deleted = 0', server)), database)

    def ended(self, victims):
        """Return which of the victims are not on their host any more."""
        return [server for server in victims if (self.cloud.show(server) or {
            'status': 'gone'})['status'] in ('gone', 'SHELVED_OFFLOADED')]

    def one_is_ended(self, victims):
        """Check that a single victim was ended, and nothing is held."""
        ended = self.ended(victims)
        self.assertEqual(1, len(ended), ended)
        for server in set(victims) - set(ended):
            self.is_unharmed(server)
        self.nothing_is_held()

    def is_unharmed(self, server):
        """Check that a victim runs, and that its notice is withdrawn."""
        self.wait_status(server, 'ACTIVE')
        self.cloud.wait_for(
            'the notice of %s to be withdrawn' % server,
            lambda: not [key for key in self.cloud.show(server)['metadata']
                         if key.startswith('reaper:')], SWEEPS)

    def nothing_is_held(self):
        """Wait two sweeps for Placement to have only servers that run."""
        def is_so():
            running = {server for server in self.servers if (
                self.cloud.show(server) or {}).get('status') == 'ACTIVE'}
            return self._consumers() == running

        self.cloud.wait_for('no room to be held', is_so, SWEEPS)
        for server in self.servers:
            found = self._placement('/allocations/' + server)
            if found['allocations']:
                self.assertEqual(self.cloud.owner.get_project_id(),
                                 found['project_id'])
                # Nova names no type, except of a consumer that was a hold.
                self.assertIn(found['consumer_type'],
                              ('INSTANCE', 'unknown'))

    def _consumers(self):
        return {consumer for provider in self._placement(
            '/resource_providers')['resource_providers']
            for consumer in self._placement(
                '/resource_providers/%s/allocations' % provider['uuid'])[
                    'allocations']}

    def _placement(self, path):
        def answer():
            try:
                found = self.cloud.request('placement', 'GET', path,
                                           admin=True, fails=True)
            except exceptions.ConnectFailure:
                return None
            return found.status_code < 500 and [found.json()]

        return self.cloud.wait_for('an answer of placement', answer)[0]
