# SPDX-License-Identifier: Apache-2.0

"""Tests of the commands that stand in for stock commands."""

from importlib import metadata

from openstackclient.compute.v2 import server as stock

from osc_pending.tests import base
from osc_pending.tests import fakes
from osc_pending.v1 import server


class StandInsTestCase(base.TestCase):
    """The client finds the commands; they have all that stock has."""

    def test_last_group(self):
        # The client reads this group after all others (shell._load_commands).
        names = {point.name for point in metadata.entry_points(
            group='openstack.extension')
            if point.value.startswith('osc_pending.v1.server:')}
        self.assertEqual({'server_create', 'server_list', 'server_rebuild'},
                         names)

    def test_found_without_a_word(self):
        self.use_cloud()
        for name in ('create', 'list', 'rebuild'):
            out, err = self.run_client('help', 'server', name)
            self.assertIn('PENDING', out)
            self.assertEqual('', err)

    def test_found_before_the_stock_one(self):
        # cliff takes the last of one name, and says so where it is heard.
        self.use_cloud()
        _out, err = self.run_client('--debug', 'server', 'list')
        self.assertIn('osc_pending.v1.server.ListServer', err)
        self.assertNotIn('found duplicate', err)

    def test_all_options(self):
        for name in ('CreateServer', 'ListServer', 'RebuildServer'):
            ours = getattr(server, name)(None, None).get_parser('x')
            theirs = getattr(stock, name)(None, None).get_parser('x')
            self.assertEqual(
                [(a.option_strings, a.dest, a.default, a.required)
                 for a in theirs._actions],
                [(a.option_strings, a.dest, a.default, a.required)
                 for a in ours._actions])


class ListTestCase(base.TestCase):

    def test_status(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        cloud.add('other', 'ACTIVE')
        rows, err = self.read('server', 'list', '--status', 'PENDING')
        self.assertEqual([(web['id'], 'PENDING')],
                         [(row['ID'], row['Status']) for row in rows])
        self.assertEqual(
            ['2.107'], [version for version, _ in cloud.sent(
                'GET', '/servers/detail')])

    def test_vm_state(self):
        cloud = self.use_cloud(offered='2.105')
        cloud.add('web')
        self.run_client('server', 'list', '--vm-state', 'pending', '--long')
        self.assertEqual('2.105', cloud.sent('GET', '/servers/detail')[0][0])

    def test_stock(self):
        cloud = self.use_cloud()
        cloud.add('web')
        rows, _err = self.read('server', 'list')
        self.assertEqual('ERROR', rows[0]['Status'])
        rows, _err = self.read(
            '--os-compute-api-version', '2.105', 'server', 'list')
        self.assertEqual('PENDING', rows[0]['Status'])

    def test_says_how_many_in_error_wait(self):
        cloud = self.use_cloud()
        cloud.add('web')
        cloud.add('broken', 'ERROR')
        cloud.add('other', tenant_id='another')
        out, err = self.run_client('server', 'list')
        self.assertNotIn('PENDING', out)
        self.assertIn('Servers in ERROR that wait for room: 1.', err)
        _out, err = self.run_client('server', 'list', '--all-projects')
        self.assertIn('Servers in ERROR that wait for room: 2.', err)

    def test_says_nothing_where_nobody_reads_it(self):
        cloud = self.use_cloud()
        cloud.add('web')
        for words in (('server', 'list', '-f', 'value'),
                      ('--os-compute-api-version', '2.104', 'server', 'list'),
                      ('--os-compute-api-version', '2.105', 'server',
                       'list')):
            _out, err = self.run_client(*words)
            self.assertEqual('', err)
        self.assertEqual([], cloud.sent('GET', '/servers'))

    def test_says_nothing_of_servers_that_do_not_wait(self):
        cloud = self.use_cloud()
        cloud.add('broken', 'ERROR')
        self.assertEqual('', self.run_client('server', 'list')[1])
        del cloud.servers[list(cloud.servers)[0]]
        cloud.requests.clear()
        cloud.add('other', 'ACTIVE')
        self.assertEqual('', self.run_client('server', 'list')[1])
        self.assertEqual([], cloud.sent('GET', '/servers'))

    def test_is_the_stock_list_where_nova_refuses_the_numbers(self):
        cloud = self.use_cloud()
        cloud.add('web')
        cloud.refusal = 503
        out, err = self.run_client('server', 'list')
        self.assertIn('web', out)
        self.assertEqual('', err)

    def test_no_such_choice(self):
        self.use_cloud()
        _out, err = self.run_client(
            'server', 'list', '--status', 'PENDINGG', code=2)
        self.assertIn('PENDINGG', err)

    def test_asked_for_less(self):
        cloud = self.use_cloud()
        _out, err = self.run_client(
            '--os-compute-api-version', '2.104', 'server', 'list',
            '--status', 'PENDING', code=1)
        self.assertIn('--os-compute-api-version 2.105 or later', err)
        self.assertEqual([], cloud.sent('GET', '/servers/detail'))

    def test_asked_for(self):
        cloud = self.use_cloud()
        self.run_client('--os-compute-api-version', '2.106', 'server', 'list',
                        '--status', 'PENDING')
        self.assertEqual('2.106', cloud.sent('GET', '/servers/detail')[0][0])

    def test_released_cloud(self):
        self.use_cloud(offered='2.104')
        _out, err = self.run_client(
            'server', 'list', '--status', 'PENDING', code=1)
        self.assertIn('has microversion 2.104 at most', err)


class CreateTestCase(base.TestCase):

    def _create(self, *words, code=0, before=()):
        return self.read(
            *before, 'server', 'create', '--image', fakes.IMAGE, '--flavor',
            '2', '--nic', 'none', 'web', *words, code=code)

    def test_no_wait(self):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='PENDING')
        _row, err = self._create(
            before=('--os-compute-api-version', '2.105'))
        self.assertEqual('', err)

    def test_asks_to_wait(self):
        cloud = self.use_cloud()
        self._create()
        self._create(before=('--os-compute-api-version', '2.104'))
        self.assertEqual(['2.107', '2.104'], [
            version for version, _body in cloud.sent('POST', '/servers')])

    def test_released_cloud(self):
        cloud = self.use_cloud(offered='2.104')
        _row, err = self._create()
        self.assertEqual(1, len(cloud.sent('POST', '/servers')))
        self.assertEqual('', err)

    def test_is_the_stock_create_where_nova_refuses_the_numbers(self):
        cloud = self.use_cloud()
        cloud.refusal = 503
        _row, err = self._create()
        self.assertEqual(1, len(cloud.sent('POST', '/servers')))
        self.assertEqual('', err)

    def test_wait_active(self):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='ACTIVE')
        row, err = self._create(
            '--wait', before=('--os-compute-api-version', '2.105'))
        self.assertEqual(('ACTIVE', 'pass'), (row['status'], row['adminPass']))
        self.assertEqual('', err)

    def _test_waits(self, *before):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(
            status='PENDING', fault={'message': 'No valid host was found. '})
        row, err = self._create('--wait', code=3, before=before)
        self.assertEqual('PENDING', row['status'])
        self.assertIn('waits in PENDING: No valid host was found.', err)
        self.assertIn('pending rebuild ' + row['id'], err)

    def test_wait_ends_on_pending(self):
        self._test_waits('--os-compute-api-version', '2.105')

    def test_wait_ends_on_pending_unasked(self):
        self._test_waits('--os-auth-type', 'password')

    def _wait_with_a_reaper(self, status, **answer):
        cloud = self.use_cloud(reaper=True)

        def wait(server):
            server.update(status='PENDING')
            cloud.reaper['/v1/pending/' + server['id']] = (
                status, {'pending': answer})

        cloud.after_build = wait
        row, err = self._create('--wait', code=3)
        self.assertIn('pending show %s" says why.' % row['id'], err)
        self.assertNotIn('pending rebuild', err)
        return err

    def test_what_the_reaper_does_for_a_server_that_waits(self):
        self.assertTrue(self._wait_with_a_reaper(
            200, advice='Nothing has to be done.',
            automatic='It is built as soon as there is room.').endswith(
                'says why. Nothing has to be done. It is built as soon as '
                'there is room.\n'))

    def test_reaper_has_not_heard_of_a_server_that_waits(self):
        self.assertTrue(self._wait_with_a_reaper(404).endswith(
            'says why.\n'))

    def test_wait_ends_on_error_at_an_old_microversion(self):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='PENDING')
        _out, err = self.run_client(
            '--os-compute-api-version', '2.104', 'server', 'create', '--image',
            fakes.IMAGE, '--flavor', '2', '--nic', 'none', 'web', '--wait',
            code=1)
        self.assertIn('Error creating server', err)

    def test_wait_ends_on_error(self):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='ERROR')
        _out, err = self.run_client(
            'server', 'create', '--image', fakes.IMAGE, '--flavor', '2',
            '--nic', 'none', 'web', '--wait', code=1)
        self.assertIn('Error creating server', err)

    def test_methods_are_back(self):
        # The next command of an interactive client has the stock methods.
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='PENDING')
        self._create('--wait', code=3)
        rows, _err = self.read('server', 'list')
        self.assertEqual('ERROR', rows[0]['Status'])


class RebuildTestCase(base.TestCase):

    def _body(self, web):
        [(version, body)] = self.cloud.sent(
            'POST', '/servers/%s/action' % web['id'])
        return version, body['rebuild']

    def test_waiting(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        row, err = self.read('server', 'rebuild', 'web')
        self.assertEqual(('2.107', {'imageRef': None}), self._body(web))
        self.assertEqual('BUILD', row['status'])
        self.assertEqual('', err)

    def test_all_options_are_sent(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        self.run_client(
            'server', 'rebuild', web['id'], '--image', fakes.IMAGE, '--name',
            'new', '--password', 'p', '--property', 'a=b', '--description',
            'd', '--key-name', 'k', '--no-user-data', '--hostname', 'h')
        self.assertEqual(('2.107', {
            'imageRef': fakes.IMAGE, 'name': 'new', 'adminPass': 'p',
            'metadata': {'a': 'b'}, 'description': 'd', 'key_name': 'k',
            'user_data': None, 'hostname': 'h'}), self._body(web))

    def test_waiting_on_a_volume(self):
        cloud = self.use_cloud()
        web = cloud.add('web', image='')
        self.run_client('server', 'rebuild', 'web')
        self.assertEqual(('2.107', {'imageRef': None}), self._body(web))

    def test_another_image_on_a_volume_is_to_be_confirmed(self):
        cloud = self.use_cloud()
        web = cloud.add('web', image='')
        _out, err = self.run_client(
            'server', 'rebuild', 'web', '--image', fakes.IMAGE, code=1)
        self.assertIn('--reimage-boot-volume is required', err)
        self.run_client('server', 'rebuild', 'web', '--image', fakes.IMAGE,
                        '--reimage-boot-volume')
        self.assertEqual(('2.107', {'imageRef': fakes.IMAGE}),
                         self._body(web))

    def test_error_never_built(self):
        cloud = self.use_cloud(offered='2.106')
        web = cloud.add('web', 'ERROR')
        self.run_client('server', 'rebuild', 'web')
        self.assertEqual(('2.106', {'imageRef': None}), self._body(web))

    def test_stock(self):
        for status in ('ACTIVE', 'SHUTOFF', 'ERROR'):
            cloud = self.use_cloud()
            web = cloud.add('web', status, **{
                'OS-SRV-USG:launched_at': '2026-11-22T11:30:00Z'})
            self.run_client('--os-compute-api-version', '2.90', 'server',
                            'rebuild', 'web')
            self.assertEqual(('2.90', {'imageRef': fakes.IMAGE}),
                             self._body(web))

    def test_stock_refusal(self):
        cloud = self.use_cloud()
        cloud.add('web', 'PAUSED')
        _out, err = self.run_client('server', 'rebuild', 'web', code=1)
        self.assertIn('not ACTIVE, SHUTOFF or ERROR', err)

    def test_asked_for_less(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        _out, err = self.run_client('--os-compute-api-version', '2.105',
                                    'server', 'rebuild', 'web', code=1)
        self.assertIn('--os-compute-api-version 2.106 or later', err)
        self.assertEqual([], cloud.sent(
            'POST', '/servers/%s/action' % web['id']))

    def test_released_cloud(self):
        cloud = self.use_cloud(offered='2.104')
        cloud.add('web', 'ERROR')
        _out, err = self.run_client('server', 'rebuild', 'web', code=1)
        self.assertIn('Cannot rebuild', err)

    def test_wait(self):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='ACTIVE')
        cloud.add('web')
        out, err = self.run_client('server', 'rebuild', 'web', '--wait')
        self.assertIn('Complete', out)
        self.assertEqual('', err)

    def test_wait_ends_on_pending(self):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='PENDING')
        cloud.add('web')
        row, err = self.read('server', 'rebuild', 'web', '--wait', code=3)
        self.assertEqual('PENDING', row['status'])
        self.assertIn('waits in PENDING', err)

    def test_wait_ends_on_error(self):
        cloud = self.use_cloud()
        cloud.after_build = lambda server: server.update(status='ERROR')
        cloud.add('web')
        _out, err = self.run_client(
            'server', 'rebuild', 'web', '--wait', code=1)
        self.assertIn('Error rebuilding server', err)
