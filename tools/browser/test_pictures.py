# SPDX-License-Identifier: Apache-2.0

"""Pictures of the panels, as the documentation shows them."""

import os

from tools.browser import base
from tools.browser import test_waiting_servers as pages
from tools.cloud import configuration


class PicturesTestCase(base.BrowserTestCase):
    """A cloud that is full and well, and whose reaper has done something."""

    def setUp(self):
        if not os.environ.get(base.PICTURES):
            self.skipTest('No picture is asked for: %s names no directory.'
                          % base.PICTURES)
        super().setUp()

    def wait_until_active(self, server):
        # A status that the object has already is not looked for in Nova.
        compute = self.cloud.owner.compute
        compute.wait_for_server(compute.get_server(server), wait=600)

    def test_pictures(self):
        api = self.create('api', 'ACTIVE')
        batch = self.create('batch', 'ACTIVE', self.cloud.spot)
        web = self.create('web-1', 'PENDING')
        self.cloud.let_reaper('preempt', grace_period=5)
        self.addCleanup(self.cloud.let_reaper, 'observe')
        self.wait_until_active(web)
        self.cloud.delete(web)
        self.wait_until_active(batch)

        # The next attempt is to be far away in each picture.
        self.cloud.let_reaper('fill', retry_interval=1200)
        cache = self.create('cache', 'PENDING', self.cloud.memory)
        self.log_in(configuration.OWNER)
        with self.cloud.quota_of_owner(ram=1024):
            self.cloud.delete(api)
            self.open_until(pages.PANEL, lambda: 'Over the quota' in (
                self.row_of(cache).text))
        self.create('api-2', 'ACTIVE')
        for number in range(2, 4):
            self.create('web-%d' % number, 'PENDING')
        self.cloud.let_reaper('preempt', grace_period=900)

        self.open_until(pages.PANEL, lambda: self.row_of(
            batch, '#notices'))
        self.take_picture('waiting-servers')
        self.take_picture('waiting-servers-narrow', base.NARROW, 1000)
        self.speak('de')
        self.take_picture('waiting-servers-german')
        self.speak('en')
        self.open(pages.DETAIL % cache.id)
        self.take_picture('waiting-server')
        self.log_in(configuration.ADMIN)
        self.open(pages.ADMIN_PANEL)
        self.take_picture('waiting-servers-admin')
