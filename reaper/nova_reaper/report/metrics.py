# SPDX-License-Identifier: Apache-2.0

"""Metrics for Prometheus; what each means is in the documentation."""

from collections.abc import Iterable
from typing import Any

import prometheus_client as prometheus
from prometheus_client import exposition

from nova_reaper.cloud import model
from nova_reaper.events import bus

CODES = ('2xx', '4xx', '409', '5xx', 'none')
AGES = (10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
REACTIONS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)
DECISIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
REQUESTS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LISTS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900)


class Metrics:
    """All metrics of one reaper, in a registry of its own."""

    def __init__(self) -> None:
        registry = prometheus.CollectorRegistry()
        self.registry = registry

        def counter(name: str, text: str, *labels: str
                    ) -> prometheus.Counter:
            return prometheus.Counter(f'nova_reaper_{name}', text, labels,
                                      registry=registry)

        def gauge(name: str, text: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(f'nova_reaper_{name}', text, labels,
                                    registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...],
                      *labels: str) -> prometheus.Histogram:
            return prometheus.Histogram(f'nova_reaper_{name}', text, labels,
                                        buckets=buckets, registry=registry)

        self.pending = gauge(
            'pending', 'Servers that wait', 'state', 'reason')
        self.pending_age = histogram(
            'pending_age_seconds', 'How long servers that run had waited',
            AGES, 'state')
        self.oldest_pending = gauge(
            'oldest_pending_seconds', 'How long the oldest has waited',
            'state')
        self.decisions = counter(
            'decisions', 'Decisions', 'verdict', 'reason')
        self.decision = histogram(
            'decision_seconds', 'Time of one decision', DECISIONS)
        self.freed_to_issued = histogram(
            'freed_to_issued_seconds',
            'From the news that room is free to the rebuild', REACTIONS)
        self.rebuilds = counter(
            'rebuilds', 'Rebuilds and unshelves', 'result')
        self.rebuilds_in_flight = gauge(
            'rebuilds_in_flight', 'Rebuilds under way')
        self.notices = gauge(
            'notices_in_force', 'Preemptible servers under notice')
        self.notices_given = counter(
            'notices', 'Notices to preemptible servers', 'result')
        self.victims = counter(
            'victims', 'Preemptible servers ended', 'action')
        self.needless_victims = counter(
            'needless_victims', 'Of those, for a server that did not run')
        self.victims_stuck = counter(
            'victims_stuck', 'Preemptible servers that did not end')
        self.repeated_victims = counter(
            'repeated_victims', 'Ends of a server ended three times or more')
        self.returned = counter(
            'returned', 'Shelved servers brought back', 'result')
        self.given_up = counter(
            'given_up', 'Servers set to ERROR', 'reason')
        self.holds = gauge('holds', 'Holds in Placement')
        self.hold_oldest = gauge(
            'hold_oldest_seconds', 'Age of the oldest hold')
        self.holds_swept = counter(
            'holds_swept', 'Holds that no server needed any more')
        self.conflicts = counter(
            'conflicts', 'Answers 409: somebody else was faster', 'step')
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
        self.events = counter('events', 'Notifications understood', 'event')
        self.last_event = gauge(
            'last_event_timestamp_seconds', 'When the last one came')
        self.poll_only_finds = counter(
            'poll_only_finds', 'What only a list has found', 'what')
        self.last_list = gauge(
            'last_list_timestamp_seconds', 'When a list was read', 'list')
        self.list = histogram(
            'list_seconds', 'How long a list took', LISTS, 'list')
        self.hosts = gauge('hosts', 'Hosts in the index')
        self.preemptible = gauge(
            'preemptible', 'Preemptible servers in the index')
        self.requests = counter(
            'requests', 'Requests by class of the answer', 'service', 'code')
        self.request = histogram(
            'request_seconds', 'Time of requests', REQUESTS, 'service')
        self._begin()
        prometheus.ProcessCollector(registry=registry)
        prometheus.PlatformCollector(registry=registry)

    def _begin(self) -> None:
        """Have all that is counted start at 0.

        increase() of Prometheus does not see the first of what is not there
        before it. And lists are as old as the reaper until one is read: the
        age of what is not there is no age, and would raise no alarm.
        """
        words = ['none', *model.Reason, *model.Hindrance]
        results = list(model.Result)
        states = ('pending', 'shelved')
        verdicts = [(verdict.value, word) for verdict in model.Verdict
                    for word in words]
        services = ('nova', 'placement', 'keystone')
        begun: list[tuple[Any, Iterable[Any]]] = [
            (self.pending_age, states), (self.decisions, verdicts),
            (self.rebuilds, results), (self.returned, results),
            (self.notices_given, ('given', 'withdrawn', 'kept')),
            (self.victims, model.Action),
            (self.given_up, (model.Hindrance.DEADLINE, *model.NEVER)),
            (self.conflicts, ('hold', 'notice', 'swap', 'end', 'rebuild')),
            (self.events, bus.Kind),
            (self.poll_only_finds, ('waits', 'ended', 'host')),
            (self.list, ('pending', 'full')),
            (self.requests, [(service, code) for service in services
                             for code in CODES]),
            (self.request, services)]
        for metric, labels in begun:
            for label in labels:
                metric.labels(*(label if isinstance(label, tuple)
                                else (str(label),)))
        for name in ('pending', 'full'):
            self.last_list.labels(name).set_to_current_time()

    def observe_request(self, service: str, status: int | None,
                        seconds: float) -> None:
        """Count a request; an observer of rest.Client."""
        code = 'none' if status is None else (
            '409' if status == 409 else f'{status // 100}xx')
        self.requests.labels(service, code).inc()
        self.request.labels(service).observe(seconds)

    def text(self) -> bytes:
        """All of it in the text format of Prometheus."""
        return exposition.generate_latest(self.registry)
