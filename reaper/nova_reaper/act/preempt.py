# SPDX-License-Identifier: Apache-2.0

"""The steps of an attempt that end preemptible servers for it.

check, notice, grace, swap, end; then the attempt goes on as any other.
Nobody is ended before the swap has shown that there will be room, and nobody
for a server that Nova would refuse.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import datetime
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.act.attempts import Victim
from nova_reaper.act import ending
from nova_reaper.act import holds
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.cloud.model import Stage
from nova_reaper.cloud import shapes
from nova_reaper.report import journal
from nova_reaper.report import metrics

LOG = log.getLogger(__name__)
# Seconds between two looks at victims; a notification comes first.
POLL = 2.0
GRACE_POLL = 15.0
# The owner of the one that waits reads this: it names nobody.
NOT_TOLD = 'A server that was to make room for it cannot be given notice.'


def _refusal(current: Attempt, answer: nova.Pending) -> Outcome | None:
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
    refused_by = answer.hosts.get(current.host)
    if refused_by:
        return Outcome(current, Result.REFUSED, f'{refused_by} refuses '
                       'the host.', model.Reason.REFUSED,
                       refused_by=refused_by)
    if current.host not in answer.hosts:
        return Outcome(current, Result.REFUSED, 'Nova does not know '
                       'the host.', model.Reason.REFUSED)
    return None


class Preempt:
    """Does the steps with victims.

    :param allowed: the mode that is in force at the moment
    """

    def __init__(self, conf: cfg.ConfigOpts, compute: nova.Nova,
                 room: placement.Placement, held: holds.Holds,
                 ends: ending.Victims, named: nova.Owners,
                 meters: metrics.Metrics, book: journal.Journal,
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

    def _check_victims(self, current: Attempt) -> Attempt | Outcome:
        """Read the host and the victims again; is the decision still right?"""
        host = self._placement.provider(current.provider)
        request = self._request(current, host)
        if request is None:
            return Outcome(
                current, Result.REFUSED, 'It needs more than the own '
                'provider of a host: nobody is ended for it.',
                model.Reason.NO_ROOM)
        if holds.fits(request, host.free, host.inventory):
            return current.at(Step.HOLD, victims=())
        objection = self._objection(current, current.victims, told=False)
        if objection:
            why, victim = objection
            return Outcome(current, Result.CONFLICT, f'{why}.',
                           model.Reason.NO_ROOM, avoid=(victim,))
        needed = holds.least(request, host, self._ids(current.victims), {})
        if needed is None:
            return Outcome(current, Result.CONFLICT, 'The host would not '
                           'have room enough any more.',
                           model.Reason.NO_ROOM)
        return current.at(Step.NOTICE, victims=tuple(
            victim for victim in current.victims if victim.id in needed))

    def _notice(self, current: Attempt) -> Attempt | Outcome:
        """Tell the victims when they end, and for whom."""
        needless = self._needless(current)
        if needless:
            return needless
        until = (timeutils.utcnow(True) + datetime.timedelta(
            seconds=self._conf.grace_period)).replace(microsecond=0)
        if self._conf.grace_period:
            current = self._hold_free(current)
        try:
            told = self._victims.notify(current, until)
        except (ending.NotTold, rest.RequestFailed) as error:
            self._undo(current, 'not all could be told', Result.CONFLICT)
            outcome = Outcome(current, Result.CONFLICT, NOT_TOLD,
                              model.Reason.NO_ROOM)
            if isinstance(error, ending.NotTold):
                LOG.warning('Server %s cannot be given notice, and is not '
                            'ended for another: %s', error.victim, error)
                return dataclasses.replace(outcome, avoid=(error.victim,))
            LOG.info('Nobody is ended for server %s: %s', current.id, error)
            self._metrics.conflicts.labels('notice').inc()
            return outcome
        return current.at(
            Step.GRACE, min(self._conf.grace_period, GRACE_POLL),
            victims=told, terminate_at=until)

    def _grace(self, current: Attempt) -> Attempt | Outcome:
        """Wait, and hold what becomes free of the host meanwhile."""
        stop = self._needless(current) or self._not_waiting(current)
        if stop:
            return stop
        current = self._looked_at(current)
        assert current.terminate_at
        left = (current.terminate_at - timeutils.utcnow(True)).total_seconds()
        if left > 0:
            current = self._hold_free(current)
        if left <= 0 or all(victim.ended for victim in current.victims):
            return current.at(Step.SWAP)
        return current.later(min(left, GRACE_POLL))

    def _needless(self, current: Attempt) -> Outcome | None:
        """What follows if the victims need not end, or may not any more."""
        why = current.needless
        if self._allowed() != model.Mode.PREEMPT:
            why = 'the mode allows it no more'
        return self._undo(current, why, Result.WITHDRAWN,
                          None) if why else None

    def _hold_free(self, current: Attempt) -> Attempt:
        """Hold the part of the room that the host has free by now.

        Otherwise others would take it until the victims have ended.
        """
        current = self._with_lost_hold(current)
        host = self._placement.provider(current.provider)
        amounts = holds.part(self._request(current, host) or (), host,
                             current.has)
        if not amounts or amounts == current.has:
            return current
        try:
            hold = self._holds.take(
                current.id, {current.provider: amounts}, current.held)
        except (rest.Conflict, rest.BadRequest) as error:
            # Somebody was faster; it is tried again.
            LOG.info('The free part of the room is not held for server %s '
                     'yet: %s', current.id, error)
            return current
        except rest.RequestFailed as error:
            LOG.warning('Whether room is held for server %s is not known: %s',
                        current.id, error)
            return current.but(unsure=True)
        return current.but(held=hold, held_at=time.monotonic())

    def _with_lost_hold(self, current: Attempt) -> Attempt:
        """With what is held, if the answer to a write of it was lost."""
        return current.but(held=self._holds.find(
            current.id)) if current.unsure else current

    def _looked_at(self, current: Attempt) -> Attempt:
        victims = tuple(self._victims.look(victim, current)
                        for victim in current.victims)
        return current.but(victims=victims)

    def _swap(self, current: Attempt) -> Attempt | Outcome:
        """Take the victims' room for the server, if that is enough."""
        after = self._needless(current) or self._done(current)
        if after:
            return after
        current = self._with_lost_hold(current)
        refusal = self._not_waiting(current) or self._refusal(current)
        if refusal:
            return refusal
        host = self._placement.provider(current.provider)
        request = self._request(current, host) or ()
        there = [victim for victim in current.victims if not victim.ended]
        needed = holds.least(request, host, self._ids(there), current.has)
        if needed is None:
            return self._undo(current, 'the room would not be enough',
                              Result.CONFLICT)
        spared = [victim for victim in there if victim.id not in needed]
        kept = [victim for victim in there if victim.id in needed]
        objection = self._objection(current, kept, told=True)
        if objection:
            return self._undo(current, objection[0], Result.CONFLICT)
        current = current.but(victims=tuple(kept))
        self._victims.withdraw(spared, current.id,
                               'there is room without its end')
        return self._take_room(current, request)

    def _take_room(self, current: Attempt, request: Sequence[tuple[str, int]]
                   ) -> Attempt | Outcome:
        consumers = [self._placement.consumer(victim.id)
                     for victim in current.victims]
        taken = tuple(dataclasses.replace(victim, consumer=consumer)
                      for victim, consumer in zip(current.victims, consumers))
        current = current.but(victims=taken)
        if any(consumer.amounts and current.provider not in consumer.amounts
               for consumer in consumers):
            # What it has is elsewhere since Nova was asked, and not to be
            # taken from it.
            return self._undo(current, 'a server that was to make room for '
                              'it is moving', Result.CONFLICT)
        if self._conf.strict_accounting and taken:
            return current.at(Step.END)
        try:
            held = self._holds.swap(
                current.id, {current.provider: dict(request)}, current.held,
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
            # It may have been done all the same, and is looked at.
            LOG.warning('Whether room is held for server %s is not known: %s',
                        current.id, error)
            return current.later(POLL, unsure=True)
        return current.at(Step.END if taken else Step.REBUILD, held=held,
                          held_at=time.monotonic(), swapped=True)

    def _done(self, current: Attempt) -> Attempt | None:
        """What follows a swap whose answer was lost, or another reaper's.

        Without it the victims would run on without an allocation, and the
        server be built beside them. None if there was no such swap.
        """
        has = self._placement.consumer(current.id)
        if self._conf.strict_accounting or (
                current.provider not in has.amounts or
                not has.is_hold and not current.unsure):
            return None
        host = self._placement.provider(current.provider)
        if not has.covers(self._request(current, host) or ()):
            return None
        taken, others = [], []
        for victim in current.victims:
            server = None if victim.ended else self._victims.find(victim.id)
            if server is None:
                continue
            if self._placement.consumer(victim.id).amounts:
                others.append(victim)
            elif victim.consumer and victim.consumer.amounts:
                taken.append(victim)
            else:
                taken.append(dataclasses.replace(victim, consumer=(
                    holds.allocation(server, current.provider))))
        if not taken:
            return None
        self._victims.withdraw(others, current.id,
                               'there is room without its end')
        return current.at(Step.END, victims=tuple(taken),
                          held=has if has.is_hold else None, swapped=True)

    def _end(self, current: Attempt) -> Attempt | Outcome:
        """End the victims, and wait until they have left."""
        lost = self._lost(current)
        if lost:
            return lost
        before = [victim for victim in current.victims if not victim.ended]
        turn = self._turn(current.victims)
        if not self._may_begin(turn):
            return self._undo(current, 'the operator lets a server live on '
                              'that was to make room for it',
                              Result.WITHDRAWN)
        first = len(before) == len(current.victims)
        after = tuple(
            self._victims.end(victim, current,
                              first and victim is not turn[0])
            if victim in turn else victim for victim in current.victims)
        now = time.monotonic()
        left = [victim for victim in after if not victim.ended]
        current = current.but(
            victims=after, ended=len(after) - len(left),
            # Each end has the whole time for itself.
            since=now if len(left) < len(before) else current.since)
        if not left:
            # With strict accounting the room is held only now.
            return current.at(Step.REBUILD if current.swapped else Step.HOLD)
        limit = self._conf.end_timeout + self._conf.stop_timeout
        if now - current.since > limit:
            return self._stuck(current, left)
        progress = any(one.stage != other.stage
                       for one, other in zip(before, left))
        return current.later(POLL / 4 if progress else POLL)

    @staticmethod
    def _turn(victims: Sequence[Victim]) -> list[Victim]:
        """Those whose turn it is: who is shelved, then who is deleted.

        Who was shelved comes back, and who was deleted does not. The first is
        ended alone: if its host ends nobody, the others live on.
        """
        left = [victim for victim in victims if not victim.ended]
        return [victim for victim in left
                if victim.action is model.Action.SHELVE] or left

    def _may_begin(self, turn: Sequence[Victim]) -> bool:
        """Whether the operator still lets all be ended that are untouched."""
        servers = [self._victims.find(victim.id) for victim in turn
                   if victim.stage == Stage.NOTICED]
        marked = self._victims.marked() if servers else ()
        return all(server is None or server.flavor.name in marked
                   for server in servers)

    def _lost(self, current: Attempt) -> Outcome | None:
        """Before each end: is it still for somebody?"""
        if not current.swapped:
            return self._not_waiting(current)
        has = self._placement.consumer(current.id)
        if current.provider not in has.amounts:
            return self._undo(current, 'the hold is gone', Result.GONE)
        # A build of somebody else may have the room, or is about to.
        server = self._victims.find(current.id) if has.is_hold else None
        if not has.is_hold or server and (
                server.task_state or server.status != 'ERROR'):
            return None
        return self._undo(current, 'the server waits no more', Result.GONE)

    def _stuck(self, current: Attempt, left: Sequence[Victim]) -> Outcome:
        hang = [victim for victim in left if victim.stage == Stage.ENDING] or (
            self._turn(left))
        self._metrics.victims_stuck.inc(len(hang))
        LOG.warning('These servers did not end in time, and keep their room: '
                    '%s', ', '.join(self._ids(hang)))
        return self._undo(current, 'it did not end in time', Result.STUCK,
                          avoid=self._ids(hang))

    def _undo(self, current: Attempt, why: str, result: Result,
              reason: model.Reason | None = model.Reason.NO_ROOM,
              avoid: tuple[str, ...] = ()) -> Outcome:
        """Give the victims that are still there their room again."""
        swapped = current.swapped or current.unsure
        if swapped:
            current = self._looked_at(current)
        if current.step == Step.END:
            current = current.but(
                ended=sum(victim.ended for victim in current.victims))
        left = [victim for victim in current.victims if not victim.ended]
        consumers = [victim.consumer for victim in left
                     if victim.consumer and victim.consumer.amounts]
        if swapped and not self._holds.give_back(
                current.id, consumers, lambda victim: self._victims.has_left(
                    victim, current.host)):
            ending.tell_unallocated(left)
        elif not swapped and current.held:
            self._holds.release(current.id)
        self._victims.withdraw(left, current.id, why, result.value)
        return Outcome(current, result, why[0].upper() + why[1:] + '.',
                       reason, avoid=avoid)

    def _not_waiting(self, current: Attempt) -> Outcome | None:
        try:
            server = self._nova.server(current.id)
        except rest.NotFound:
            return self._undo(current, 'the server that waited was deleted',
                              Result.GONE)
        if server.waits:
            return None
        return self._undo(current, 'the server waits no more', Result.GONE)

    def _refusal(self, current: Attempt) -> Outcome | None:
        """Nova's verdict once more: quota and hosts change in a grace."""
        refused = self._ask(
            current, lambda: self._nova.server(current.id),
            lambda why: self._undo(current, f'the server {why}', Result.GONE))
        if refused and refused.result != Result.GONE:
            self._undo(current, 'the server would be refused', Result.REFUSED)
        return refused

    def _ask(self, current: Attempt, read: Callable[[], nova.NovaServer],
             gone: Callable[[str], Outcome], has_route: bool = True
             ) -> Outcome | None:
        """Why Nova would not build the server on the host that was chosen.

        :param read: gives the server; it is called after Nova's answer
        :param gone: gives the outcome for a server that waits no more; it is
            told what the server does instead
        :param has_route: whether Nova can be asked; if not the token alone
            counts
        :returns: None if nothing speaks against it
        :raises: clients.RequestFailed if it cannot be found out
        """
        answer = None
        try:
            if has_route:
                answer = self._nova.pending(current.id, [current.host])
            server = read()
        except rest.NotFound:
            return gone('waits no more')
        except rest.Conflict:
            return gone('is being rebuilt')
        if answer and answer.attempts > current.waiting.attempts:
            tries = self._nova.tries(current.id)
            if tries.rebuilds > current.waiting.rebuilds:
                # It may have to be left alone still.
                return Outcome(current, Result.CONFLICT, answer.message,
                               answer.reason, tries=dataclasses.replace(
                                   tries, attempts=answer.attempts))
        refused = _refusal(current, answer) if answer else None
        if refused:
            return refused
        objection = self._owners.objection(
            server, answer.token_required if answer else None)
        return Outcome(
            current, Result.REFUSED, objection, model.Reason.REFUSED,
            model.Hindrance.NEEDS_OWNER) if objection else None

    def _objection(self, current: Attempt, kept: Sequence[Victim],
                   told: bool) -> tuple[str, str] | None:
        """Why one of them may not be ended, and the ID of that one."""
        marked = self._victims.marked() if kept else frozenset()
        for victim in kept:
            server = self._victims.find(victim.id)
            why = ('is gone' if server is None else
                   self._victims.objection(server, current.host, told, marked))
            if why:
                LOG.info('Server %s is not ended: it %s.', victim.id, why)
                return (f'A server that was to make room for it {why}',
                        victim.id)
        return None

    @staticmethod
    def _request(current: Attempt, host: placement.Provider
                 ) -> tuple[tuple[str, int], ...] | None:
        """What the host's own provider has to give; None if that is not all.

        The scheduler's last query is the one for hosts whose cores are not
        dedicated.
        """
        for request in current.requests:
            shape = shapes.shape(request, '', {})
            if shape.fill_only:
                return None
            if all(name in host.inventory for name, _ in shape.resources):
                return shape.resources
        return None

    @staticmethod
    def _ids(some: Sequence[Victim]) -> tuple[str, ...]:
        return tuple(victim.id for victim in some)
