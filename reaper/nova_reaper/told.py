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

"""What was decided of servers that wait, and what is shown of it.

The last decision of each is kept, counted, and logged if it is new; the gauges
say how many wait, and why.
"""

from collections.abc import Collection
from collections.abc import Iterable
import dataclasses
import datetime

from oslo_log import log

from nova_reaper import metrics
from nova_reaper import model
from nova_reaper import nova
from nova_reaper import reader

LOG = log.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """A decision, and when it was made.

    :ivar since: when the first of those was that have had the same reason
    """

    decision: model.Decision
    at: datetime.datetime
    since: datetime.datetime


class Record:
    """The decisions on servers that wait.

    :ivar last: by the server
    """

    def __init__(self, meters: metrics.Metrics) -> None:
        self._metrics = meters
        self.last: dict[str, Told] = {}
        # What the gauge of those that wait has.
        self._shown: set[tuple[str, str]] = set()

    def forget(self, reasons: Collection[model.Reason]) -> None:
        """Keep no decision to wait for one of these reasons."""
        self.last = {
            server: told for server, told in self.last.items()
            if told.decision.reason not in reasons}

    def tell(self, decision: model.Decision, now: datetime.datetime
             ) -> bool:
        """Keep a decision; returns whether it says anything new."""
        before = self.last.get(decision.server)
        self.last[decision.server] = Told(
            decision, now, before.since if before and (
                before.decision.reason == decision.reason) else now)
        self._metrics.decisions.labels(
            decision.verdict.value, decision.word or 'none').inc()
        return before is None or before.decision != decision

    def say(self, waiting: model.Waiting, decision: model.Decision,
            mode: model.Mode, now: datetime.datetime) -> None:
        """Keep a decision, and log it if it says anything new."""
        if self.tell(decision, now):
            LOG.info('Server %s (%s): %s%s%s %s', waiting.id, waiting.name,
                     '' if mode != model.Mode.OBSERVE
                     else 'would be: ', decision.word or
                     decision.verdict.value,
                     f' on {decision.host}' if decision.host else '',
                     decision.detail)

    def show(self, servers: Iterable[nova.NovaServer],
             views: Collection[reader.HostView], now: datetime.datetime
             ) -> None:
        """Bring the gauges up to date."""
        counts: dict[tuple[str, str], int] = {}
        oldest: dict[str, float] = {'pending': 0.0, 'shelved': 0.0}
        for server in servers:
            state = 'shelved' if server.shelved else 'pending'
            told = self.last.get(server.id)
            word = (told.decision.word if told else None) or 'none'
            counts[state, word] = counts.get((state, word), 0) + 1
            oldest[state] = max(oldest[state], (
                now - server.created_at).total_seconds())
        # Whoever looks meanwhile is to see either what was or what is.
        for labels in self._shown - counts.keys():
            self._metrics.pending.remove(*labels)
        for (state, word), count in counts.items():
            self._metrics.pending.labels(state, word).set(count)
        self._shown = set(counts)
        for state, seconds in oldest.items():
            self._metrics.oldest_pending.labels(state).set(seconds)
        self._metrics.hosts.set(len(views))
        self._metrics.preemptible.set(sum(
            len(view.servers) for view in views))
