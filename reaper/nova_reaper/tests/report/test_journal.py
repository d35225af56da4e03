# SPDX-License-Identifier: Apache-2.0

"""The thread that writes the journal, and a database that is slow or gone."""

import datetime
import threading
import time
from typing import Any
from unittest import mock

import fixtures
from oslo_db import exception
from oslo_utils import timeutils

from nova_reaper.report import journal
from nova_reaper.report.journal import Kind
from nova_reaper.report.journal import Record
from nova_reaper import tests
from nova_reaper.tests import fakes


class JournalTestCase(tests.TestCase):
    """A database that the test lets work, hang or fail."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.conf = fakes.configuration()
        self.told: list[Record] = []
        self.book = journal.Journal(self.conf, self.told.append)
        self.records = [Record(Kind.END, str(number)) for number in range(9)]

    def written(self) -> list[str]:
        found = self.book.store.find()
        return [item.server for item in found[::-1]]

    def fails(self, error: Exception) -> Any:
        return mock.patch.object(self.book.store, 'add', side_effect=error)

    def run_it(self) -> None:
        self.book.start()
        self.addCleanup(self.end_it)

    def end_it(self) -> None:
        # Silently, whatever the thread waits for.
        with mock.patch.object(self.book, 'work', side_effect=SystemExit):
            self.book.write(self.records[0])
            assert self.book._thread
            self.book._thread.join(10)

    def test_it_is_told_and_written(self) -> None:
        self.book.write(*self.records[:2])
        self.assertEqual(self.records[:2], self.told)
        self.book.work()
        self.assertEqual(['0', '1'], self.written())

    def test_what_is_waited_for_is_written_then(self) -> None:
        self.run_it()
        self.assertTrue(self.book.asked.wait(10))
        self.book.write(self.records[0], wait=True)
        self.assertEqual(['0'], self.written())

    def test_a_database_that_hangs_is_waited_for_once(self) -> None:
        hangs = threading.Event()
        self.addCleanup(hangs.set)
        add = self.book.store.add
        self.useFixture(fixtures.MockPatchObject(
            self.book.store, 'add',
            lambda records: (hangs.wait(30), add(records))))
        self.useFixture(fixtures.MockPatchObject(journal, 'PATIENCE', 0.2))
        self.run_it()
        begun = time.monotonic()
        self.book.write(self.records[0], wait=True)
        self.assertGreaterEqual(time.monotonic() - begun, 0.2)
        begun = time.monotonic()
        for record in self.records[1:]:
            self.book.write(record, wait=True)
        self.assertLess(time.monotonic() - begun, 0.2)
        hangs.set()
        self.assertEqual(0, self.book.flush(10))
        self.assertEqual([str(number) for number in range(9)], self.written())
        self.assertFalse(self.book._late)

    def test_what_cannot_be_written_is_written_later(self) -> None:
        with self.fails(exception.DBConnectionError('p4ssword')):
            self.book.write(*self.records[:3])
            for _ in range(3):
                self.book.work()
            self.assertEqual('DBConnectionError', self.book.error)
            self.assertEqual(1, self.log.output.count('cannot be written'))
            self.assertNotIn('p4ssword', self.log.output)
            # Nobody waits for it meanwhile.
            self.book._thread = mock.Mock()
            begun = time.monotonic()
            self.book.write(self.records[3], wait=True)
            self.assertLess(time.monotonic() - begun, 0.5)
        for _ in range(2):
            self.book.work()
        self.assertEqual(['0', '1', '2', '3'], self.written())
        self.assertEqual((None, 0), (self.book.error, self.book.lost))

    def test_an_answer_that_was_lost(self) -> None:
        add = self.book.store.add

        def lost(records: list[Record]) -> None:
            add(records)
            raise exception.DBConnectionError

        self.book.write(*self.records[:3])
        with mock.patch.object(self.book.store, 'add', lost):
            self.book.work()
        for _ in range(4):
            self.book.work()
        self.assertEqual(['0', '1', '2'], self.written())

    def test_no_more_than_so_many_wait(self) -> None:
        self.useFixture(fixtures.MockPatchObject(journal, 'WAITING', 2))
        self.book.write(*self.records[:3])
        self.assertEqual((2, 1), (self.book.waiting, self.book.lost))
        self.assertIn('end of server 2', self.log.output)
        self.book.work()
        self.assertEqual(['0', '1'], self.written())

    def test_a_record_that_no_database_takes_holds_up_no_other(self) -> None:
        add = self.book.store.add

        def refuse(records: list[Record]) -> None:
            if any(item.server == '1' for item in records):
                raise exception.DBDataError
            add(records)

        self.book.write(*self.records[:4])
        with mock.patch.object(self.book.store, 'add', refuse):
            for _ in range(6):
                self.book.work()
        self.assertEqual(['0', '2', '3'], self.written())
        self.assertEqual((1, None), (self.book.lost, self.book.error))

    def test_another_reaper_pauses_and_resumes(self) -> None:
        self.assertIsNone(self.book.pause)
        for kind, paused in ((Kind.PAUSE, True), (Kind.RESUME, False)):
            self.book.store.add([Record(kind)])
            self.book._look_at = 0.0
            # It is looked at while records come without end.
            self.book.write(self.records[0])
            self.book.work()
            self.assertEqual(paused, self.book.pause is not None)

    def test_a_pause_while_the_thread_looks_for_one(self) -> None:
        look = self.book.store.switch

        def looked() -> Record | None:
            found = look()
            with mock.patch.object(self.book.store, 'switch', look):
                self.book.switch(Kind.PAUSE, 'u', 'x')
            return found

        with mock.patch.object(self.book.store, 'switch', looked):
            self.book.work()
        self.assertTrue(self.book.pause)

    def test_a_pause_holds_while_the_database_is_gone(self) -> None:
        self.book.switch(Kind.PAUSE, 'u', 'x')
        with mock.patch.object(self.book.store, 'switch',
                               side_effect=exception.DBConnectionError):
            self.book._look_at = 0.0
            self.book.work()
        self.assertTrue(self.book.error and self.book.pause)

    def test_a_signal_while_the_database_is_gone(self) -> None:
        with mock.patch.object(self.book.store, '_connection',
                               side_effect=exception.DBConnectionError):
            self.book.pause_at_once('SIGUSR1')
            self.book.pause_at_once('SIGUSR1')
            self.book._look_at = 0.0
            self.book.work()
        self.assertTrue(self.book.error and self.book.pause)
        # The pause is written, and is found by others and after a restart.
        for _ in range(2):
            self.book._look_at = 0.0
            self.book.work()
        self.assertTrue(self.book.pause)
        switch = self.book.store.switch()
        assert switch
        self.assertEqual((Kind.PAUSE, 'SIGUSR1'),
                         (switch.kind, switch.detail['by']))
        self.assertEqual(0, self.book.waiting)
        # A resume after that is heard.
        self.book.switch(Kind.RESUME, 'u', 'x')
        self.assertIsNone(self.book.pause)

    def test_a_signal_while_other_records_wait(self) -> None:
        with mock.patch.object(self.book.store, '_connection',
                               side_effect=exception.DBConnectionError):
            self.book.write(self.records[0])
            self.book.work()
            # The pause is kept though no other record would be.
            self.useFixture(fixtures.MockPatchObject(journal, 'WAITING', 1))
            self.book.pause_at_once('SIGUSR1')
        self.assertTrue(self.book.error)
        for _ in range(3):
            # After an error the records are written one by one.
            self.book._look_at = 0.0
            self.book.work()
            self.assertTrue(self.book.pause)
        self.assertEqual((0, 0), (self.book.waiting, self.book.lost))
        # The end of the pause by another reaper is heard.
        self.book.store.add([Record(Kind.RESUME)])
        self.book._look_at = 0.0
        self.book.work()
        self.assertIsNone(self.book.pause)

    def test_a_resume_before_the_pause_is_written(self) -> None:
        self.useFixture(fixtures.MockPatchObject(journal, 'PATIENCE', 0.1))
        self.book.pause_at_once('SIGUSR1')
        self.assertRaises(TimeoutError, self.book.switch,
                          Kind.RESUME, 'u', 'x')
        self.assertTrue(self.book.pause)
        self.book.work()
        self.book.switch(Kind.RESUME, 'u', 'x')
        self.book._look_at = 0.0
        self.book.work()
        self.assertIsNone(self.book.pause)

    def test_old_records_go_a_batch_at_a_time(self) -> None:
        self.conf.set_override('purge_batch', 2, 'journal')
        then = timeutils.utcnow(True) - datetime.timedelta(days=91)
        self.book.store.add([Record(Kind.END, str(number), at=then)
                             for number in range(3)] + [Record(Kind.END, 'x')])
        left = []
        for _ in range(3):
            self.book._look_at = 0.0
            self.book.work()
            left.append(len(self.written()))
        self.assertEqual([2, 1, 1], left)
        self.assertGreater(self.book._purge_at, time.monotonic() + 60)

    def test_records_are_kept_for_ever(self) -> None:
        self.conf.set_override('retention_days', 0, 'journal')
        self.book.store.add([Record(Kind.END, at=timeutils.utcnow(True) -
                                    datetime.timedelta(days=9999))])
        self.book.work()
        self.assertEqual(1, len(self.written()))

    def test_the_driver_is_missing(self) -> None:
        self.conf.set_override('connection', 'mysql+aiomysqlx://h/d',
                               'database')
        self.book = journal.Journal(self.conf, self.told.append)
        self.book.write(self.records[0])
        self.book.work()
        self.assertTrue(self.book.error)
        self.assertEqual(1, self.book.waiting)
