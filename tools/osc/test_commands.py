# SPDX-License-Identifier: Apache-2.0

"""What the openstack client and osc-pending do on the local cloud.

The catalog has no reaper: what is shown is what Nova knows.
"""

import threading
import time

from tools.osc import base


class CommandsTestCase(base.ClientTestCase):
    """A server fills each host, one waits, and room comes."""

    listed = False

    def test_create_ends_on_pending_and_is_listed(self):
        web, err = self.read(
            'server', 'create', '--image', 'cirros', '--flavor',
            'whole-host', '--nic', 'none', '--wait', 'web', code=base.WAITS)
        self.assertEqual('PENDING', web['status'])
        self.assertIn('waits in PENDING: No valid host was found.', err)
        for option, value in (('--status', 'PENDING'),
                              ('--vm-state', 'pending')):
            rows, err = self.read('server', 'list', option, value)
            self.assertEqual([(web['id'], 'PENDING')],
                             [(row['ID'], row['Status']) for row in rows])
            self.assertEqual('', err)
        rows, _err = self.read('pending', 'list')
        self.assertEqual([web['id']], [row['ID'] for row in rows])
        rows, _err = self.read('pending', 'list', '--all-projects', '--long',
                                user='admin')
        self.assertEqual([(web['id'], 'whole-host', web['project_id'])], [
            (row['ID'], row['Flavor'], row['Project ID']) for row in rows])
        row, _err = self.read('pending', 'show', 'web')
        self.assertEqual((web['id'], 'No valid host was found. '),
                         (row['id'], row['message']))

    def test_stock_commands_elsewhere(self):
        self.create('web', code=base.WAITS)
        rows, _err = self.read('server', 'list')
        self.assertEqual({'web': 'ERROR', 'filler-1': 'ACTIVE',
                          'filler-2': 'ACTIVE'},
                         {row['Name']: row['Status'] for row in rows})
        self.client('server', 'rebuild', 'filler-1', '--wait')
        _out, err = self.client('pending', 'show', 'filler-1', code=1)
        self.assertIn('does not wait: it is ACTIVE', err)
        _out, err = self.client('pending', 'rebuild', 'filler-1', code=1)
        self.assertIn('was built before', err)

    def test_rebuild(self):
        web = self.create('web', code=base.WAITS)
        row, err = self.read('server', 'rebuild', 'web', '--wait',
                              code=base.WAITS)
        self.assertEqual((web['id'], 'PENDING'), (row['id'], row['status']))
        self.assertIn('waits in PENDING', err)
        self.make_room()
        self.client('server', 'rebuild', 'web', '--wait', '--name', 'web-2',
                     '--property', 'try=2')
        row, _err = self.read('server', 'show', 'web-2')
        self.assertEqual((web['id'], 'ACTIVE', {'try': '2'}),
                         (row['id'], row['status'], row['properties']))

    def test_pending_rebuild(self):
        web = self.create('web', code=base.WAITS)
        row, err = self.read('pending', 'rebuild', 'web', '--wait',
                              code=base.WAITS)
        self.assertEqual('PENDING', row['status'])
        self.assertIn('waits in PENDING', err)
        self.make_room()
        row, _err = self.read('pending', 'rebuild', 'web', '--wait')
        self.assertEqual((web['id'], 'ACTIVE'), (row['id'], row['status']))

    def test_rebuild_of_one_in_error(self):
        web = self.create('web', code=base.WAITS)
        self.client('server', 'set', '--auto-approve', '--state', 'error',
                     web['id'],
                     user='admin')
        self.make_room()
        self.client('server', 'rebuild', 'web', '--wait')
        row, _err = self.read('server', 'show', web['id'])
        self.assertEqual('ACTIVE', row['status'])

    def test_wait(self):
        web = self.create('web', code=base.WAITS)
        _out, err = self.client('pending', 'wait', 'web', '--timeout', '1',
                                 code=base.WAITS)
        self.assertIn('waits in PENDING', err)
        self.make_room()
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(
            self.client('pending', 'wait', 'web')))
        waiting.start()
        time.sleep(1)
        self.client('pending', 'rebuild', web['id'])
        waiting.join(60)
        [(out, _err)] = answers
        self.assertIn('is ACTIVE', out)

    def test_asked_for_an_older_microversion(self):
        self.create('web', code=base.WAITS)
        for words in (('server', 'list', '--status', 'PENDING'),
                      ('pending', 'list')):
            _out, err = self.client(
                '--os-compute-api-version', '2.104', *words, code=1)
            self.assertIn('2.105 or later', err)
        out, _err = self.client(
            '--os-compute-api-version', '2.105', 'pending', 'list')
        self.assertIn('web', out)

    def _need_reasons(self):
        rows, _err = self.read('versions', 'show', '--service', 'compute')
        newest = max(int((row['Max Microversion'] or '.0').split('.')[1])
                     for row in rows)
        if newest < 107:
            self.skipTest('Nova of this cloud has no microversion 2.107.')

    def test_reasons(self):
        self._need_reasons()
        self.create('web', code=base.WAITS)
        self.create('giant', 'too-big', code=base.WAITS)
        rows, _err = self.read('pending', 'list')
        self.assertEqual({'web': 'no_room', 'giant': 'nothing_fits'},
                         {row['Name']: row['Reason'] for row in rows})
        row, err = self.read('pending', 'show', 'web')
        self.assertEqual((1, ''), (row['attempts'], err))
        self.assertTrue(row['advice'])

    def test_explain(self):
        self._need_reasons()
        web = self.create('web', code=base.WAITS)
        row, _err = self.read('pending', 'explain', 'web', user='admin')
        self.assertEqual(web['id'], row['id'])
        self.assertEqual(
            {('compute1', None), ('compute2', None)},
            {(host['host'], host['refused_by']) for host in row['hosts']})
        self.assertTrue(all(
            host['lacks']['VCPU'] > 0 for host in row['hosts']), row['hosts'])
        self.assertIn('VCPU:', row['requests'][0])
        _out, err = self.client('pending', 'explain', 'web', '--host', 'none',
                                user='admin', code=1)
        self.assertIn('There is no compute host "none"', err)
        _out, err = self.client('pending', 'explain', 'web', code=1)
        self.assertIn('Only administrators', err)

    def test_corrected(self):
        self._need_reasons()
        giant = self.create('giant', 'too-big', code=base.WAITS)
        self.make_room()
        row, _err = self.read('pending', 'rebuild', 'giant', '--flavor',
                               'whole-host', '--wait')
        self.assertEqual((giant['id'], 'ACTIVE'), (row['id'], row['status']))

    def test_what_needs_a_reaper(self):
        self._need_reasons()
        self.create('web', code=base.WAITS)
        for words in (('pending', 'notice', 'list'),
                      ('pending', 'explain', 'web', '--dry-run')):
            _out, err = self.client(*words, code=1, user='admin')
            self.assertIn('has no service of the type "compute-pending"', err)
        rows, _err = self.read('pending', 'list')
        self.assertEqual([None], [row['Position'] for row in rows])
