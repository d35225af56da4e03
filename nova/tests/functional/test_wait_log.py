#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

import logging

import fixtures

from nova.conductor import wait_log
from nova import exception
from nova.scheduler import utils as scheduler_utils
from nova.tests.functional import full_cloud


class WaitLogTestCase(full_cloud.FullCloudTestCase):
    """What a nova-conductor logs of a server that no host has room for."""

    def setUp(self):
        super().setUp()
        self.records = []
        handler = logging.Handler()
        handler.emit = self.records.append
        for name in ('nova.conductor.manager', 'nova.scheduler.utils'):
            logger = logging.getLogger(name)
            logger.addHandler(handler)
            self.addCleanup(logger.removeHandler, handler)

    def told(self, least=logging.INFO):
        return [(record.levelname, record.getMessage())
                for record in self.records if record.levelno >= least]

    def test_a_server_that_waits(self):
        self.create_waiting()
        (level, line), = self.told()
        self.assertEqual('INFO', level)
        self.assertIn('No valid host was found', line)

    def test_the_traceback_is_there_for_who_debugs(self):
        self.useFixture(fixtures.MockPatchObject(
            logging.getLogger('nova.conductor.manager'), 'level',
            logging.DEBUG))
        self.create_waiting()
        self.assertIn(('DEBUG', 'Failed to schedule instances'),
                      self.told(logging.DEBUG))

    def test_a_server_that_does_not(self):
        self.flags(use_pending_state=False)
        self.create_waiting('ERROR')
        self.assertEqual({'ERROR', 'WARNING'},
                         {level for level, _line in self.told()})

    def test_it_is_installed_once(self):
        wait_log.install()
        self.assertEqual(1, logging.getLogger(
            'nova.conductor.manager').filters.count(wait_log._lower))

    def test_the_words_of_the_release(self):
        """Each of the lines that are looked for is in the release."""
        from nova.conductor import manager
        found = [(manager, wait_log._SCHEDULING_FAILED),
                 (scheduler_utils, wait_log._NOT_BUILT),
                 (scheduler_utils, wait_log._STATE_SET)]
        for module, words in found:
            with open(module.__file__) as source:
                self.assertIn(words, source.read())

    def test_too_many_retries_are_no_wait(self):
        self.assertIsNone(wait_log._level(logging.makeLogRecord({
            'msg': wait_log._NOT_BUILT, 'args': ({
                'service': 'compute', 'method': 'x',
                'ex': exception.MaxRetriesExceeded(reason='x')},)})))
