# SPDX-License-Identifier: Apache-2.0

"""Metrics for Prometheus; what each means is in the documentation."""

from collections.abc import Iterable
import itertools

import prometheus_client as prometheus

from nova_reaper.cloud import model
from nova_reaper.events import bus

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

    Counters and histograms have all values of their labels from the begin:
    increase() of Prometheus does not see the first increase of a series that
    was not there before it.
    """

    def __init__(self) -> None:
        registry = prometheus.CollectorRegistry()
        self.registry = registry

        def begin(metric: prometheus.Counter | prometheus.Histogram,
                  labels: dict[str, Iterable[str]]) -> None:
            for values in itertools.product(*labels.values()):
                if values:
                    metric.labels(*map(str, values))

        def counter(name: str, text: str, **labels: Iterable[str]
                    ) -> prometheus.Counter:
            metric = prometheus.Counter(f'nova_reaper_{name}', text, labels,
                                        registry=registry)
            begin(metric, labels)
            return metric

        def gauge(name: str, text: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(f'nova_reaper_{name}', text, labels,
                                    registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...],
                      **labels: Iterable[str]) -> prometheus.Histogram:
            metric = prometheus.Histogram(f'nova_reaper_{name}', text, labels,
                                          buckets=buckets, registry=registry)
            begin(metric, labels)
            return metric

        self.pending = gauge(
            'pending', 'Servers that wait', 'state', 'reason')
        self.pending_age = histogram(
            'pending_age_seconds', 'How long servers that run had waited',
            AGES, state=STATES)
        self.oldest_pending = gauge(
            'oldest_pending_seconds', 'How long the oldest has waited',
            'state')
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
            'needless_victims', 'Of those, for a server that did not run')
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
            'conflicts', 'Answers 409: somebody else was faster',
            step=('hold', 'notice', 'swap', 'end', 'rebuild'))
        self.active = gauge('active', '1 for the reaper that acts')
        self.mode = gauge('mode', '1 for the mode in force', 'mode')
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
            'last_event_timestamp_seconds', 'When the last one came')
        self.poll_only_finds = counter(
            'poll_only_finds', 'What only a list has found',
            what=('waits', 'ended', 'host'))
        self.last_list = gauge(
            'last_list_timestamp_seconds', 'When a list was read', 'list')
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
        prometheus.ProcessCollector(registry=registry)
        prometheus.PlatformCollector(registry=registry)

    def observe_request(self, service: str, status: int | None,
                        seconds: float) -> None:
        """Count a request; an observer of rest.Client."""
        code = 'none' if status is None else (
            '409' if status == 409 else f'{status // 100}xx')
        self.requests.labels(service, code).inc()
        self.request.labels(service).observe(seconds)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return prometheus.generate_latest(self.registry)
