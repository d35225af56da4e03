# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from django import urls
from keystoneauth1 import exceptions
from openstack_dashboard import api as horizon_api
from openstack_dashboard.api import base
from openstack_dashboard.dashboards.project.images import (
    utils as image_utils)
from openstack_dashboard.dashboards.project.instances import (
    utils as instance_utils)
from openstack_dashboard import policy
from openstack_dashboard.test import helpers

from horizon import messages
from pending_dashboard import api

PROJECT = urls.reverse('horizon:project:waiting_servers:index')
ADMIN = urls.reverse('horizon:admin:waiting_servers:index')


def waiting(number=0, **values):
    return api.WaitingServer(**{
        'id': 'id-%d' % number, 'name': 'web-%d' % number,
        'project_id': '1', 'status': 'PENDING',
        'since': '2026-11-22T11:30:00Z', 'flavor': 'm1.large',
        'reason': 'no_room',
        'message': 'No host has <b>room</b>.', 'advice': 'Wait.',
        **values})


def record(number='r1', **values):
    return api.Record(**{
        'id': number, 'at': '2026-11-22T11:56:00Z', 'kind': 'end',
        'name': 'batch', 'project_id': '1', 'result': 'delete',
        'for_server': None, 'message': None, 'host': None, **values})


class ProjectTestCase(helpers.TestCase):

    @mock.patch.object(api, 'list_servers')
    def test_index(self, listed):
        listed.return_value = [waiting(position=2, queue_length=7)], False
        answer = self.client.get(PROJECT)
        self.assertTemplateUsed(answer, 'pending_dashboard/project.html')
        self.assertNotContains(answer, 'What nova-reaper Did Last')
        for text in ('web-0', 'Waiting for room', 'No host has room',
                     'location.reload()',
                     urls.reverse('horizon:project:waiting_servers:rebuild',
                                  args=['id-0']),
                     'No host has &lt;b&gt;room&lt;/b&gt;. Wait.', '2 of 7',
                     'm1.large',
                     urls.reverse('horizon:project:instances:detail',
                                  args=['id-0'])):
            self.assertContains(answer, text)
        self.assertNotContains(answer, '<b>room')
        listed.assert_called_once_with(
            mock.ANY, mock.ANY, None, False, False, '')

    @mock.patch.object(api, 'list_servers')
    def test_sentences_end(self, listed):
        for message in ('2 of 2 ram', '2 of 2 ram. '):
            listed.return_value = [waiting(message=message)], False
            self.assertContains(self.client.get(PROJECT), '2 of 2 ram. Wait.')

    @mock.patch.object(api, 'list_servers')
    def test_pages(self, listed):
        listed.return_value = [waiting()], True
        answer = self.client.get(PROJECT)
        table = answer.context['waiting_table']
        self.assertTrue(table.has_more_data())
        self.assertFalse(table.has_prev_data())
        answer = self.client.get(PROJECT, {'prev_marker': 'id-9'})
        listed.assert_called_with(mock.ANY, mock.ANY, 'id-9', True, False, '')

    @mock.patch.object(api, 'list_servers')
    def test_filter(self, listed):
        listed.return_value = [waiting()], False
        answer = self.client.post(PROJECT, {
            'waiting__filter__q': 'we', 'waiting__filter__q_field': 'name'})
        self.assertRedirectsNoFollow(answer, PROJECT)
        listed.assert_not_called()
        answer = self.client.get(PROJECT)
        listed.assert_called_once_with(
            mock.ANY, mock.ANY, None, False, False, 'we')
        self.assertContains(answer, 'value="we"')
        # The same text again leads to a page that can refresh itself.
        answer = self.client.post(PROJECT, {'waiting__filter__q': 'we'})
        self.assertRedirectsNoFollow(answer, PROJECT)
        self.client.post(PROJECT, {'waiting__filter__q': ''})
        self.client.get(PROJECT)
        listed.assert_called_with(
            mock.ANY, mock.ANY, None, False, False, '')

    @mock.patch.object(api, 'list_notices')
    @mock.patch.object(api, 'list_servers')
    def test_notices_of_the_project(self, listed, notices):
        listed.return_value = [], False
        notices.return_value = [api.Notice(
            'v', 'batch', '1', 'shelve', '2026-11-22T11:56:00Z', None,
            'Its run time ends.')]
        answer = self.client.get(PROJECT)
        self.assertNotContains(answer, 'Preemptible Servers Under Notice')
        for text in ('Servers Under Notice', 'batch', 'Shelved',
                     'Its run time ends.',
                     urls.reverse('horizon:project:instances:detail',
                                  args=['v'])):
            self.assertContains(answer, text)
        self.assertNotContains(answer, 'For server')
        notices.assert_called_once_with(mock.ANY, False)

    @mock.patch.object(api, 'list_notices')
    @mock.patch.object(api, 'list_servers')
    def test_notices_fail(self, listed, notices):
        listed.return_value = [waiting()], False
        notices.side_effect = ValueError('no JSON')
        answer = self.client.get(PROJECT)
        self.assertContains(answer, 'web-0')
        self.assertMessageCount(answer, error=1)
        self.assertNotContains(answer, 'Under Notice')

    @mock.patch.object(api, 'list_endable')
    @mock.patch.object(api, 'list_servers')
    def test_when_servers_end(self, listed, endable):
        listed.return_value = [], False
        endable.return_value = [
            api.Endable('e', 'gpu', False, 'shelve', '2026-11-23T11:56:00Z'),
            api.Endable('v', 'batch', True, 'delete', None)]
        answer = self.client.get(PROJECT)
        for text in ('Servers That nova-reaper May End', 'gpu', 'Nov. 23',
                     'Shelved', 'Yes', urls.reverse(
                         'horizon:project:waiting_servers:rehearse',
                         args=['v'])):
            self.assertContains(answer, text)
        # The end of a server that is not preemptible cannot be rehearsed.
        self.assertNotContains(answer, urls.reverse(
            'horizon:project:waiting_servers:rehearse', args=['e']))
        endable.assert_called_once_with(mock.ANY, False)

    @mock.patch.object(api, 'list_endable')
    @mock.patch.object(api, 'list_servers')
    def test_when_servers_end_is_not_known(self, listed, endable):
        listed.return_value = [waiting()], False
        endable.side_effect = ValueError('no JSON')
        answer = self.client.get(PROJECT)
        self.assertContains(answer, 'web-0')
        self.assertMessageCount(answer, error=1)
        self.assertNotContains(answer, 'May End')

    @mock.patch.object(api, 'list_servers')
    def test_cloud_without_waiting_servers(self, listed):
        listed.side_effect = api.NotSupported()
        answer = self.client.get(PROJECT)
        self.assertEqual([], list(answer.context['waiting_table'].data))
        self.assertMessageCount(answer, error=1)

    @mock.patch.object(api, 'rebuild')
    @mock.patch.object(api, 'list_servers')
    def test_rebuild(self, listed, rebuild):
        listed.return_value = [waiting()], False
        answer = self.client.post(
            PROJECT, {'action': 'waiting__rebuild', 'object_ids': ['id-0']})
        self.assertRedirectsNoFollow(answer, PROJECT)
        rebuild.assert_called_once_with(mock.ANY, 'id-0')
        self.assertMessageCount(success=1)

    @mock.patch.object(api, 'rebuild')
    @mock.patch.object(api, 'list_servers')
    def test_rebuild_fails(self, listed, rebuild):
        listed.return_value = [waiting()], False
        rebuild.side_effect = self.exceptions.nova
        self.client.post(
            PROJECT, {'action': 'waiting__rebuild', 'object_ids': ['id-0']})
        self.assertMessageCount(error=1)

    @mock.patch.object(horizon_api.nova, 'server_delete')
    @mock.patch.object(api, 'list_servers')
    def test_delete(self, listed, delete):
        listed.return_value = [waiting()], False
        self.client.post(PROJECT, {'action': 'waiting__delete__id-0'})
        delete.assert_called_once_with(mock.ANY, 'id-0')

    @mock.patch.object(api, 'list_servers')
    def test_no_row_is_asked_for_again(self, listed):
        # One that is being built is not in the list any more.
        listed.return_value = [waiting()], False
        self.assertNotContains(self.client.get(PROJECT), 'data-update-url')

    @mock.patch.object(api, 'list_servers')
    def test_sentences_break_between_words(self, listed):
        listed.return_value = [waiting()], False
        [row] = self.client.get(PROJECT).context[
            'waiting_table'].get_rows()
        self.assertNotIn('word-break', row.cells['why'].get_default_classes())
        self.assertIn('word-break', row.cells['name'].get_default_classes())

    @mock.patch.object(api, 'list_history')
    @mock.patch.object(api, 'list_servers')
    def test_history(self, listed, history):
        listed.return_value = [waiting()], True
        history.return_value = [
            record(message='A server of another project needs the room.'),
            record('r2', kind='build', result='active')]
        answer = self.client.get(PROJECT)
        for text in ('<title>Waiting Servers - ',
                     'What nova-reaper Did Last', 'batch', 'Ended', 'Deleted',
                     'A server of another project needs the room.', 'Built'):
            self.assertContains(answer, text)
        self.assertFalse(answer.context['history_table'].has_more_data())
        history.assert_called_once_with(mock.ANY, False)

    @mock.patch.object(api, 'list_history')
    @mock.patch.object(api, 'list_servers')
    def test_history_fails(self, listed, history):
        listed.return_value = [waiting()], False
        history.side_effect = ValueError('no JSON')
        answer = self.client.get(PROJECT)
        self.assertContains(answer, 'web-0')
        self.assertMessageCount(answer, error=1)
        self.assertNotContains(answer, 'What nova-reaper Did Last')

    @mock.patch.object(api, 'list_history')
    @mock.patch.object(api, 'list_servers')
    def test_servers_have_their_names(self, listed, history):
        listed.return_value = [waiting(position=1)], False
        history.return_value = [
            record(for_server='id-0'),
            record('r2', server='gone-id', name='gone'),
            record('r3', for_server='gone-id'),
            record('r4', for_server='other-id'),
            record('r5', for_server='unknown-id'),
            record('r6', for_server='deleted-id')]
        with mock.patch.object(api, 'list_names', return_value={
                'other-id': 'other', 'deleted-id': None}) as list_names:
            answer = self.client.get(PROJECT)
        self.assertEqual(
            ['web-0', None, 'gone', 'other', 'unknown-id',
             'deleted-id (deleted)'],
            [each.for_server for each in
             answer.context['history_table'].data])
        list_names.assert_called_once_with(
            mock.ANY, {'other-id', 'unknown-id', 'deleted-id'})

    def test_no_inline_script(self):
        with mock.patch.object(api, 'list_servers',
                               return_value=([waiting()], False)):
            answer = self.client.get(PROJECT)
        table = answer.context['waiting_table'].render()
        self.assertNotIn('<script', table)
        self.assertNotIn('onclick', table)


@mock.patch.object(instance_utils, 'sort_flavor_list', return_value=[
    ('small-id', 'm1.small')])
@mock.patch.object(instance_utils, 'flavor_list', return_value=[])
@mock.patch.object(api, 'rebuild')
class RebuildTestCase(helpers.TestCase):

    url = urls.reverse('horizon:project:waiting_servers:rebuild',
                       args=['id-0'])

    def test_form(self, rebuild, *args):
        answer = self.client.get(self.url)
        for text in ('<title>Rebuild a Waiting Server - ',
                     'The flavor that it has', 'm1.small', self.url,
                     'counts against the quota'):
            self.assertContains(answer, text)
        rebuild.assert_not_called()

    def test_rebuild(self, rebuild, *args):
        for flavor in ('', 'small-id'):
            answer = self.client.post(self.url, {'flavor': flavor})
            self.assertRedirectsNoFollow(answer, PROJECT)
            rebuild.assert_called_with(mock.ANY, 'id-0', flavor)

    def test_from_the_page_of_a_server(self, rebuild, *args):
        url = self.url + '?from=server'
        self.assertContains(self.client.get(url), 'action="%s"' % url)
        self.assertRedirectsNoFollow(
            self.client.post(url, {'flavor': ''}),
            urls.reverse('horizon:project:instances:detail', args=['id-0']))

    def test_own_flavor_only_by_policy(self, rebuild, *args):
        with mock.patch.object(policy, 'check', lambda rules, request: (
                'compute', 'os_compute_api:servers:resize') not in rules):
            self.assertNotContains(self.client.get(self.url), 'm1.small')

    def test_no_such_flavor(self, rebuild, *args):
        answer = self.client.post(self.url, {'flavor': 'large-id'})
        self.assertContains(answer, 'm1.small')
        rebuild.assert_not_called()

    def test_what_nova_says_of_a_refusal(self, rebuild, *args):
        class Refusal(exceptions.BadRequest):
            """One whose text Horizon's test data do not replace."""

            def __str__(self):
                return 'The disk of the flavor is too small.'

        rebuild.side_effect = Refusal()
        answer = self.client.post(self.url, {'flavor': 'small-id'})
        self.assertContains(answer, 'The disk of the flavor is too small.')

    def test_cloud_that_takes_no_flavor(self, rebuild, *args):
        rebuild.side_effect = api.NotSupported()
        answer = self.client.post(self.url, {'flavor': 'small-id'})
        self.assertContains(answer, 'with its own flavor only')


@mock.patch.object(api, 'rehearse')
class RehearseTestCase(helpers.TestCase):

    url = urls.reverse('horizon:project:waiting_servers:rehearse',
                       args=['id-0'])

    def test_it_is_confirmed(self, rehearse):
        self.assertContains(self.client.get(self.url), 'has not saved')
        rehearse.assert_not_called()
        self.assertRedirectsNoFollow(self.client.post(self.url), PROJECT)
        rehearse.assert_called_once_with(mock.ANY, 'id-0')
        self.assertMessageCount(success=1)

    def test_from_the_page_of_a_server(self, rehearse):
        url = self.url + '?from=server'
        self.assertContains(self.client.get(url), 'action="%s"' % url)
        self.assertRedirectsNoFollow(
            self.client.post(url),
            urls.reverse('horizon:project:instances:detail', args=['id-0']))

    def test_refused(self, rehearse):
        class Refusal(exceptions.Conflict):
            """One whose text Horizon's test data do not replace."""

            def __str__(self):
                return 'The reaper ends no servers at the moment.'

        rehearse.side_effect = Refusal()
        self.assertContains(self.client.post(self.url), 'ends no servers')

    def test_it_fails(self, rehearse):
        rehearse.side_effect = ValueError
        self.assertMessageCount(self.client.post(self.url), error=1)


@mock.patch.object(image_utils, 'get_available_images', return_value=[
    mock.Mock(id='image-id')])
@mock.patch.object(instance_utils, 'sort_flavor_list', return_value=[
    ('small-id', 'm1.small')])
@mock.patch.object(instance_utils, 'flavor_list', return_value=[])
@mock.patch.object(api, 'list_zones', return_value=['az1'])
@mock.patch.object(api, 'probe')
class ProbeTestCase(helpers.TestCase):

    url = urls.reverse('horizon:project:waiting_servers:probe')
    said = {'count': 1, 'verdict': 'now', 'now': 1, 'after_ends': 0,
            'room_by': None, 'reason': None, 'hindrance': None,
            'detail': 'A host has room.'}

    def test_form(self, probe, *args):
        answer = self.client.get(self.url)
        for text in ('<title>Is There Room? - ', 'm1.small', 'image-id', 'az1',
                     'A volume', 'are not looked at'):
            self.assertContains(answer, text)
        probe.assert_not_called()

    def test_what_is_asked(self, probe, *args):
        probe.return_value = self.said
        for given, asked in (
                ({'count': 1}, {'count': 1}),
                ({'count': 3, 'image': 'image-id', 'zone': 'az1'},) * 2):
            answer = self.client.post(
                self.url, {'flavor': 'small-id', **given})
            self.assertRedirectsNoFollow(answer, PROJECT)
            probe.assert_called_with(mock.ANY, flavor='small-id', **asked)

    def test_verdicts(self, probe, *args):
        self.assert_messages(probe, 'success', 'There is room now.')
        self.assert_messages(
            probe, 'info', 'would wait. There is room for 2 of 4 servers now, '
            'and for 1 after ends. Nobody knows for how long. No host that '
            'could take it has room.', verdict='later', count=4, now=2,
            after_ends=1, detail='No host that could take it has room.')
        self.assert_messages(
            probe, 'info', 'would wait. There will be room by Nov',
            verdict='later', room_by='2026-11-22T12:00:00Z')
        self.assert_messages(
            probe, 'info', 'There will be no room. No host could take it',
            verdict='never', now=0,
            detail='No host could take it, even if the host were empty.')
        self.assert_messages(probe, 'info', 'would end preemptible servers',
                             verdict='after_ends', now=0, after_ends=1)
        self.assert_messages(probe, 'info', 'tomorrow', verdict='tomorrow')

    def assert_messages(self, probe, kind, text, **said):
        probe.return_value = self.said | said
        with mock.patch.object(messages, kind) as show:
            self.client.post(self.url, {'flavor': 'small-id', 'count': 1})
        self.assertIn(text, show.call_args.args[1])

    def test_bad_values(self, probe, *args):
        for values in ({'count': 0}, {'count': 21}, {'flavor': 'large-id'},
                       {'zone': 'az2'}):
            answer = self.client.post(
                self.url, {'flavor': 'small-id', 'count': 1} | values)
            self.assertEqual(200, answer.status_code)
        probe.assert_not_called()

    def test_refused(self, probe, *args):
        class Refusal(exceptions.HttpError):
            """One whose text Horizon's test data do not replace."""

            def __str__(self):
                return 'A project may ask 10 times a minute.'

        probe.side_effect = Refusal()
        answer = self.client.post(self.url, {'flavor': 'small-id', 'count': 1})
        self.assertContains(answer, '10 times a minute')

    def test_no_zones(self, probe, zones, *args):
        zones.side_effect = self.exceptions.nova
        self.assertContains(self.client.get(self.url), 'm1.small')

    @mock.patch.object(api, 'list_servers', return_value=([], False))
    def test_button(self, *args):
        for there in (True, False):
            with mock.patch.object(base, 'is_service_enabled', lambda request,
                                   kind: kind == api.REAPER and there):
                table = self.client.get(PROJECT).context['waiting_table']
                self.assertEqual(there, self.url in table.render())


class AdminTestCase(helpers.BaseAdminViewTests):

    def setUp(self):
        super().setUp()
        for module, name, value in (
                (api, 'list_servers', ([waiting(0), waiting(
                    1, reason='quota')], False)),
                (api, 'list_notices', None), (api, 'list_history', None),
                (api, 'overview', None), (api, 'list_names', {}),
                (horizon_api.keystone, 'tenant_list',
                 ([mock.Mock(id='1')], False))):
            patch = mock.patch.object(module, name, return_value=value)
            setattr(self, name, patch.start())
            self.addCleanup(patch.stop)
        self.tenant_list.return_value[0][0].name = 'project-one'

    def test_without_a_reaper(self):
        answer = self.client.get(ADMIN)
        for text in ('project-one', 'web-0', 'web-1', 'Over the quota',
                     'nobody rebuilds servers by itself', 'Of this page'):
            self.assertContains(answer, text)
        self.assertNotContains(answer, 'Under Notice')
        # Directly below the title of the page.
        self.assertContains(answer, '<h2 class="h4">', 2)
        self.list_servers.assert_called_once_with(
            mock.ANY, mock.ANY, None, False, True, '')

    def test_with_a_reaper(self):
        self.overview.return_value = api.Overview(
            'degraded', 'observe', 'preempt', 'The list shrank.',
            [('notifications', 'none for 9 s: the reaper polls')],
            {'no_room': 40}, 3, 12)
        self.list_notices.return_value = [api.Notice(
            'v', 'batch', '1', 'shelve', '2026-11-22T11:56:00Z', 'w',
            'Another server needs the room.')]
        self.list_history.return_value = [record(host='compute-9')]
        answer = self.client.get(ADMIN)
        for text in ('degraded', 'observe', '(configured: preempt)', '40',
                     'The list shrank.', 'Notifications: none for 9 s',
                     'batch', 'Another server needs the room.',
                     'Shelved', '(the oldest for 12 s)', 'compute-9', 'Ended'):
            self.assertContains(answer, text)
        self.assertNotContains(answer, 'Of this page')

    pause = urls.reverse('horizon:admin:waiting_servers:pause')
    resume = urls.reverse('horizon:admin:waiting_servers:resume')

    def test_what_may_be_done(self):
        for paused, link, other in ((False, self.pause, self.resume),
                                    (True, self.resume, self.pause)):
            self.overview.return_value = api.Overview(paused=paused)
            answer = self.client.get(ADMIN)
            self.assertContains(answer, link)
            self.assertNotContains(answer, other)

    @mock.patch.object(api, 'pause')
    def test_pause_is_confirmed(self, pause):
        answer = self.client.get(self.pause)
        for text in ('<title>Pause nova-reaper - ', 'Notices are withdrawn',
                     'action="%s"' % self.pause):
            self.assertContains(answer, text)
        pause.assert_not_called()
        for reason in ('', 'power'):
            answer = self.client.post(self.pause, {'reason': reason})
            self.assertRedirectsNoFollow(answer, ADMIN)
            pause.assert_called_with(mock.ANY, reason)

    @mock.patch.object(api, 'pause')
    def test_reason_of_a_pause_is_too_long(self, pause):
        self.client.post(self.pause, {'reason': 'x' * 256})
        pause.assert_not_called()

    @mock.patch.object(api, 'pause', side_effect=ValueError)
    def test_pause_is_refused(self, pause):
        self.assertMessageCount(
            self.client.post(self.pause, {'reason': ''}), error=1)

    @mock.patch.object(api, 'resume')
    def test_resume(self, resume):
        # A link does not ask for it.
        self.assertEqual(405, self.client.get(self.resume).status_code)
        resume.assert_not_called()
        self.assertRedirectsNoFollow(self.client.post(self.resume), ADMIN)
        resume.assert_called_once_with(mock.ANY)

    @mock.patch.object(api, 'resume', side_effect=ValueError)
    def test_resume_is_refused(self, resume):
        self.client.post(self.resume)
        self.assertMessageCount(error=1)

    def test_filter_of_its_own(self):
        self.client.post(ADMIN, {'waiting__filter__admin_q': 'we'})
        self.client.get(ADMIN)
        self.list_servers.assert_called_once_with(
            mock.ANY, mock.ANY, None, False, True, 'we')
        self.client.get(PROJECT)
        self.list_servers.assert_called_with(
            mock.ANY, mock.ANY, None, False, False, '')

    def test_rebuild_leads_back(self):
        url = urls.reverse('horizon:admin:waiting_servers:rebuild',
                           args=['id-0'])
        self.assertContains(self.client.get(ADMIN), url)
        with mock.patch.object(api, 'rebuild'), mock.patch.object(
                instance_utils, 'flavor_list', return_value=[]):
            answer = self.client.post(url, {'flavor': ''})
        self.assertRedirectsNoFollow(answer, ADMIN)

    def test_reaper_has_not_looked_yet(self):
        self.overview.return_value = api.Overview(by_reason={'none': 2})
        self.assertContains(self.client.get(ADMIN), 'Not looked at yet')

    def test_reaper_stands_by(self):
        self.overview.return_value = api.Overview(by_reason={})
        answer = self.client.get(ADMIN)
        for text in ('Over the quota', 'Of this page'):
            self.assertContains(answer, text)
        for text in ('No server waits', 'Under Notice'):
            self.assertNotContains(answer, text)

    def test_reaper_fails(self):
        self.overview.side_effect = ValueError('no JSON')
        self.list_notices.side_effect = ValueError('no JSON')
        self.list_history.side_effect = ValueError('no JSON')
        answer = self.client.get(ADMIN)
        self.assertContains(answer, 'web-0')
        self.assertMessageCount(answer, error=3)


class ForbiddenTestCase(helpers.TestCase):

    def test_admin_panel_is_not_for_tenants(self):
        self.assertEqual(403, self.client.get(ADMIN).status_code)

    def test_pause_is_not_for_tenants(self):
        for name in ('pause', 'resume'):
            with mock.patch.object(api, name) as change:
                answer = self.client.post(
                    urls.reverse('horizon:admin:waiting_servers:' + name))
            self.assertEqual(403, answer.status_code)
            change.assert_not_called()
