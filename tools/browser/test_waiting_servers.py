# SPDX-License-Identifier: Apache-2.0

import signal

from selenium.webdriver.common.by import By

from tools.browser import base
from tools.cloud import configuration

PANEL = '/project/waiting_servers/'
ADMIN_PANEL = '/admin/waiting_servers/'


class WaitingServersTestCase(base.BrowserTestCase):
    """What Nova alone knows: the catalog has no reaper."""

    listed = False

    def setUp(self):
        super().setUp()
        self.fillers = [self.create('filler-%d' % number, 'ACTIVE')
                        for number in range(2)]
        self.web = self.create('web', 'PENDING')

    def create(self, name, status):
        server = self.cloud.create(name, status)
        self.addCleanup(self.cloud.delete, server)
        return server

    def test_owner_sees_why_and_rebuilds(self):
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        row = self.row_of(self.web).text
        for text in ('web', 'Waiting for room', 'No valid host was found'):
            self.assertIn(text, row)
        self.assertIsNone(self.row_of(self.fillers[0]))

        self.open('/project/instances/')
        self.assertIn('Waiting for room', self.row_of(self.web).text)
        self.assertIn('Active', self.row_of(self.fillers[0]).text)
        self.take_picture('instances')

        self.cloud.delete(self.fillers[0])
        self.open(PANEL)
        self.press(self.web, 'Rebuild Server')
        self.cloud.owner.compute.wait_for_server(self.web, wait=120)
        self.open('/project/instances/')
        self.assertIn('Active', self.row_of(self.web).text)
        self.open(PANEL)
        self.assertIsNone(self.row_of(self.web))

    def test_owner_deletes(self):
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        self.press(self.web, 'Delete Server')
        self.cloud.owner.compute.wait_for_delete(self.web, wait=120)

    def test_rebuild_without_room_waits_again(self):
        self.log_in(configuration.OWNER)
        self.open(PANEL)
        self.press(self.web, 'Rebuild Server')
        self.cloud.owner.compute.wait_for_server(
            self.web, 'PENDING', ['ERROR'], wait=120)
        self.open(PANEL)
        self.assertIn('Waiting for room', self.row_of(self.web).text)

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
    """A preemptible server, and one that waits for its room."""

    def setUp(self):
        super().setUp()
        self.filler = self.create('filler', 'ACTIVE')
        self.spot = self.create('spot', 'ACTIVE', self.cloud.spot)
        self.web = self.create('web', 'PENDING')

    def create(self, *args):
        server = self.cloud.create(*args)
        self.addCleanup(self.cloud.delete, server)
        return server

    def _text(self, element):
        return self.browser.find_element(By.ID, element).text

    def test_owner_sees_the_position(self):
        self.log_in(configuration.OWNER)
        self.open_until(PANEL, lambda: '1 of 1' in self.row_of(self.web).text)
        self.assertIn('No host has room', self.row_of(self.web).text)
        self.take_picture('waiting-servers')

    def test_administrator_sees_reaper_and_notices(self):
        self.log_in(configuration.ADMIN)
        self.open_until(ADMIN_PANEL,
                        lambda: '1 of 1' in self.row_of(self.web).text)
        self.assertIn('observe', self._text('pending-reaper'))
        self.assertIsNone(self.row_of(self.spot))
        self.cloud.let_reaper('preempt', grace_period=600)
        # The end that is waited for is that of the test.
        self.addCleanup(self.cloud.let_reaper, 'observe')
        self.open_until(ADMIN_PANEL, lambda: self.row_of(self.spot))
        shown = self._text('pending-reaper')
        for text in ('Health', 'preempt', 'Holds'):
            self.assertIn(text, shown)
        self.assertNotIn('configured', shown)
        notice = self.row_of(self.spot).text
        for text in (configuration.OWNER, 'spot', 'Shelved', 'web'):
            self.assertIn(text, notice)
        self.assertRegex(self._text('pending-by-reason'),
                         r'No host has room\s+1')
        self.take_picture('waiting-servers-admin')

    def test_reaper_does_not_answer(self):
        self.log_in(configuration.ADMIN)
        self.cloud.signal_reaper(signal.SIGSTOP)
        self.addCleanup(self.cloud.signal_reaper, signal.SIGCONT)
        self.open(ADMIN_PANEL)
        self.assertIn('No host has room', self.row_of(self.web).text)
        self.assertIn('it does not answer', self.browser.page_source)
