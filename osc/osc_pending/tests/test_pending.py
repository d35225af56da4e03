# SPDX-License-Identifier: Apache-2.0

"""Tests of the commands of waiting servers."""

import json
import pathlib

from osc_pending.tests import base
from osc_pending.tests import fakes
from osc_pending.v1 import history
from osc_pending.v1 import pending
from osc_pending.v1 import rebuild

_HOSTS = [{'host': 'compute1', 'uuid': 'u1', 'refused_by': None},
          {'host': 'compute2', 'uuid': 'u2', 'refused_by': 'ComputeFilter'}]
_SHOWN = [{**host, 'lacks': None} for host in _HOSTS]


def _reason(**more):
    return {'since': '2026-11-22T11:30:00Z', 'attempts': 3,
            'last_attempt': '2026-11-22T11:50:00Z', 'reason': 'no_room',
            'message': 'No valid host was found. ',
            'advice': 'Wait, or take a smaller flavor.', **more}


def _answer(server, **more):
    return {'server': server['id'], 'name': server['name'],
            'project_id': fakes.PROJECT, 'state': 'pending', 'priority': 0,
            'position': 12, 'queue_length': 40,
            'since': '2026-11-22T11:31:00Z', 'attempts': 4,
            'last_attempt': '2026-11-22T11:51:00Z',
            'next_attempt': '2026-11-22T11:54:00Z', 'deadline': None,
            'step': 'waiting', 'verdict': 'wait', 'reason': 'no_room',
            'hindrance': 'back_off', 'detail': 'Its last try failed.',
            'advice': 'Nothing has to be done.',
            'automatic': 'It is tried again later.', **more}


class ListTestCase(base.TestCase):

    def test_from_nova(self):
        cloud = self.use_cloud()
        web, db = cloud.add('web'), cloud.add('db')
        cloud.add('other', 'ACTIVE')
        cloud.reasons[web['id']] = _reason()
        rows, err = self.read('pending', 'list', '--sort-column', 'Name')
        self.assertEqual([
            {'ID': db['id'], 'Name': 'db', 'Reason': None,
             'Hindrance': None, 'Since': '2026-11-22T11:30:00Z',
             'Position': None, 'Next Attempt': None},
            {'ID': web['id'], 'Name': 'web', 'Reason': 'no_room',
             'Hindrance': None, 'Since': '2026-11-22T11:30:00Z',
             'Position': None, 'Next Attempt': None}], rows)
        self.assertEqual('', err)

    def test_being_rebuilt(self):
        cloud = self.use_cloud()
        cloud.reasons[cloud.add('web')['id']] = 409
        rows, _err = self.read('pending', 'list')
        self.assertIsNone(rows[0]['Reason'])

    def test_without_reasons(self):
        cloud = self.use_cloud(offered='2.105')
        web = cloud.add('web')
        [row], _err = self.read('pending', 'list', '--long')
        self.assertEqual(
            (web['id'], None, '2026-11-22T11:30:00Z',
             'No valid host was found. ', 'm1.small', fakes.PROJECT),
            (row['ID'], row['Reason'], row['Last Attempt'], row['Message'],
             row['Flavor'], row['Project ID']))
        self.assertEqual(['/servers/detail'],
                         [path for _m, path, _v, _b in cloud.requests])

    def test_from_the_reaper(self):
        cloud = self.use_cloud(reaper=True)
        web, db = cloud.add('web'), cloud.add('db')
        cloud.queue = [_answer(web), _answer(db, position=13)]
        rows, _err = self.read('pending', 'list')
        self.assertEqual(
            [('web', 'back_off', 12, '2026-11-22T11:54:00Z'),
             ('db', 'back_off', 13, '2026-11-22T11:54:00Z')],
            [(row['Name'], row['Hindrance'], row['Position'],
              row['Next Attempt']) for row in rows])
        # One request tells the reaper's part, one Nova's.
        self.assertEqual(['/servers/detail'],
                         [path for _m, path, _v, _b in cloud.requests])
        [(query, _bytes)] = cloud.asked
        self.assertEqual({web['id'], db['id']}, set(query['server']))

    def test_some_unknown_to_the_reaper(self):
        cloud = self.use_cloud(reaper=True)
        web, db, new = map(cloud.add, ('web', 'db', 'new'))
        for server in (db, new):
            cloud.reasons[server['id']] = _reason()
        cloud.queue = [_answer(web), _answer(db, reason=None, position=13)]
        rows, err = self.read('pending', 'list', '--sort-column', 'Name')
        self.assertEqual(
            [('db', 'no_room', 13), ('new', 'no_room', None),
             ('web', 'no_room', 12)],
            [(row['Name'], row['Reason'], row['Position']) for row in rows])
        self.assertEqual('', err)
        self.assertEqual(3, len(cloud.requests))

    def _add_three(self, cloud):
        """Add servers, the newest first, and return them by their age."""
        added = [cloud.add(name, created='2026-11-22T11:%d:00Z' % minute)
                 for name, minute in (('new', 50), ('old', 10), ('mid', 30))]
        return sorted(added, key=lambda server: server['created'])

    def _names(self, *words):
        rows, err = self.read('pending', 'list', *words)
        self.assertEqual('', err)
        return [row['Name'] for row in rows]

    def test_oldest_first(self):
        cloud = self.use_cloud()
        old, _mid, _new = self._add_three(cloud)
        self.assertEqual(['old', 'mid', 'new'], self._names())
        self.assertEqual(['old', 'mid'], self._names('--limit', 2))
        self.assertEqual(['mid'], self._names(
            '--limit', 1, '--marker', old['id']))

    def test_head_of_the_queue(self):
        cloud = self.use_cloud(reaper=True)
        old, mid, new = self._add_three(cloud)
        cloud.reasons[old['id']] = _reason()
        cloud.queue = [_answer(new, position=1), _answer(mid, position=2)]
        self.assertEqual(['new', 'mid', 'old'], self._names())
        self.assertEqual(['new', 'mid'], self._names('--limit', 2))
        cloud.requests.clear()
        self.assertEqual(['mid'], self._names(
            '--limit', 1, '--marker', new['id']))
        # Nova is not asked about servers that are not shown.
        self.assertEqual(['/servers/detail'],
                         [path for _m, path, _v, _b in cloud.requests])
        _out, err = self.run_client(
            'pending', 'list', '--marker', 'gone', code=1)
        self.assertIn('Server gone is not in the list.', err)

    @staticmethod
    def _refuse(cloud, code, message):
        """Have the reaper refuse all questions about its queue."""
        cloud.queue = []
        cloud._list_queue = lambda query: (
            code, {'error': {'message': message}})

    def _add_many(self, cloud, number):
        """Add servers, the newest first in the queue; return the queue."""
        cloud.queue = [
            _answer(cloud.add('web-%d' % each, created=(
                '2026-11-22T%02d:%02d:%02dZ' % (
                    each // 3600, each // 60 % 60, each % 60))))
            for each in range(number)][::-1]
        return cloud.queue

    def test_a_few_of_many(self):
        cloud = self.use_cloud(reaper=True)
        queue = self._add_many(cloud, 10000)
        whole = len(json.dumps(queue))
        head = self._names('--all-projects', '--limit', 20)
        self.assertEqual([each['name'] for each in queue[:20]], head)
        [(query, size)] = cloud.asked
        self.assertEqual({'limit': ['20'], 'state': ['pending'],
                          'all_projects': ['true']}, query)
        self.assertLess(size, whole / 400)
        # Nova's list, and a request for each server of the part.
        self.assertEqual(21, len(cloud.requests))
        self.assertEqual(
            [each['name'] for each in queue[20:22]],
            self._names('--limit', 2, '--marker', queue[19]['server']))

    def test_a_few_of_many_of_which_some_are_gone(self):
        cloud = self.use_cloud(reaper=True)
        queue = self._add_many(cloud, 150)
        del cloud.servers[queue[1]['server']]
        cloud.servers[queue[2]['server']]['status'] = 'BUILD'
        self.assertEqual(['web-149', 'web-146'], self._names('--limit', 4))

    def test_many_of_which_the_reaper_knows_none(self):
        cloud = self.use_cloud(reaper=True)
        self._add_many(cloud, 150)
        cloud.queue = []
        self.assertEqual(['web-0', 'web-1'], self._names('--limit', 2))

    def test_more_than_an_answer_has(self):
        cloud = self.use_cloud(reaper=True)
        queue = self._add_many(cloud, 1200)
        self.assertEqual([each['name'] for each in queue[:1100]],
                         self._names('--limit', 1100))
        self.assertEqual(2, len(cloud.asked))

    def test_new_servers_after_the_end_of_a_long_queue(self):
        cloud = self.use_cloud(reaper=True)
        queue = self._add_many(cloud, 150)
        for name in ('new', 'newer'):
            cloud.add(name, created='2026-11-22T12:00:00Z')
        self.assertEqual(20, len(self._names('--limit', 20)))
        rows, err = self.read('pending', 'list', '--limit', 20, '--marker',
                              queue[139]['server'])
        self.assertEqual([each['name'] for each in queue[140:]],
                         [row['Name'] for row in rows])
        self.assertIn('has not heard of them yet: 2. Without --limit', err)
        for each in queue:
            cloud.reasons[each['server']] = _reason()
        rows, _err = self.read('pending', 'list')
        self.assertEqual({'new', 'newer'}, {row['Name'] for row in rows[-2:]})

    def test_all_of_many(self):
        cloud = self.use_cloud(reaper=True)
        queue = self._add_many(cloud, 150)
        for position, each in enumerate(queue, 1):
            each['position'] = position
        names = [each['name'] for each in queue]
        self.assertEqual(names, self._names())
        self.assertEqual(names[100:], self._names(
            '--marker', queue[99]['server']))
        self.assertEqual(['limit', 'limit'],
                         [key for query, _size in cloud.asked
                          for key in query])

    def test_by_name_of_many(self):
        cloud = self.use_cloud(reaper=True)
        queue = self._add_many(cloud, 250)
        for each in queue[:150]:
            cloud.servers[each['server']]['name'] = 'db'
        self._names('--name', 'db', '--limit', 10)
        self.assertEqual([100, 50], [len(query['server'])
                                     for query, _size in cloud.asked])

    def test_marker_that_waits_no_more(self):
        cloud = self.use_cloud(reaper=True)
        self._add_many(cloud, 150)
        _out, err = self.run_client(
            'pending', 'list', '--limit', 2, '--marker', 'gone', code=1)
        self.assertEqual('nova-reaper answers 400: no such marker\n', err)

    def test_a_reaper_that_knows_no_ids(self):
        cloud = self.use_cloud(reaper=True)
        self._refuse(cloud, 400, 'There is no query key "server" here.')
        for number, words in ((3, ()), (150, ('--limit', 2))):
            self._add_many(cloud, number)
            cloud.servers = dict(list(cloud.servers.items())[-number:])
            for server in cloud.servers:
                cloud.reasons[server] = _reason()
            rows, err = self.read('pending', 'list', *words)
            self.assertEqual(['web-0', 'web-1'],
                             [row['Name'] for row in rows[:2]])
            self.assertIn('There is no query key', err)

    def test_oldest_first_if_the_reaper_fails(self):
        cloud = self.use_cloud(reaper=True)
        self._add_three(cloud)
        self._refuse(cloud, 503, 'not yet')
        rows, _err = self.read('pending', 'list', '--limit', 2)
        self.assertEqual(['old', 'mid'], [row['Name'] for row in rows])

    def test_reaper_fails(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reasons[cloud.add('web')['id']] = _reason()
        self._refuse(cloud, 503, 'not yet')
        [row], err = self.read('pending', 'list')
        self.assertEqual('no_room', row['Reason'])
        self.assertIn('nova-reaper answers 503: not yet', err)

    def test_reaper_has_no_endpoint(self):
        cloud = self.use_cloud(disabled=True)
        cloud.reasons[cloud.add('web')['id']] = _reason()
        [row], err = self.read('pending', 'list')
        self.assertEqual(('no_room', None), (row['Reason'], row['Position']))
        self.assertEqual('', err)

    def test_all_projects(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web')
        cloud.queue = [_answer(web)]
        [row], err = self.read('pending', 'list', '--all-projects')
        self.assertEqual((fakes.PROJECT, 12),
                         (row['Project ID'], row['Position']))
        self.assertEqual(['true'], cloud.asked[0][0]['all_projects'])
        self.assertEqual('', err)

    def test_project(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web')
        cloud.queue = [_answer(web)]
        [row], err = self.read('pending', 'list', '--project', 'demo')
        self.assertEqual((fakes.PROJECT, 12),
                         (row['Project ID'], row['Position']))
        self.assertEqual([fakes.PROJECT], cloud.asked[0][0]['project_id'])
        self.assertEqual('', err)

    def test_none(self):
        self.use_cloud(reaper=True)
        rows, err = self.read('pending', 'list')
        self.assertEqual(([], ''), (rows, err))

    def test_many(self):
        cloud = self.use_cloud()
        for number in range(pending._MOST_REASONS + 1):
            cloud.add('web-%d' % number)
        rows, err = self.read('pending', 'list')
        self.assertEqual(pending._MOST_REASONS + 1, len(rows))
        self.assertIn('Only the first 50 servers have a reason', err)
        self.assertEqual(pending._MOST_REASONS + 1, len(cloud.requests))

    def test_bad_limit(self):
        self.use_cloud()
        for value in ('0', '-1', 'x'):
            _out, err = self.run_client(
                'pending', 'list', '--limit', value, code=2)
            self.assertIn(
                '--limit: "%s" is not a whole number of 1 or more.' % value,
                err)

    def test_released_cloud(self):
        self.use_cloud(offered='2.104')
        _out, err = self.run_client('pending', 'list', code=1)
        self.assertIn('pending list needs nova-pending, which this cloud '
                      'does not have', err)
        self.assertIn('has microversion 2.104 at most', err)

    def test_release_where_the_numbers_mean_something_else(self):
        cloud = self.use_cloud(offered='2.120')
        cloud.numbers, cloud.refusal = {}, 404
        _out, err = self.run_client('pending', 'list', code=1)
        self.assertIn('pending list needs nova-pending', err)
        self.assertEqual([], cloud.sent('GET', '/servers/detail'))

    def test_numbers_of_the_release(self):
        numbers = {'pending': '2.104', 'rebuild': '2.105', 'reason': '2.106'}
        for offered, highest in ('2.106', '2.106'), ('2.107', '2.106'):
            cloud = self.use_cloud(offered=offered, numbers=numbers)
            web = cloud.add('web')
            cloud.reasons[web['id']] = {
                'since': '2026-11-22T11:31:00Z', 'attempts': 2,
                'last_attempt': '2026-11-22T11:50:00Z', 'reason': 'no_room',
                'message': 'No host has room.', 'advice': 'Wait.',
                'asked_to_wait': True}
            rows, _err = self.read('pending', 'list')
            self.assertEqual('no_room', rows[0]['Reason'])
            self.assertEqual({highest}, {v for _m, _p, v, _b in
                                         cloud.requests})
            self.run_client('pending', 'rebuild', 'web')

    def test_numbers_are_refused(self):
        cloud = self.use_cloud()
        cloud.refusal = 500
        _out, err = self.run_client('pending', 'list', code=1)
        self.assertIn('500', err)

    def test_asked_for_less(self):
        self.use_cloud()
        _out, err = self.run_client(
            '--os-compute-api-version', '2.90', 'pending', 'list', code=1)
        self.assertIn('names 2.90', err)

    def test_asked_for(self):
        cloud = self.use_cloud()
        cloud.add('web')
        self.run_client('--os-compute-api-version', '2.105',
                        'pending', 'list')
        self.assertEqual({'2.105'}, {v for _m, _p, v, _b in cloud.requests})


class ShowTestCase(base.TestCase):

    def test_from_nova(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason()
        row, err = self.read('pending', 'show', 'web')
        self.assertEqual(
            ('no_room', 3, 'Wait, or take a smaller flavor.', None),
            (row['reason'], row['attempts'], row['advice'], row['position']))
        self.assertNotIn('host', row)
        self.assertEqual('', err)

    def test_from_the_reaper(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason()
        cloud.reaper['/v1/pending/' + web['id']] = (
            200, {'pending': _answer(web)})
        row, err = self.read('pending', 'show', 'web')
        self.assertEqual(
            ('no_room', 'back_off', 12, 'Its last try failed.',
             'Nothing has to be done.', 'It is tried again later.',
             'No valid host was found. ', 'waiting'),
            (row['reason'], row['hindrance'], row['position'], row['detail'],
             row['advice'], row['automatic'], row['message'], row['step']))
        # Of the attempts Nova knows more.
        self.assertEqual((3, '2026-11-22T11:50:00Z'),
                         (row['attempts'], row['last_attempt']))
        self.assertNotIn('notices', row)
        self.assertEqual('', err)

    def test_notices(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason()
        cloud.reaper['/v1/pending/' + web['id']] = (200, {
            'pending': _answer(web, host='compute1', victims=['v'])})
        cloud.reaper['/v1/notices?all_projects=true'] = (200, {'notices': [
            {'server': 'v', 'for': web['id']}, {'server': 'x', 'for': 'y'}]})
        row, _err = self.read('pending', 'show', 'web')
        self.assertEqual(('compute1', ['v']), (row['host'], row['victims']))
        self.assertEqual([{'server': 'v', 'for': web['id']}], row['notices'])

    def test_shelved_by_the_reaper(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web', 'SHELVED_OFFLOADED')
        cloud.add('db', 'SHELVED_OFFLOADED')
        cloud.reaper['/v1/pending/' + web['id']] = (
            200, {'pending': _answer(web, state='shelved')})
        row, _err = self.read('pending', 'show', 'web')
        self.assertEqual(('no_room', 12), (row['reason'], row['position']))
        _out, err = self.run_client('pending', 'show', 'db', code=1)
        self.assertIn('does not wait: it is SHELVED_OFFLOADED', err)

    def test_unknown_to_the_reaper(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reasons[cloud.add('web')['id']] = _reason()
        row, err = self.read('pending', 'show', 'web')
        self.assertEqual(('no_room', ''), (row['reason'], err))

    def test_without_2107(self):
        cloud = self.use_cloud(offered='2.106')
        cloud.add('web')
        row, err = self.read('pending', 'show', 'web')
        self.assertEqual((None, 'No valid host was found. '),
                         (row['reason'], row['message']))
        self.assertIn('a later microversion of the compute API than 2.106',
                      err)

    def test_does_not_wait(self):
        self.use_cloud().add('web', 'ACTIVE')
        for name in ('show', 'explain'):
            _out, err = self.run_client('pending', name, 'web', code=1)
            self.assertIn('does not wait: it is ACTIVE', err)

    def test_unknown(self):
        self.use_cloud()
        _out, err = self.run_client('pending', 'show', 'web', code=1)
        self.assertIn('No Server found for web', err)

    def test_no_hosts_are_asked_for(self):
        # An administrator would get all of the cloud.
        cloud = self.use_cloud()
        asked = []
        cloud.reasons[cloud.add('web')['id']] = lambda request: (
            asked.append(request.query) or {'pending': _reason()})
        self.run_client('pending', 'show', 'web')
        self.run_client('pending', 'list')
        self.assertEqual(['limit=0', 'limit=0'], asked)

    def test_being_rebuilt(self):
        cloud = self.use_cloud()
        cloud.reasons[cloud.add('web')['id']] = 409
        _out, err = self.run_client('pending', 'show', 'web', code=1)
        self.assertIn('it is being rebuilt', err)


class ExplainTestCase(base.TestCase):

    def test_hosts(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason(
            requests=['resources=VCPU%3A2'], hosts=_HOSTS)
        row, _err = self.read('pending', 'explain', 'web')
        self.assertEqual((_SHOWN, ['resources=VCPU:2']),
                         (row['hosts'], row['requests']))
        self.assertNotIn('verdict', row)
        out, _err = self.run_client('pending', 'explain', 'web')
        self.assertIn('compute1: no filter refuses it', out)
        self.assertIn('compute2: refused by ComputeFilter', out)

    def _add_host(self, uuid, **inventories):
        """Add a resource provider.

        :param inventories: of each resource class the total, the reserved
            part, the allocation ratio, the most for a server, and what is used
        """
        keys = ('total', 'reserved', 'allocation_ratio', 'max_unit')
        self.cloud.placement.update({
            '/resource_providers/%s/inventories' % uuid: (200, {
                'inventories': {name: dict(zip(keys, values))
                                for name, values in inventories.items()}}),
            '/resource_providers/%s/usages' % uuid: (200, {
                'usages': {name: values[4]
                           for name, values in inventories.items()}})})

    def test_what_hosts_lack(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason(
            requests=['resources=MEMORY_MB%3A1024%2CVCPU%3A4%2CVGPU%3A1',
                      'resources=MEMORY_MB%3A1024'],
            hosts=[{'host': name, 'uuid': uuid, 'refused_by': refused}
                   for name, uuid, refused in (
                       ('refused', 'u0', 'ComputeFilter'),
                       ('far', 'u1', None), ('near', 'u2', None),
                       ('held', 'u3', None), ('small', 'u4', None))])
        # The ratio counts, the reserved part does not, and max_unit is the
        # most that a single server may have.
        self._add_host('u1', VCPU=(4, 0, 1.0, 4, 4),
                       MEMORY_MB=(2048, 512, 1.0, 2048, 1024))
        self._add_host('u2', VCPU=(4, 0, 2.0, 4, 5),
                       MEMORY_MB=(4096, 0, 1.0, 4096, 0))
        self._add_host('u3', VCPU=(4, 0, 1.0, 4, 4))
        self._add_host('u4', VCPU=(8, 0, 1.0, 2, 0))
        cloud.placement['/allocations/' + web['id']] = (200, {
            'allocations': {'u3': {'resources': {'VCPU': 4}}}})
        row, err = self.read('pending', 'explain', 'web')
        self.assertEqual(
            [('held', {}), ('near', {'VCPU': 1}), ('small', {'VCPU': 2}),
             ('far', {'VCPU': 4, 'MEMORY_MB': 512}), ('refused', None)],
            [(host['host'], host['lacks']) for host in row['hosts']])
        self.assertEqual('', err)
        out, _err = self.run_client('pending', 'explain', 'web')
        for text in ('held: has room', 'near: lacks 1 VCPU'):
            self.assertIn(text, out)

    def test_placement_refuses(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason(
            requests=['resources=VCPU%3A2'], hosts=_HOSTS)
        cloud.placement['/allocations/' + web['id']] = (403, {})
        row, err = self.read('pending', 'explain', 'web')
        self.assertEqual(_SHOWN, row['hosts'])
        self.assertIn('Placement does not say what hosts lack', err)

    def test_many_hosts(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        hosts = [{'host': 'compute%d' % number, 'uuid': 'u%d' % number,
                  'refused_by': None} for number in range(21)]
        cloud.reasons[web['id']] = _reason(
            requests=['resources=VCPU%3A2'], hosts=hosts)
        for host in hosts:
            self._add_host(host['uuid'], VCPU=(2, 0, 1.0, 2, 2))
        cloud.placement['/allocations/' + web['id']] = (
            200, {'allocations': {}})
        row, err = self.read('pending', 'explain', 'web')
        self.assertEqual([{'VCPU': 2}] * 20 + [None],
                         [host['lacks'] for host in row['hosts']])
        self.assertIn('the first 20 hosts', err)

    def test_no_such_host(self):
        cloud = self.use_cloud()
        cloud.reasons[cloud.add('web')['id']] = _reason(
            requests=[], hosts=_HOSTS[:1])
        out, err = self.run_client('pending', 'explain', 'web', '--host',
                                   'compute1', '--host', 'nosuch', code=1)
        self.assertEqual('', out)
        self.assertIn('There is no compute host "nosuch".', err)

    def test_pages(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        asked = []

        def answer(request):
            asked.append(request.query)
            page = _reason(requests=[], hosts=[_HOSTS[len(asked) - 1]])
            if len(asked) == 1:
                page['hosts_links'] = [{
                    'rel': 'next', 'href': (
                        'http://other/v2.1/servers/%s/pending?'
                        'host=compute1&host=compute2&marker=compute1'
                        % web['id'])}]
            return {'pending': page}

        cloud.reasons[web['id']] = answer
        row, _err = self.read('pending', 'explain', 'web', '--host',
                              'compute1', '--host', 'compute2')
        self.assertEqual(_SHOWN, row['hosts'])
        self.assertEqual(['host=compute1&host=compute2',
                          'host=compute1&host=compute2&marker=compute1'],
                         asked)

    def test_no_scheduler(self):
        cloud = self.use_cloud()
        cloud.reasons[cloud.add('web')['id']] = _reason(
            requests=None, hosts=None, unavailable='No scheduler tells.')
        row, err = self.read('pending', 'explain', 'web')
        self.assertEqual(([], [], 'no_room'),
                         (row['requests'], row['hosts'], row['reason']))
        self.assertEqual('No scheduler tells.\n', err)

    def test_no_scheduler_for_a_page(self):
        cloud = self.use_cloud()
        web = cloud.add('web')

        def answer(request):
            if 'marker' in request.query:
                return {'pending': _reason(
                    requests=None, hosts=None, unavailable='No more.')}
            return {'pending': _reason(
                requests=['q'], hosts=_HOSTS[:1], hosts_links=[{
                    'rel': 'next', 'href': 'http://other/x?marker=u1'}])}

        cloud.reasons[web['id']] = answer
        row, err = self.read('pending', 'explain', 'web')
        self.assertEqual((['q'], _SHOWN[:1]), (row['requests'], row['hosts']))
        self.assertEqual('No more.\n', err)

    def test_waits_no_more(self):
        cloud = self.use_cloud()
        cloud.add('web')
        _out, err = self.run_client('pending', 'explain', 'web', code=1)
        self.assertIn('does not wait any more', err)

    def test_dry_run(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason(requests=[], hosts=_HOSTS)
        victims = [{'server': 'v', 'name': 'batch-3', 'host': 'compute1'}]
        cloud.reaper['/v1/pending/%s?dry_run=true' % web['id']] = (200, {
            'pending': _answer(web), 'dry_run': {
                'server': web['id'], 'verdict': 'preempt',
                'host': 'compute1', 'victims': ['v'], 'reason': 'no_room',
                'detail': '1 would have to go.', 'servers': victims}})
        row, _err = self.read('pending', 'explain', 'web', '--dry-run')
        self.assertEqual(
            ('preempt', 'compute1', victims, '1 would have to go.'),
            (row['verdict'], row['host'], row['would_end'], row['detail']))

    def test_advice_of_the_reaper(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason(requests=[], hosts=_HOSTS)
        path = '/v1/pending/' + web['id']
        for status, advice, automatic, said in (
                (200, 'Nothing has to be done.', 'It is tried again later.',
                 ''),
                (404, 'Wait, or take a smaller flavor.', None, ''),
                (503, 'Wait, or take a smaller flavor.', None, '503')):
            cloud.reaper[path] = (status, {
                'pending': _answer(web), 'error': {'message': 'no'}})
            row, err = self.read('pending', 'explain', 'web')
            self.assertEqual((advice, automatic),
                             (row['advice'], row['automatic']))
            self.assertIn(said, err)
            self.assertEqual(bool(said), bool(err))

    def test_dry_run_without_reaper(self):
        cloud = self.use_cloud()
        cloud.add('web')
        _out, err = self.run_client(
            'pending', 'explain', 'web', '--dry-run', code=1)
        self.assertIn('"compute-pending"', err)

    def test_dry_run_refused(self):
        cloud = self.use_cloud(reaper=True)
        web = cloud.add('web')
        cloud.reasons[web['id']] = _reason(requests=[], hosts=[])
        cloud.reaper['/v1/pending/%s?dry_run=true' % web['id']] = (503, {
            'error': {'message': 'The room is not known yet.'}})
        _out, err = self.run_client(
            'pending', 'explain', 'web', '--dry-run', code=1)
        self.assertIn('503: The room is not known yet.', err)

    def test_by_name_in_all_projects(self):
        cloud = self.use_cloud()
        db = cloud.add('db', tenant_id='another')
        web = cloud.add('web')
        cloud.add('web', tenant_id='another')
        for server in (db, web):
            cloud.reasons[server['id']] = _reason(requests=[], hosts=_HOSTS)
            for name in ('explain', 'show'):
                row, _err = self.read('pending', name, server['name'])
                self.assertEqual((server['id'], server['tenant_id']),
                                 (row['id'], row['project_id']))

    def test_not_found_by_name(self):
        for admin in (True, False):
            self.use_cloud(admin=admin).add('db', tenant_id='another')
            for name in ('explain', 'show', 'rebuild', 'wait'):
                _out, err = self.run_client('pending', name, 'web', code=1)
                self.assertIn('No Server found for web', err)

    def test_owner(self):
        cloud = self.use_cloud(admin=False)
        cloud.reasons[cloud.add('web')['id']] = _reason()
        _out, err = self.run_client('pending', 'explain', 'web', code=1)
        self.assertIn('Only administrators', err)

    def test_without_2107(self):
        cloud = self.use_cloud(offered='2.106')
        cloud.add('web')
        _out, err = self.run_client('pending', 'explain', 'web', code=1)
        self.assertIn('pending explain needs a later nova-pending', err)


class RebuildTestCase(base.TestCase):

    def _body(self, web):
        [(version, body)] = self.cloud.sent(
            'POST', '/servers/%s/action' % web['id'])
        return version, body['rebuild']

    def test_rebuild(self):
        for status in ('PENDING', 'ERROR'):
            cloud = self.use_cloud(offered='2.106')
            web = cloud.add('web', status)
            row, _err = self.read('pending', 'rebuild', 'web')
            self.assertEqual({'id': web['id'], 'name': 'web',
                              'status': 'BUILD', 'adminPass': 'pass'}, row)
            self.assertEqual(('2.106', {}), self._body(web))

    def test_corrected(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        self.run_client(
            'pending', 'rebuild', 'web', '--flavor', 'm1.large',
            '--availability-zone', 'az2', '--image', 'cirros')
        self.assertEqual(('2.107', {
            'flavorRef': '2', 'availability_zone': 'az2',
            'imageRef': fakes.IMAGE}), self._body(web))

    def test_corrected_without_2107(self):
        cloud = self.use_cloud(offered='2.106')
        web = cloud.add('web')
        _out, err = self.run_client(
            'pending', 'rebuild', 'web', '--flavor', 'm1.large', code=1)
        self.assertIn('Another flavor or availability zone needs a later '
                      'nova-pending', err)
        self.assertEqual([], cloud.sent(
            'POST', '/servers/%s/action' % web['id']))

    def test_wait(self):
        cloud = self.use_cloud()
        cloud.add('web')
        cloud.after_build = lambda server: server.update(status='ACTIVE')
        row, _err = self.read('pending', 'rebuild', 'web', '--wait')
        self.assertEqual('ACTIVE', row['status'])

    def test_wait_ends_on_pending(self):
        cloud = self.use_cloud()
        web = cloud.add('web')
        cloud.after_build = lambda server: server.update(status='PENDING')
        row, err = self.read('pending', 'rebuild', 'web', '--wait', code=3)
        self.assertEqual(('PENDING', 'pass'),
                         (row['status'], row['adminPass']))
        self.assertIn('waits in PENDING: No valid host was found.', err)
        self.assertIn(web['id'], err)

    def test_wait_ends_on_error(self):
        cloud = self.use_cloud()
        cloud.add('web')
        cloud.after_build = lambda server: server.update(
            status='ERROR', fault={'message': 'it burns'})
        _out, err = self.run_client(
            'pending', 'rebuild', 'web', '--wait', code=1)
        self.assertIn('is in ERROR: it burns', err)

    def test_built_before(self):
        for status in ('ERROR', 'ACTIVE'):
            cloud = self.use_cloud()
            web = cloud.add('web', status, **{
                'OS-SRV-USG:launched_at': '2026-11-22T11:30:00Z'})
            _out, err = self.run_client('pending', 'rebuild', 'web', code=1)
            self.assertIn('was built before, and is ' + status, err)
            self.assertEqual([], cloud.sent(
                'POST', '/servers/%s/action' % web['id']))

    def test_without_2106(self):
        self.use_cloud(offered='2.105').add('web')
        _out, err = self.run_client('pending', 'rebuild', 'web', code=1)
        self.assertIn('pending rebuild needs a later nova-pending', err)


class WaitTestCase(base.TestCase):

    def _after(self, polls, **change):
        """Let the server change after so many looks at it."""
        cloud = self.use_cloud()
        web = cloud.add('web')
        left = iter(range(polls))

        def sleep(_seconds):
            if next(left, None) is None:
                web.update(change)

        self.sleep.side_effect = sleep
        return web

    def test_runs(self):
        self._after(2, status='ACTIVE')
        out, err = self.run_client('pending', 'wait', 'web')
        self.assertIn('is ACTIVE', out)
        self.assertEqual(3, self.sleep.call_count)
        self.assertEqual('', err)

    def test_error(self):
        self._after(0, status='ERROR', fault={'message': 'given up'})
        _out, err = self.run_client('pending', 'wait', 'web', code=1)
        self.assertIn('is in ERROR: given up', err)

    def test_deleted(self):
        web = self._after(0)
        self.sleep.side_effect = lambda _: self.cloud.servers.pop(web['id'])
        _out, err = self.run_client('pending', 'wait', 'web', code=1)
        self.assertIn(web['id'], err)

    def test_kept_for_a_while_after_the_delete(self):
        for status in ('SOFT_DELETED', 'DELETED'):
            web = self._after(1, status=status)
            _out, err = self.run_client('pending', 'wait', 'web', code=1)
            self.assertIn('Server %s was deleted.' % web['id'], err)

    def test_cell_does_not_answer(self):
        web = self._after(0)
        web['status'] = 'UNKNOWN'
        status = iter(('UNKNOWN', 'ACTIVE'))
        self.sleep.side_effect = lambda _: web.update(status=next(status))
        out, _err = self.run_client('pending', 'wait', web['id'])
        self.assertIn('is ACTIVE', out)
        self.assertEqual(2, self.sleep.call_count)

    def test_time_is_over(self):
        self.use_cloud().add('web')
        _out, err = self.run_client(
            'pending', 'wait', 'web', '--timeout', '0', code=3)
        self.assertIn('waits in PENDING', err)

    def test_time_that_is_none(self):
        self.use_cloud().add('web')
        for text in '-1', 'nan', 'inf', 'soon':
            _out, err = self.run_client(
                'pending', 'wait', 'web', '--timeout=' + text, code=2)
            self.assertIn('is not a number of 0 or more', err)


class NoticeTestCase(base.TestCase):

    def test_reaper_cannot_be_reached(self):
        self.use_cloud(reaper=True).reaper = None
        _out, err = self.run_client('pending', 'notice', 'list', code=1)
        self.assertIn('nova-reaper cannot be reached at ' + fakes.REAPER, err)

    def test_own(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/notices'] = (200, {'notices': [
            {'server': 'v', 'name': 'batch-3', 'action': 'delete',
             'terminate_at': '2026-11-22T11:56:00Z',
             'message': 'Its run time ends.'}]})
        rows, _err = self.read('pending', 'notice', 'list')
        self.assertEqual([{'ID': 'v', 'Name': 'batch-3', 'Action': 'delete',
                           'Not Before': '2026-11-22T11:56:00Z',
                           'Why': 'Its run time ends.'}], rows)

    def test_all_projects(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/notices?all_projects=true'] = (200, {'notices': [
            {'server': 'v', 'name': 'batch-3', 'action': 'delete',
             'terminate_at': '2026-11-22T11:56:00Z', 'for': 'w',
             'host': 'compute1', 'project_id': 'p'}]})
        [row], _err = self.read(
            'pending', 'notice', 'list', '--all-projects')
        self.assertEqual(('w', 'compute1', 'p'),
                         (row['For'], row['Host'], row['Project ID']))

    def test_without_reaper(self):
        self.use_cloud()
        _out, err = self.run_client('pending', 'notice', 'list', code=1)
        self.assertIn('without nova-reaper no server is ended', err)


class ProbeTestCase(base.TestCase):

    answer = {'count': 4, 'verdict': 'after_ends', 'now': 3, 'after_ends': 1,
              'reason': 'no_room', 'hindrance': None,
              'detail': 'Room can be made for it.'}

    def answers(self, status, body):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['POST /v1/probe'] = (status, body)
        return cloud

    def test_all(self):
        cloud = self.answers(200, {'probe': self.answer})
        row, err = self.read(
            'pending', 'probe', '--flavor', 'm1.large', '--image', 'cirros',
            '--zone', 'az1', '--count', '4')
        self.assertEqual('', err)
        self.assertEqual(self.answer, row)
        self.assertEqual([(None, {
            'flavor': 'm1.large', 'image': fakes.IMAGE, 'zone': 'az1',
            'count': 4})], cloud.sent('POST', '/v1/probe'))

    def test_table(self):
        cloud = self.answers(200, {'probe': self.answer})
        out, _err = self.run_client('pending', 'probe', '--flavor', 'm1.large')
        self.assertRegex(out, r'\| verdict +\| after_ends ')
        self.assertEqual([(None, {'flavor': 'm1.large', 'count': 1})],
                         cloud.sent('POST', '/v1/probe'))

    def test_no_such_image(self):
        cloud = self.answers(200, {'probe': self.answer})
        _out, err = self.run_client('pending', 'probe', '--flavor', 'f',
                                    '--image', 'none', code=1)
        self.assertIn('none', err)
        self.assertEqual([], cloud.sent('POST', '/v1/probe'))

    def test_refused(self):
        self.answers(429, {'error': {'message': 'Ask again in 9 s.'}})
        _out, err = self.run_client('pending', 'probe', '--flavor', 'f',
                                    code=1)
        self.assertIn('nova-reaper answers 429: Ask again in 9 s.', err)
        for words in ((), ('--flavor', 'f', '--count', '0')):
            self.run_client('pending', 'probe', *words, code=2)

    def test_without_reaper(self):
        self.use_cloud()
        _out, err = self.run_client('pending', 'probe', '--flavor', 'f',
                                    code=1)
        self.assertIn('without nova-reaper nobody tells', err)


class EndableTestCase(base.TestCase):

    def test_own(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/servers?limit=1000'] = (200, {
            'servers': [{'server': 'v', 'name': 'gpu-1', 'preemptible': False,
                         'action': 'shelve',
                         'ends_at': '2026-11-23T11:56:00Z'}],
            'servers_links': [{'rel': 'next', 'href':
                               'http://other/v1/servers?marker=v'}]})
        cloud.reaper['/v1/servers?marker=v'] = (200, {'servers': [
            {'server': 'w', 'name': 'batch-3', 'preemptible': True,
             'action': 'delete', 'ends_at': None}]})
        rows, _err = self.read('pending', 'server', 'list')
        self.assertEqual(
            {'ID': 'v', 'Name': 'gpu-1', 'Preemptible': False,
             'Action': 'shelve', 'Ends At': '2026-11-23T11:56:00Z'}, rows[0])
        self.assertEqual([None], [row['Ends At'] for row in rows[1:]])

    def test_all_projects(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/servers?limit=1000&all_projects=true'] = (200, {
            'servers': [{'server': 'v', 'host': 'compute1',
                         'project_id': 'p'}]})
        [row], _err = self.read(
            'pending', 'server', 'list', '--all-projects')
        self.assertEqual(('compute1', 'p'), (row['Host'], row['Project ID']))

    def test_refused(self):
        self.use_cloud()
        _out, err = self.run_client('pending', 'server', 'list', code=1)
        self.assertIn('without nova-reaper no server is ended', err)


class RehearseTestCase(base.TestCase):

    def test_it_begins(self):
        cloud = self.use_cloud(reaper=True)
        server = cloud.add('batch-3', 'ACTIVE')
        path = '/v1/servers/%s/rehearsal' % server['id']
        cloud.reaper['POST ' + path] = (
            200, {'rehearsal': {'server': server['id']}})
        self.run_client('pending', 'rehearse', 'batch-3')
        self.assertIn(('POST', path, None, None), cloud.requests)

    def test_refused(self):
        cloud = self.use_cloud(reaper=True)
        server = cloud.add('batch-3', 'ACTIVE')
        cloud.reaper['POST /v1/servers/%s/rehearsal' % server['id']] = (
            409, {'error': {'message': 'The server is not preemptible.'}})
        _out, err = self.run_client(
            'pending', 'rehearse', server['id'], code=1)
        self.assertIn('409: The server is not preemptible.', err)

    def test_without_reaper(self):
        cloud = self.use_cloud()
        cloud.add('batch-3', 'ACTIVE')
        _out, err = self.run_client('pending', 'rehearse', 'batch-3', code=1)
        self.assertIn('without nova-reaper no end can be rehearsed', err)


class HelpTestCase(base.TestCase):

    def test_complete(self):
        self.use_cloud()
        out, _err = self.run_client('complete')
        self.assertIn(
            "cmds_pending='explain history list notice pause probe rebuild "
            "rehearse resume server show wait'", out)
        self.assertIn('--dry-run', out)

    def test_help(self):
        self.use_cloud()
        for words in (('list',), ('show',), ('explain',), ('rebuild',),
                      ('wait',), ('notice', 'list'), ('server', 'list'),
                      ('rehearse',), ('history',), ('pause',), ('resume',),
                      ('probe',)):
            out, err = self.run_client('help', 'pending', *words)
            self.assertIn(' pending %s [-h]' % ' '.join(words), out)
            self.assertEqual('', err)

    def test_documented(self):
        page = pathlib.Path(__file__).resolve().parents[3].joinpath(
            'doc/source/user/osc.rst')
        if not page.exists():
            self.skipTest('No documentation is beside an installed plugin.')
        text = page.read_text()
        for command in (
                pending.ListPending, pending.ShowPending,
                pending.ExplainPending, pending.ListNotice,
                pending.ListEndable, pending.RehearseServer,
                pending.ProbePending, history.ListHistory, history.PauseReaper,
                history.ResumeReaper,
                rebuild.RebuildPending, rebuild.WaitPending):
            parser = command(None, None).get_parser('')
            # Those of the formatters are in groups with a title.
            for action in parser._optionals._group_actions:
                if action.dest != 'help':
                    self.assertIn('``%s``' % action.option_strings[0], text)

    def test_json_of_one_column(self):
        cloud = self.use_cloud()
        cloud.reasons[cloud.add('web')['id']] = _reason()
        out, _err = self.run_client(
            'pending', 'show', 'web', '-f', 'json', '-c', 'reason')
        self.assertEqual({'reason': 'no_room'}, json.loads(out))
