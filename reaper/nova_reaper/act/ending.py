# SPDX-License-Identifier: Apache-2.0

"""Gives notice to preemptible servers, withdraws notices, ends servers."""

from collections.abc import Collection
from collections.abc import Sequence
import dataclasses
import datetime
import time

from oslo_config import cfg
from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Victim
from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Stage
from nova_reaper.events import reader
from nova_reaper.report import health
from nova_reaper.report import journal
from nova_reaper.report.journal import Kind
from nova_reaper.report.journal import LEFT
from nova_reaper.report.journal import Record

LOG = log.getLogger(__name__)
# Seconds after which the reaper assumes that Nova, which failed, did not tell
# the host of a task.
PATIENCE = 10.0


class NotTold(Exception):
    """Nova refuses to write a notice to a server.

    :ivar victim: the ID of the server
    """

    def __init__(self, victim: str, message: str) -> None:
        super().__init__(message)
        self.victim = victim


def tell_unallocated(victims: Collection[str]) -> None:
    """Log the IDs of servers that live on with less room than they use."""
    if victims:
        LOG.error('These servers run without an allocation of all that they '
                  'use, since their host has not enough room left: %s. Where '
                  'a sweep has not given it back by then, "nova-manage '
                  'placement heal_allocations --instance ID --force" does, '
                  'when there is room.', ', '.join(sorted(victims)))


class Victims:
    """Gives notice to victims, withdraws notices, and ends victims.

    Each method can be repeated, since it looks at the server in Nova first.

    :param source: tells whether an administrator has locked a server
    :ivar marked: gives the names of the flavors that bear the mark now
    """

    def __init__(self, conf: cfg.ConfigOpts, service: nova.Nova,
                 book: journal.Journal, meters: health.Metrics,
                 source: reader.Reader) -> None:
        self._conf = conf.reaper
        self._nova = service
        self._book = book
        self._metrics = meters
        self._reader = source
        self.marked = source.marked
        #: IDs of servers that keep their notice until their guest is off.
        self.later: set[str] = set()

    def objection(self, server: nova.NovaServer, host: str, told: bool,
                  marked: Collection[str],
                  cause: model.Cause = model.Cause.ROOM) -> str | None:
        """Return why a server may not have notice or be ended, None if it may.

        A notice for another server is no objection: owners can write metadata,
        and Placement gives the room to one server only.

        :param server: as Nova shows it right before the request
        :param told: whether the server has had its notice
        :param marked: names of the flavors that bear the mark now; for the
            cause RUN_TIME, names of the flavors that limit run times
        """
        if cause is model.Cause.ROOM and (
                not shapes.is_preemptible(server.flavor) or
                server.flavor.name not in marked):
            return 'is not preemptible'
        if cause is model.Cause.RUN_TIME:
            ends_at = self._reader.ends_at(server, marked)
            if ends_at is None or told and ends_at > timeutils.utcnow(True):
                return 'may run on'
        if server.host != host:
            return 'is not on the host any more'
        if server.task_state or server.status not in shapes.ENDABLE:
            return f'is {server.status} with the task {server.task_state}'
        if self._reader.locked_by_admin(server):
            return 'is locked by an administrator'
        if cause is model.Cause.ROOM and not told and server.launched_at and (
                timeutils.utcnow(True) - server.launched_at
        ).total_seconds() < self._conf.min_run_time:
            return 'was launched a moment ago'
        return None

    def notify(self, current: attempts.Attempt,
               terminate_at: datetime.datetime) -> tuple[Victim, ...]:
        """Give notice to the victims of an attempt.

        The method returns only after the journal has the notices: a process
        that is killed leaves no end that the journal does not explain.

        :returns: the victims, at the stage NOTICED
        :raises: NotTold if Nova allows a victim no more metadata,
            rest.RequestFailed if Nova fails; the notices are withdrawn then
        """
        victims, waiting = current.victims, current.id
        told: list[Victim] = []
        until = model.time_text(terminate_at)
        try:
            for victim in victims:
                self._nova.set_metadata(victim.id, {
                    shapes.TERMINATE_AT: until, shapes.FOR: waiting})
                told.append(dataclasses.replace(
                    victim, stage=Stage.NOTICED, since=time.monotonic()))
        except rest.RequestFailed as error:
            if isinstance(error, rest.Unavailable):
                # Nova may have written the notice all the same.
                told.append(dataclasses.replace(victim, stage=Stage.NOTICED))
            self.withdraw(told, waiting, 'not all could be told',
                          project=current.waiting.project)
            if error.status == 403:
                # The owner has as many items of metadata as Nova allows.
                raise NotTold(victims[len(told)].id, error.message) from error
            raise
        for victim in told:
            self._metrics.notices_given.labels('given').inc()
            LOG.info('Server %s (%s) has notice until %s: %s.', victim.id,
                     victim.name, until, f'{waiting} would run in its place '
                     f'on {current.host}' if current.for_another
                     else current.cause.value)
        self._book.write(*(Record(
            Kind.NOTICE, victim.id, victim.project, victim.name, waiting,
            current.waiting.project, current.host, detail={
                **current.decided, 'action': victim.action.value,
                'terminate_at': until, 'cause': current.cause.value})
            for victim in told), wait=True)
        return tuple(told)

    def withdraw(self, victims: Sequence[Victim], waiting: str,
                 why: str, result: str = '',
                 cause: model.Cause | None = None, project: str = ''
                 ) -> None:
        """Withdraw notices; withdrawals that fail are tried again later.

        :param waiting: ID of the server that the notices were given for; a
            notice that another reaper has given since stays
        :param result: how the attempt ended, '' if it goes on
        :param cause: of the notices, None if the cause is not known
        :param project: of the server "waiting", '' if it is not known
        """
        for victim in victims:
            if victim.stage in (Stage.CHOSEN, Stage.ENDED):
                continue
            keys: tuple[str, ...] = shapes.TERMINATE_AT, shapes.FOR
            try:
                server = self._nova.find(victim.id)
                if victim.action == model.Action.SHELVE and not (
                        server and shapes.is_leaving(server, victim.action)):
                    # A victim that is not shelved is not to be brought back.
                    keys = shapes.SHELVED_AT, *keys
                stopped = server and server.status == 'SHUTOFF' and (
                    victim.stage in (Stage.STOPPING, Stage.ENDING))
                if server and (
                        server.task_state == 'powering-off' or stopped and
                        server.task_state and
                        not shapes.is_leaving(server, victim.action)):
                    # The victim cannot be started yet. Its notice stays, so
                    # that a later withdrawal starts the victim.
                    self.later.add(victim.id)
                    continue
                if stopped and server and not server.task_state:
                    # The start comes first: a sweep knows by the notice which
                    # victims it has to start.
                    self._nova.start(victim.id)
                if server and server.metadata.get(
                        shapes.FOR, waiting) != waiting and shapes.is_id(
                            server.metadata[shapes.FOR]):
                    LOG.info('Server %s (%s) is under notice for another by '
                             'now.', victim.id, victim.name)
                    continue
                self._unmark(victim.id, server, keys)
            except rest.RequestFailed as error:
                LOG.warning('The notice to server %s is not withdrawn: %s',
                            victim.id, error)
                self.later.add(victim.id)
                continue
            self._metrics.notices_given.labels('withdrawn').inc()
            ending = victim.stage is Stage.ENDING and (
                server is None or shapes.is_leaving(server, victim.action))
            self._book.write(Record(
                Kind.WITHDRAWAL, victim.id, victim.project, victim.name,
                waiting, project, server.host if server else '',
                result=model.Result.STUCK.value if ending else result,
                detail={'action': victim.action.value, 'why': why,
                        'ending': ending, 'cause': cause}))
            LOG.info('The notice to server %s (%s) is withdrawn: %s.',
                     victim.id, victim.name, why)

    def _unmark(self, uuid: str, server: nova.NovaServer | None,
                keys: Sequence[str]) -> None:
        """Delete metadata, for which a server must not be in ERROR."""
        in_error = server is not None and server.status == 'ERROR'
        if in_error:
            self._nova.reset_state(uuid, 'active')
        try:
            self._nova.delete_metadata(uuid, keys)
        finally:
            if in_error:
                self._nova.reset_state(uuid, 'error')

    def look(self, victim: Victim, current: attempts.Attempt) -> Victim:
        """Return the victim, noted as ended if it has left its host."""
        if victim.ended or not self.has_left(victim.id, current.host):
            return victim
        return self._gone(victim, current)

    def has_left(self, uuid: str, host: str) -> bool:
        """Return whether a server is gone, off the host, or elsewhere."""
        return self._find_on(uuid, host) is None

    def _find_on(self, uuid: str, host: str) -> nova.NovaServer | None:
        """Return a server as it is now, None if it has left the host.

        A server that Nova shows as deleted has not left: Nova says so before
        the delete is done, and the delete may still fail.
        """
        server = self._nova.find(uuid)
        if server is None or server.status == 'SHELVED_OFFLOADED' or (
                server.host != host and server.status != 'DELETED'):
            return None
        return server

    def end(self, victim: Victim, current: attempts.Attempt) -> Victim:
        """Go one step further with the end of a victim.

        :returns: the victim as it stands then; unchanged if Nova refuses
        :raises: rest.RequestFailed if the victim cannot be looked at
        """
        server = self._find_on(victim.id, current.host)
        if server is None:
            self._metrics.notices_given.labels('kept').inc()
            return self._gone(victim, current)
        if shapes.is_leaving(server, victim.action):
            # A request whose answer was lost, or another reaper, has begun the
            # end.
            victim = dataclasses.replace(victim, stage=Stage.ENDING)
        before = victim
        try:
            if server.task_state:
                return self._free(victim, server)
            if server.status == 'DELETED' or server.status == 'ERROR' and (
                    victim.stage == Stage.ENDING and
                    time.monotonic() - victim.since < PATIENCE):
                # The end is under way, or has failed just now and is asked
                # for again after PATIENCE.
                return victim
            stopped = self._stop(victim, server)
            if stopped:
                return dataclasses.replace(stopped, failed_at=0.0)
            # Nova may end the victim though its answer is lost.
            victim = dataclasses.replace(victim, stage=Stage.ENDING,
                                         since=time.monotonic())
            self._end(victim, server, current.for_another)
            return dataclasses.replace(victim, failed_at=0.0)
        except rest.Unavailable as error:
            LOG.warning('Whether server %s is being ended is looked at: %s',
                        victim.id, error)
            return dataclasses.replace(victim, failed_at=time.monotonic())
        except rest.RequestFailed as error:
            # The victim's state or a policy forbids the end, or Nova allows no
            # more metadata: other victims go on, and this victim is tried
            # again until the time-out.
            self._metrics.conflicts.labels('end').inc()
            LOG.info('Server %s cannot be ended at the moment: %s',
                     victim.id, error)
            return before

    def stop(self, victim: Victim) -> Victim | None:
        """Have the guest of a victim shut down, as before an end.

        :returns: the victim while its guest shuts down; None if the guest is
            off, or stop_timeout is over
        :raises: rest.RequestFailed if Nova refuses, or the victim cannot be
            looked at
        """
        server = self._nova.find(victim.id)
        try:
            return self._stop(victim, server) if server else None
        except rest.Unavailable:
            # Nova may stop the guest all the same.
            return dataclasses.replace(victim, stage=Stage.STOPPING,
                                       since=time.monotonic())

    def _free(self, victim: Victim, server: nova.NovaServer) -> Victim:
        """Reset the task of a victim if Nova told no host of the task.

        Nova sets the task before it tells the host. If Nova fails in between,
        the server keeps the task, and Nova refuses all further actions.
        """
        if not victim.failed_at or (
                time.monotonic() - victim.failed_at < PATIENCE):
            return victim
        LOG.info('Server %s is still %s after Nova failed over that: its '
                 'state is reset, to ask again.', victim.id,
                 server.task_state)
        self._nova.reset_state(victim.id, 'active')
        return dataclasses.replace(victim, failed_at=0.0)

    def _stop(self, victim: Victim, server: nova.NovaServer
              ) -> Victim | None:
        """Have the guest of a victim shut down; returns as stop() does."""
        now, timeout = time.monotonic(), self._conf.stop_timeout
        if server.status != 'ACTIVE':
            return None
        if victim.stage == Stage.NOTICED and timeout:
            self._nova.stop(victim.id)
            return dataclasses.replace(victim, stage=Stage.STOPPING, since=now)
        if victim.stage == Stage.STOPPING and now - victim.since < timeout:
            return victim
        return None

    def _end(self, victim: Victim, server: nova.NovaServer, returns: bool
             ) -> None:
        """Ask Nova to delete or shelve a victim.

        :param returns: whether a shelved server is to come back
        """
        if victim.action == model.Action.DELETE:
            self._nova.force_delete(victim.id)
        elif server.status == 'SHELVED':
            self._nova.shelve_offload(victim.id)
        else:
            # Nova takes no metadata for a server that is offloaded.
            if not returns:
                self._nova.delete_metadata(victim.id, (
                    shapes.SHELVED_AT, shapes.TERMINATE_AT, shapes.FOR))
            elif shapes.SHELVED_AT not in server.metadata:
                self._nova.set_metadata(victim.id, {
                    shapes.SHELVED_AT: model.time_text(
                        timeutils.utcnow(True))})
            self._nova.shelve(victim.id)

    def _gone(self, victim: Victim, current: attempts.Attempt) -> Victim:
        """Note that a victim has left, ended by the reaper or otherwise."""
        ended = victim.stage == Stage.ENDING
        if ended:
            self._metrics.victims.labels(victim.action.value).inc()
            LOG.info('Server %s (%s) has been ended (%s).', victim.id,
                     victim.name, victim.action.value)
        self._book.write(Record(
            Kind.END, victim.id, victim.project, victim.name, current.id,
            current.waiting.project, current.host,
            victim.action.value if ended else LEFT,
            {'action': victim.action.value, 'cause': current.cause.value}))
        return dataclasses.replace(victim, stage=Stage.ENDED)
