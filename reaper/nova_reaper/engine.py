# SPDX-License-Identifier: Apache-2.0

"""Runs the loop that takes hints and lists, decides, and begins attempts.

A single thread owns what is known (world.py) and what is under way, and asks
no service. The threads of a pool ask Nova and Placement, and give back what
they find as a call that the single thread makes.

No turn takes long: a turn makes some decisions and takes a part of a long
list, so that hints and steps of attempts come between.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import dataclasses
import datetime
import functools
import math
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Step
from nova_reaper.act import recovery
from nova_reaper.act import steps
from nova_reaper.clients import nova
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import conf as reaper_conf
from nova_reaper.events import bus
from nova_reaper.events import lists
from nova_reaper.events import reader
from nova_reaper.report import health
from nova_reaper.report import journal
from nova_reaper import world

LOG = log.getLogger(__name__)
# Names of jobs; seconds until the journal is read again after an error, and
# seconds for which decisions wait for the journal, and for what it lacks.
JOURNAL, CLOSE = 'journal', 'open records'
RECALL = 30.0
PATIENCE = 15.0
# Seconds of the processor that a turn may take for decisions, and for what
# was read; at least so many decisions are made and so much is taken.
BUDGET = 0.03
AT_LEAST = 4


class Engine:
    """Runs a reaper that is made of the given parts.

    :ivar source: reads Nova and Placement; safe for threads
    :ivar attempts: the attempts, which are under way or given up
    :ivar observed: the decisions of the mode "observe", by the server's ID
    :ivar recovered: whether everything was read, and a sweep has found what an
        earlier reaper had begun. Before that the reaper has the first servers
        built where there is room, or where others end by the outlines of all
        hosts, and gives up no server
    :ivar listed: how many lists of all servers were taken
    """

    def __init__(self, conf: cfg.ConfigOpts, source: reader.Reader,
                 forms: shapes.Shapes, actor: steps.Actor,
                 finder: recovery.Recovery, safe: health.Guard,
                 known: world.World, meters: health.Metrics,
                 pool: futures.Executor, book: journal.Journal) -> None:
        self._conf = conf
        self.source = source
        self._recovery = finder
        self.guard = safe
        self.world = known
        self.metrics = meters
        self.forms = forms
        self._lists = lists.Lists(source, forms)
        self.mailbox = bus.Mailbox()
        few = max(1, conf.reaper.workers // 4)
        self.jobs = reader.Jobs(pool, self.mailbox.wake, self._failed, few)
        self.lock = known.lock
        self.observed: dict[str, model.Decision] = {}
        # What was read and is taken a part at a time: lists, which let single
        # servers pass.
        self._lists_read: collections.deque[Iterator[None]] = (
            collections.deque())
        self._read: collections.deque[Iterator[None]] = collections.deque()
        # Whether a turn ended before all decisions were made.
        self._undecided = False
        # Attempts wait for some of these reads, which no other job delays.
        self._hosts = reader.Hosts(source, known.views, self.jobs,
                                 self._refreshed, few)
        self.attempts = attempts.Attempts(
            conf, source, known, forms, actor, meters, book, self._hosts,
            self.jobs, self._read_one, self._lists.keep_failed,
            self.observed.__setitem__)
        self._calendar = lists.Calendar(conf)
        self.recovered = False
        self.listed = 0
        self._book = book
        # What the journal says of the time before this reaper became active;
        # the time at which this reaper became active; when to read the journal
        # again, and until when decisions wait for the journal.
        self._memory: journal.Memory | None = None
        self._begun_at: datetime.datetime | None = None
        self._recall_at = self._recall_until = 0.0
        # Until when nobody is ended before the records that the journal lacks
        # have been found.
        self._close_until = 0.0
        # When to sweep again after a sweep that failed or was put off.
        self._sweep_at = math.inf
        # Grows while another reaper acts. The engine drops what a job of an
        # earlier term has found.
        self._term = 0
        # The term in which hosts were looked for before all hosts were read.
        self._ahead_in = -1
        # Whether servers are built before all hosts have been read; whether
        # others may end for them, since the outlines of all hosts are known
        # and no earlier reaper has left anything to find.
        self._ahead = self._ends_ahead = False
        # The servers that were taken before all hosts were read.
        self._first: set[str] = set()
        # Servers that are to be read when all hosts have been read.
        self._unread: set[str] = set()
        # Whether the world has counted what the journal tells of builds.
        self._counted = False
        # The terms in which the last list of all servers was begun and was
        # read; whether something in the last list is not believed before
        # everything has been read again.
        self._begun_in = self._read_in = -1
        self._doubted = False

    @property
    def busy(self) -> bool:
        """Whether something is under way, read, or to be decided."""
        return bool(
            not self.recovered or self.attempts.under_way or self._read or
            self._lists_read or self._undecided or not self.jobs.idle)

    @property
    def loading(self) -> bool:
        """Whether a list is read, or taken."""
        return bool(
            self._lists_read or self._read and not self.listed or any(
                name in self.jobs for name in (
                    lists.FULL, lists.CHANGES, lists.FIRST_HOSTS)))

    def turn(self, longest: float = 1.0) -> None:
        """Wait for news, at most some seconds, then do what is to be done."""
        hints = self.mailbox.take(self._pause(longest))
        with self.lock:
            if not self.guard.active:
                self._stand_by()
                return
            self._recall()
            self.jobs.take()
            self._take_part()
            # A list that is taken now may have begun a sweep.
            self.jobs.take()
            for hint in hints:
                self._hint(hint)
            self._start_lists()
            if time.monotonic() >= self._sweep_at:
                self._sweep()
            self._hosts.go_on(any(current.step is not Step.WATCH for current
                                  in self.attempts.under_way.values()))
            self._use_mode()
            if self._may_plan:
                if self.recovered or self._ahead and (
                        self.guard.mode is not model.Mode.OBSERVE):
                    self._plan()
                if self.recovered and self._may_end:
                    self.attempts.end_run_times()
                self.attempts.go_on()
            if self.recovered:
                if self._may_plan:
                    self._end_notices()
                self.attempts.give_up()

    def _pause(self, longest: float) -> float:
        if self.jobs.waiting or self._read or self._lists_read:
            return 0.0
        now = time.monotonic()
        due = [self._calendar.next]
        due += [current.wake_at
                for current in self.attempts.under_way.values()]
        return min([longest] + [when - now for when in due if when > now])

    def _stand_by(self) -> None:
        """Leave attempts to the active reaper, and go on to read lists."""
        if self.recovered:
            LOG.info('%d attempts are left to the active reaper.',
                     len(self.attempts.under_way))
        self._undo_observed()
        self.attempts.stand_by()
        if self._book.error:
            # The active reaper may be paused meanwhile.
            self._book.asked.clear()
        self.recovered = self._ahead = self._counted = False
        self._ends_ahead = False
        if not self.listed:
            # Another reaper may begin something for these servers.
            for server in list(self.world.servers):
                self._forget(server)
        self._unread.clear()
        self._first.clear()
        self._term += 1
        if self._begun_at:
            self.world.forget()
            self._memory, self._begun_at, self._recall_at = None, None, 0.0
            self.guard.remembers = None
        self._sweep_at = math.inf
        self._hosts.forget()
        self.jobs.take()
        self._take_part()
        self._start_lists()
        self._calendar.resume = True

    def _take_part(self) -> None:
        """Take a part of what was read."""
        end = time.thread_time() + BUDGET
        taken = 0
        while (first := self._read or self._lists_read) and (
                taken < AT_LEAST or time.thread_time() < end):
            taken += 1
            if next(first[0], self) is self:
                first.popleft()

    def _recall(self) -> None:
        """Read the journal of the time before; again if that fails."""
        now = time.monotonic()
        if self._begun_at is None:
            self._begun_at = timeutils.utcnow(True)
            self._recall_until = now + PATIENCE
            self.guard.remembers = None
        if self._memory is None and now >= self._recall_until:
            self.guard.remembers = False
        if self._memory is None and self._book.error is None and (
                now >= self._recall_at):
            self._recall_at = now + RECALL
            self.jobs.start(JOURNAL, functools.partial(
                journal.read, self._book.store, self._begun_at,
                reaper_conf.options(self._conf),
                self._conf.reaper.stuck_exclusion),
                functools.partial(self._remember, self._term))

    def _remember(self, term: int, memory: journal.Memory) -> None:
        if term != self._term:
            return
        self._memory = memory
        self._count(memory)
        if self.recovered or self._ahead_in == term:
            self._count_builds()
        self.guard.remembers = True
        LOG.info('Read of the journal: %d ends within an hour, %d builds.',
                 len(memory.ends), len(memory.builds))

    def _count(self, memory: journal.Memory) -> None:
        """Have the world count what the journal tells, except builds."""
        self.world.remember(memory)
        for record in memory.rehearsals:
            self.attempts.has_rehearsed(record.server, record.at)
        self._lists.failed_before |= {
            record.server for record in memory.errors}

    def _count_builds(self) -> None:
        """Have the world count, once, what the journal tells of builds."""
        if self._memory and not self._counted:
            self._counted = True
            self.world.remember_builds(self._memory, self.attempts.under_way)

    @property
    def _may_plan(self) -> bool:
        """Whether the journal has been read, or was waited for."""
        known = self._memory is not None and self._book.asked.is_set()
        return known or time.monotonic() >= self._recall_until

    def _close(self) -> None:
        """Have a job find out the results that the journal lacks."""
        if self._book.error is None:
            busy = {victim.id for current in self.attempts.under_way.values()
                    for victim in current.victims}
            self.jobs.start(CLOSE, functools.partial(
                journal.close, self._book.store, self._recovery.find,
                busy.union(self.attempts.under_way),
                self._recovery.look_also),
                functools.partial(self._take_closed, self._term))

    def _take_closed(self, term: int, found: Sequence[journal.Record]) -> None:
        """Write and count the results that the journal lacked."""
        self._book.write(*found)
        if term == self._term:
            self.world.planner.drop_stuck({
                record.server for record in found
                if record.kind in (journal.Kind.END,
                                   journal.Kind.WITHDRAWAL)})
            memory = journal.memory_of(found, timeutils.utcnow(True))
            self._count(memory)
            self.world.remember_builds(memory, self.attempts.under_way)

    @property
    def _may_end(self) -> bool:
        """Whether the ends of before are known, or were waited for."""
        return self._ends_ahead or self.recovered and (
            CLOSE not in self.jobs or time.monotonic() >= self._close_until)

    def _failed(self, name: str, why: str) -> None:
        self.guard.failed(name, why)
        if name in (lists.FULL, lists.CHANGES):
            self._calendar.failed(name, self.recovered)
        if name == JOURNAL:
            # Decisions wait for the journal no longer.
            self._recall_until, self.guard.remembers = 0.0, False
        if name == 'sweep':
            self._sweep_at = time.monotonic() + attempts.AGAIN
        if name.startswith('host '):
            self._hosts.failed(name.removeprefix('host '))
        self.attempts.failed(name)

    def rehearse(self, server: nova.NovaServer) -> str | None:
        """Begin a rehearsal, as Attempts.rehearse() does."""
        if not self.recovered:
            return 'The reaper does not know all servers yet. Ask again.'
        refusal = self.attempts.rehearse(server)
        self.mailbox.wake()
        return refusal

    # Hints.

    def _hint(self, hint: bus.Hint) -> None:
        if hint.kind == bus.Kind.HOST:
            self._hosts.freed.setdefault(hint.host, hint.at)
            self._hosts.read(hint.host)
        elif hint.kind == bus.Kind.TAKEN:
            if self.world.has_room(hint.host):
                self._hosts.read_later(hint.host)
        elif hint.kind == bus.Kind.WAITS:
            self.attempts.wake(hint.server)
            self._read_one(hint.server)
        elif hint.kind == bus.Kind.SHAPE:
            self._calendar.read_soon()
        else:
            self._server_changed(hint)

    def _server_changed(self, hint: bus.Hint) -> None:
        self.attempts.wake(hint.server)
        if hint.server in self.world.servers and (
                hint.server not in self.attempts.under_way):
            self._read_one(hint.server)
        if hint.preemptible or hint.server in self.source.preemptible:
            self.jobs.line_up(
                f'preemptible {hint.server}',
                functools.partial(self.source.read_server, hint.server),
                lambda server: self._hosts.read_later(
                    server.host if server else hint.host))

    def _refreshed(self, host: str, view: reader.HostView | None) -> None:
        if view is None:
            return
        known = self.world.views.get(host)
        if known and known.host.inventory and not view.host.inventory:
            # A list judges whether the host has really lost its inventory.
            # Until then no server goes there, and nobody is ended for a server
            # that would have room there.
            self.world.index.exclusions.doubt(host)
        else:
            self._put_host(view)

    def _put_host(self, view: reader.HostView, again: bool = False) -> bool:
        """Keep a host as it was read; return whether the host has changed.

        :param again: whether to ask Nova's filters for the host again, though
            the host may not have changed
        """
        shown = self.attempts.drop_written(view)
        if again and self.world.index.exclusions.take_back(
                view.host.name, lasting=True):
            shown = True
        return self.world.put_host(view, wake=shown)

    def _read_one(self, server: str) -> None:
        if not self.listed and server not in self.world.servers:
            # Whether something was begun for the server is not known yet.
            self._unread.add(server)
            return
        self.jobs.line_up(f'server {server}', functools.partial(
            self._lists.read_one, server, self.world.index.on_hosts()),
            lambda found: self._read.append(
                self._put_server(server, *found)))

    def _put_server(self, server: str,
                    found: nova.NovaServer | None,
                    answer: shapes.Answer | None) -> Iterator[None]:
        yield from self.world.learn()
        busy = server in self.attempts.under_way
        if found and answer:
            self.world.put_server(found, answer, busy)
        elif found and found.may_wait and server in self.world.servers:
            # If its owner's rebuild finds no host, the server keeps its place.
            return
        elif not busy and not self.source.has_shelved(server):
            self._forget(server)

    def _forget(self, server: str) -> None:
        self._undo_observed(server)
        self.world.discard(server)

    # Lists.

    def _start_lists(self) -> None:
        if self.guard.active and not self.recovered and not self._may_plan:
            # The journal tells which servers are protected.
            return
        if self._lists_read or self._read and not self.listed:
            # The engine has not taken all yet that the last job has read.
            return
        calendar = self._calendar
        due = calendar.due(self.guard.active, self.recovered, self._doubted)
        if (due == lists.FULL or lists.FULL in self.jobs) and (
                ahead := self._ahead_of()):
            self._read_first(lists.FIRST_HOSTS, self._term,
                             self._lists.read_first(ahead))
        others = [lists.FULL, lists.CHANGES]
        if not self.listed:
            others.append(lists.FIRST_HOSTS)
        if due is None or any(name in self.jobs for name in others):
            return
        if due == lists.CHANGES and not self.recovered and (
                self.jobs.runs('attempt ') and self._ahead_in != self._term):
            # A step from before another reaper was active still runs: the list
            # has to show what that step writes.
            return
        whole, anew = due == lists.FULL or calendar.whole, calendar.anew
        read: Callable[[], lists.FullList]
        if due == lists.FULL:
            read = self._lists.read_hosts
        else:
            views = dict(self.world.views)
            oldest = (max(1, round(len(views) * calendar.oldest))
                      if self.recovered else 0)
            read = functools.partial(
                self._lists.read_hosts, calendar.read_at, views,
                list(self.world.servers.values()), whole, anew, oldest)
        if self.jobs.start(due, read, lambda found: self._lists_read.append(
                self._take_full(due, whole, anew, found))):
            calendar.began(due)
            if whole:
                self._begun_in = self._term if self.guard.active else -1

    def _ahead_of(self) -> lists.Ahead | None:
        """Return how to build before all hosts are read, None if not now."""
        if self.listed or not self.guard.active or (
                self._ahead_in == self._term or
                lists.FIRST_HOSTS in self.jobs or
                lists.NEXT_HOSTS in self.jobs or
                self.jobs.runs('attempt ')):
            # A step from before another reaper was active may write a hold.
            return None
        options = reaper_conf.options(self._conf)
        if options.reserve or self.guard.mode is model.Mode.OBSERVE:
            # A reservation needs to know all hosts.
            return None
        self._ahead_in = self._term
        self._count_builds()
        # The outlines have to show which servers are protected, and a list of
        # everything shows what an earlier reaper has begun.
        ends = options.mode is model.Mode.PREEMPT and (
            self._memory is not None and not self._memory.begun)
        return lists.Ahead(ends, options.wait, self.world.queue.share.of)

    def _read_first(self, name: str, term: int,
                    first: Iterator[lists.First]) -> None:
        """Have the first hosts and servers read, or the next."""
        self.jobs.start(
            name, functools.partial(next, first, None),
            lambda found: self._read.append(
                self._put_first(term, first, found)))

    def _put_first(self, term: int, first: Iterator[lists.First],
                   found: lists.First | None) -> Iterator[None]:
        """Take some hosts, and the servers that may be built there."""
        if found is None:
            return
        for view in found.hosts.values():
            if self._is_late(term):
                return
            if view:
                self._put_host(view)
                yield
        yield from self.world.learn()
        if self._is_late(term):
            return
        self._ahead = True
        if found.hypervisors:
            self._ends_ahead = self.guard.judge(
                len(found.hypervisors), found.unknown, found.bare, True
            ) and not found.noticed
            self.world.queue.wake_all()
        for uuid, server in found.servers.items():
            self._first.add(uuid)
            self.world.put_server(server, found.answers[uuid])
        self._read_first(lists.NEXT_HOSTS, term, first)

    def _is_late(self, term: int) -> bool:
        """Return whether first hosts that were read in a term are too late."""
        return bool(term != self._term or self.listed or self._lists_read)

    def _take_waiting(self, found: lists.WaitingList) -> Iterator[None]:
        """Take the servers of a list, one after another."""
        self.metrics.last_list.labels('pending').set_to_current_time()
        yield from self.world.learn()
        for uuid, server in found.servers.items():
            yield
            if uuid in self._first and uuid not in self.world.servers:
                # The server may have been built after the list was read.
                self._read_one(uuid)
                continue
            answer = found.answers.get(uuid)
            if answer and self.world.put_server(
                    server, answer,
                    busy=uuid in self.attempts.under_way) and (
                        self.recovered):
                self.metrics.poll_only_finds.labels('waits').inc()
        known = set(self.world.servers)
        for uuid in (known - set(found.servers) if found.gone is None
                     else found.gone & known):
            if uuid in self.attempts.under_way:
                continue
            if self.world.servers[uuid].updated_at > (
                    found.read_at - lists.SKEW):
                # The server may have begun to wait after the list was read.
                self._read_one(uuid)
                continue
            self.metrics.poll_only_finds.labels('ended').inc()
            self._forget(uuid)
        self.guard.listed_at = timeutils.utcnow(True)
        yield from self.world.measure()
        if self.guard.active:
            self.world.show()

    def _take_full(self, due: str, whole: bool, anew: bool,
                   found: lists.FullList) -> Iterator[None]:
        """Take the hosts and servers of a list, one after another."""
        if self._ahead:
            # What was decided by some of the hosts is decided anew.
            self._ahead = self._ends_ahead = False
            # No server is given up by what the outlines of hosts said.
            self.world.told.forget(model.NEVER)
            self.world.queue.wake_all()
        self.metrics.list.labels('full' if whole else 'pending').observe(
            found.seconds)
        if whole:
            self.metrics.last_list.labels('full').set_to_current_time()
        believed = self.guard.judge(len(found.hypervisors), found.unknown,
                                    found.bare, due == lists.FULL)
        self._doubted = not believed
        if believed:
            self.source.keep_hypervisors(found.hypervisors)
            for name in set(self.world.views) - set(found.hypervisors):
                self.world.remove_host(name)
        missing = sorted(name for name, view in found.hosts.items()
                         if view is None)
        if believed and missing:
            LOG.warning('Placement does not know these hosts of Nova, on '
                        'which there is no room then: %s', ', '.join(missing))
            for name in missing:
                self.world.remove_host(name)
        for name, view in found.hosts.items():
            if view is None:
                continue
            yield
            known = self.world.views.get(name)
            if not view.host.inventory and (not believed or (
                    due != lists.FULL and known and known.host.inventory)):
                # A list of everything judges whether the inventory is lost.
                self._doubted = True
                continue
            if self._put_host(view, again=True) and self.recovered:
                self.metrics.poll_only_finds.labels('host').inc()
        for name in found.failed:
            self._hosts.failed(name)
        if whole or anew:
            self.world.ask_again(filters=anew)
        self._calendar.read_at = found.read_at
        for server in list(self.observed) if whole else ():
            self._undo_observed(server)
            yield
        yield from self._take_waiting(found.waiting)
        if whole:
            self.listed += 1
            self._read_in = self._begun_in
            for server in self._unread:
                self._read_one(server)
            self._unread.clear()
            self._first.clear()
            if self.guard.active:
                self._sweep()

    def _sweep(self) -> None:
        """Look for attempts, holds and notices that nobody works with."""
        self._sweep_at = math.inf
        if self._read_in != self._term:
            # Another reaper may have given notices since; a list comes.
            return
        if not self.recovered and (
                self.jobs.runs('attempt ') and self._ahead_in != self._term or
                'sweep' in self.jobs):
            # A step from before another reaper was active still runs: the
            # sweep has to see what that step writes.
            self._sweep_at = time.monotonic() + attempts.AGAIN
            return
        age = self._conf.reaper.hold_timeout if self.recovered else 0.0
        views = list(self.world.views.values())
        servers, busy = set(self.world.servers), set(self.attempts.under_way)
        mode = self.guard.mode
        self.jobs.start('sweep', lambda: self._recovery.look(
            {consumer for view in views for consumer in view.consumers},
            servers, busy, age, mode),
            functools.partial(self._take_sweep, self._term))

    def _end_notices(self) -> None:
        if self._recovery.is_late:
            self.jobs.start('notices', functools.partial(
                self._recovery.withdraw_late,
                list(self.attempts.under_way.values())), lambda _: None)

    def _take_sweep(self, term: int, found: recovery.Found) -> None:
        if term != self._term:
            return
        self.metrics.holds.set(found.holds + sum(
            current.held is not None
            for current in self.attempts.under_way.values()))
        self.metrics.hold_oldest.set(found.oldest)
        for current in found.attempts:
            if current.id not in self.attempts.under_way:
                self.attempts.adopt(current)
        for host in found.changed:
            self._hosts.read(host)
        if not self.recovered:
            self.recovered = True
            self._close_until = time.monotonic() + PATIENCE
            self._count_builds()
            self.world.complete()
            LOG.info('Waiting servers: %d; attempts that go on: %d.',
                     len(self.world.servers), len(self.attempts.under_way))
        self._close()

    # Decisions.

    def _use_mode(self) -> None:
        # The mode is read first: at worst an older mode has newer limits.
        mode = self.guard.mode
        options = dataclasses.replace(
            reaper_conf.options(self._conf), mode=mode)
        self.world.max_misses = self._conf.reaper.max_misses
        if options != self.world.options:
            self._undo_observed()
            self.world.use(options, self.attempts.under_way.keys())

    def _undo_observed(self, *servers: str) -> None:
        """Undo decisions of the mode "observe", to make the decisions anew.

        :param servers: the IDs of the servers that wait; by default of all
        """
        for server in servers or list(self.observed):
            decision = self.observed.pop(server, None)
            if decision:
                self.world.planner.undo(decision, timeutils.utcnow(True))

    def _plan(self) -> None:
        group = self._conf.reaper
        tally = self.attempts.tally()
        self._undecided = False
        end, made = time.thread_time() + BUDGET, 0
        while made < AT_LEAST or time.thread_time() < end:
            made += 1
            # Attempts with victims have a limit of their own.
            if tally.checks > group.max_rebuilds:
                return
            self.world.queue.close(
                {project for project, count in tally.projects.items()
                 if count >= group.max_rebuilds_per_project})
            begun = time.perf_counter()
            found = self.world.planner.next(
                timeutils.utcnow(True),
                may_end=(self._may_end and
                         tally.with_victims < group.max_preemptions))
            if found is None:
                self._hosts.forget_freed()
                return
            self.metrics.decision.observe(time.perf_counter() - begun)
            waiting, decision = found
            waits = decision.verdict is model.Verdict.WAIT
            if self.recovered or not waits or (
                    self._ends_ahead and not waiting.shape.fill_only):
                # Before all hosts are known another host may have room, or
                # devices.
                self.world.told.say(
                    waiting, decision, self.world.options.mode,
                    timeutils.utcnow(True),
                    filter(None, map(self.world.index.slots.find,
                                     decision.victims)))
            if waits:
                continue
            if self.attempts.begin(waiting, decision):
                tally.add(waiting.project, bool(decision.victims))
        self._undecided = True
        self.mailbox.wake()
