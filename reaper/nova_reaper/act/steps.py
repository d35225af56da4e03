# SPDX-License-Identifier: Apache-2.0

"""Does the steps of an attempt: check, hold or make room, rebuild, watch.

A step is one call that may be repeated, since the step looks at Nova and
Placement first. The step returns the attempt as it stands then, with the time
of the next step, or the outcome of the attempt. A step that ends an attempt
undoes what was done for the attempt.

An attempt may end preemptible servers, its victims. Its steps are then check,
notice, grace, swap and end, and after these it goes on as any other attempt.
No victim is ended before the swap has shown that there will be room, and no
victim for a server that Nova would refuse.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import datetime
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.act.attempts import Victim
from nova_reaper.act import ending
from nova_reaper.act import holds
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.cloud.model import Stage
from nova_reaper.report import health
from nova_reaper.report import journal
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
# Seconds between two looks at victims; a notification mostly comes first.
POLL = 2.0
GRACE_POLL = 15.0


class Actor:
    """Does the steps of attempts.

    :param named: rebuilds waiting servers in the names of their owners
    :param allowed: gives the mode that is in force at the moment
    """

    def __init__(self, conf: cfg.ConfigOpts, compute: nova.Nova,
                 room: placement.Placement, held: holds.Holds,
                 ends: ending.Victims, named: nova.Owners,
                 meters: health.Metrics, book: journal.Journal,
                 allowed: Callable[[], model.Mode]) -> None:
        self._conf = conf.reaper
        self._nova = compute
        self._placement = room
        self._holds = held
        self._victims = ends
        self._owners = named
        self._metrics = meters
        self._book = book
        self._allowed = allowed

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
        observes = self._allowed() == model.Mode.OBSERVE
        if (observes or current.needless) and not current.ended:
            if current.held or current.unsure:
                self._holds.release(current.id, current.provider)
            return Outcome(current, Result.WITHDRAWN, _sentence(
                'the reaper only observes now' if observes
                else current.needless))
        # A part of the room of victims, who need not end, on another host.
        part = current.held if current.held and (
            current.provider not in current.held.amounts) else None
        if current.held != part or current.unsure:
            # The answer to the write of the hold may have been lost.
            held = self._holds.find(current.id, current.provider)
            if held and any(
                    held.covers(shapes.shape(request, '', {}).resources)
                    for request in current.waiting.requests):
                return current.at(Step.REBUILD, held=held)
            # A hold of a part of the room is in the way of the whole hold.
            self._holds.release(current.id, current.provider)
            current = current.but(held=part)
        shape = current.waiting.shape
        for request in current.waiting.requests:
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
            if amounts is None and part:
                # Placement counts the part of a shared provider as taken.
                tree = self._tree(current)
                asked = _request(current, tree)
                amounts = holds.place(
                    asked, tree, (), part.amounts) if asked else None
            if amounts is not None:
                break
        else:
            return self._no_room(current)
        if current.waiting.shelved:
            # An unshelve, unlike a rebuild, needs free room: it takes no hold.
            return current.at(Step.REBUILD)
        try:
            held = self._holds.take(current.id, amounts, part)
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
            return _unsure(current, error).later(attempts.AGAIN)
        return current.at(Step.REBUILD, held=held)

    def _no_room(self, current: Attempt) -> Outcome:
        """Return the outcome for a host that has no room.

        It names the providers with room if the index cannot know them.
        """
        shape, offered = current.waiting.shape, None
        if shape.fill_only or shape.elsewhere or shape.spread:
            found = [self._placement.offered(request)
                     for request in current.waiting.requests]
            if None not in found:
                offered = frozenset().union(
                    *(uuids for uuids in found if uuids))
        return Outcome(current, Result.CONFLICT, TAKEN, model.Reason.NO_ROOM,
                       offered=offered)

    def _rebuild(self, current: Attempt) -> Attempt | Outcome:
        """Ask Nova to rebuild, or to unshelve, the server."""
        if not current.asked_at:
            current = current.but(asked_at=time.monotonic())
            self._book.write(attempts.record_of(current, journal.ASKED),
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

    # Steps with victims.

    def _check_victims(self, current: Attempt) -> Attempt | Outcome:
        """Read the host and the victims again, and drop needless victims."""
        held = self._holds.find(current.id)
        if held and current.provider not in held.amounts:
            # The swap would fail. A sweep goes on with the hold of a reaper
            # that has died once no attempt for the server is under way.
            return Outcome(
                current, Result.CONFLICT, 'Room is held for it on another '
                'host.', model.Reason.NO_ROOM, why=world.Cause.INTERRUPTED)
        tree = self._tree(current)
        request = _request(current, tree)
        if request is None:
            return Outcome(
                current, Result.REFUSED, 'The host has not all that it needs '
                'of its own: nobody is ended for it.', model.Reason.NO_ROOM)
        needed = self._needed(current, tree, request)
        if needed == ():
            return current.at(Step.HOLD, victims=())
        objection = self._objected(current)
        if objection:
            return objection
        if needed is None:
            return Outcome(current, Result.CONFLICT, 'The host would not '
                           'have room enough any more.',
                           model.Reason.NO_ROOM)
        return current.at(Step.NOTICE, victims=needed)

    def _tree(self, current: Attempt) -> Sequence[placement.Provider]:
        """Return the providers that may give something, the host's first."""
        if current.waiting.shape.spread is None:
            return [self._placement.provider(current.provider)]
        return self._placement.tree(current.provider, _ids(current.left))

    def _needed(self, current: Attempt, tree: Sequence[placement.Provider],
                request: model.Shape) -> tuple[Victim, ...] | None:
        """Return the victims without whose end there would be no room.

        Nova's filters have accepted the host without all the victims left.

        :returns: None if Placement would not have room enough
        """
        there = current.left
        if holds.place(request, tree, _ids(there), current.has) is None:
            return None
        # The largest servers are spared first.
        kept = self._without_needless(current, tree, request, sorted(
            there, key=lambda victim: sorted(model.total({}, *(
                one.consumers[victim.id] for one in tree
                if victim.id in one.consumers)).items()), reverse=True))
        return tuple(victim for victim in there if victim in kept)

    def _without_needless(
            self, current: Attempt, tree: Sequence[placement.Provider],
            request: model.Shape, victims: Sequence[Victim]
            ) -> Sequence[Victim]:
        """Leave out each victim without which the host is still accepted."""
        for victim in victims:
            rest = [other for other in victims if other is not victim]
            if holds.place(request, tree, _ids(rest), current.has
                           ) is not None and self._accepts(current, rest):
                victims = rest
        return victims

    def _accepts(self, current: Attempt, victims: Sequence[Victim]) -> bool:
        """Return whether Nova's filters accept the host without victims."""
        answer = self._nova.pending(current.id, [current.host], _ids(victims))
        if answer.unavailable:
            raise rest.Unavailable('nova', 'verdict', answer.unavailable, 503)
        return not answer.hosts.get(current.host, shapes.SCHEDULER)

    def _notice(self, current: Attempt) -> Attempt | Outcome:
        """Tell the victims when they end, and for which server."""
        needless = self._needless(current)
        if needless:
            return needless
        grace = self._conf.grace_period
        until = (timeutils.utcnow(True) + datetime.timedelta(
            seconds=grace)).replace(microsecond=0)
        if grace:
            before, current = current.has, self._hold_free(current)
            if current.has != before:
                # If a later request fails, the attempt knows of its hold.
                return current.later(0.0)
        return self._tell(current, until)

    def _tell(self, current: Attempt, until: datetime.datetime
              ) -> Attempt | Outcome:
        """Give the victims notice until a time."""
        avoid: tuple[str, ...] = ()
        try:
            told = self._victims.notify(current, until)
        except ending.NotTold as error:
            LOG.warning('Server %s cannot be given notice, and is not ended '
                        'for another: %s', error.victim, error)
            avoid = (error.victim,)
        except rest.RequestFailed as error:
            LOG.info('Nobody is ended for server %s: %s', current.id, error)
            self._metrics.conflicts.labels('notice').inc()
        else:
            return current.at(
                Step.GRACE, min(self._conf.grace_period, GRACE_POLL),
                victims=told, terminate_at=until)
        return self._undo(current, 'a server that was to make room for it '
                          'cannot be given notice' if current.for_another
                          else 'the server cannot be given notice',
                          Result.CONFLICT, avoid=avoid)

    def _grace(self, current: Attempt) -> Attempt | Outcome:
        """Wait for the notice to run out, and hold room that becomes free."""
        stop = (self._needless(current) or self._not_waiting(current) or
                self._elsewhere(current))
        if stop:
            return stop
        current = self._looked_at(current)
        left = current.notice_left
        if left > 0:
            current = self._hold_free(current)
        if left <= 0 or all(victim.ended for victim in current.victims):
            return current.at(Step.SWAP)
        return current.later(min(left, GRACE_POLL))

    def _swap(self, current: Attempt) -> Attempt | Outcome:
        """Take the victims' room for the server, if the room is enough."""
        after = self._needless(current) or self._done(current)
        if after:
            return after
        current = self._looked_at(self._with_hold(current))
        stop = self._not_waiting(current) or self._elsewhere(current)
        if stop:
            return stop
        try:
            # Quota and hosts may have changed since the notice.
            refusal = self._verdict(current, self._nova.server(current.id))
            if refusal:
                self._undo(current, 'the server would be refused',
                           Result.REFUSED)
                return refusal
            tree = self._tree(current)
            request = _request(current, tree)
            there = current.left
            kept = self._needed(current, tree, request) if request else None
        except (rest.NotFound, rest.Conflict):
            # The server, or a victim, has changed since the last look.
            if current.notice_left > -self._conf.stop_timeout:
                return current.later(POLL)
            return self._undo(current, 'a server that was to make room for it '
                              'is about to change', Result.CONFLICT)
        if request is None or kept is None:
            return self._undo(current, 'the room would not be enough',
                              Result.CONFLICT)
        left = current.notice_left
        if kept and left > 0:
            # The room that made the step come early is gone again.
            return current.at(Step.GRACE, min(left, GRACE_POLL))
        spared = self._spared(current, kept)
        if spared:
            return spared
        if len(kept) < len(there):
            self._victims.withdraw(
                [victim for victim in there if victim not in kept],
                current.id, 'there is room without its end',
                project=current.waiting.project)
            # The attempt forgets the spared victims before the next request
            # can fail: without notice they are not to be ended.
            return current.later(0.0, victims=kept)
        return self._take_room(current.but(victims=kept), holds.place(
            request, tree, _ids(kept), current.has) or {})

    def _spared(self, current: Attempt, kept: Sequence[Victim]
                ) -> Attempt | Outcome | None:
        """Put off or undo an attempt if a victim may not end, else None."""
        objection = self._objection(current, kept, told=True)
        if objection is None:
            return None
        why, victim = objection
        server = self._nova.find(victim)
        busy = server is not None and bool(server.task_state)
        if busy and current.notice_left > -self._conf.stop_timeout:
            # Owners who have notice back their servers up, which takes time.
            return current.later(POLL)
        return self._undo(
            current, why, Result.CONFLICT,
            avoid=(victim,) if busy or current.for_another else ())

    def _take_room(self, current: Attempt, amounts: placement.Amounts
                   ) -> Attempt | Outcome:
        consumers = [self._placement.consumer(victim.id)
                     for victim in current.victims]
        current = current.but(victims=tuple(
            dataclasses.replace(victim, consumer=consumer)
            for victim, consumer in zip(current.victims, consumers)))
        if any(consumer.amounts and current.provider not in consumer.amounts
               for consumer in consumers):
            # A victim that has moved since Nova was asked keeps its allocation
            # on the other host.
            return self._undo(current, 'a server that was to make room for '
                              'it is moving', Result.CONFLICT)
        if self._conf.strict_accounting and consumers:
            return current.at(Step.END)
        try:
            held = self._holds.swap(
                current.id, amounts, current.held,
                [consumer for consumer in consumers if consumer.amounts])
        except (rest.Conflict, rest.BadRequest) as error:
            done = self._done(current)
            if done:
                return done
            LOG.info('The room is not held for server %s: %s', current.id,
                     error)
            self._metrics.conflicts.labels('swap').inc()
            return self._undo(current, 'the room was taken meanwhile',
                              Result.CONFLICT)
        except rest.RequestFailed as error:
            # Placement may have done the swap: the next look finds out.
            return _unsure(current, error).later(POLL)
        return current.at(Step.END if consumers else Step.REBUILD, held=held,
                          held_at=time.monotonic(), swapped=True)

    def _done(self, current: Attempt) -> Attempt | None:
        """Go on after a swap whose answer was lost, or another reaper's swap.

        Otherwise the victims would run on without an allocation, and a host
        would build the server beside them.

        :returns: None if there was no such swap
        """
        has = self._placement.consumer(current.id)
        if self._conf.strict_accounting or (
                current.provider not in has.amounts or
                not has.is_hold and not current.unsure):
            return None
        request = _request(current, self._tree(current))
        if not request or not has.covers(request.resources):
            return None
        taken, others = [], []
        left = {uuid: dict(amounts) for uuid, amounts in has.amounts.items()}
        for victim in current.victims:
            server = None if victim.ended else self._nova.find(victim.id)
            if server is None:
                continue
            if self._placement.consumer(victim.id).amounts:
                others.append(victim)
            elif victim.consumer and victim.consumer.amounts:
                taken.append(victim)
            else:
                taken.append(dataclasses.replace(victim, consumer=(
                    holds.allocation(server, current.provider, left))))
        if not taken:
            return None
        self._victims.withdraw(others, current.id,
                               'there is room without its end',
                               project=current.waiting.project)
        return current.at(Step.END, victims=tuple(taken),
                          held=has if has.is_hold else None, swapped=True)

    def _end(self, current: Attempt) -> Attempt | Outcome:
        """End the victims, and wait until they have left."""
        lost = (self.lost(current) if current.for_another
                else self._not_begun(current))
        if lost:
            return lost
        if current.for_another and not self._may_begin(current.victims):
            return self._undo(current, 'the operator lets a server live on '
                              'that was to make room for it',
                              Result.WITHDRAWN)
        before = [victim for victim in current.victims if not victim.ended]
        turn = _turn(current.victims)
        after = tuple(
            self._victims.end(victim, current) if victim in turn else victim
            for victim in current.victims)
        now = time.monotonic()
        left = [victim for victim in after if not victim.ended]
        current = current.but(
            victims=after, ended=len(after) - len(left),
            # Each victim's end has the whole time-out.
            since=now if len(left) < len(before) else current.since)
        if not left and not current.for_another:
            return Outcome(current, Result.GONE, 'It has ended.')
        if not left:
            # With strict accounting the reaper holds the room only now.
            return current.at(Step.REBUILD if current.swapped else Step.HOLD)
        # If Nova fails over an action, the task stays, and Nova refuses all
        # other actions. end() needs time to reset the task before an undo.
        more = ending.PATIENCE + POLL if any(
            victim.failed_at for victim in left) else 0.0
        if now - current.since > (
                self._conf.end_timeout + self._conf.stop_timeout + more):
            hang = _ids([victim for victim in left
                         if victim.stage == Stage.ENDING] or _turn(after))
            self._metrics.victims_stuck.inc(len(hang))
            LOG.warning('These servers did not end in time, and keep their '
                        'room: %s', ', '.join(hang))
            return self._undo(current, 'it did not end in time', Result.STUCK,
                              avoid=hang)
        progress = any(one.stage != other.stage
                       for one, other in zip(before, left))
        return current.later(POLL / 4 if progress else POLL)

    def _alone(self, current: Attempt) -> Attempt | Outcome:
        """Do the notice and grace steps of a server that makes no room."""
        stop = self._needless(current)
        if stop:
            return stop
        if current.step is Step.NOTICE:
            objection = self._objection(current, current.victims, told=False)
            if objection:
                return Outcome(current, Result.CONFLICT, f'{objection[0]}.')
            until = timeutils.utcnow(True) + datetime.timedelta(
                seconds=self._conf.grace_period)
            return self._tell(current, max(
                until, current.terminate_at or until).replace(microsecond=0))
        current = self._looked_at(current)
        left = current.notice_left
        if left > 0 and current.left:
            return current.later(min(left, GRACE_POLL))
        return self._spared(current, current.left) or current.at(Step.END)

    def _rehearse(self, current: Attempt) -> Attempt | Outcome:
        """Stop the guest of a server, and start the guest again."""
        victim, = current.victims
        try:
            stopped = self._victims.stop(victim)
        except (rest.Conflict, rest.Forbidden) as error:
            LOG.info('Server %s is not stopped: %s', current.id, error)
            stopped = None
        if stopped:
            return current.later(POLL, victims=(stopped,))
        return self._undo(current, 'the rehearsal is over', Result.WITHDRAWN)

    # Objections to going on.

    def _needless(self, current: Attempt) -> Outcome | None:
        """Undo an attempt whose victims need not, or may not, end."""
        why = current.needless
        if self._allowed() != model.Mode.PREEMPT:
            why = 'the mode allows it no more'
        return self._undo(current, why, Result.WITHDRAWN,
                          None) if why else None

    def _elsewhere(self, current: Attempt) -> Attempt | None:
        """Have the server built where there is room without an end.

        The victims keep their notice until that room is held, since another
        server may take it first.

        :returns: the attempt there, or this attempt with the outcome of that
            attempt; None if no other host has room
        """
        begun = there = current.elsewhere
        if not isinstance(begun, Attempt):
            return None
        try:
            if not begun.unsure:
                there = self._check(
                    begun.but(held=self._with_hold(current).held))
            if isinstance(there, Attempt):
                there = self._hold(there)
        except rest.RequestFailed as error:
            if begun.unsure:
                raise
            LOG.info('Server %s is not built on host %s: %s', current.id,
                     begun.host, error)
            there = Outcome(begun, Result.CONFLICT, 'It cannot be looked at.',
                            model.Reason.UNKNOWN)
        if not isinstance(there, Attempt):
            return current.later(0.0, elsewhere=there and dataclasses.replace(
                there, attempt=begun.later(self._conf.retry_interval)))
        if there.step is Step.HOLD:
            # Whether the room is held is not known yet.
            return current.but(elsewhere=there, wake_at=there.wake_at)
        self._victims.withdraw(current.left, current.id,
                               'there is room without its end',
                               project=current.waiting.project)
        return there

    def _not_begun(self, current: Attempt) -> Outcome | None:
        """Do as _needless() until Nova was asked to end all victims.

        Once the first end has begun, only the mode undoes the attempt.
        """
        begun = [victim.stage in (Stage.ENDING, Stage.ENDED)
                 for victim in current.victims]
        if all(begun):
            return None
        return self._needless(
            current.but(needless='') if any(begun) else current)

    def _not_waiting(self, current: Attempt) -> Attempt | Outcome | None:
        """Put off or undo the step of an attempt whose server does not wait.

        A server that its owner rebuilds waits again if there is no host. If
        the notices were withdrawn, the server would lose its turn, and one
        owner could have notices given and withdrawn for ever.

        :returns: None if the server waits
        """
        server = self._nova.find(current.id)
        if server and server.waits:
            return None
        if server and server.may_wait and (
                current.notice_left > -self._conf.stop_timeout):
            return current.later(POLL)
        return self._undo(current, 'the server waits no more' if server else
                          'the server that waited was deleted', Result.GONE)

    def lost(self, current: Attempt) -> Attempt | Outcome | None:
        """Put off or undo an end that helps no server, or is not allowed.

        :returns: None if the server still waits, or has the room already
        """
        if not current.swapped:
            return self._not_begun(current) or self._not_waiting(current)
        if current.needless:
            return self._not_begun(current)
        has = self._placement.consumer(current.id)
        if current.provider not in has.amounts:
            return self._undo(current, 'the hold is gone', Result.GONE)
        if not self._holds.is_one(has):
            return None
        server = self._nova.find(current.id)
        # The owner's own build may be about to take the room.
        if server and (server.waits or server.task_state or
                       server.status != 'ERROR'):
            return self._not_begun(current)
        return self._undo(current, 'the server waits no more', Result.GONE)

    def _verdict(self, current: Attempt, server: nova.NovaServer
                 ) -> Outcome | None:
        """Return why Nova would not build a server on the host of its attempt.

        The host is judged as it will be without the victims that are left.

        :returns: None if nothing speaks against it
        :raises: rest.NotFound or rest.Conflict if the server waits no more or
            a victim has changed, rest.RequestFailed if Nova gives no verdict
        """
        if current.waiting.failed:
            # Nova gives no verdict on a server in ERROR.
            return None
        victims = _ids(current.left)
        others = current.others if current.step == Step.CHECK else ()
        asked = [current.host, *(() if victims else others)]
        answer = self._nova.pending(current.id, asked, victims)
        refusal = _refusal(current, answer, asked)
        if refusal and refusal.refused and current.step == Step.CHECK:
            named = self._named(current, refusal)
            if named:
                return dataclasses.replace(refusal, named=named)
        if refusal and refusal.refused and victims and others:
            # Nova judges the other hosts without an end: only verdicts count
            # that victims do not change, or that say that devices lack.
            more = self._nova.pending(current.id, others).hosts
            known = index_module.LASTING | (
                {'PciPassthroughFilter'} if current.waiting.shape.devices
                else set())
            return dataclasses.replace(refusal, refused={
                **{host: name for host, name in more.items()
                   if name in known}, **refusal.refused})
        if refusal or not answer.token_required:
            return refusal
        objection = self._owners.objection(server)
        return Outcome(
            current, Result.REFUSED, objection, model.Reason.REFUSED,
            model.Hindrance.NEEDS_OWNER) if objection else None

    def _named(self, current: Attempt, refusal: Outcome) -> tuple[str, ...]:
        """Return IDs of the servers without which Nova accepts the host.

        Only Nova knows which NUMA node and which device a server has. If one
        of the named servers stays, Nova refuses the host.

        :returns: no IDs if Nova refuses the host even without all servers that
            may be ended there
        """
        there = current.instead[-nova.MOST_WITHOUT:]
        if len(there) <= len(current.victims) or (
                refusal.refused[current.host] not in index_module.BY_USAGE or
                not self._accepts(current, there)):
            return ()
        tree = self._tree(current.but(victims=there))
        request = _request(current, tree)
        if request is None:
            return ()
        return _ids(self._without_needless(current, tree, request, there))

    def _objected(self, current: Attempt) -> Outcome | None:
        """Return the outcome if a victim may not have notice, else None."""
        objection = self._objection(current, current.victims, told=False)
        return Outcome(
            current, Result.CONFLICT, f'{objection[0]}.', model.Reason.NO_ROOM,
            avoid=objection[1:]) if objection else None

    def _objection(self, current: Attempt, kept: Sequence[Victim],
                   told: bool) -> tuple[str, str] | None:
        """Return why a victim may not be ended, and its ID, or None."""
        cause = current.cause
        marked = self._victims.marked(
            shapes.is_limited if cause is model.Cause.RUN_TIME
            else shapes.is_preemptible) if kept else frozenset()
        for victim in kept:
            server = self._nova.find(victim.id)
            why = ('is gone' if server is None else
                   self._victims.objection(server, current.host, told, marked,
                                           cause))
            if why:
                LOG.info('Server %s is not ended: it %s.', victim.id, why)
                who = ('A server that was to make room for it'
                       if current.for_another else 'The server')
                return f'{who} {why}', victim.id
        return None

    def _may_begin(self, victims: Sequence[Victim]) -> bool:
        """Return whether the flavors of untouched victims bear the mark."""
        servers = [self._nova.find(victim.id) for victim in victims
                   if victim.stage == Stage.NOTICED]
        marked = self._victims.marked() if servers else ()
        return all(server is None or server.flavor.name in marked
                   for server in servers)

    # Holds before the swap, and the undo.

    def _hold_free(self, current: Attempt) -> Attempt:
        """Hold the part of the room that the host has free by now.

        Otherwise other servers could take that part before the victims end.
        """
        current = self._with_hold(current)
        tree = self._tree(current)
        request = _request(current, tree)
        whole = request and (
            holds.place(request, tree, _ids(current.left), current.has) or
            {current.provider: dict(request.resources)}) or {}
        amounts = {one.uuid: part for one in tree if (part := holds.part(
            whole.get(one.uuid, {}).items(), one.inventory,
            holds.room(one, current.has.get(one.uuid, {}))))}
        if current.provider not in amounts or amounts == current.has:
            return current
        try:
            hold = self._holds.take(current.id, amounts, current.held)
        except (rest.Conflict, rest.BadRequest) as error:
            # Another server took the part first; the next look tries again.
            LOG.info('The free part of the room is not held for server %s '
                     'yet: %s', current.id, error)
            return current
        except rest.RequestFailed as error:
            return _unsure(current, error)
        return current.but(held=hold, held_at=time.monotonic())

    def _with_hold(self, current: Attempt) -> Attempt:
        """Return the attempt with the hold as Placement has it now.

        The answer to a write may have been lost, and Nova restores the hold
        after the owner has rebuilt the server in vain.
        """
        held = self._holds.find(current.id, current.provider)
        return current if held == current.held else current.but(
            held=held, held_at=time.monotonic())

    def _looked_at(self, current: Attempt) -> Attempt:
        return current.but(victims=tuple(
            self._victims.look(victim, current)
            for victim in current.victims))

    def _undo(self, current: Attempt, why: str, result: Result,
              reason: model.Reason | None = model.Reason.NO_ROOM,
              avoid: tuple[str, ...] = ()) -> Outcome:
        """Give the victims that have not ended their room again.

        :param why: a clause for the log, the journal and the server's owner
        """
        swapped = current.swapped or current.unsure
        if swapped:
            current = self._looked_at(current)
        if current.step == Step.END:
            current = current.but(
                ended=sum(victim.ended for victim in current.victims))
        left = current.left
        if swapped:
            short = self._holds.give_back(
                current.id, [victim.consumer for victim in left
                             if victim.consumer and victim.consumer.amounts],
                lambda victim: self._victims.has_left(victim, current.host),
                current.provider)
            ending.tell_unallocated(short)
            # A sweep tries again for a victim that has nothing, by its notice.
            left = tuple(victim for victim in left if victim.id not in short or
                         self._placement.consumer(victim.id).amounts)
        elif current.held:
            self._holds.release(current.id, current.provider)
        if isinstance(current.elsewhere, Attempt) and current.elsewhere.unsure:
            # The hold may have moved there.
            self._holds.release(current.id, current.elsewhere.provider)
        self._victims.withdraw(left, current.id, why, result.value,
                               current.cause, current.waiting.project)
        return Outcome(current, result, _sentence(why), reason, avoid=avoid)


def _refusal(current: Attempt, answer: nova.Pending,
             asked: Sequence[str]) -> Outcome | None:
    """Return why Nova would not build the server, None if Nova would.

    :param answer: Nova's verdict for the host of the attempt, and for others
    :param asked: the names of these hosts
    :raises: rest.Unavailable if Nova could not ask its scheduler
    """
    if answer.reason == model.Reason.QUOTA:
        return Outcome(current, Result.REFUSED,
                       answer.message or 'Its project is over its quota.',
                       model.Reason.QUOTA)
    if answer.unavailable and answer.unavailable == answer.message:
        # The owner has to correct the server before a rebuild is possible.
        return Outcome(current, Result.REFUSED, answer.message,
                       model.Reason.UNKNOWN)
    if answer.unavailable:
        raise rest.Unavailable('nova', 'verdict', answer.unavailable, 503)
    if not shapes.are_alike(answer.requests, current.waiting.requests):
        return Outcome(current, Result.CONFLICT, 'The server asks for '
                       'something else than others of its flavor.', apart=True)
    refused = {host: name for host in asked if (
        name := answer.hosts.get(host, shapes.SCHEDULER))}
    if current.host not in refused:
        return None
    would = 'would refuse the host all the same' if current.left else (
        'refuses the host')
    return Outcome(current, Result.REFUSED, f'{refused[current.host]} '
                   f'{would}.', model.Reason.REFUSED, refused=refused)


def _unsure(current: Attempt, error: rest.RequestFailed) -> Attempt:
    """Return the attempt after a write of its hold that got no answer."""
    LOG.warning('Whether room is held for server %s is not known: %s',
                current.id, error)
    return current.but(unsure=True)


def _turn(victims: Sequence[Victim]) -> list[Victim]:
    """Return the victims to end now: those to shelve, then those to delete.

    A shelved server comes back, and a deleted server does not. The first
    victim is stopped and ended alone: if the host ends no server, the guests
    of the other victims run on.
    """
    left = [victim for victim in victims if not victim.ended]
    turn = [victim for victim in left
            if victim.action is model.Action.SHELVE] or left
    return turn if len(left) < len(victims) else turn[:1]


def _request(current: Attempt, tree: Sequence[placement.Provider]
             ) -> model.Shape | None:
    """Return what the providers of the host have to give, as a shape.

    The first query counts whose classes the providers have: Nova's last query
    is for hosts without dedicated cores.

    :returns: None if the server needs other providers, too
    """
    own, *below = tree
    classes = {name for one in below for name in one.inventory}
    for request in current.waiting.requests:
        shape = shapes.shape(request, '', {}, classes)
        if shape.fill_only:
            return None
        if all(name in classes or name in own.inventory
               for name, _ in shape.resources):
            return shape
    return None


def _sentence(clause: str) -> str:
    return f'{clause[0].upper()}{clause[1:]}.'


def _ids(some: Sequence[Victim]) -> tuple[str, ...]:
    return tuple(victim.id for victim in some)


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
