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

"""One attempt to have a server built: where it stands, and how it ended.

Nothing here is kept beyond the process: what a restart needs is in Nova and
Placement, and recovery.py reads it there.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import datetime
import enum
from typing import Any

from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.queue import history
from nova_reaper.report import store


class Step(enum.StrEnum):
    """What is to be done next."""

    CHECK = 'check'        # is the decision still right, Nova's verdict
    HOLD = 'hold'          # of free room
    NOTICE = 'notice'      # to the victims
    GRACE = 'grace'        # until the time of the notice has come
    SWAP = 'swap'          # the victims' room for a hold
    END = 'end'            # stop, then delete or shelve the victims
    REBUILD = 'rebuild'    # or unshelve
    WATCH = 'watch'        # until it runs, or waits again


# As /v1/pending has it.
SHOWN = {Step.CHECK: 'holding', Step.HOLD: 'holding', Step.NOTICE: 'notice',
         Step.GRACE: 'notice', Step.SWAP: 'notice', Step.END: 'ending',
         Step.REBUILD: 'rebuilding', Step.WATCH: 'rebuilding'}


class Stage(enum.StrEnum):
    """Where a victim stands."""

    CHOSEN = 'chosen'
    NOTICED = 'noticed'
    STOPPING = 'stopping'
    ENDING = 'ending'
    ENDED = 'ended'


class Result(enum.StrEnum):
    """How an attempt ended."""

    ACTIVE = 'active'        # it runs
    PENDING = 'pending'      # it waits again in spite of the room
    ERROR = 'error'
    REFUSED = 'refused'      # Nova would not have it, whatever the room
    GONE = 'gone'            # deleted, or somebody else's affair now
    TIMEOUT = 'timeout'
    CONFLICT = 'conflict'    # somebody was faster: decide again
    STUCK = 'stuck'          # a victim did not end
    WITHDRAWN = 'withdrawn'  # the mode or the safeguard allows it no more


@dataclasses.dataclass(frozen=True, slots=True)
class Victim:
    """A preemptible server that is to be ended.

    :ivar consumer: with the amounts that it had before the swap
    :ivar since: when its stage began, by the monotonic clock
    :ivar failed_at: when Nova failed over a request to stop or end it, by the
        monotonic clock, 0 if it did not
    """

    id: str
    name: str
    project: str
    action: model.Action
    consumer: placement.Consumer | None = None
    stage: Stage = Stage.CHOSEN
    since: float = 0.0
    failed_at: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether it is gone or off its host."""
        return self.stage == Stage.ENDED


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt, as it stands.

    :ivar provider: UUID of the host's resource provider
    :ivar requests: queries for Placement, as Nova gives them, in order
    :ivar terminate_at: when the notice to the victims is over
    :ivar held: the hold as it was written last
    :ivar held_at: when a part was held before the swap, by the monotonic
        clock, 0 if none was
    :ivar needless: why the victims need not end, '' if they have to
    :ivar swapped: whether the victims' allocations are gone
    :ivar unsure: whether a write of the hold got no answer: it may be done
    :ivar ended: how many victims were ended by the reaper
    :ivar stalled: whether it cannot go on before the cell of a server is back
    :ivar wake_at: when to go on, by the monotonic clock; 0 is at once
    :ivar since: when the step began, by the monotonic clock
    :ivar sent: whether the rebuild was accepted
    :ivar asked_at: when it was asked for first, by the monotonic clock
    :ivar decided: the decision that is carried out, for the journal
    """

    waiting: model.Waiting
    host: str
    provider: str
    step: Step = Step.CHECK
    requests: tuple[str, ...] = ()
    victims: tuple[Victim, ...] = ()
    terminate_at: datetime.datetime | None = None
    held: placement.Consumer | None = None
    held_at: float = 0.0
    needless: str = ''
    swapped: bool = False
    unsure: bool = False
    ended: int = 0
    stalled: bool = False
    wake_at: float = 0.0
    since: float = 0.0
    sent: bool = False
    asked_at: float = 0.0
    freed_at: float = 0.0
    decided: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def id(self) -> str:
        """Of the server that waits."""
        return self.waiting.id

    @property
    def shown(self) -> str:
        """The step in the words of /v1/pending."""
        if self.step == Step.CHECK and self.victims:
            return 'notice'
        return SHOWN[self.step]

    def at(self, step: Step, now: float, **changes: Any) -> 'Attempt':
        """The same at the begin of another step."""
        changes.setdefault('wake_at', 0.0)
        return dataclasses.replace(self, step=step, since=now, **changes)


def record_of(current: Attempt, result: str, why: str = '',
              **detail: Any) -> store.Record:
    """The build of an attempt, for the journal.

    :param result: ``asked`` before Nova is asked, then how it ended
    """
    waiting = current.waiting
    if result == store.ASKED:
        detail |= current.decided
    else:
        detail |= {'why': why, 'resources': waiting.shape.amounts,
                   'victims': [victim.id for victim in current.victims
                               if victim.ended]}
    return store.Record(
        store.Kind.RETURN if waiting.shelved else store.Kind.BUILD,
        waiting.id, waiting.project, waiting.name, waiting.id,
        waiting.project, current.host, result, detail)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended.

    :ivar reason: why the server waits now, None if it does not
    :ivar hindrance: what of the reaper's own keeps it waiting
    :ivar avoid: IDs of victims that are not to be chosen for a time
    :ivar refused_by: the filter of Nova's that refuses the host
    :ivar apart: whether the server asks for something else than its like
    :ivar offered: where the host turned out to have no room, and the index
        cannot know: UUIDs of the providers on which there is; None otherwise
    :ivar tries: what Nova knows of attempts, where a reaper before this one
        has made some
    :ivar why: the cause, where result and reason do not tell
    """

    attempt: Attempt
    result: Result
    detail: str
    reason: model.Reason | None = None
    hindrance: model.Hindrance | None = None
    avoid: tuple[str, ...] = ()
    refused_by: str = ''
    apart: bool = False
    offered: frozenset[str] | None = None
    tries: nova.Tries | None = None
    why: history.Cause | None = None

    @property
    def cause(self) -> history.Cause:
        """Why nothing came of the attempt."""
        if self.why:
            return self.why
        if self.reason is model.Reason.BUILD_FAILED:
            return history.Cause.HOST
        if self.result in (Result.REFUSED, Result.PENDING, Result.ERROR):
            return history.Cause.SERVER
        if self.result is Result.TIMEOUT or (
                self.reason is model.Reason.UNKNOWN):
            return history.Cause.SERVICE
        return history.Cause.RACE


def ask(current: Attempt, compute: nova.Nova, named: nova.Owners,
        read: Callable[[], nova.NovaServer], gone: Callable[[str], Outcome],
        has_route: bool = True) -> Outcome | None:
    """Why Nova would not build the server on the host that was chosen.

    :param read: gives the server; it is called after Nova's answer
    :param gone: gives the outcome for a server that waits no more; it is told
        what the server does instead
    :param has_route: whether Nova can be asked; if not the token alone counts
    :returns: None if nothing speaks against it
    :raises: clients.RequestFailed if it cannot be found out
    """
    answer = None
    try:
        if has_route:
            answer = compute.pending(current.id, [current.host])
        server = read()
    except rest.NotFound:
        return gone('waits no more')
    except rest.Conflict:
        return gone('is being rebuilt')
    if answer and answer.attempts > current.waiting.attempts:
        tries = compute.tries(current.id)
        if tries.rebuilds > current.waiting.rebuilds:
            # It may have to be left alone still.
            return Outcome(current, Result.CONFLICT, answer.message,
                           answer.reason, tries=dataclasses.replace(
                               tries, attempts=answer.attempts))
    refused = refusal(current, answer) if answer else None
    if refused:
        return refused
    objection = named.objection(
        server, answer.token_required if answer else None)
    return needs_owner(current, objection) if objection else None


def refusal(current: Attempt, answer: nova.Pending) -> Outcome | None:
    """Why nothing is done for the server, None if nothing speaks against it.

    :raises: clients.Unavailable if Nova could not ask its scheduler
    """
    if answer.reason == model.Reason.QUOTA:
        return Outcome(current, Result.REFUSED,
                       answer.message or 'Its project is over its quota.',
                       model.Reason.QUOTA)
    if answer.unavailable and answer.unavailable == answer.message:
        # Its owner has to correct it before it can be rebuilt.
        return Outcome(current, Result.REFUSED, answer.message,
                       model.Reason.UNKNOWN)
    if answer.unavailable:
        raise rest.Unavailable('nova', 'verdict', answer.unavailable, 503)
    if answer.requests != current.requests:
        return Outcome(current, Result.CONFLICT, 'It asks for something '
                       'else than others of its flavor.', apart=True)
    for host in answer.hosts:
        if host.host == current.host and host.refused_by:
            return Outcome(
                current, Result.REFUSED, f'{host.refused_by} refuses '
                'the host.', model.Reason.REFUSED,
                refused_by=host.refused_by)
    if not any(host.host == current.host for host in answer.hosts):
        return Outcome(current, Result.REFUSED, 'Nova does not know '
                       'the host.', model.Reason.REFUSED)
    return None


def needs_owner(current: Attempt, why: str) -> Outcome:
    """Nothing is done for a server that its owner alone can rebuild."""
    return Outcome(current, Result.REFUSED, why, model.Reason.REFUSED,
                   hindrance=model.Hindrance.NEEDS_OWNER)
