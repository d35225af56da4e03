# SPDX-License-Identifier: Apache-2.0

"""Keeps the journal of what was done to which server, for whom, and why.

A thread of its own writes the records, and two others tell each of them on a
bus and by a web hook: a database or a bus that is slow or gone holds up
neither the engine nor the end of a server. A record that cannot be written
waits in memory until the database is back.

A thread that acts can wait for the record of what it is about to do. A process
that is killed then has ended no server of which nothing is known. Nobody waits
while the database does not keep up. A reaper that is killed between a deed and
its record leaves a notice or a build open, of which no record says the result;
so does a victim that had not ended when its notice was withdrawn. close() asks
Nova for the result.

What a reaper has done bears on what it does: on caps by the hour, the
protection of servers that came back, exclusions, misses, back-offs and the
fair share. The next reaper, after a restart or on another machine, reads that
here.
"""

import base64
import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
import datetime
import hmac
import itertools
import json
import queue
import socket
import threading
import time
from typing import Any

from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_log import log
import oslo_messaging
from oslo_utils import timeutils
from oslo_utils import uuidutils
import requests

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import conf as reaper_conf
from nova_reaper.report import store as store_module
from nova_reaper.report.store import Kind
from nova_reaper.report.store import LEFT
from nova_reaper.report.store import Record

LOG = log.getLogger(__name__)
# Most records that wait to be written; more are lost, except a pause.
WAITING = 10000
# Most records of one transaction.
BATCH = 100
# Seconds that a thread waits for its record.
PATIENCE = 1.0
# Seconds between two looks whether the reaper is to pause.
POLL = 2.0
# Most seconds between two tries of a database that fails.
LONGEST = 30.0
# Seconds between two purges.
PURGE = 3600.0
# Errors of a single record, and not of the database.
UNFIT = (db_exception.DBDataError, db_exception.DBInvalidUnicodeParameter,
         ValueError, TypeError)
# Seconds that a post to the web hook may take.
HOOK_TIMEOUT = 5
# Seconds for which a record is posted again, and the longest pause between.
RETRY_FOR = 900.0
LONGEST_PAUSE = 60.0
# How often a notification is sent again; None would be for ever.
RETRIES = 2
# Most records that wait to be told; more are dropped.
UNTOLD = 1000
# Seconds that the end of the process waits for records and notifications.
AT_THE_END = 3.0
HOUR = 3600
# What a project was given counts next to nothing after so many half-lives.
HALF_LIVES = 4
# The number of builds that are enough for the fair share.
MOST = 10000
# The result of an older notice or build is written, or never will be.
OPEN_FOR = datetime.timedelta(days=7)
# A younger notice or build may be under way, or its result about to be
# written.
YOUNG = datetime.timedelta(seconds=60)


class _Outbox:
    """Delivers records in a thread of its own, one after the other.

    :param name: the name of the thread
    :param deliver: is called with a record as JSON has it; raises nothing
    """

    def __init__(self, name: str, deliver: Callable[[dict[str, Any]], None]
                 ) -> None:
        self._deliver = deliver
        self._payloads: queue.Queue[dict[str, Any]] = queue.Queue(UNTOLD)
        self._lock = threading.Lock()
        # The process does not wait for a daemon to end.
        self._thread = threading.Thread(target=self._run, name=name,
                                        daemon=True)

    def put(self, payload: dict[str, Any]) -> None:
        """Have a record delivered, or dropped if too many wait already."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        try:
            self._payloads.put_nowait(payload)
        except queue.Full:
            LOG.warning('%s: %s is not sent: %d others wait to be.',
                        self._thread.name, _named(payload), UNTOLD)

    def _run(self) -> None:
        while True:
            self._deliver(self._payloads.get())
            self._payloads.task_done()

    def flush(self, timeout: float) -> int:
        """Wait so many seconds at most; return how many are not delivered."""
        done = self._payloads.all_tasks_done
        with done:
            done.wait_for(lambda: not self._payloads.unfinished_tasks, timeout)
            return self._payloads.unfinished_tasks


def _named(payload: dict[str, Any]) -> str:
    return f'reaper.{payload["kind"]} of server {payload["server"]}'


class Announcer:
    """Tells each record of the journal; failures are logged only.

    Notifications go where [oslo_messaging_notifications] says, nowhere unless
    a driver is set there.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._notifier: Any = None
        self._bus = _Outbox('notifications', self._send)
        self._hook = _Outbox('web hook', self._post_until_done)

    def tell(self, told: Record) -> None:
        """Have a record told; nobody waits for it."""
        payload = told.to_dict(True)
        self._bus.put(payload)
        if self._conf.reaper.hook_url:
            self._hook.put(payload)

    def flush(self) -> None:
        """Wait a moment until all records are told; the rest is dropped."""
        end = time.monotonic() + AT_THE_END
        left = sum(box.flush(max(0.0, end - time.monotonic()))
                   for box in (self._bus, self._hook))
        if left:
            LOG.warning('%d notifications are not sent: the service ends.',
                        left)

    def _send(self, payload: dict[str, Any]) -> None:
        event_type = f'reaper.{payload["kind"]}'
        try:
            if self._notifier is None:
                transport = oslo_messaging.get_notification_transport(
                    self._conf, url=self._conf.notifications.transport_url)
                self._notifier = oslo_messaging.Notifier(
                    transport, retry=RETRIES,
                    publisher_id=f'nova-reaper:{socket.gethostname()}')
            self._notifier.info({}, event_type, payload)
        except Exception as error:
            LOG.warning('%s was not sent: %s', event_type,
                        type(error).__name__)

    def _post_until_done(self, payload: dict[str, Any]) -> None:
        """Post a record until a post succeeds, or no post can succeed."""
        end, pause = time.monotonic() + RETRY_FOR, 1.0
        while self._conf.reaper.hook_url:
            why, again = self._post(payload)
            if not why:
                return
            if not again or time.monotonic() + pause > end:
                break
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            why = 'it was turned off'
        LOG.warning('The web hook was not told of %s: %s', _named(payload),
                    why)

    def _post(self, payload: dict[str, Any]) -> tuple[str, bool]:
        """Post once; return why it failed, '' if not, and whether to retry."""
        body = json.dumps(payload).encode()
        try:
            answer = requests.post(
                self._conf.reaper.hook_url, data=body, timeout=HOOK_TIMEOUT,
                allow_redirects=False, headers={
                    'content-type': 'application/json'} | signed(
                        payload['id'], int(time.time()), body,
                        self._conf.reaper.hook_secret))
        except Exception as error:
            # The text of the error could hold the URL, and so a secret.
            return type(error).__name__, True
        if answer.status_code < 300:
            return '', False
        return (f'HTTP {answer.status_code}', answer.status_code >= 500 or
                answer.status_code in (408, 425, 429))


def signed(uuid: str, at: int, body: bytes, secret: str | None
           ) -> dict[str, str]:
    """Make headers of a web hook, by the Standard Webhooks specification.

    A receiver that sees the same ID again has the record already. Nobody else
    can send an old record again to a receiver that checks the time.

    :param uuid: ID of the record
    :param at: the time in seconds
    :param secret: [reaper] hook_secret
    """
    headers = {'webhook-id': uuid, 'webhook-timestamp': str(at)}
    if secret:
        code = hmac.digest(reaper_conf.hook_key(secret),
                           f'{uuid}.{at}.'.encode() + body, 'sha256')
        headers['webhook-signature'] = f'v1,{base64.b64encode(code).decode()}'
    return headers


class Journal:
    """Writes records, and knows whether the reaper is to pause.

    :param tell: is told of each record, and does not wait; an Announcer tells
        it by default
    :ivar error: why the database could not be used last, None if it could
    :ivar lost: how many records were not written, and never will be
    :ivar asked: set while it is known whether the reaper is to pause
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 tell: Callable[[Record], None] | None = None) -> None:
        self._conf = conf.journal
        self.store = store_module.Store(conf)
        self._announcer = Announcer(conf)
        self._tell = tell or self._announcer.tell
        self._rows: collections.deque[Record] = collections.deque()
        self._changed = threading.Condition()
        self._written = 0
        self._late = False
        self._size = BATCH
        self._failures = 0
        self._look_at = self._purge_at = 0.0
        self._switch: Record | None = None
        self._thread: threading.Thread | None = None
        self.error: str | None = None
        self.lost = 0
        self.asked = threading.Event()

    def start(self) -> None:
        """Begin to write, in a thread that the process does not wait for."""
        self._thread = threading.Thread(target=self._run, name='journal',
                                        daemon=True)
        self._thread.start()

    @property
    def pause(self) -> Record | None:
        """Return the pause that is in force, None without a pause."""
        switch = self._switch
        return switch if switch and switch.kind is Kind.PAUSE else None

    @property
    def waiting(self) -> int:
        """Count the records that wait to be written."""
        return len(self._rows)

    def write(self, *records: Record, wait: bool = False) -> None:
        """Have records written, and others told of them.

        :param wait: whether to wait a moment until they are written. A thread
            that owns the engine does not.
        """
        for record in records:
            self._tell(record)
        with self._changed:
            for record in records:
                if (len(self._rows) >= WAITING and
                        record.kind is not Kind.PAUSE):
                    self._lose(record, f'{WAITING} others wait to be')
                else:
                    self._rows.append(record)
            last = self._written + len(self._rows)
            self._changed.notify_all()
            if not (wait and self._thread) or self._late or self.error:
                return
            if not self._changed.wait_for(lambda: self._written >= last,
                                          PATIENCE):
                # No other thread waits until all records are written.
                self._late = True

    def switch(self, kind: Kind, by: str, why: str) -> Record:
        """Pause or resume, here at once; return the record that is in force.

        Others are told of a change.

        :raises: what the database does; nothing has changed then
        """
        before = self.store.switch()
        if (before.kind if before else Kind.RESUME) is not kind:
            before = Record(kind, detail={'by': by, 'why': why})
            self.store.add([before])
            self._tell(before)
            LOG.warning('%s by %s: %s', kind.value.capitalize(), by, why)
        self._switch = before
        return before or Record(kind)

    def pause_at_once(self, by: str) -> None:
        """Pause now; the record is written once the database can be used."""
        if self.pause is None:
            record = Record(Kind.PAUSE, detail={'by': by, 'why': ''})
            with self._changed:
                # The thread that writes sees both at once.
                self._switch = record
                self.write(record)
            LOG.warning('Paused by %s.', by)

    def flush(self, timeout: float) -> int:
        """Wait so many seconds at most; return how many are not written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._rows, timeout)
            return len(self._rows)

    def leave(self) -> None:
        """Wait a moment until all records are written and told.

        The process is about to end: the others are dropped.
        """
        self.flush(AT_THE_END)
        self._announcer.flush()

    def _run(self) -> None:
        while True:
            self.work()
            if self.error:
                time.sleep(min(LONGEST, 0.5 * 2 ** min(self._failures, 10)))
                continue
            with self._changed:
                if not self._rows:
                    self._changed.wait(POLL)

    def work(self) -> None:
        """Write a batch of records, look for a pause, and purge."""
        with self._changed:
            batch = list(itertools.islice(self._rows, self._size))
        try:
            if batch:
                self.store.add(batch)
            if time.monotonic() >= self._look_at:
                known, found = self._switch, self.store.switch()
                with self._changed:
                    # A call of switch() meanwhile counts, and so does a pause
                    # whose record still waits to be written.
                    if self._switch is known and not any(
                            row is known for row in self._rows):
                        self._switch = found
                self._purge()
                self._look_at = time.monotonic() + POLL
                self.asked.set()
        except Exception as error:
            # Libraries raise errors of any class for a wrong URL.
            self._failed(batch, error)
        else:
            self._take(len(batch))
            self._size, self._failures = BATCH, 0
            if self.error:
                LOG.info('The journal is written again.')
            self.error = None

    def _take(self, count: int) -> None:
        with self._changed:
            for _ in range(count):
                self._rows.popleft()
            self._written += count
            self._late = self._late and bool(self._rows)
            self._changed.notify_all()

    def _failed(self, batch: list[Record], error: Exception) -> None:
        # The text of the error may hold the password of the URL.
        why = (str(error) if isinstance(error, ImportError)
               else type(error).__name__)
        if isinstance(error, UNFIT) and len(batch) == 1:
            self._lose(batch[0], why)
            self._take(1)
            return
        if not self.error:
            LOG.error('The journal cannot be written or read at the moment '
                      '(%s); its database is [database] connection. The '
                      'reaper goes on.', why)
            LOG.debug('The journal: %s', error)
        self.error, self._size, self._look_at = why, 1, 0.0
        self._failures += 1

    def _lose(self, record: Record, why: str) -> None:
        self.lost += 1
        LOG.error('The journal is without this record: %s of server %s for '
                  '%s: %s', record.kind.value, record.server, record.waiting,
                  why)

    def _purge(self) -> None:
        days = self._conf.retention_days
        if not days or time.monotonic() < self._purge_at:
            return
        gone = self.store.purge(
            timeutils.utcnow(True) - datetime.timedelta(days=days),
            self._conf.purge_batch)
        # After a whole batch the next look deletes the next batch.
        if gone < self._conf.purge_batch:
            self._purge_at = time.monotonic() + PURGE


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """The records of before a time that decisions still depend on.

    :ivar until: the time
    :ivar exclusion: seconds for which stuck victims are left alone
    :ivar ends: by the reaper, within an hour
    :ivar returns: of servers that may still be protected for it
    :ivar stuck: withdrawals for which a server may still be left alone
    :ivar missed: builds within an hour that failed though others had been
        ended for them
    :ivar failed: builds within an hour for which a server backs off
    :ivar builds: of servers that run since, for the fair share
    :ivar errors: the last builds of servers that were in ERROR after them
    :ivar begun: notices of which no record tells the result
    """

    until: datetime.datetime
    exclusion: int
    ends: Sequence[Record] = ()
    returns: Sequence[Record] = ()
    stuck: Sequence[Record] = ()
    missed: Sequence[Record] = ()
    failed: Sequence[Record] = ()
    builds: Sequence[Record] = ()
    errors: Sequence[Record] = ()
    begun: Sequence[Record] = ()


def read(store: store_module.Store, until: datetime.datetime,
         options: model.Options, exclusion: int) -> Memory:
    """Read what bears on decisions from now on.

    :param until: since when the reaper that reads remembers itself
    :param exclusion: seconds for which stuck victims are left alone
    """
    def find(seconds: int, *kinds: Kind) -> list[Record]:
        if not seconds:
            return []
        return store.find(
            kinds=kinds, since=until - datetime.timedelta(seconds=seconds),
            until=until, limit=MOST)

    builds = store.find(kinds=(Kind.BUILD, Kind.RETURN), until=until,
                        limit=MOST)

    def within(seconds: int) -> list[Record]:
        since = until - datetime.timedelta(seconds=seconds)
        return [build for build in builds if build.at >= since]

    built = within(HALF_LIVES * options.fair_share_half_life)
    tried = within(HOUR)
    last: dict[str, Record] = {}
    for build in builds:
        if build.kind is Kind.BUILD:
            last.setdefault(build.server, build)
    return Memory(
        until, exclusion,
        [end for end in find(HOUR, Kind.END) if end.result != LEFT],
        [back for back in find(options.repeat_protection, Kind.RETURN)
         if back.result == 'active'],
        [stuck for stuck in find(exclusion, Kind.WITHDRAWAL)
         if stuck.result == 'stuck'],
        [build for build in tried if build.detail.get('missed')],
        [build for build in tried if build.detail.get('failed')],
        [build for build in built if build.result == 'active'],
        [build for build in last.values() if build.result == 'error'],
        [record for record in store.open(until - OPEN_FOR, until)
         if record.kind is Kind.NOTICE])


def memory_of(found: Sequence[Record], until: datetime.datetime) -> Memory:
    """Return what results that were found late bear on.

    :param found: the records that close() returns
    :param until: the time at which they were found
    """
    builds = [build for build in found if build.result == 'active']
    return Memory(
        until, 0, builds=builds,
        ends=[end for end in found
              if end.kind is Kind.END and end.result != LEFT],
        returns=[back for back in builds if back.kind is Kind.RETURN],
        errors=[build for build in found if build.kind is Kind.BUILD and
                build.result == 'error'])


def close(store: store_module.Store,
          find: Callable[[str], nova.NovaServer | None],
          busy: Collection[str]) -> list[Record]:
    """Find what became of servers of which the journal does not tell.

    :param busy: IDs of the servers of attempts under way: those that wait, and
        the victims
    """
    now = timeutils.utcnow(True)
    found = []
    for record in store.open(now - OPEN_FOR, now - YOUNG):
        kind = record.kind
        if record.server in busy or kind is Kind.WITHDRAWAL and (
                not record.detail.get('ending')):
            continue
        try:
            server = find(record.server)
        except rest.RequestFailed as error:
            # The cell may be down: Nova knows the servers of other cells.
            LOG.info('What became of server %s is looked at later: %s',
                     record.server, error)
            continue
        result = (_of_build(server) if kind in (Kind.BUILD, Kind.RETURN)
                  else _of_notice(record, server, now))
        if result is None:
            continue
        detail = {'why': 'It was found so later: the reaper that did it was '
                  'killed, or waited for it no longer.',
                  'cause': record.detail.get('cause')}
        if server and result == model.Result.ACTIVE:
            detail['resources'] = shapes.resources(server)
        if kind in (Kind.NOTICE, Kind.WITHDRAWAL):
            kind = Kind.END if result else Kind.WITHDRAWAL
        found.append(dataclasses.replace(
            record, kind=kind, result=result, at=now,
            id=uuidutils.generate_uuid(), detail=detail))
    return found


def _of_notice(record: Record, server: nova.NovaServer | None,
               now: datetime.datetime) -> str | None:
    """Say how a victim ended, '' if it lives on, None if that is open."""
    if server is None:
        # Nobody ends a server before its notice has run out.
        until = record.detail.get('terminate_at') or ''
        early = bool(until) and timeutils.parse_isotime(until) > now
        rehearsed = record.detail.get('cause') == model.Cause.REHEARSAL
        return LEFT if early or rehearsed else model.Action.DELETE.value
    if server.status == 'DELETED':
        # Nova says so before the delete is done, which may still fail.
        return None
    if server.status in shapes.OFF_HOST:
        return (model.Action.SHELVE.value
                if shapes.SHELVED_AT in server.metadata or
                record.detail.get('cause') == model.Cause.RUN_TIME else LEFT)
    if server.metadata.get(shapes.FOR) == record.waiting or any(
            shapes.is_leaving(server, how) for how in model.Action):
        return None
    return ''


def _of_build(server: nova.NovaServer | None) -> str | None:
    """Say how a build ended, None if it goes on."""
    if server is None:
        return model.Result.GONE.value
    if server.status in ('ACTIVE', 'SHUTOFF'):
        return model.Result.ACTIVE.value
    if server.waits or server.shelved:
        return model.Result.PENDING.value
    if server.status == 'ERROR' and not server.task_state:
        return model.Result.ERROR.value
    return None
