# SPDX-License-Identifier: Apache-2.0

"""What osc-pending shows of a cloud with nova-reaper."""

from oslo_utils import timeutils

from tools.cloud import reaper
from tools.osc import base

# Seconds of a notice that does not end before the test.
_GRACE = 60


class ReaperTestCase(base.ClientTestCase):
    """A server fills each host, one waits, and the reaper looks after it."""

    def _pending(self, *words, user='owner'):
        """Return the rows of those that wait, by name."""
        rows, _err = self.read('pending', 'list', *words, user=user)
        return {row['Name']: row for row in rows}

    def _wait_until_known(self, *names):
        """Wait until the reaper has looked at servers; return their rows."""
        def known():
            rows = self._pending()
            return rows if all(rows[name]['Position'] for name in names
                               ) else None

        return self.wait_until(known)

    def _create_spot(self):
        """Create a preemptible server in place of another server."""
        self.make_room()
        return self.create('spot', 'spot')['id']

    def test_position(self):
        for name, flavor in (('web', 'whole-host'), ('giant', 'too-big')):
            self.create(name, flavor, code=base.WAITS)
        rows = self._wait_until_known('web', 'giant')
        self.assertEqual(
            {'web': (1, 'no_room'), 'giant': (2, 'nothing_fits')},
            {name: (row['Position'], row['Reason'])
             for name, row in rows.items()})
        everybody = self._pending('--all-projects', '--sort-column',
                                  'Position', user='admin')
        self.assertEqual(['web', 'giant'], list(everybody))
        row, err = self.read('pending', 'show', 'giant')
        self.assertEqual((2, 'waiting', 'nothing_fits', ''), (
            row['position'], row['step'], row['reason'], err))
        self.assertEqual('No valid host was found. ', row['message'])
        for name in ('host', 'victims', 'notices'):
            self.assertNotIn(name, row)

    def test_one_that_the_reaper_does_not_know_yet(self):
        def list_every(seconds):
            self.let_reaper('observe', pending_list_interval=seconds,
                            full_list_interval=seconds)

        self.addCleanup(list_every, 5)
        list_every(600)
        self.create('web', code=base.WAITS)
        row = self._pending()['web']
        self.assertEqual((None, 'no_room'), (row['Position'], row['Reason']))
        list_every(5)
        self._wait_until_known('web')

    def test_attempts_of_the_owner_count(self):
        self.create('web', code=base.WAITS)
        self._wait_until_known('web')
        self.client('pending', 'rebuild', 'web', '--wait', code=base.WAITS)
        row, _err = self.read('pending', 'show', 'web')
        self.assertEqual(2, row['attempts'])

    def test_nobody_has_to_ask(self):
        web = self.create('web', code=base.WAITS)
        self.let_reaper('fill')
        self.make_room()
        out, _err = self.client('pending', 'wait', 'web')
        self.assertIn('is ACTIVE', out)
        [row, first], _err = self.read('server', 'event', 'list', '--long',
                                       web['id'])
        self.assertEqual(('rebuild', 'create'),
                         (row['Action'], first['Action']))
        self.assertNotEqual(first['User ID'], row['User ID'])

    def test_next_attempt(self):
        self.let_reaper('fill', retry_interval=20)
        self.addCleanup(self.client, 'quota', 'set', '--cores', '20', 'owner',
                        user='admin')
        self.create('web', code=base.WAITS)
        self.client('quota', 'set', '--force', '--cores', '3', 'owner',
                    user='admin')
        self.make_room()

        def tried():
            row = self._pending('--long')['web']
            return row if row['Next Attempt'] else None

        row = self.wait_until(tried)
        self.assertEqual('quota', row['Reason'])
        last, due = (timeutils.parse_isotime(row[name])
                     for name in ('Last Attempt', 'Next Attempt'))
        # Doubled with each that comes to nothing.
        self.assertIn((due - last).total_seconds(), (20, 40, 80))
        self.client('quota', 'set', '--cores', '20', 'owner', user='admin')
        self.client('pending', 'wait', 'web')

    def test_who_would_be_ended(self):
        spot = self._create_spot()
        web = self.create('web', code=base.WAITS)
        self._wait_until_known('web')

        def planned():
            row, _err = self.read('pending', 'explain', web['id'],
                                  '--dry-run', user='admin')
            # Which servers may be ended is in the full list alone.
            return row if row['verdict'] != 'wait' else None

        row = self.wait_until(planned)
        self.assertEqual(('preempt', [spot]), (
            row['verdict'], [each['server'] for each in row['would_end']]))
        self.assertIn(row['host'], ('compute1', 'compute2'))
        out, _err = self.client('pending', 'notice', 'list')
        self.assertEqual('', out.strip())
        rows, _err = self.read('server', 'list', '--status', 'ACTIVE')
        self.assertIn(spot, [row['ID'] for row in rows])

    def test_notice(self):
        spot = self._create_spot()
        web = self.create('web', code=base.WAITS)
        self.let_reaper('preempt', grace_period=_GRACE)
        [notice] = self.wait_until(
            lambda: self.read('pending', 'notice', 'list')[0])
        self.assertEqual((spot, 'spot', 'shelve'), (
            notice['ID'], notice['Name'], notice['Action']))
        self.assertNotIn('For', notice)
        [notice], _err = self.read('pending', 'notice', 'list',
                                   '--all-projects', user='admin')
        self.assertEqual((spot, web['id']), (notice['ID'], notice['For']))
        row, _err = self.read('pending', 'show', web['id'], user='admin')
        self.assertEqual((notice['Host'], [spot], [spot]), (
            row['host'], row['victims'],
            [each['server'] for each in row['notices']]))
        self.client('pending', 'wait', 'web')
        row, _err = self.read('server', 'show', spot)
        self.assertEqual('SHELVED_OFFLOADED', row['status'])

    def test_reaper_does_not_answer(self):
        self.create('web', code=base.WAITS)
        base.run_tool('kill', self.cloud, reaper.NAME)
        self.addCleanup(base.run_tool, 'restart', self.cloud, reaper.NAME)
        rows, err = self.read('pending', 'list')
        self.assertEqual([('web', 'no_room', None)], [
            (row['Name'], row['Reason'], row['Position']) for row in rows])
        self.assertIn('nova-reaper does not answer', err)
        row, err = self.read('pending', 'show', 'web')
        self.assertEqual('no_room', row['reason'])
        self.assertIn('nova-reaper does not answer', err)
        _out, err = self.client('pending', 'notice', 'list', code=1)
        self.assertIn('nova-reaper does not answer', err)
