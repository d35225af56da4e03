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

"""What became of the servers that wait, and what follows for their next try.

A server backs off after what Nova refused, and after builds that failed on two
hosts. Nothing else costs a server its place: neither rebuilds by its owner,
nor races that are lost, nor faults of services. Nothing here asks anybody.
"""

import dataclasses
import datetime
import enum

from nova_reaper.clients import nova
from nova_reaper.cloud import model

# Others are ended in vain for a kind of server: that counts for so long.
MISS_AGE = datetime.timedelta(hours=1)


class Cause(enum.Enum):
    """Why nothing came of an attempt."""

    SERVER = enum.auto()       # Nova refused the server
    HOST = enum.auto()         # a host could not build it
    INTERRUPTED = enum.auto()  # a host or a service died while it was built
    SERVICE = enum.auto()      # a service did not answer, or failed
    RACE = enum.auto()         # somebody else was faster, or it was put off


@dataclasses.dataclass(slots=True)
class History:
    """What became of a server since it is known.

    :ivar attempts: that a host was looked for, the create included and
        whoever asked
    :ivar rebuilds: of those, the reaper's
    :ivar failures: how often it has to back off, and the time of the last
    :ivar builds: how many builds have failed on a host
    :ivar avoid: the host on which its last build came to nothing
    :ivar paused_until: when the next try is, whatever the back-off says
    """

    attempts: int = 1
    last: datetime.datetime | None = None
    rebuilds: int = 0
    failures: int = 0
    failed_at: datetime.datetime | None = None
    builds: int = 0
    reason: model.Reason | None = None
    avoid: str | None = None
    paused_until: datetime.datetime | None = None

    def asked(self, now: datetime.datetime) -> None:
        """Nova was asked by the reaper to build the server."""
        self.attempts += 1
        self.rebuilds += 1
        self.last = now

    def came_to_nothing(self, cause: Cause, reason: model.Reason | None,
                        host: str, now: datetime.datetime, pause: int
                        ) -> None:
        """An attempt has ended, and the server waits.

        :param pause: seconds until the next try after a fault of a service
        """
        self.avoid = (host if cause in (Cause.HOST, Cause.INTERRUPTED)
                      else None)
        if cause is Cause.SERVICE:
            self.paused_until = now + datetime.timedelta(seconds=pause)
        if cause is Cause.HOST:
            self.builds += 1
        if cause is Cause.SERVER or cause is Cause.HOST and self.builds > 1:
            self.failures += 1
            self.failed_at = now
        if cause in (Cause.SERVER, Cause.HOST):
            self.reason = reason

    def learn(self, tries: nova.Tries) -> bool:
        """Take over what Nova knows of attempts.

        :returns: whether some of them were of a reaper before this one: the
            server backs off as if they were of this one
        """
        self.attempts = max(self.attempts, tries.attempts)
        if tries.last and (self.last is None or self.last < tries.last):
            self.last = tries.last
        before, self.rebuilds = self.rebuilds, max(self.rebuilds,
                                                   tries.rebuilds)
        if self.rebuilds == before:
            return False
        self.failures += self.rebuilds - before
        self.failed_at = tries.last_rebuild
        return True

    def of(self, waiting: model.Waiting) -> model.Waiting:
        """The server with what became of it."""
        return dataclasses.replace(
            waiting, attempts=self.attempts,
            last_attempt=self.last or waiting.last_attempt,
            failures=self.failures, failed_at=self.failed_at,
            paused_until=self.paused_until, avoid=self.avoid,
            rebuilds=self.rebuilds, reason=self.reason or waiting.reason)


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """Servers were ended for a server that did not run after that.

    :ivar why: what Nova or the host said
    """

    at: datetime.datetime
    why: str


class Misses:
    """The misses of each kind of server, for as long as they count."""

    def __init__(self) -> None:
        self._misses: dict[str, list[Miss]] = {}

    def add(self, key: str, miss: Miss) -> int:
        """Count a miss; returns how many there are of its kind.

        :param key: of the shape of the server
        """
        misses = self._current(key, miss.at)
        misses.append(miss)
        self._misses[key] = misses
        return len(misses)

    def objection(self, key: str, most: int, now: datetime.datetime) -> str:
        """Why nobody is ended for a kind of server, '' if that is allowed.

        :param most: so many misses are too many
        """
        misses = self._current(key, now)
        if not most or len(misses) < most:
            return ''
        until = misses[-most].at + MISS_AGE
        return (f'Nobody is ended for such servers until '
                f'{until:%Y-%m-%dT%H:%M:%SZ}: {len(misses)} of them did not '
                f'run within the hour after others had been ended for them. '
                f'The last one: {misses[-1].why}')

    def forget_old(self, now: datetime.datetime) -> set[str]:
        """Forget what counts no more; returns the keys of what changed."""
        old = {key for key, misses in self._misses.items()
               if misses[0].at <= now - MISS_AGE}
        for key in old:
            self._misses[key] = self._current(key, now)
            if not self._misses[key]:
                del self._misses[key]
        return old

    def clear(self) -> None:
        """Forget all of them."""
        self._misses.clear()

    def _current(self, key: str, now: datetime.datetime) -> list[Miss]:
        return [miss for miss in self._misses.get(key, ())
                if miss.at > now - MISS_AGE]
