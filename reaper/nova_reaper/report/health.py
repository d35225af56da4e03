# SPDX-License-Identifier: Apache-2.0

"""Has the metrics and the health of the reaper, and limits what it does.

The documentation says what each metric for Prometheus means.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import datetime
import functools
import itertools
import time
from typing import Any
from typing import TypeVar

from oslo_config import cfg
from oslo_log import log
import prometheus_client as prometheus

from nova_reaper.clients import nova
from nova_reaper.cloud import model
from nova_reaper.events import bus
from nova_reaper.report import journal

LOG = log.getLogger(__name__)
M = TypeVar('M', bound=prometheus.metrics.MetricWrapperBase)
# Seconds that the clock here may differ from Nova's.
CLOCK_OFF = 30
# Upper bounds of the buckets of histograms, in seconds.
AGES = (10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
REACTIONS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)
DECISIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
REQUESTS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LISTS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900)
# Values of labels.
STATES = ('pending', 'shelved')
LISTED = ('pending', 'full')
SERVICES = ('nova', 'placement', 'keystone')
CODES = ('2xx', '4xx', '409', '5xx', 'none')


class Metrics:
    """All metrics of one reaper, in a registry of its own.

    Counters and histograms have all values of their labels from the start:
    increase() of Prometheus misses the increase that begins a series.
    """

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()

        def make(kind: type[M], name: str, text: str,
                 buckets: Sequence[float] = (), **labels: Iterable[str]) -> M:
            more: dict[str, Any] = {'buckets': buckets} if buckets else {}
            metric = kind(f'nova_reaper_{name}', text, labels,
                          registry=self.registry, **more)
            for values in itertools.product(*labels.values()):
                if values:
                    metric.labels(*map(str, values))
            return metric

        counter = functools.partial(make, prometheus.Counter)
        gauge = functools.partial(make, prometheus.Gauge)
        histogram = functools.partial(make, prometheus.Histogram)
        self.pending = gauge(
            'pending', 'Servers that wait', state=(), reason=())
        self.pending_age = histogram(
            'pending_age_seconds',
            'How long servers waited until they were built', AGES,
            state=STATES)
        self.oldest_pending = gauge(
            'oldest_pending_seconds',
            'How long the server has waited that has waited longest',
            state=())
        self.decisions = counter(
            'decisions', 'Decisions', verdict=model.Verdict,
            reason=('none', *model.Reason, *model.Hindrance))
        self.decision = histogram(
            'decision_seconds', 'Time of one decision', DECISIONS)
        self.freed_to_issued = histogram(
            'freed_to_issued_seconds',
            'From the news that room is free to the rebuild', REACTIONS)
        self.rebuilds = counter(
            'rebuilds', 'Rebuilds and unshelves', result=model.Result)
        self.rebuilds_in_flight = gauge(
            'rebuilds_in_flight', 'Rebuilds under way')
        self.notices = gauge(
            'notices_in_force', 'Preemptible servers under notice')
        self.notices_given = counter(
            'notices', 'Notices to preemptible servers',
            result=('given', 'withdrawn', 'kept'))
        self.victims = counter(
            'victims', 'Preemptible servers ended', action=model.Action)
        self.needless_victims = counter(
            'needless_victims',
            'Preemptible servers ended for a server that was not built')
        self.victims_stuck = counter(
            'victims_stuck', 'Preemptible servers that did not end')
        self.repeated_victims = counter(
            'repeated_victims', 'Ends of a server ended three times or more')
        self.returned = counter(
            'returned', 'Shelved servers brought back', result=model.Result)
        self.given_up = counter(
            'given_up', 'Servers set to ERROR',
            reason=(model.Hindrance.DEADLINE, *model.NEVER))
        self.holds = gauge('holds', 'Holds in Placement')
        self.hold_oldest = gauge(
            'hold_oldest_seconds', 'Age of the oldest hold')
        self.holds_swept = counter(
            'holds_swept', 'Holds that no server needed any more')
        self.conflicts = counter(
            'conflicts', 'Answers 409: another client was faster',
            step=('hold', 'notice', 'swap', 'end', 'rebuild'))
        self.active = gauge('active', '1 for the reaper that acts')
        self.mode = gauge('mode', '1 for the mode in force', mode=())
        self.safeguard = gauge(
            'safeguard', '1 while the reaper holds itself back')
        self.paused = gauge(
            'paused', '1 while an administrator has paused the reaper')
        self.journal_waiting = gauge(
            'journal_waiting', 'Records that are not written yet')
        self.journal_lost = gauge(
            'journal_lost', 'Records that will never be written')
        self.events = counter(
            'events', 'Notifications understood', event=bus.Kind)
        self.last_event = gauge(
            'last_event_timestamp_seconds',
            'When the last notification came')
        self.poll_only_finds = counter(
            'poll_only_finds', 'Changes that only a list has shown',
            what=('waits', 'ended', 'host'))
        self.last_list = gauge(
            'last_list_timestamp_seconds', 'When a list was read', list=())
        # An age of what is not there would raise no alarm: until a list is
        # read it is as old as the reaper.
        for name in LISTED:
            self.last_list.labels(name).set_to_current_time()
        self.list = histogram(
            'list_seconds', 'How long a list took', LISTS, list=LISTED)
        self.hosts = gauge('hosts', 'Hosts in the index')
        self.preemptible = gauge(
            'preemptible', 'Preemptible servers in the index')
        self.requests = counter(
            'requests', 'Requests by class of the answer', service=SERVICES,
            code=CODES)
        self.request = histogram(
            'request_seconds', 'Time of requests', REQUESTS,
            service=SERVICES)
        prometheus.ProcessCollector(registry=self.registry)
        prometheus.PlatformCollector(registry=self.registry)

    def observe_request(self, service: str, status: int | None,
                        seconds: float) -> None:
        """Count a request, as an observer of rest.Client."""
        code = 'none' if status is None else (
            '409' if status == 409 else f'{status // 100}xx')
        self.requests.labels(service, code).inc()
        self.request.labels(service).observe(seconds)

    def text(self) -> bytes:
        """Write all metrics in the text format of Prometheus."""
        return prometheus.generate_latest(self.registry)


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The state of a thing that the reaper depends on.

    :ivar status: ``ok``, ``degraded`` or ``failed``
    """

    name: str
    status: str
    detail: str


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """Whether the reaper does its work."""

    active: bool
    mode: model.Mode
    configured_mode: model.Mode
    safeguard: str | None
    checks: Sequence[Check]

    @property
    def status(self) -> str:
        """Return the worst status of all checks."""
        worst = {check.status for check in self.checks}
        if 'failed' in worst:
            return 'failed'
        return 'degraded' if 'degraded' in worst or self.safeguard else 'ok'

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of /healthz."""
        return {'status': self.status} | dataclasses.asdict(self)


class Guard:
    """Judges what was read, and gives the mode that is in force.

    A list that cannot be true must not make the reaper act: too short a list
    of hosts would have it end servers for room that is there.

    :ivar active: whether this is the reaper that acts
    :ivar listed_at: when the queue was last compared with Nova
    :ivar remembers: whether the journal told what was done before, None while
        it is being read
    :ivar last_event: when the last notification came, by the monotonic clock
    :ivar started: since when the reaper is active, by the monotonic clock
    :ivar failures: why something could not be read, by its name
    """

    def __init__(self, conf: cfg.ConfigOpts, compute: nova.Nova,
                 meters: Metrics, book: journal.Journal) -> None:
        self._conf = conf
        self._nova = compute
        self._metrics = meters
        self._book = book
        self.active = True
        self.listed_at: datetime.datetime | None = None
        self.remembers: bool | None = None
        self.last_event: float | None = None
        self.started = time.monotonic()
        self.failures: dict[str, str] = {}
        # Why the last list is not believed, and the reason that was logged.
        self._disbelief: str | None = None
        self._told: str | None = None
        # Names of the checks of which the log says that they are degraded.
        self._degraded: set[str] = set()
        # How many hosts the last list that was believed has, and those since
        # then that agreed with each other.
        self._hosts: int | None = None
        self._doubted: list[int] = []
        # When the last list that was believed was read.
        self._full_at: float | None = None

    @property
    def reason(self) -> str | None:
        """Say why the reaper only observes, None if it may act."""
        off = self._nova.client.clock_off
        if abs(off) > CLOCK_OFF:
            # With a wrong clock servers seem to have run or waited too long.
            return (f'The clock of this machine is {abs(off):.0f} s '
                    f'{"behind" if off > 0 else "ahead of"} Nova\'s.')
        return self._disbelief

    @property
    def mode(self) -> model.Mode:
        """Return the mode that is in force."""
        if not self.active or self.reason or self._book.pause:
            return model.Mode.OBSERVE
        group = self._conf.reaper
        configured = model.Mode(group.mode)
        if configured is not model.Mode.PREEMPT:
            return configured
        is_fresh = self._full_at is not None and (
            time.monotonic() - self._full_at <= max(
                group.max_index_age, 2 * group.full_list_interval))
        is_kept = not self._conf.journal.required or (
            bool(self.remembers) and not self._book.error)
        return (model.Mode.PREEMPT
                if is_fresh and is_kept and self._book.asked.is_set()
                else model.Mode.FILL)

    def judge(self, hosts: int, unknown: int, bare: tuple[int, int],
              whole: bool) -> bool:
        """Decide whether a list is believed.

        :param hosts: how many hosts the list has
        :param unknown: how many of these hosts Placement does not know
        :param bare: how many of them have no inventory at all, and how many
            should have one
        :param whole: whether all of them have been read for it
        """
        # A list of changes has not read all: it ends no doubt.
        doubt = (None if whole else self._disbelief) or self._doubt(
            hosts, unknown, *bare)
        self.failures.clear()
        if doubt is None:
            if self._disbelief:
                LOG.info('What was read is believed again: %d hosts.', hosts)
            self._disbelief, self._doubted = None, []
            self._hosts, self._full_at = hosts, time.monotonic()
        else:
            self._disbelief = doubt
        if self.reason != self._told and self.reason:
            LOG.error('The reaper only observes now: %s', self.reason)
        self._told = self.reason
        self.show()
        self.tell()
        return doubt is None

    def _doubt(self, hosts: int, unknown: int, bare: int, of: int
               ) -> str | None:
        if not hosts:
            self._doubted = []
            return 'The full list of hosts is empty.'
        share = self._conf.reaper.safeguard_shrink_percent
        if unknown * 100 > hosts * share:
            return (f'Placement knows nothing of {unknown} of {hosts} hosts '
                    f'that Nova has.')
        if bare * 100 > of * share:
            return (f'Placement knows of no inventory of {bare} of {of} '
                    'hosts.')
        before = self._hosts
        if before is None or (before - hosts) * 100 <= before * share:
            return None
        if self._doubted and self._doubted[-1] != hosts:
            self._doubted = []
        self._doubted.append(hosts)
        if len(self._doubted) >= self._conf.reaper.safeguard_lists:
            return None
        return f'The full list of hosts shrank from {before} to {hosts}.'

    def failed(self, what: str, why: str) -> None:
        """Keep why something could not be read, if /healthz is to say it."""
        if what in ('full list', 'list of what has changed', 'sweep'):
            self.failures[what] = why

    def event(self, kind: bus.Kind) -> None:
        """Note that a notification has come, with a hint of this kind."""
        self._metrics.events.labels(kind.value).inc()
        self.last_event = time.monotonic()
        self._metrics.last_event.set_to_current_time()

    def show(self) -> None:
        """Bring the gauges up to date."""
        self._metrics.active.set(int(self.active))
        self._metrics.safeguard.set(int(self.reason is not None))
        self._metrics.paused.set(int(self._book.pause is not None))
        self._metrics.journal_waiting.set(self._book.waiting)
        self._metrics.journal_lost.set(self._book.lost)
        for mode in model.Mode:
            self._metrics.mode.labels(mode.value).set(int(mode == self.mode))

    def tell(self) -> None:
        """Log once when the reaper begins or ceases to be degraded."""
        if not self.active:
            # A reaper that stands by does not listen, and misses nothing.
            self.started = time.monotonic()
            return
        for check in self._check_notifications(), self._check_journal():
            said = f'{check.name}: {check.detail}'
            if check.status == 'ok' and check.name in self._degraded:
                self._degraded.discard(check.name)
                LOG.info('Not degraded any more: %s', said)
            elif check.status != 'ok' and check.name not in self._degraded:
                self._degraded.add(check.name)
                LOG.warning('Degraded: %s', said)

    def health(self, coordination: str | None = None) -> Health:
        """Check everything, and return what /healthz answers."""
        self.show()
        checks = []
        if coordination:
            checks.append(Check('coordination', 'degraded', coordination))
        if self.active:
            checks += [self._check_lists(), self._check_notifications()]
        if self._book.pause:
            checks.append(Check(
                'pause', 'degraded', 'an administrator has paused the reaper '
                f'at {model.time_text(self._book.pause.at)}'))
        checks.append(self._check_journal())
        return Health(
            self.active, self.mode, model.Mode(self._conf.reaper.mode),
            self.reason, checks)

    def _check_journal(self) -> Check:
        book = self._book
        unknown = ('; ends and builds of before the start are not known'
                   if self.remembers is False else '')
        if not book.asked.is_set():
            unknown += ('; nobody is ended before it tells whether the '
                        'reaper is paused')
        if book.error:
            why = (f'its database cannot be used ({book.error}); '
                   f'{book.waiting} records wait, {book.lost} are lost'
                   f'{unknown}')
        elif book.lost:
            why = f'{book.lost} records are lost'
        elif unknown:
            why = f'it cannot be read{unknown}'
        else:
            return Check('journal', 'ok', 'written')
        return Check('journal', 'degraded', why)

    def _check_lists(self) -> Check:
        failure = next(iter(list(self.failures.values())), None)
        if self._full_at is None or self.listed_at is None:
            # Of all hosts the outlines may be known.
            return Check('lists', 'failed' if failure else 'degraded',
                         failure or 'the first is being read')
        age = time.monotonic() - self._full_at
        detail = f'last full list {age:.0f} s ago'
        if age > 3 * self._conf.reaper.full_list_interval + 60:
            return Check('lists', 'failed', detail)
        if failure:
            return Check('lists', 'degraded', f'{detail}; {failure}')
        return Check('lists', 'ok', detail)

    def _check_notifications(self) -> Check:
        group = self._conf.notifications
        age = time.monotonic() - max(self.last_event or 0.0, self.started)
        if not group.enabled:
            why = 'turned off'
        elif age > group.silence:
            why = f'none for {age:.0f} s'
        else:
            return Check('notifications', 'ok', 'none so far'
                         if self.last_event is None
                         else f'last one {age:.0f} s ago')
        return Check('notifications', 'degraded',
                     f'{why}: the reaper polls')
