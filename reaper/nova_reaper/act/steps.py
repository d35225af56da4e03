# SPDX-License-Identifier: Apache-2.0

"""Does the steps of an attempt: check, hold or make room, rebuild, watch.

A step is one call that may be repeated, since the step looks at Nova and
Placement first. The step returns the attempt as it stands then, with the time
of the next step, or the outcome of the attempt. A step that ends an attempt
undoes what was done for the attempt.
"""

from collections.abc import Callable
import time

from oslo_log import log

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.act import preempt
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.report import store
from nova_reaper import world

LOG = log.getLogger(__name__)
# Seconds between two looks at a server that a host builds, shorter at first.
# A notification mostly comes first, and thousands of servers may be built at a
# time.
WATCH = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# Seconds for Nova to answer a check and to accept a rebuild, and for Placement
# to take a hold. After them an attempt that has ended no victim gives up.
PATIENCE = 60.0
# The owner of the server reads this: it names no host and no other server.
TAKEN = 'The host has no room for it any more.'


class Actor(preempt.Preempt):
    """Does the steps of attempts: those with victims, and all others."""

    def advance(self, current: Attempt) -> Attempt | Outcome:
        """Do the next step of an attempt.

        If a service does not answer, or refuses unexpectedly, the step is done
        again; nothing is undone, since an undo may fail as well. A check or a
        hold that may be given up ends in an outcome after PATIENCE.
        """
        try:
            return STEPS_OF[current.cause][current.step](
                self, current.but(stalled=False))
        except rest.RequestFailed as error:
            LOG.warning('Server %s stays at the step %s: %s', current.id,
                        current.step, error)
            if current.step in (Step.CHECK, Step.HOLD) and (
                    not current.ended and not current.unsure and
                    time.monotonic() - current.since > PATIENCE):
                # The text of an error without an answer names the service,
                # and is not for owners.
                return Outcome(
                    current, Result.CONFLICT, error.message
                    if isinstance(error, rest.Unavailable) and error.status
                    else 'It cannot be looked at.', model.Reason.UNKNOWN)
            # The time without an answer does not count against the victims.
            return current.later(
                attempts.AGAIN, stalled=isinstance(error, nova.CellDown),
                since=time.monotonic() if current.step == Step.END
                else current.since)

    def _check(self, current: Attempt) -> Attempt | Outcome:
        """Look at the server itself, and ask Nova about the host."""
        found = self._find(current)
        if isinstance(found, Outcome):
            return found
        if current.waiting.shelved:
            return current.at(Step.HOLD)
        try:
            refusal = self._verdict(current, found)
            if refusal:
                return refusal
            return (self._check_victims(current) if current.victims
                    else current.at(Step.HOLD))
        except (rest.NotFound, rest.Conflict):
            found = self._find(current)
            if isinstance(found, Outcome):
                return found
            if not current.victims:
                return Outcome(current, Result.GONE, 'It waits no more.')
            return self._objected(current) or Outcome(
                current, Result.CONFLICT, 'A server that was to make room for '
                'it is about to change.', model.Reason.NO_ROOM)

    def _find(self, current: Attempt) -> nova.NovaServer | Outcome:
        """Return the server, or the outcome if the server waits no more."""
        server = self._nova.find(current.id)
        if server is None:
            return Outcome(current, Result.GONE, 'It has been deleted.')
        if current.waiting.shelved:
            if server.shelved and shapes.SHELVED_AT in server.metadata:
                return server
        elif server.waits or current.waiting.failed and server.failed:
            return server
        return Outcome(current, Result.GONE,
                       f'It is {server.status} and does not wait any more.')

    def _hold(self, current: Attempt) -> Attempt | Outcome:
        """Hold the free room that Placement offers on the host."""
        if self._allowed() == model.Mode.OBSERVE and not current.ended:
            if current.held or current.unsure:
                self._holds.release(current.id, current.provider)
            return Outcome(current, Result.WITHDRAWN,
                           'The reaper only observes now.')
        if current.held or current.unsure:
            # The answer to the write of the hold may have been lost.
            held = self._holds.find(current.id, current.provider)
            if held and self._is_whole(current, held):
                return current.at(Step.REBUILD, held=held)
            # A hold of a part of the room is in the way of the whole hold.
            self._holds.release(current.id, current.provider)
            current = current.but(held=None)
        shape = current.waiting.shape
        for request in current.requests:
            try:
                amounts = self._placement.candidate(
                    request, current.provider,
                    shape.elsewhere | self._placement.beside.intersection(
                        shape.amounts))
            except rest.BadRequest as error:
                LOG.warning('Placement refuses what server %s asks for: %s',
                            current.id, error)
                return Outcome(current, Result.REFUSED, 'Its flavor asks for '
                               'what no host can have.', model.Reason.REFUSED)
            if amounts is not None:
                break
        else:
            return self._no_room(current)
        if current.waiting.shelved:
            # An unshelve, unlike a rebuild, needs free room: it takes no hold.
            return current.at(Step.REBUILD)
        try:
            held = self._holds.take(current.id, amounts)
        except (rest.Conflict, rest.BadRequest) as error:
            if current.unsure and self._holds.find(
                    current.id, current.provider):
                # Placement did the write, whose answer was lost, only now.
                return current.later(0.0)
            self._metrics.conflicts.labels('hold').inc()
            LOG.info('Nothing is held for server %s: %s', current.id, error)
            return Outcome(current, Result.CONFLICT, TAKEN,
                           model.Reason.NO_ROOM)
        except rest.RequestFailed as error:
            if (not current.ended and
                    time.monotonic() - current.since > PATIENCE):
                self._holds.release(current.id, current.provider)
                return Outcome(current, Result.CONFLICT, 'No room can be '
                               'held for it.', model.Reason.UNKNOWN)
            return preempt.unsure(current, error).later(attempts.AGAIN)
        return current.at(Step.REBUILD, held=held)

    @staticmethod
    def _is_whole(current: Attempt, held: placement.Consumer) -> bool:
        """Return whether a hold has all that the server asks for."""
        return current.provider in held.amounts and any(
            held.covers(shapes.shape(request, '', {}).resources)
            for request in current.requests)

    def _no_room(self, current: Attempt) -> Outcome:
        """Return the outcome for a host that has no room.

        It names the providers with room if the index cannot know them.
        """
        shape, offered = current.waiting.shape, None
        if shape.fill_only or shape.elsewhere or shape.spread:
            found = [self._placement.offered(request)
                     for request in current.requests]
            if None not in found:
                offered = frozenset().union(
                    *(uuids for uuids in found if uuids))
        return Outcome(current, Result.CONFLICT, TAKEN, model.Reason.NO_ROOM,
                       offered=offered)

    def _rebuild(self, current: Attempt) -> Attempt | Outcome:
        """Ask Nova to rebuild, or to unshelve, the server."""
        if not current.asked_at:
            current = current.but(asked_at=time.monotonic())
            self._book.write(attempts.record_of(current, store.ASKED),
                             wait=True)
        try:
            if current.waiting.shelved:
                self._nova.unshelve(current.id, current.host)
            else:
                self._owners.rebuild(current.id, current.waiting.project)
        except rest.Unavailable as error:
            # Nova may rebuild the server all the same.
            LOG.info('Whether server %s is being rebuilt is looked at: %s',
                     current.id, error)
            return current.at(Step.WATCH, attempts.AGAIN)
        except rest.RequestFailed as error:
            return self._refused(current, error)
        if current.freed_at:
            self._metrics.freed_to_issued.observe(
                time.monotonic() - current.freed_at)
        LOG.info('Server %s (%s) is being %s on %s.', current.id,
                 current.waiting.name,
                 'unshelved' if current.waiting.shelved else 'rebuilt',
                 current.host)
        return current.at(Step.WATCH, WATCH[0], sent=True)

    def _refused(self, current: Attempt, error: rest.RequestFailed
                 ) -> Attempt | Outcome:
        reason, hindrance = model.Reason.REFUSED, None
        if isinstance(error, rest.Conflict):
            self._metrics.conflicts.labels('rebuild').inc()
            if isinstance(self._find(current), Outcome) or (
                    nova.is_busy(error)):
                # The owner rebuilds the server, or has rebuilt it just now. A
                # build takes the hold over, whatever type the allocation has.
                # If the server waits again, the reaper asks again.
                return current.at(Step.WATCH, WATCH[0])
            reason = model.Reason.UNKNOWN
        self._release(current)
        if isinstance(error, rest.NotFound):
            return Outcome(current, Result.GONE, 'It has been deleted.')
        if isinstance(error, rest.Forbidden):
            kind = nova.Refusal.of(error)
            if kind == nova.Refusal.VOLUMES:
                hindrance = model.Hindrance.NEEDS_OWNER
            elif kind == nova.Refusal.QUOTA:
                reason = model.Reason.QUOTA
        return Outcome(current, Result.REFUSED, error.message, reason,
                       hindrance)

    def _watch(self, current: Attempt) -> Attempt | Outcome:
        """Look whether the server runs, or waits again."""
        server = self._nova.find(current.id)
        if server is None:
            return Outcome(current, Result.GONE,
                           'It was deleted while it was built.')
        if server.status in ('ACTIVE', 'SHUTOFF'):
            if current.waiting.shelved:
                self._unmark(current)
            return Outcome(current, Result.ACTIVE, 'It runs.')
        if not current.sent and (
                server.waits or server.shelved or
                server.failed and current.waiting.failed):
            # Nova never accepted the rebuild: its answer was lost, or a
            # rebuild by the owner was under way and has come to nothing.
            return self._ask_again(current)
        if server.waits or server.shelved:
            return self._waits_again(current)
        if server.status == 'ERROR' and not server.task_state:
            self._release(current)
            return Outcome(
                current, Result.ERROR, server.fault or 'Its build failed.',
                model.Reason.BUILD_FAILED, why=world.Cause.INTERRUPTED
                if nova.is_interrupted(server.fault) else None)
        waited = time.monotonic() - current.since
        if waited > self._conf.rebuild_timeout:
            # A build that goes on claims room for itself.
            self._release(current)
            return Outcome(current, Result.TIMEOUT,
                           f'It is {server.status} for too long.')
        pause = next((step for step in WATCH if waited < 4 * step), WATCH[-1])
        return current.later(pause)

    def _ask_again(self, current: Attempt) -> Attempt | Outcome:
        """Ask Nova for the rebuild again, unless that goes on for too long."""
        limit = self._conf.rebuild_timeout if current.ended else PATIENCE
        if time.monotonic() - current.asked_at <= limit:
            # Nova may have given the hold back.
            return current.at(Step.HOLD)
        self._release(current)
        return Outcome(
            current, Result.CONFLICT, 'Nova does not accept its rebuild.',
            model.Reason.UNKNOWN)

    def _waits_again(self, current: Attempt) -> Outcome:
        self._release(current)
        reason, detail = model.Reason.UNKNOWN, 'It waits again.'
        why = None
        if not current.waiting.shelved:
            try:
                answer = self._nova.pending(current.id, [current.host])
                reason, detail = answer.reason, answer.message or detail
                if nova.is_interrupted(answer.message):
                    why = world.Cause.INTERRUPTED
                elif reason is model.Reason.UNKNOWN:
                    # Neither hosts nor filters have refused it.
                    why = world.Cause.SERVICE
            except rest.RequestFailed as error:
                LOG.info('Why server %s waits again is not known: %s',
                         current.id, error)
                why = world.Cause.SERVICE
        return Outcome(current, Result.PENDING, detail, reason, why=why)

    def _unmark(self, current: Attempt) -> None:
        """Delete the mark that the reaper shelved a server, which is back."""
        try:
            self._nova.delete_metadata(current.id, (
                shapes.SHELVED_AT, shapes.TERMINATE_AT, shapes.FOR))
        except rest.RequestFailed as error:
            LOG.warning('The mark of server %s, which is back, stays: %s',
                        current.id, error)

    def _release(self, current: Attempt) -> None:
        if current.held:
            self._holds.release(current.id, current.provider)

    def give_up(self, waiting: model.Waiting) -> bool:
        """Set a server that waits to ERROR, and release its hold.

        :returns: whether the server is given up; False if it waits no more
        :raises: rest.RequestFailed if Nova fails
        """
        try:
            server = self._nova.server(waiting.id)
            if waiting.failed and server.failed:
                return True
            if not server.waits:
                return False
            self._nova.reset_state(waiting.id, 'error')
        except (rest.NotFound, rest.Conflict):
            return False
        except rest.Unavailable:
            # Nova may have set the state all the same.
            if self._nova.server(waiting.id).status != 'ERROR':
                raise
        try:
            self._holds.release(waiting.id)
        except rest.RequestFailed as error:
            # The server is given up all the same.
            LOG.warning('What is held for server %s, which was given up, '
                        'stays until a sweep: %s', waiting.id, error)
        return True


STEPS: dict[Step, Callable[[Actor, Attempt], Attempt | Outcome]] = {
    Step.CHECK: Actor._check, Step.HOLD: Actor._hold,
    Step.NOTICE: Actor._notice, Step.GRACE: Actor._grace,
    Step.SWAP: Actor._swap, Step.END: Actor._end,
    Step.REBUILD: Actor._rebuild, Step.WATCH: Actor._watch,
}
_ALONE = STEPS | {Step.NOTICE: Actor._alone, Step.GRACE: Actor._alone}
# The steps by the cause of the notices that an attempt gives.
STEPS_OF = {model.Cause.ROOM: STEPS, model.Cause.RUN_TIME: _ALONE,
            model.Cause.REHEARSAL: _ALONE | {Step.END: Actor._rehearse}}
