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

"""What of the journal is answered over HTTP and by commands."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import datetime
import json
import re
import threading
from typing import Any
from typing import TypeVar

from oslo_log import log
from oslo_utils import timeutils
from oslo_utils import uuidutils
from webob import exc

from nova_reaper.report import answers
from nova_reaper.report.journal import journal
from nova_reaper.report.journal.record import Kind
from nova_reaper.report.journal.record import Record
from nova_reaper.report.journal import store

LOG = log.getLogger(__name__)
T = TypeVar('T')
KEYS = ('server', 'project_id', 'kind', 'since', 'until', 'limit', 'marker')
# So many requests ask the database at a time, and one more waits so long: the
# other threads answer what needs no database.
AT_ONCE = 2
PATIENCE = 5.0
LONGEST_REASON = 255
_PERIOD = re.compile(r'(\d{1,6})([smhd])')
_UNITS = {'s': 'seconds', 'm': 'minutes', 'h': 'hours', 'd': 'days'}


def parse(values: Mapping[str, str], limit: int) -> store.Query:
    """A query of text.

    :param values: by names of KEYS, but for the limit
    :raises: ValueError with a sentence that says what is wrong
    """
    def uuid(name: str) -> str | None:
        value = values.get(name)
        if value is not None and not uuidutils.is_uuid_like(value):
            raise ValueError(f'{name} has to be an ID.')
        return value

    project = values.get('project_id')
    if project is not None and not re.fullmatch(r'[\w.-]{1,64}', project,
                                                re.ASCII):
        raise ValueError('project_id has to be an ID.')
    kinds = values['kind'].split(',') if 'kind' in values else []
    if unknown := set(kinds) - set(Kind):
        raise ValueError(f'There is no kind "{min(unknown)[:40]}"; there are '
                         f'{", ".join(Kind)}.')
    return store.Query(
        uuid('server'), project, [Kind(kind) for kind in kinds],
        _time(values, 'since'), _time(values, 'until'), limit, uuid('marker'))


def _time(values: Mapping[str, str], name: str) -> datetime.datetime | None:
    value = values.get(name)
    if value is None:
        return None
    time: datetime.datetime
    try:
        if period := _PERIOD.fullmatch(value):
            time = timeutils.utcnow(True)
            return time - datetime.timedelta(
                **{_UNITS[period[2]]: int(period[1])})
        # In a query of a URL "+" is a space.
        time = timeutils.parse_isotime(value.replace(' ', '+'))
        return time.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise ValueError(f'{name} has to be a time like 2026-11-22T12:00:00Z '
                         'or a period like 90m, 12h or 7d.') from None


def pause_to_dict(switch: Record | None) -> dict[str, Any]:
    """The last pause or resume as it is answered."""
    detail = switch.detail if switch else {}
    return {'paused': bool(switch and switch.kind is Kind.PAUSE),
            'since': answers.text(switch.at) if switch else None,
            'by': detail.get('by'), 'reason': detail.get('why')}


class History:
    """Answers requests that were found to be allowed."""

    def __init__(self, book: journal.Journal) -> None:
        self._book = book
        self._free = threading.BoundedSemaphore(AT_ONCE)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        if not self._free.acquire(timeout=PATIENCE):
            raise exc.HTTPServiceUnavailable(
                'The database of the journal is slow. Ask again.')
        try:
            yield
        finally:
            self._free.release()

    def _ask(self, call: Callable[[], T]) -> T:
        with self._asking():
            try:
                return call()
            except store.NoSuchMarker:
                raise exc.HTTPBadRequest(
                    'The record of the marker is not there.') from None
            except Exception as error:
                LOG.warning('The journal cannot be asked: %s',
                            type(error).__name__)
                raise exc.HTTPServiceUnavailable(
                    'The database of the journal does not answer. Ask '
                    'again.') from None

    def find(self, values: Mapping[str, str], project: str | None,
             everything: bool, limit: int
             ) -> tuple[list[dict[str, Any]], str | None]:
        """Records, the newest first, and the marker of those that follow.

        :param project: whose records to find, None for all
        """
        try:
            query = parse(dict(values) | (
                {'project_id': project} if project else {}), limit + 1)
        except ValueError as error:
            raise exc.HTTPBadRequest(str(error)) from None
        found = self._ask(lambda: self._book.store.find(query))
        return ([item.to_dict(everything) for item in found[:limit]],
                found[limit - 1].id if len(found) > limit else None)

    def pause(self) -> dict[str, Any]:
        """Whether the reaper is paused."""
        return pause_to_dict(self._ask(self._book.store.switch))

    def switch(self, kind: Kind, by: str, body: bytes) -> dict[str, Any]:
        """Pause or resume.

        :param body: JSON that may give a reason
        """
        try:
            given = json.loads(body or b'{}')
        except (ValueError, RecursionError):
            raise exc.HTTPBadRequest('The body is not JSON.') from None
        why = given.get('reason', '') if isinstance(given, dict) else None
        if not isinstance(why, str) or len(why) > LONGEST_REASON or (
                set(given) - {'reason'}):
            raise exc.HTTPBadRequest(
                'The body is {"reason": "TEXT"} with at most '
                f'{LONGEST_REASON} characters of text.')
        return pause_to_dict(self._ask(
            lambda: self._book.switch(kind, by, why)))
