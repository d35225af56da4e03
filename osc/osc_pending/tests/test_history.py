# SPDX-License-Identifier: Apache-2.0

"""Tests of the commands that ask the journal of nova-reaper."""

from osc_pending.tests import base


def _record(**more):
    return {'id': 'r', 'at': '2026-11-22T11:56:00Z', 'kind': 'end',
            'server': 'v', 'name': 'batch-3', 'project_id': 'p',
            'action': 'delete', 'result': 'delete', 'terminate_at': None,
            'for': None, 'for_own_project': False, 'message': None, **more}


class HistoryTestCase(base.TestCase):

    def test_own(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/history?limit=100'] = (200, {'history': [
            _record(message='Another project.'),
            _record(kind='notice', result=None),
            {**_record(message='Another server.'), 'for': 'w'},
            {**_record(kind='build', result='active'), 'for': 'v'}]})
        rows, err = self.read('pending', 'history')
        self.assertEqual('', err)
        self.assertEqual(
            {'Time': '2026-11-22T11:56:00Z', 'What': 'end', 'Server': 'v',
             'Name': 'batch-3', 'Result': 'delete',
             'For': 'Another project.'}, rows[0])
        self.assertEqual([None, 'w', None], [row['For'] for row in rows[1:]])
        self.assertEqual('delete', rows[1]['Result'])

    def test_all_projects(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/history?server=v&since=7d&kind=end%2Cnotice&'
                     'all_projects=true&limit=5'] = (200, {'history': [
                         _record(host='compute1', detail={'why': 'so'}),
                         _record(host='compute1', detail={
                             'decision': {'detail': 'it fits'}})]})
        rows, _err = self.read(
            'pending', 'history', '--all-projects', '--server', 'v', '--kind',
            'end', '--kind', 'notice', '--since', '7d', '--limit', 5)
        self.assertEqual([('compute1', 'p', 'so'), ('compute1', 'p',
                                                    'it fits')],
                         [(row['Host'], row['Project ID'], row['Why'])
                          for row in rows])

    def test_pages(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/history?limit=1000'] = (200, {
            'history': [_record()] * 1000, 'history_links': [{
                'rel': 'next', 'href':
                'http://other/v1/history?limit=1000&marker=r'}]})
        cloud.reaper['/v1/history?limit=1&marker=r'] = (
            200, {'history': [_record()]})
        rows, _err = self.read('pending', 'history', '--limit', 1001)
        self.assertEqual(1001, len(rows))

    def test_refused(self):
        cloud = self.use_cloud(reaper=True)
        cloud.reaper['/v1/history?since=x&limit=100'] = (
            400, {'error': {'message': 'since has to be a time'}})
        _out, err = self.run_client('pending', 'history', '--since', 'x',
                                    code=1)
        self.assertIn('since has to be a time', err)
        for words in (('--kind', 'x'), ('--limit', '0')):
            self.run_client('pending', 'history', *words, code=2)

    def test_without_reaper(self):
        self.use_cloud()
        for words in (('history',), ('pause',), ('resume',)):
            _out, err = self.run_client('pending', *words, code=1)
            self.assertIn('without nova-reaper', err)

    def test_pause_and_resume(self):
        cloud = self.use_cloud(reaper=True)
        for method, paused in (('PUT', True), ('DELETE', False)):
            cloud.reaper['%s /v1/pause' % method] = (200, {'pause': {
                'paused': paused, 'since': '2026-11-22T11:56:00Z',
                'by': 'u', 'reason': 'power'}})
        row, _err = self.read('pending', 'pause', '--reason', 'power')
        self.assertTrue(row['paused'])
        self.assertEqual([(None, {'reason': 'power'})],
                         cloud.sent('PUT', '/v1/pause'))
        row, _err = self.read('pending', 'resume')
        self.assertFalse(row['paused'])
