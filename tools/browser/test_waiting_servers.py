# SPDX-License-Identifier: Apache-2.0

import re
import signal
import time

from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions

from tools.browser import base
from tools.cloud import configuration

PANEL = '/project/waiting_servers/'
ADMIN_PANEL = '/admin/waiting_servers/'
DETAIL = '/project/instances/%s/?tab=instance_details__why_it_waits'
END_TAB = '/project/instances/%s/?tab=instance_details__when_it_ends'
ADMIN_DETAIL = '/admin/instances/%s/detail?tab=instance_details__why_it_waits'

_UUID = '[0-9a-f]{8}-[0-9a-f]{4}-'


class WaitingServersTestCase(base.BrowserTestCase):
    """What Nova alone knows: the catalog has no reaper."""

    listed = False

    def setUp(self):
        super().setUp()
        self.fillers = [self.create('filler-%d' % number, 'ACTIVE')
                        for number in range(2)]
        self.web = self.create('web', 'PENDING')

    def test_owner_sees_why_and_rebuilds(self):
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        self.assertIn('Waiting Servers', self.browser.title)
        row = self.row_of(self.web).text
        for text in ('web', 'Waiting for room', 'No valid host was found',
                     'whole-host'):
            self.assertIn(text, row)
        self.assertIsNone(self.row_of(self.fillers[0]))

        self.open('/project/instances/')
        self.assertIn('Waiting for room', self.row_of(self.web).text)
        self.assertIn('Active', self.row_of(self.fillers[0]).text)

        self.cloud.delete(self.fillers[0])
        self.open(PANEL)
        self.rebuild_with()
        self.cloud.owner.compute.wait_for_server(self.web, wait=120)
        self.open('/project/instances/')
        self.assertIn('Active', self.row_of(self.web).text)
        self.open(PANEL)
        self.assertIsNone(self.row_of(self.web))

    def test_rebuild_on_its_own_page(self):
        self.log_in(configuration.OWNER)
        self.open(DETAIL % self.web.id)
        page = self.text_of('content_body')
        for text in ('No host has room', 'Attempts', 'Wait until there is'):
            self.assertIn(text, page)
        self.cloud.delete(self.fillers[0])
        self.rebuild_with('half-host')
        self.assertIn(self.web.id, self.browser.current_url)
        built = self.cloud.owner.compute.wait_for_server(self.web, wait=120)
        self.assertEqual('half-host', built.flavor.name)
        self.open(DETAIL % self.web.id)
        self.assertNotIn('Why it waits', self.text_of('content_body'))

    def test_rebuild_of_the_administrator_leads_back(self):
        self.log_in(configuration.ADMIN)
        self.open(ADMIN_DETAIL % self.web.id)
        self.assertIn('No host has room', self.text_of('content_body'))
        self.rebuild_with()
        self.assertIn('/admin/', self.browser.current_url)

    def test_owner_deletes(self):
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        self.press(self.web, 'Delete Server')
        self.cloud.owner.compute.wait_for_delete(self.web, wait=120)

    def test_rebuild_without_room_waits_again(self):
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        self.tick(self.web)
        self.click('Rebuild Servers')
        self.cloud.owner.compute.wait_for_server(
            self.web, 'PENDING', ['ERROR'], wait=120)
        self.open(PANEL)
        self.assertIn('Waiting for room', self.row_of(self.web).text)

    def test_page_refreshes_itself(self):
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        # It leaves alone what a user chooses.
        self.tick(self.web)
        self.cloud.delete(self.web)
        time.sleep(35)
        self.assertIsNotNone(self.row_of(self.web))
        self.tick(self.web)
        self.wait_for(lambda browser: not self.row_of(self.web))

    def test_filter(self):
        other = self.create('db', 'PENDING')
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        self.browser.find_element(
            By.CSS_SELECTOR, '.table_search input[type=text]').send_keys(
                'db\n')
        self.wait_for(lambda browser: not self.row_of(self.web))
        self.assertIsNotNone(self.row_of(other))

    def test_stranger_sees_nothing(self):
        self.log_in('stranger')
        self.open(PANEL)
        self.assertIn('No items to display', self.browser.page_source)
        self.assertIsNone(self.row_of(self.web))
        self.open(ADMIN_PANEL)
        self.assertNotIn('web', self.browser.title)
        self.assertIsNone(self.row_of(self.web))

    def test_administrator_sees_all_projects(self):
        self.log_in(configuration.ADMIN)
        self.open(ADMIN_PANEL)
        row = self.row_of(self.web).text
        self.assertIn(configuration.OWNER, row)
        self.assertIn('Waiting for room', row)
        self.assertIn('nobody rebuilds servers by itself',
                      self.browser.page_source)


class ReaperTestCase(base.BrowserTestCase):
    """A preemptible server, and a server that waits for its room."""

    def setUp(self):
        super().setUp()
        self.filler = self.create('filler', 'ACTIVE')
        self.spot = self.create('spot', 'ACTIVE', self.cloud.spot)
        self.web = self.create('web', 'PENDING')

    def give_notice(self):
        """Have each notice that the reaper gives be a long notice."""
        self.cloud.let_reaper('preempt', grace_period=600)
        # The end that is waited for is that of the test.
        self.addCleanup(self.cloud.let_reaper, 'observe')

    def test_owner_sees_the_position(self):
        self.log_in(configuration.OWNER)
        # Only administrators read how many servers wait.
        self.open_until(PANEL, lambda: '1' == self.cell_of(
            self.web, 'Position'))
        for text in ('No host has room', 'the reaper only observes'):
            self.assertIn(text, self.row_of(self.web).text)

    def test_queue(self):
        urgent = self.create('urgent', 'PENDING', self.cloud.urgent)
        self.log_in(configuration.OWNER)
        self.cloud.let_reaper('fill')
        self.addCleanup(self.cloud.let_reaper, 'observe')
        self.open_until(PANEL, lambda: all(
            'It is built as soon as there is room.' in self.row_of(each).text
            for each in (urgent, self.web)))
        # Priority comes before age.
        self.assertEqual([urgent.id, self.web.id], [
            row.get_attribute('data-object-id') for row in
            self.browser.find_elements(
                By.CSS_SELECTOR, '#waiting tr[data-object-id]')])
        for server, position in ((urgent, '1'), (self.web, '2')):
            self.assertEqual(position, self.cell_of(server, 'Position'))

    def test_next_attempt(self):
        self.log_in(configuration.OWNER)
        with self.cloud.quota_of_owner(cores=1):
            self.cloud.let_reaper('fill')
            self.addCleanup(self.cloud.let_reaper, 'observe')
            self.cloud.delete(self.filler)
            self.open_until(PANEL, lambda: 'Over the quota' in self.row_of(
                self.web).text)
            # In the same words as in the column.
            self.assertIn('It is tried again at %s' % self.cell_of(
                self.web, 'Next attempt not before').rstrip('.'),
                self.row_of(self.web).text)

    def test_owner_sees_notices_and_history(self):
        self.log_in(configuration.OWNER)
        self.give_notice()
        self.open_until(PANEL, self.find_notice)
        notice = self.find_notice().text
        for text in ('spot', 'Shelved'):
            self.assertIn(text, notice)
        for text in ('Under notice', 'web'):
            self.assertIn(text, self.text_of('history'))
        self.assert_names()

    def test_owner_asks_for_room(self):
        self.log_in(configuration.OWNER)
        self.assertIn('The servers would wait.', self.ask_for_room())
        self.cloud.delete(self.web)
        self.cloud.delete(self.filler)
        self.wait_for(
            lambda browser: 'There is room now.' in self.ask_for_room())

    def ask_for_room(self):
        self.open(PANEL)
        self.click('Is There Room?')
        self.answer(flavor='half-host', image='cirros')
        return self.told()

    def test_owner_rehearses(self):
        # A waiting server would have the room of the preemptible server.
        self.cloud.delete(self.web)
        self.give_notice()
        self.log_in(configuration.OWNER)
        self.open_until(PANEL, lambda: self.row_of(self.spot, '#endable'))
        self.assertIsNone(self.row_of(self.filler, '#endable'))
        self.assertIn('Shelved', self.row_of(self.spot, '#endable').text)
        self.open(END_TAB % self.spot.id)
        page = self.wait_for(expected_conditions.element_to_be_clickable(
            (By.LINK_TEXT, 'Rehearse')))
        page.click()
        self.answer()
        self.assertIn('The rehearsal has begun.', self.told())
        self.open_until(PANEL, self.find_notice)
        self.open(END_TAB % self.spot.id)
        self.wait_for(lambda browser: 'Under notice' in self.text_of(
            'instance_details__when_it_ends'))

    def find_notice(self):
        """Return the row of the preemptible server that is under notice."""
        return self.row_of(self.spot, '#notices')

    def assert_names(self):
        """Check that nobody who is there is shown as an ID."""
        self.assertEqual([], [
            text for text in self.sentences_of('content_body')
            if re.search(_UUID, text) and '(deleted)' not in text])

    def test_administrator_sees_reaper_and_notices(self):
        self.log_in(configuration.ADMIN)
        self.open_until(ADMIN_PANEL,
                        lambda: '1 of 1' in self.row_of(self.web).text)
        self.assertIn('Waiting Servers', self.browser.title)
        self.assertIn('observe', self.text_of('pending-reaper'))
        self.assertIsNone(self.find_notice())
        self.give_notice()
        self.open_until(ADMIN_PANEL, self.find_notice)
        shown = self.text_of('pending-reaper')
        for text in ('Health', 'preempt', 'Holds'):
            self.assertIn(text, shown)
        self.assertNotIn('configured', shown)
        notice = self.find_notice().text
        for text in (configuration.OWNER, 'spot', 'Shelved', 'web'):
            self.assertIn(text, notice)
        self.assertRegex(self.text_of('pending-by-reason'),
                         r'No host has room\s+1')
        for text in (configuration.OWNER, 'Under notice', 'web', 'compute'):
            self.assertIn(text, self.text_of('history'))
        self.assert_names()
        self.assertEqual(
            ['Servers by reason', 'nova-reaper',
             'Servers Under Notice', 'What nova-reaper Did Last'],
            [each.text for each in self.browser.find_elements(
                By.CSS_SELECTOR, '#content_body h2')])

    def test_administrator_pauses(self):
        self.log_in(configuration.ADMIN)
        self.open(ADMIN_PANEL)
        self.click('Pause nova-reaper')
        self.answer()
        self.addCleanup(self.resume)
        self.assertIn('nova-reaper is paused', self.told())
        self.open_until(ADMIN_PANEL, lambda: 'Let nova-reaper Go On' in (
            self.text_of('content_body')))
        self.assertIn('an administrator has paused',
                      self.text_of('content_body'))
        self.assertIn('nova-reaper paused', self.text_of('history'))

    def resume(self):
        self.click('Let nova-reaper Go On')
        self.open_until(ADMIN_PANEL, lambda: 'Pause nova-reaper' in (
            self.text_of('content_body')))

    def test_reaper_does_not_answer(self):
        self.log_in(configuration.ADMIN)
        self.cloud.signal_reaper(signal.SIGSTOP)
        self.addCleanup(self.cloud.signal_reaper, signal.SIGCONT)
        self.open(ADMIN_PANEL)
        self.assertIn('No host has room', self.row_of(self.web).text)
        self.assertIn('it does not answer', self.browser.page_source)

    def test_narrow_window(self):
        self.give_notice()
        for user, pages in (
                (configuration.OWNER, (PANEL, DETAIL % self.web.id)),
                (configuration.ADMIN, (ADMIN_PANEL,
                                       ADMIN_DETAIL % self.web.id))):
            self.log_in(user)
            self.open_until(pages[0], self.find_notice)
            for page in pages:
                self.open(page)
                self.check_narrow()

    def test_german(self):
        self.give_notice()
        names = {*self.cloud.names, 'whole-host', 'nova-reaper',
                 configuration.OWNER, 'preempt', 'compute1', 'compute2'}
        # The same word in both languages.
        same = {'Name', 'Status', 'Host', 'Position'}
        for user, panel, detail in (
                (configuration.OWNER, PANEL, DETAIL),
                (configuration.ADMIN, ADMIN_PANEL, ADMIN_DETAIL)):
            self.log_in(user)
            self.open_until(panel, self.find_notice)
            for page, part in ((panel, 'content_body'),
                               (detail % self.web.id,
                                'instance_details__why_it_waits')):
                self.open(page)
                english = self.sentences_of(part)
                self.speak('de')
                german = self.sentences_of(part)
                self.assertNotEqual(set(), german)
                self.assertEqual(set(), {
                    text for text in english & german - names - same
                    if re.search('[A-Za-z]{2}', text)}, page)
                self.speak('en')
