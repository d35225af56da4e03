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

"""The attempts that are under way: begun, gone on with, ended.

The one thread of the engine owns them. Each step is a job in the pool, and
what comes of it is taken by that thread.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
import time

from oslo_config import cfg
from oslo_utils import timeutils

from nova_reaper import act
from nova_reaper.attempt import Attempt
from nova_reaper.attempt import Outcome
from nova_reaper.attempt import Result
from nova_reaper.attempt import Step
from nova_reaper import hosts
from nova_reaper import jobs
from nova_reaper import model
from nova_reaper import outcomes
from nova_reaper import reader
from nova_reaper import shapes
from nova_reaper import world

ASKING = frozenset({Step.HOLD, Step.REBUILD, Step.WATCH})
ENDING = frozenset(Step) - ASKING - {Step.CHECK}
GIVE_UP = 'give up '  # the name of a job, before that of the server


class Attempts:
    """Has decisions carried out, as many at a time as options allow.

    :ivar under_way: attempts by the ID of the server that waits
    :ivar decisions: what they carry out, by the same; none of those that a
        sweep has found
    :param read_one: has a server that waits read anew
    """

    def __init__(self, conf: cfg.ConfigOpts, known: world.World,
                 actor: act.Actor, results: outcomes.Outcomes,
                 forms: shapes.Shapes, reading: hosts.Hosts,
                 runner: jobs.Jobs, read_one: Callable[[str], None]) -> None:
        self._conf = conf
        self._world = known
        self._actor = actor
        self._outcomes = results
        self._shapes = forms
        self._hosts = reading
        self._jobs = runner
        self._read_one = read_one
        self.under_way: dict[str, Attempt] = {}
        self.decisions: dict[str, model.Decision] = {}
        # Since when what was planned for a server is written in Placement.
        self._written: dict[str, float] = {}
        # When to read servers again for which nothing could be begun.
        self._not_begun: dict[str, float] = {}
        # What a step that was under way may not have seen any more.
        self._woken: set[str] = set()

    def to_check(self) -> tuple[int, int]:
        """How many are to be checked: without victims, and with some."""
        with_victims = [bool(current.victims)
                        for current in self.under_way.values()
                        if current.step == Step.CHECK]
        return with_victims.count(False), with_victims.count(True)

    def begin(self, waiting: model.Waiting, decision: model.Decision
              ) -> None:
        """Begin to carry out a decision; if that cannot be, it is undone.

        The server stands in nobody's way then.
        """
        made = self._outcomes.begin(waiting, decision,
                                    self._hosts.freed.get(
                                        decision.host or '', 0.0))
        if made:
            self.under_way[waiting.id] = made
            self.decisions[waiting.id] = decision
            return
        self._world.planner.undo(decision, timeutils.utcnow(True))
        # What it asks for, its host or a victim is not known as it was: it is
        # in the queue again when it has been read.
        self._world.queue.discard(waiting.id)
        self._hosts.read(decision.host or '', whole=True)
        self._not_begun[waiting.id] = time.monotonic() + act.AGAIN

    def go_on(self) -> None:
        """Start the next step of all that are not to wait."""
        now, group = time.monotonic(), self._conf.reaper
        for server in [server for server, at in self._not_begun.items()
                       if at <= now]:
            del self._not_begun[server]
            self._read_one(server)
        asking = sum(current.step in ASKING
                     for current in self.under_way.values())
        ending = sum(bool(current.victims) and current.step in ENDING
                     for current in self.under_way.values())
        for server, current in list(self.under_way.items()):
            if current.wake_at > now or f'attempt {server}' in self._jobs:
                continue
            if current.step == Step.CHECK:
                if current.victims and ending >= group.max_preemptions or (
                        asking >= group.max_rebuilds):
                    continue
                ending += bool(current.victims)
                asking += not current.victims
            self._jobs.start(f'attempt {server}', functools.partial(
                self._actor.advance, current), self._advanced)
        self._outcomes.show(self.under_way.values())

    def _advanced(self, result: Attempt | Outcome) -> None:
        current = result if isinstance(result, Attempt) else result.attempt
        woken = current.id in self._woken
        self._woken.discard(current.id)
        if isinstance(result, Attempt):
            before = self.under_way.get(result.id)
            if before is None:
                return
            if woken:
                result = dataclasses.replace(result, wake_at=0.0)
            self.under_way[result.id] = result
            if before.step != result.step and result.step in (
                    Step.END, Step.REBUILD):
                self._hosts.freed.pop(result.host, None)
                if result.held:
                    self._written[result.id] = time.monotonic()
            return
        server = result.attempt.id
        if self.under_way.pop(server, None) is None:
            return
        self._outcomes.finish(result, self.decisions.pop(server, None))
        if result.apart:
            self._shapes.set_apart(server)
        self._written.pop(server, None)
        item = self._world.servers.get(server)
        if item is None:
            if server in self._world.index.plans:
                self._written[server] = time.monotonic()
        else:
            if result.refused_by:
                self._shapes.forget(item)
            self._read_one(server)
        # Where nothing came of it the host may not be what it was taken for.
        self._hosts.read(result.attempt.host, result.result != Result.ACTIVE)

    def failed(self, name: str) -> None:
        """A job has failed; if it was a step it is done again later."""
        if name.startswith(GIVE_UP):
            self._read_one(name.removeprefix(GIVE_UP))
        current = self.under_way.get(name.removeprefix('attempt '))
        if current is not None:
            woken = current.id in self._woken
            self._woken.discard(current.id)
            self.under_way[current.id] = dataclasses.replace(
                current, wake_at=0.0 if woken else
                time.monotonic() + act.AGAIN)

    def wake(self, server: str) -> None:
        """Go on with what waits for a server."""
        for key, current in self.under_way.items():
            if key == server or any(victim.id == server
                                    for victim in current.victims):
                self.under_way[key] = dataclasses.replace(current, wake_at=0.0)
                if f'attempt {key}' in self._jobs:
                    self._woken.add(key)

    def drop_written(self, view: reader.HostView) -> bool:
        """Drop the plans that a host shows as it was read.

        :returns: whether there were any
        """
        shown = [server
                 for server in self._world.index.planned(view.host.name)
                 if self._written.get(server, math.inf) <= view.read_at]
        for server in shown:
            # What was planned shows in the host itself from now on.
            self._world.index.drop_plan(server)
            del self._written[server]
        return bool(shown)

    def stand_by(self) -> None:
        """What is under way is another's now."""
        for server in self.under_way:
            self._world.leave(server, self.decisions.get(server))
            self._written.pop(server, None)
        for server in self._not_begun:
            self._world.put_again(server)
        self._not_begun.clear()
        self._woken.clear()
        self.under_way.clear()
        self.decisions.clear()

    def give_up(self) -> None:
        """Give up servers that have waited too long, or fit nowhere."""
        for waiting, reason in self._outcomes.hopeless(self.under_way):
            # Nothing else is begun for it meanwhile.
            self._world.queue.discard(waiting.id)
            self._jobs.line_up(f'{GIVE_UP}{waiting.id}', functools.partial(
                self._actor.give_up, waiting), functools.partial(
                    self._gave_up, waiting, reason))

    def _gave_up(self, waiting: model.Waiting, reason: str, done: bool
                 ) -> None:
        if done:
            self._outcomes.gave_up(waiting, reason)
        else:
            self._read_one(waiting.id)
