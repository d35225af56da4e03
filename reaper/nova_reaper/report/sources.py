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

"""What of the engine is shown: the source of the answers over HTTP."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import datetime
import math
import threading
import time

from oslo_config import cfg
from oslo_utils import timeutils

from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper import engine as engine_module
from nova_reaper.queue import queue
from nova_reaper.report import answers

# Seconds after which the list of those that wait is long, and so many times
# as long as it took it is not made again.
LONG = 0.02
REST = 20


class Starting:
    """Answers before the cloud could be asked for the first time.

    :param why: what Nova, Placement or Keystone said last, None before that
    """

    def __init__(self, conf: cfg.ConfigOpts, why: Callable[[], str | None]
                 ) -> None:
        self._conf = conf
        self._why = why

    def entries(self) -> Sequence[answers.Entry]:
        """Nobody is known to wait."""
        return ()

    def entry(self, server: str) -> answers.Entry | None:
        """No server is known."""
        return None

    def notices(self) -> Sequence[answers.NoticeEntry]:
        """No notice is known."""
        return ()

    def dry_run(self, server: str) -> answers.DryRun | None:
        """The room is not known."""
        return None

    def health(self) -> answers.Health:
        """It does nothing yet."""
        why = self._why()
        return answers.Health(
            False, model.Mode.OBSERVE, model.Mode(self._conf.reaper.mode),
            None, [answers.Check('cloud', 'failed' if why else 'degraded',
                              why or 'not asked yet')])

    def as_of(self) -> datetime.datetime | None:
        """Nothing was compared."""
        return None


class Shown:
    """Answers from what the engine knows, under its lock.

    With thousands that wait the list of them takes long to make, and the
    engine stands still meanwhile: it is made anew only so often that nobody
    who asks for it can hold the engine up.

    :param coordination: what is wrong with the coordination, None if nothing
    """

    def __init__(self, engine: engine_module.Engine,
                 coordination: Callable[[], str | None]) -> None:
        self._engine = engine
        self._coordination = coordination
        self._lock = threading.Lock()
        self._entries: Sequence[answers.Entry] = ()
        self._until = -math.inf

    def entries(self) -> Sequence[answers.Entry]:
        """All that wait, in the order in which they are looked at."""
        with self._lock:
            if time.monotonic() < self._until:
                return self._entries
            with self._engine.lock:
                begun = time.perf_counter()
                self._entries = self._made()
                took = time.perf_counter() - begun
            self._until = time.monotonic() + (REST * took if took > LONG
                                              else 0.0)
            return self._entries

    def _made(self) -> Sequence[answers.Entry]:
        known = self._engine.world
        waiting = [item for server in known.servers
                   if server not in known.not_asked and
                   (item := known.waiting(server))]
        waiting.sort(key=known.queue.rank)
        others = sorted(known.not_asked.values(), key=known.queue.rank)
        return [self._entry(item, number, len(waiting))
                for number, item in enumerate(waiting, 1)] + [
            self._entry(item, None, len(waiting)) for item in others]

    def _entry(self, waiting: model.Waiting, position: int | None, length: int
               ) -> answers.Entry:
        known = self._engine.world
        told = known.told.last.get(waiting.id)
        current = self._engine.attempts.under_way.get(waiting.id)
        answer = known.answer(waiting.id)
        due = queue.due_at(waiting, known.options)
        if due and due <= timeutils.utcnow(True):
            due = None
        return answers.Entry(
            waiting, position, length, None if current else due,
            queue.deadline(waiting, known.options),
            current.shown if current else 'waiting',
            told.decision if told else None, told.at if told else None,
            known.options.mode, answer.advice if answer else '')

    def entry(self, server: str) -> answers.Entry | None:
        """One of them, or one that was given up a short time ago."""
        with self._engine.lock:
            given_up = self._engine.attempts.given_up.get(server)
            if server not in self._engine.world.servers:
                return given_up
        return next((entry for entry in self.entries()
                     if entry.waiting.id == server), None)

    def notices(self) -> Sequence[answers.NoticeEntry]:
        """Who is under notice."""
        with self._engine.lock:
            return [
                answers.NoticeEntry(victim.id, victim.name, victim.project,
                                 victim.action, current.terminate_at,
                                 current.id, current.host)
                for current in self._engine.attempts.under_way.values()
                for victim in current.victims
                if current.terminate_at and not victim.ended and
                victim.stage != model.Stage.CHOSEN]

    def dry_run(self, server: str) -> answers.DryRun | None:
        """Who would be ended; None while the room is not known."""
        with self._engine.lock:
            known = self._engine.world
            waiting = known.waiting(server)
            if waiting is None or not known.views:
                return None
            # Its room is planned in the index, and its victims are taken.
            current = self._engine.attempts.under_way.get(server)
            decision = (current.decision if current
                        else self._engine.observed.get(server))
            if decision is None:
                decision = choose.decide(
                    known.index, waiting, dataclasses.replace(
                        known.options, mode=model.Mode.PREEMPT),
                    timeutils.utcnow(True),
                    ends_left=known.planner.ends_left(timeutils.utcnow(True)))
            found = [known.index.slots.find(victim)
                     for victim in decision.victims]
            return answers.DryRun(decision, [item for item in found if item])

    def health(self) -> answers.Health:
        """How the reaper is."""
        return self._engine.guard.health(self._coordination())

    def as_of(self) -> datetime.datetime | None:
        """When the queue was last compared with Nova."""
        return self._engine.guard.listed_at
