# SPDX-License-Identifier: Apache-2.0

"""What the reaper knows and plans: the index, the queue, and how it went.

It asks nobody. Its owner, the engine, holds a lock over it.
"""

import collections
from collections.abc import Collection
import dataclasses
import time

from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes
from nova_reaper.decide import plan as plan_module
from nova_reaper.events import reader
from nova_reaper.queue import queue as queue_module
from nova_reaper.report import answers
from nova_reaper.report import journal
from nova_reaper.report import metrics

LOG = log.getLogger(__name__)
NOT_BUILT = ('Nobody is ended for a server that could not be built in the '
             'room of others.')


class World:
    """Hosts and servers that wait, planned by the options in force.

    :ivar servers: those that wait, whether their owners have asked for it or
        not, as Nova shows them
    :ivar not_asked: those of them whose owners have not: they are in no queue
    :ivar not_built: IDs of servers that could not be built in the room of
        others
    :ivar max_misses: the option of that name
    """

    def __init__(self, options: model.Options, source: reader.Reader,
                 forms: shapes.Shapes, meters: metrics.Metrics) -> None:
        self._reader = source
        self._shapes = forms
        self.options = options
        self.index = index_module.Index(options)
        self.queue = queue_module.Queue(options)
        self.planner = plan_module.Planner(self.index, self.queue, options)
        self.views: dict[str, reader.HostView] = {}
        self.servers: dict[str, nova.NovaServer] = {}
        self.not_asked: dict[str, model.Waiting] = {}
        self.told = answers.Decisions(meters)
        self.history: dict[str, queue_module.History] = (
            collections.defaultdict(queue_module.History))
        self.misses = queue_module.Misses()
        # Until when hosts are left out for shapes, by the monotonic clock.
        self._withheld: collections.deque[tuple[float, model.Shape, str]] = (
            collections.deque())
        self.not_built: set[str] = set()
        self.max_misses = 0
        # The least that one of those that wait asks for, by resource class.
        self._least: dict[str, int] = {}
        self._learned = source.learned

    def use(self, options: model.Options, attempts: Collection[str]) -> None:
        """Plan by other options from now on; what is planned stays so.

        :param attempts: IDs of the servers that attempts go on for
        """
        self.options = options
        # A list that is not believed may have shown that no host could take a
        # server: no server is given up before that is decided again.
        self.told.forget(model.NEVER)
        self.index.slots.use(options)
        self.planner.use(options)
        self.queue.use(options, timeutils.utcnow(True))
        for server in list(self.servers):
            if server not in attempts:
                self.put_again(server)

    def put_host(self, view: reader.HostView, wake: bool = False) -> bool:
        """A host as it was read; returns whether it has changed.

        :param wake: whether to look at those that sleep in any case
        """
        name = view.host.name
        before = self.views.get(name)
        if before and before.read_at >= view.read_at:
            return False
        self.views[name] = view
        row = self.index.put(view.host, view.servers)
        changed = not before or (before.host, before.servers) != (
            view.host, view.servers)
        if changed or wake:
            self.queue.host_changed(self.index, row)
        return changed

    def learn(self) -> None:
        """Say of all hosts which traits they have, if more is known of that.

        Which are asked for is known only when a server asks for them.
        """
        learned = self._reader.learned
        if self._learned is learned:
            return
        self._learned = learned
        for name, view in self.views.items():
            known = self._reader.with_traits(view)
            if known is not view:
                self.views[name] = known
                self.index.put(known.host, known.servers)
        self.queue.wake_all()

    def remove_host(self, name: str) -> None:
        """A host is gone."""
        self.views.pop(name, None)
        for plan in self.index.planned(name):
            self.index.drop_plan(plan.server)
        self.index.remove(name)

    def consumers(self) -> set[str]:
        """All that have something on some host."""
        return {consumer for view in self.views.values()
                for consumer in view.consumers}

    def classes(self) -> frozenset[str]:
        """The resource classes that hosts have."""
        return reader.classes(self.views.values())

    def put_server(self, server: nova.NovaServer, answer: shapes.Answer,
                   tries: nova.Tries | None = None, busy: bool = False
                   ) -> bool:
        """A server that waits; returns whether it was not known.

        :param tries: how often a host was looked for, None if that is known
        :param busy: whether an attempt for it is under way
        """
        if server.failed and any(queue_module.expired(
                [self._waiting(server, answer)], self.options,
                timeutils.utcnow(True))):
            # The server is in ERROR already: nothing more is done for it.
            self.discard(server.id)
            return False
        new = server.id not in self.servers
        self.servers[server.id] = server
        waiting = self.waiting(server.id)
        # A server for which nobody is ended has a shape of its own.
        said = self.index.exclusions
        for shape in {answer.shape, waiting.shape if waiting
                      else answer.shape}:
            # All servers of one shape bring the same object.
            if said.given(shape) is not answer.refused:
                changed = said.refusals(shape) != answer.refused
                said.refuse(shape, answer.refused)
                if changed:
                    self.queue.wake_shape(shape)
        if tries and not busy:
            self.learn_tries(server.id, tries)
        if not busy:
            self.put_again(server.id)
        return new

    def _waiting(self, server: nova.NovaServer, answer: shapes.Answer
                 ) -> model.Waiting:
        return shapes.waiting(server, answer, self._reader.properties.get(
            server.project, {}))

    def refuse(self, server: str, host: str, name: str) -> None:
        """A filter was found to refuse a server's shape on a host."""
        waiting = self.waiting(server)
        if waiting:
            self.index.exclusions.add(waiting.shape, host, name)

    def offer(self, server: str, host: str, providers: Collection[str]
              ) -> bool:
        """Placement has room for a server's shape on these providers alone.

        :param host: one that was found to have none
        :returns: whether there is another host, to be tried at once
        """
        waiting = self.waiting(server)
        if waiting is None:
            return False
        hosts = {name for name, view in self.views.items()
                 if view.host.uuid in providers and name != host}
        self.index.exclusions.offer(waiting.shape, hosts)
        return bool(hosts)

    def forget_offers(self) -> None:
        """What Placement said is old: try again what it had no room for."""
        if self.index.exclusions.forget_offers():
            self.queue.wake_all()

    def waiting(self, server: str) -> model.Waiting | None:
        """A server in the words of the queue, None if it does not wait."""
        answer = self.answer(server)
        if answer is None:
            return self.queue.get(server)
        made = self.history[server].of(
            self._waiting(self.servers[server], answer))
        spared = NOT_BUILT if server in self.not_built else (
            self.misses.objection(made.shape.key, self.max_misses,
                                  timeutils.utcnow(True)))
        if made.shelved or not spared:
            return made
        return dataclasses.replace(
            made, spared=spared,
            shape=dataclasses.replace(made.shape, fill_only=True))

    def measure(self) -> None:
        """Find out again what those that wait ask for, and tell all of them.

        What is known of others is forgotten.
        """
        demands: dict[model.Demand, list[model.Waiting]] = {}
        for waiting in self.queue:
            demands.setdefault(waiting.demand, []).append(waiting)
        shapes = {demand.shape for demand in demands}
        self._least.clear()
        for shape in shapes:
            self._lower(shape)
        self.index.exclusions.keep_only(shapes)
        self.queue.keep_only(demands)
        for demand, servers in demands.items():
            known = self.queue.asleep(demand)
            if known is None:
                continue
            for waiting in servers:
                # A decision holds for all servers of the demand.
                last = self.told.last.get(waiting.id)
                if last is None or not last.decision.hindrance and (
                        last.decision.reason is not known.reason):
                    self.tell(dataclasses.replace(known, server=waiting.id))

    def _lower(self, shape: model.Shape) -> None:
        asked = dict(shape.by_host)
        self._least = {name: min(amount, asked[name]) for name, amount
                       in (self._least or asked).items() if name in asked}

    def has_room(self, host: str) -> bool:
        """Whether somebody that waits may find room on a host, as known.

        Where that is not so, it cannot be because more of it was taken.
        """
        row = self.index.rows.get(host)
        return row is not None and all(
            self.index.free[self.index.classes[name]][row] >= amount
            for name, amount in self._least.items()
            if name in self.index.classes)

    def answer(self, server: str) -> shapes.Answer | None:
        """What Nova says of a server that waits, None if it is not known."""
        item = self.servers.get(server)
        return self._shapes.known(item) if item else None

    def missed(self, waiting: model.Waiting, cause: queue_module.Cause,
               why: str) -> bool:
        """Servers were ended for a server that did not run.

        Faults of services, which are over some time, do not count.

        :returns: whether it counts
        """
        if cause not in (queue_module.Cause.SERVER, queue_module.Cause.HOST):
            return False
        if cause is queue_module.Cause.HOST:
            # More room would not help a server whose build fails on hosts.
            self.not_built.add(waiting.id)
        count = self.misses.add(waiting.shape.key, queue_module.Miss(
            timeutils.utcnow(True), why))
        if count >= self.max_misses:
            LOG.warning('Nobody is ended for an hour for servers like %s '
                        '(%s), of which %d did not run after others had been '
                        'ended for them: %s', waiting.id, waiting.flavor,
                        count, why)
        return True

    def remember(self, memory: journal.Memory) -> None:
        """Take over what reapers before this one knew."""
        self.planner.remember((end.server, end.project, end.at)
                              for end in memory.ends)
        for miss in reversed(memory.missed):
            key = miss.detail['missed']
            self.misses.add(key, queue_module.Miss(
                miss.at, miss.detail.get('reason') or ''))
            if miss.detail.get('reason') == model.Reason.BUILD_FAILED:
                self.not_built.add(miss.server)
        for back in memory.returns:
            self._reader.has_returned(back.server, back.at)
        for stuck in memory.stuck:
            self._reader.avoid([stuck.server], (
                stuck.at - memory.until).total_seconds() + memory.exclusion)

    def remember_builds(self, memory: journal.Memory) -> None:
        """Count what others have built for the fair share of known hosts."""
        totals = self.index.totals()
        for build in memory.builds:
            self.queue.remember(build.project, build.detail.get(
                'resources', {}), totals, build.at)

    def forget(self) -> None:
        """What this reaper did is remembered by the one that is active."""
        self.planner.ends.clear()
        self.queue.share.forget()
        self.misses.clear()

    def put_again(self, server: str) -> None:
        """Have the queue use what is known of a server now."""
        waiting = self.waiting(server)
        if waiting is None:
            return
        if waiting.is_wanted(self.options.wait):
            self.not_asked.pop(server, None)
            self._lower(waiting.shape)
            self.queue.put(waiting, timeutils.utcnow(True))
            return
        if server not in self.not_asked:
            self._leave_queue(server)
            self.say(waiting, queue_module.not_asked(waiting))
        self.not_asked[server] = waiting

    def discard(self, server: str, planned: bool = False) -> None:
        """A server waits no more.

        :param planned: whether the room that was planned for it stays so
        """
        self.servers.pop(server, None)
        self.told.last.pop(server, None)
        self.history.pop(server, None)
        self.not_built.discard(server)
        self.not_asked.pop(server, None)
        if planned:
            self.queue.discard(server)
        else:
            self._leave_queue(server)

    def _leave_queue(self, server: str) -> None:
        """Have a server in the queue no more, nor room planned for it."""
        plan = self.index.plans.get(server)
        if plan:
            self.index.drop_plan(server)
            row = self.index.rows.get(plan.host)
            if row is not None:
                self.queue.host_changed(self.index, row)
        self.queue.discard(server)

    def leave(self, server: str, decision: model.Decision | None) -> None:
        """What was begun for a server is another's: it waits as before."""
        if decision:
            self.planner.undo(decision, timeutils.utcnow(True))
        else:
            self.index.drop_plan(server)
        self.put_again(server)

    def tell(self, decision: model.Decision) -> bool:
        """Keep a decision; returns whether it says anything new."""
        return self.told.tell(decision, timeutils.utcnow(True))

    def say(self, waiting: model.Waiting, decision: model.Decision) -> None:
        """Keep a decision, and log it if it says anything new."""
        self.told.say(waiting, decision, self.options.mode,
                      timeutils.utcnow(True))

    def came_to_nothing(self, server: str, cause: queue_module.Cause,
                        reason: model.Reason | None, host: str) -> None:
        """An attempt has ended, and its server waits."""
        self.history[server].came_to_nothing(
            cause, reason, host, timeutils.utcnow(True),
            self.options.retry_interval)

    def learn_tries(self, server: str, tries: nova.Tries,
                    reason: model.Reason | None = None) -> bool:
        """Take over what Nova knows of the attempts for a server.

        :returns: whether it backs off for some of a reaper before this one
        """
        known = self.history[server]
        backs_off = known.learn(tries)
        if backs_off:
            known.reason = reason
        return backs_off

    def withhold(self, shape: model.Shape, host: str) -> None:
        """Leave a host out for a shape until it changes, or a moment passes.

        Placement has no room on it, whatever is known of it here.
        """
        self.index.exclusions.withhold(shape, host)
        self._withheld.append((
            time.monotonic() + self.options.retry_interval, shape, host))

    def end_withholding(self) -> None:
        """Look again at hosts that were left out for long enough."""
        while self._withheld and self._withheld[0][0] <= time.monotonic():
            _until, shape, host = self._withheld.popleft()
            if self.index.exclusions.release(shape, host):
                self.queue.wake_shape(shape)

    def show(self) -> None:
        """Bring the gauges up to date."""
        self.told.show(self.servers.values(), self.views.values(),
                       timeutils.utcnow(True))
