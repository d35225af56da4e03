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

"""What a reaper that starts reads of the journal, and what it adds to it.

A reaper keeps in memory whom it has ended and built for whom: caps by the
hour, the protection of servers that came back, exclusions, misses and the
fair share follow from it. The next one, after a restart or on another
machine, reads it here.

A reaper that is killed between a deed and its record leaves a notice or a
build open, of which no record says what became of it. Nova knows.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
import datetime

from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes
from nova_reaper.report.journal.record import Kind
from nova_reaper.report.journal.record import LEFT
from nova_reaper.report.journal.record import Record
from nova_reaper.report.journal import store as store_module

_HOUR = datetime.timedelta(hours=1)
# After so many half-lives what was given counts next to nothing.
HALF_LIVES = 4
# So many builds tell the fair share well enough.
MOST = 10000
# Notices and builds that are older were closed long ago, or never will be.
OPEN_FOR = datetime.timedelta(days=7)
# What is younger may be under way, or about to be written.
YOUNG = datetime.timedelta(seconds=60)


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Records of before a time that bear on what is decided now.

    :ivar until: that time
    :ivar exclusion: seconds for which stuck victims are left alone
    :ivar ends: by the reaper, within an hour
    :ivar returns: of servers that may still be protected for it
    :ivar stuck: withdrawals for which a server may still be left alone
    :ivar missed: builds that failed though others had been ended for them
    :ivar builds: of servers that run since, for the fair share
    """

    until: datetime.datetime
    exclusion: int
    ends: Sequence[Record] = ()
    returns: Sequence[Record] = ()
    stuck: Sequence[Record] = ()
    missed: Sequence[Record] = ()
    builds: Sequence[Record] = ()


def read(store: store_module.Store, until: datetime.datetime,
         options: model.Options, exclusion: int) -> Memory:
    """Read what bears on decisions from now on.

    :param until: since when the reaper that reads remembers itself
    :param exclusion: seconds for which stuck victims are left alone, and
        misses remembered
    """
    def find(seconds: float, *kinds: Kind) -> list[Record]:
        if not seconds:
            return []
        return store.find(store_module.Query(
            kinds=kinds, since=until - datetime.timedelta(seconds=seconds),
            until=until, limit=MOST))

    built = find(HALF_LIVES * options.fair_share_half_life, Kind.BUILD,
                 Kind.RETURN)
    return Memory(
        until, exclusion,
        [end for end in find(_HOUR.total_seconds(), Kind.END)
         if end.result != LEFT],
        [back for back in find(options.repeat_protection, Kind.RETURN)
         if back.result == 'active'],
        [stuck for stuck in find(exclusion, Kind.WITHDRAWAL)
         if stuck.result == 'stuck'],
        [build for build in find(exclusion, Kind.BUILD, Kind.RETURN)
         if build.detail.get('missed')],
        [build for build in built if build.result == 'active'])


def close(store: store_module.Store,
          find: Callable[[str], nova.NovaServer | None],
          busy: Collection[str]) -> list[Record]:
    """What became of notices and builds of which the journal does not tell.

    :param find: gives a server as it is, None if it is gone
    :param busy: IDs of servers that attempts are under way for
    """
    now = timeutils.utcnow(True)
    found = []
    for record in store.open(now - OPEN_FOR, now - YOUNG):
        if record.waiting in busy:
            continue
        server = find(record.server)
        result = (_of_notice(record, server, now)
                  if record.kind is Kind.NOTICE else _of_build(server))
        if result is None:
            continue
        kind = record.kind
        if kind is Kind.NOTICE:
            kind = Kind.END if result else Kind.WITHDRAWAL
        found.append(dataclasses.replace(
            Record(kind), server=record.server, project=record.project,
            name=record.name, waiting=record.waiting,
            waiting_project=record.waiting_project, host=record.host,
            result=result, detail={'why': 'It was found so later: the reaper '
                                   'that did it could not write it down.'}))
    return found


def _of_notice(record: Record, server: nova.NovaServer | None,
               now: datetime.datetime) -> str | None:
    """How a victim was ended, '' if it lives on, None if that is open."""
    if server is None:
        # Nobody ends a server before its notice has run out.
        until = record.detail.get('terminate_at') or ''
        early = bool(until) and timeutils.parse_isotime(until) > now
        return LEFT if early else model.Action.DELETE.value
    if server.status == 'DELETED':
        # Nova says so before the delete is done, which may still fail.
        return None
    if server.status in shapes.OFF_HOST:
        return (model.Action.SHELVE.value
                if shapes.SHELVED_AT in server.metadata else LEFT)
    if server.metadata.get(shapes.FOR) == record.waiting:
        return None
    return ''


def _of_build(server: nova.NovaServer | None) -> str | None:
    """How a build ended, None if it goes on."""
    if server is None:
        return model.Result.GONE.value
    if server.status in ('ACTIVE', 'SHUTOFF'):
        return model.Result.ACTIVE.value
    if server.waits or server.shelved:
        return model.Result.PENDING.value
    if server.status == 'ERROR' and not server.task_state:
        return model.Result.ERROR.value
    return None
