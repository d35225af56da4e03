# SPDX-License-Identifier: Apache-2.0

"""Lets the time pass in a cloud that a file describes.

Servers come, are built, end by themselves, and are ended for others; the
planner of the service decides. The time goes on from event to event: an
arrival, an end, a deadline, or the end of a protection or of a back-off.
"""

import bisect
import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import datetime
import functools
import heapq
import itertools
from typing import Any

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.queue import queue as queue_module
from nova_reaper import simulate

# The number of parts of the time for which the utilisation is told.
PARTS = 12
# Most servers that may come, and most hosts that may be added.
MOST_ARRIVALS = 1_000_000
MOST_HOSTS = 10_000
# Hosts do not help servers that are not tried.
_UNTRIED = (model.Hindrance.BACK_OFF, model.Hindrance.NOT_ASKED,
            model.Hindrance.DEADLINE)


def add_hosts(cloud: simulate.Snapshot, like: str, count: int
              ) -> simulate.Snapshot:
    """Return the cloud with more hosts, which are empty and enabled.

    A filter that refuses a host whatever runs on the host also refuses the
    new hosts that are like the host.

    :param like: the name of the host that the new hosts are like
    :param count: how many hosts to add
    :raises simulate.BadInput: if there is no such host
    """
    known = {host.name: host for host in cloud.hosts}
    if like not in known:
        raise simulate.BadInput('--like', f'there is no host "{like}"')
    names = list(itertools.islice(
        (name for number in itertools.count(1)
         if (name := f'{like}+{number}') not in known), count))
    hosts = simulate.using([dataclasses.replace(
        known[like], name=name, disabled=False) for name in names], ())
    refusals = {shape: {**by_host, **(
        dict.fromkeys(names, by_host[like])
        if by_host.get(like) in index_module.LASTING else {})}
        for shape, by_host in cloud.refusals.items()}
    return dataclasses.replace(cloud, hosts=[*cloud.hosts, *hosts],
                               refusals=refusals)


def hosts_to_clear(cloud: simulate.Snapshot, like: str,
                   until: datetime.datetime | None) -> dict[str, Any]:
    """Find how many more hosts it takes so that no server waits for room.

    The number is found by bisection: with so many hosts no server waits, and
    with one host fewer a server waits.

    :param like: the name of the host that the new hosts are like
    :param until: the time by which each server that waits or comes has to have
        found room; None for now, by the decisions of simulate.simulate()
    :returns: "like"; "hosts", None if no number of hosts is enough; and
        "most", the largest number that was tried
    :raises simulate.BadInput: if there is no such host, or as run() does
    """
    def clears(count: int) -> bool:
        grown = add_hosts(cloud, like, count)
        if until is not None:
            return not run(grown, until)['waits']['never']
        return not any(
            decision.verdict is model.Verdict.WAIT and
            decision.hindrance not in _UNTRIED
            for decision in simulate.simulate(grown))

    most = len(cloud.waiting)
    if until is not None:
        most += sum(item.action is model.Action.SHELVE
                    for item in cloud.servers) + sum(
            _number(item, until) for item in cloud.arrivals)
    most = min(most, MOST_HOSTS)
    found = {'like': like, 'hosts': None, 'most': most}
    if clears(0):
        return found | {'hosts': 0}
    if not clears(most):
        return found
    return found | {'hosts': bisect.bisect_left(
        range(most), True, 1, key=clears)}


def _number(arrivals: simulate.Arrivals, until: datetime.datetime) -> int:
    """Return how many servers of the arrivals come until a time."""
    if arrivals.first.created_at > until:
        return 0
    if not arrivals.every:
        return arrivals.count or 1
    come = 1 + (until - arrivals.first.created_at) // datetime.timedelta(
        seconds=arrivals.every)
    return come if arrivals.count is None else min(come, arrivals.count)


def run(cloud: simulate.Snapshot, until: datetime.datetime) -> dict[str, Any]:
    """Let the time pass in a cloud, and return the report.

    A decision is carried out at once: victims end and the server runs at the
    time of the decision. Only the servers of the cloud use its hosts.

    :param until: when the report is made
    :returns: an object for JSON; times are text, waits are in seconds,
        utilisation is a share of the capacity
    :raises simulate.BadInput: if ``until`` is not after the time of the cloud,
        or too many servers come until then
    """
    if until - cloud.now < datetime.timedelta(seconds=1):
        raise simulate.BadInput(
            '--until', 'has to be a second after '
            f'{model.time_text(cloud.now)}, the time of the cloud, or later')
    come = 0
    for at, arrivals in enumerate(cloud.arrivals):
        come += _number(arrivals, until)
        if come > MOST_ARRIVALS:
            raise simulate.BadInput(
                f'arrivals[{at}]', f'has to bring no more than {MOST_ARRIVALS}'
                ' servers until the end, with those before it')
    return _Course(cloud, until).run()


@dataclasses.dataclass(slots=True)
class _Part:
    """The usage of the hosts in a part of the time.

    :ivar sums: amount times seconds, by resource class
    :ivar peaks: the largest amount, by resource class
    """

    begin: datetime.datetime
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    peaks: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _Wait:
    """A wait of a server, which may be over.

    :ivar server: the server as it will run, without a host yet
    :ivar seconds: how long the server waited until it found room, None if it
        has found no room
    """

    waiting: model.Waiting
    server: model.Server
    seconds: float | None = None


class _Course:
    """The course of a cloud from its own time until another time."""

    def __init__(self, cloud: simulate.Snapshot,
                 until: datetime.datetime) -> None:
        self.cloud = cloud
        self.until = until
        self.now = cloud.now
        self.planner: choose.Planner = simulate.planner_of(cloud)
        self.index, self.queue = self.planner.index, self.planner.queue
        self.classes = {name for host in cloud.hosts for name in host.below}
        self.hosts = {host.name: host for host in cloud.hosts}
        # How much of each shared provider the servers use.
        self.shared: dict[str, collections.Counter[str]] = (
            collections.defaultdict(collections.Counter))
        # By host: its servers, and the filter that refuses each shape.
        self.running: dict[str, dict[str, model.Server]] = {
            name: {} for name in self.hosts}
        self.refused: dict[str, dict[model.Shape, str]] = (
            collections.defaultdict(dict))
        # The hosts whose servers differ from those in the index, in order.
        self.changed: dict[str, None] = {}
        # By server: its last wait, and how many seconds it has left to run.
        self.last: dict[str, _Wait] = {}
        self.left: dict[str, float] = {**cloud.run_times}
        self.used: collections.Counter[str] = collections.Counter()
        self.waits: list[_Wait] = []
        self.counts = dict.fromkeys((
            'came', 'built', 'ended', 'finished', 'given_up', 'not_asked'), 0)
        self.whole, self.parts = _Part(self.now), [_Part(self.now)]
        # The events by their times. Arrivals at the same time come in the
        # order of the file.
        self.events: list[tuple[
            datetime.datetime, int, Callable[[], None]]] = []
        self.numbers = itertools.count(len(cloud.arrivals))

    def run(self) -> dict[str, Any]:
        """Let the time pass, and return the report."""
        cloud, length = self.cloud, (self.until - self.now) / PARTS
        for shape, by_host in cloud.refusals.items():
            for host, name in by_host.items():
                self.refused[host][shape] = name
        for number in range(1, PARTS):
            self._at(self.now + number * length, self._next_part)
        for server in cloud.servers:
            self._start(server)
        self.changed.clear()
        for waiting in cloud.waiting:
            self._come(waiting, cloud.actions.get(waiting.id))
        for at in range(len(cloud.arrivals)):
            self._expect(at, 1)
        time: datetime.datetime | None = self.now
        while time is not None and time <= self.until:
            self._pass(time)
            while self.events and self.events[0][0] <= time:
                heapq.heappop(self.events)[2]()
            self._decide()
            time = min(filter(None, (
                self.queue.next_time(), *(
                    event[0] for event in self.events[:1]))), default=None)
        self._pass(self.until)
        return self._report()

    def _at(self, time: datetime.datetime, event: Callable[[], None],
            order: int | None = None) -> None:
        """Have an event happen at a time, or now if the time has passed."""
        heapq.heappush(self.events, (
            time, next(self.numbers) if order is None else order, event))

    def _pass(self, time: datetime.datetime) -> None:
        """Let the time go on to the next event."""
        seconds, self.now = (time - self.now).total_seconds(), time
        if not seconds:
            return
        for part in (self.whole, self.parts[-1]):
            for name, amount in self.used.items():
                part.sums[name] = part.sums.get(name, 0) + amount * seconds
                part.peaks[name] = max(part.peaks.get(name, 0), amount)

    def _next_part(self) -> None:
        self.parts.append(_Part(self.now))

    def _expect(self, at: int, number: int) -> None:
        """Have the next server of some arrivals come, if there is one.

        :param at: the position of these arrivals in those of the cloud
        :param number: the number of the server, 1 for the first
        """
        arrivals = self.cloud.arrivals[at]
        if arrivals.count is None or number <= arrivals.count:
            time = arrivals.first.created_at + datetime.timedelta(
                seconds=(number - 1) * arrivals.every)
            self._at(time, functools.partial(self._arrive, at, number), at)

    def _arrive(self, at: int, number: int) -> None:
        first = self.cloud.arrivals[at].first
        waiting = dataclasses.replace(
            first, id=f'{first.id}-{number}', created_at=self.now)
        if first.id in self.left:
            self.left[waiting.id] = self.left[first.id]
        self._come(waiting, self.cloud.actions.get(first.id))
        self._expect(at, number + 1)

    def _come(self, waiting: model.Waiting, action: model.Action | None,
              was: model.Server | None = None) -> None:
        """Have a server wait, or wait again if it was shelved."""
        self.counts['came'] += was is None
        end = queue_module.deadline(waiting, self.cloud.options)
        if end is not None and end <= self.now:
            self.counts['given_up'] += 1
            return
        if not waiting.is_wanted(self.cloud.options.wait):
            self.counts['not_asked'] += 1
            return
        self.last[waiting.id] = wait = _Wait(waiting, was or model.Server(
            waiting.id, '', {}, waiting.project, waiting.user, waiting.name,
            waiting.flavor, waiting.preemptible, waiting.priority,
            action=action or (model.Action.SHELVE if waiting.shelved
                              else model.Action.DELETE),
            devices=dict(waiting.shape.devices)))
        self.waits.append(wait)
        self.queue.put(waiting, self.now)
        if end is not None:
            self._at(end, functools.partial(self._give_up, wait))

    def _give_up(self, wait: _Wait) -> None:
        if wait.seconds is None:
            self.queue.discard(wait.waiting.id)
            self.counts['given_up'] += 1

    def _decide(self) -> None:
        """Decide for all servers that can be tried now, and build them.

        As in the service, hosts are read again after all servers were tried.
        """
        again = True
        while again:
            self._read()
            while (step := self.planner.next(self.now)) is not None:
                if step[1].host is not None:
                    self._build(*step, step[1].host)
            again = bool(self.changed)

    def _build(self, waiting: model.Waiting, decision: model.Decision,
               host: str) -> None:
        wait = self.last[waiting.id]
        wait.seconds = max((self.now - waiting.created_at).total_seconds(), 0)
        self.queue.discard(waiting.id)
        self.planner.carry_out(waiting.id, self.now)
        for victim in decision.victims:
            self._end(self.running[host][victim])
        amounts = dict(self.index.plans[waiting.id].amounts)
        self._start(dataclasses.replace(
            wait.server, host=host, resources=amounts.pop(model.OWN, {}),
            providers=amounts, launched_at=self.now,
            last_ended_at=self.now if waiting.shelved else None))
        self.counts['built'] += 1

    def _start(self, server: model.Server) -> None:
        """Have a server run on its host."""
        self.changed[server.host] = None
        self.running[server.host][server.id] = server
        self.used.update(server.amounts)
        for name, amounts in self._of_shared(server).items():
            self.shared[name].update(amounts)
        if server.id in self.left:
            self._at((server.launched_at or self.now) + datetime.timedelta(
                seconds=self.left[server.id]),
                functools.partial(self._finish, server))

    def _stop(self, server: model.Server) -> None:
        """Take a server off its host."""
        self.changed[server.host] = None
        del self.running[server.host][server.id]
        self.used.subtract(server.amounts)
        for name, amounts in self._of_shared(server).items():
            self.shared[name].subtract(amounts)

    def _of_shared(self, server: model.Server
                   ) -> dict[str, Mapping[str, int]]:
        """Return the amounts that a server has of shared providers."""
        return {one.name: server.of(one.name) for one
                in self.hosts[server.host].providers if one.shared}

    def _finish(self, server: model.Server) -> None:
        # The server may have been ended for another server since, and may run
        # again.
        if self.running[server.host].get(server.id) is server:
            self._stop(server)
            self.counts['finished'] += 1

    def _end(self, server: model.Server) -> None:
        """End a server for another server."""
        self._stop(server)
        self.counts['ended'] += 1
        if server.action is not model.Action.SHELVE:
            return
        shared = self._of_shared(server)
        before = (
            self.last[server.id].waiting.shape if server.id in self.last
            else simulate.shape_of(
                model.total(server.resources, *shared.values()), self.classes,
                server.devices, groups=[
                    model.Group.of(amounts)
                    for name, amounts in server.providers.items()
                    if name not in shared]))
        shape = dataclasses.replace(before, fill_only=True)
        for host, by_shape in self.refused.items():
            if before in by_shape and shape not in by_shape:
                by_shape[shape] = by_shape[before]
                self.index.exclusions.refuse(shape, {host: by_shape[before]})
        if server.id in self.left:
            self.left[server.id] -= (self.now - (
                server.launched_at or self.cloud.now)).total_seconds()
        self._come(model.Waiting(
            server.id, shape, self.now, server.project, server.user,
            server.name, server.flavor, server.preemptible, server.priority,
            shelved=True), server.action, server)

    def _read(self) -> None:
        """Read the hosts that have changed, and wake servers that may fit."""
        for name in self.changed:
            servers = list(self.running[name].values())
            host, = simulate.using([self.hosts[name]], servers)
            row = self.index.put(host, servers)
            for one in host.providers:
                if one.shared:
                    self.index.share(one.name, dict(self.shared[one.name]))
            for plan in self.index.planned(name):
                self.index.drop_plan(plan.server)
            for shape, refusal in self.refused.get(name, {}).items():
                self.index.exclusions.refuse(shape, {name: refusal})
            self.queue.host_changed(self.index, row)
        self.changed.clear()
        if self.index.grown:
            self.queue.wake_short(self.index.take_grown())

    def _report(self) -> dict[str, Any]:
        capacity = {name: amount for name, amount
                    in sorted(self.index.totals().items()) if amount}
        parts = [_utilisation(part, end, capacity) for part, end in zip(
            self.parts, [*(part.begin for part in self.parts[1:]),
                         self.until])]
        shapes: dict[str, tuple[dict[str, Any], list[_Wait]]] = {}
        for wait in self.waits:
            shape = simulate.of_shape(wait.waiting.shape)
            shapes.setdefault(repr(shape), (shape, []))[1].append(wait)
        projects = collections.defaultdict(list)
        for wait in self.waits:
            projects[wait.waiting.project].append(wait)
        return {
            'hosts': len(self.hosts), 'capacity': capacity,
            'servers': {**self.counts, 'waiting': sum(
                1 for _waiting in self.queue)},
            'utilisation': _utilisation(self.whole, self.until, capacity),
            'utilisation_by_time': parts,
            'waits': _waits(self.waits),
            'waits_by_project': [
                {'project': project, **_waits(waits)}
                for project, waits in sorted(projects.items())],
            'waits_by_shape': [{'shape': shape, **_waits(waits)}
                               for shape, waits in shapes.values()]}


def _utilisation(part: _Part, end: datetime.datetime,
                 capacity: dict[str, int]) -> dict[str, Any]:
    seconds = (end - part.begin).total_seconds()
    return {
        'from': model.time_text(part.begin), 'until': model.time_text(end),
        'mean': {name: round(part.sums.get(name, 0) / seconds / amount, 4)
                 for name, amount in capacity.items()},
        'peak': {name: round(part.peaks.get(name, 0) / amount, 4)
                 for name, amount in capacity.items()}}


def _waits(waits: Iterable[_Wait]) -> dict[str, Any]:
    """Return how long the servers that found room had waited."""
    waits = list(waits)
    found = sorted(round(wait.seconds) for wait in waits
                   if wait.seconds is not None)

    def longest_of(percent: int) -> int | None:
        """Return the longest wait of so many percent of the servers."""
        at = -(-len(found) * percent // 100) - 1
        return found[at] if found else None

    return {'servers': len(waits), 'median': longest_of(50),
            'p90': longest_of(90), 'longest': longest_of(100),
            'never': len(waits) - len(found)}
