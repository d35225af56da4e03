# SPDX-License-Identifier: Apache-2.0

"""Versioned notifications of Nova, as hints of what to look at.

A notification may be lost, come twice or late. What is in it decides nothing:
it says which host or server to ask for. Only the active reaper listens.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import enum
import threading
import time
from typing import Any

from oslo_config import cfg
from oslo_log import log
import oslo_messaging

LOG = log.getLogger(__name__)


class Kind(enum.StrEnum):
    """What a notification hints at."""

    HOST = 'host'        # room on a host may have become free
    TAKEN = 'taken'      # room on a host was taken
    WAITS = 'waits'      # a server waits for a host
    ENDED = 'ended'      # a server is gone, or off its host
    SERVER = 'server'    # a server has changed otherwise
    SHAPE = 'shape'      # what filters say may have changed
    IGNORED = 'ignored'


@dataclasses.dataclass(frozen=True, slots=True)
class Hint:
    """Something to look at.

    :ivar host: whose room has changed, '' if it is not known
    :ivar preemptible: whether the server's flavor says that it may be ended
    :ivar at: when it came, by the monotonic clock of this process
    """

    kind: Kind
    host: str = ''
    server: str = ''
    preemptible: bool = False
    at: float = dataclasses.field(default=0.0, compare=False)


# With the allocation gone and the host's record saved when they are sent.
_ENDED = frozenset({'instance.delete.end', 'instance.shelve_offload.end'})
_ROOM = frozenset({
    'instance.create.end', 'instance.create.error', 'instance.unshelve.end',
    'instance.resize_finish.end', 'instance.resize_confirm.end',
    'instance.resize_revert.end', 'instance.rebuild.end',
    'instance.live_migration_post.end',
    'instance.live_migration_post_dest.end',
    'instance.live_migration_rollback.end', 'instance.evacuate.end'})
_TAKEN = frozenset({
    'instance.create.end', 'instance.unshelve.end',
    'instance.resize_finish.end', 'instance.rebuild.end',
    'instance.live_migration_post_dest.end'})
_SERVER = frozenset({
    'instance.lock', 'instance.unlock', 'instance.power_off.end',
    'instance.power_on.end', 'instance.shelve.end',
    'instance.soft_delete.end', 'instance.restore.end'})
# A filter of the listener: what is none of these is dropped unread.
EVENT_TYPES = (r'^(compute_task\.build_instances\.error|instance\.|service\.'
               r'|aggregate\.|flavor\.)')


def hints(event_type: str, publisher_id: str, payload: Mapping[str, Any]
          ) -> list[Hint]:
    """What a notification hints at; IGNORED alone if nothing."""
    try:
        found = _hints(event_type, publisher_id, payload)
    except (AttributeError, KeyError, TypeError):
        # Unversioned, or of a release that says it otherwise: a list tells.
        found = []
    return found or [Hint(Kind.IGNORED)]


def _hints(event_type: str, publisher_id: str, payload: Mapping[str, Any]
           ) -> list[Hint]:
    data = payload['nova_object.data']
    if event_type == 'compute_task.build_instances.error':
        waits = data['state'] == 'pending'
        return [Hint(Kind.WAITS, server=data['instance_uuid'])] * waits
    if event_type.startswith('service.'):
        if data['binary'] != 'nova-compute':
            return []
        return [Hint(Kind.HOST, data['host']), Hint(Kind.SHAPE, data['host'])]
    if event_type.startswith(('aggregate.', 'flavor.')):
        return [] if event_type.endswith('.start') else [Hint(Kind.SHAPE)]
    server = data['uuid']
    preemptible = _is_preemptible(data)
    if event_type == 'instance.update':
        return _update(server, data, preemptible)
    found = []
    if event_type in _ENDED:
        found.append(Hint(Kind.ENDED, data['host'] or '', server, preemptible))
    elif event_type in _ROOM or event_type in _SERVER:
        found.append(Hint(Kind.SERVER, data['host'] or '', server,
                          preemptible))
    if event_type in _ENDED or event_type in _ROOM:
        # After a move the one that speaks is not the one that has it.
        service, _, speaker = publisher_id.partition(':')
        hosts = {data['host'], speaker if service == 'nova-compute' else ''}
        kind = Kind.TAKEN if event_type in _TAKEN else Kind.HOST
        found += [Hint(kind, host)
                  for host in sorted(filter(None, hosts))]
    return found


def _update(server: str, data: Mapping[str, Any], preemptible: bool
            ) -> list[Hint]:
    change = data['state_update']['nova_object.data']
    new, old = change['state'], change['old_state']
    host = data['host'] or ''
    if new == 'pending' and not change['new_task_state']:
        return [Hint(Kind.WAITS, server=server)]
    if new == old:
        return []
    found = [Hint(Kind.SERVER, host, server, preemptible)]
    if new == 'error' and host:
        found.append(Hint(Kind.HOST, host))
    return found


def _is_preemptible(data: Mapping[str, Any]) -> bool:
    flavor = data['flavor']['nova_object.data']
    specs = flavor.get('extra_specs') or {}
    return bool(str(specs.get('reaper:preemptible', '')).lower() == 'true')


class Mailbox:
    """Hints that nobody has taken yet; the same one is there once.

    So a flood of notifications grows it to the number of hosts and servers,
    not to its own.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hints: dict[Hint, Hint] = {}
        self._woken = False

    def put(self, new: Sequence[Hint]) -> None:
        """Add hints; of two that are the same the first stays."""
        with self._changed:
            for hint in new:
                self._hints.setdefault(hint, hint)
            self._changed.notify_all()

    def take(self, timeout: float) -> list[Hint]:
        """All hints, waiting for the first at most so many seconds."""
        with self._changed:
            if not self._hints and not self._woken:
                self._changed.wait(max(timeout, 0))
            self._woken = False
            taken, self._hints = list(self._hints.values()), {}
            return taken

    def wake(self) -> None:
        """End a wait without a hint, or the next one."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()


class _Endpoint:
    """What the listener calls with each batch."""

    filter_rule = oslo_messaging.NotificationFilter(event_type=EVENT_TYPES)

    def __init__(self, mailbox: Mailbox,
                 observe: Callable[[Kind], None]) -> None:
        self._mailbox = mailbox
        self._observe = observe

    def info(self, messages: Sequence[Mapping[str, Any]]) -> None:
        now = time.monotonic()
        for message in messages:
            new = hints(message['event_type'], message['publisher_id'],
                        message['payload'])
            for hint in new:
                self._observe(hint.kind)
            self._mailbox.put([dataclasses.replace(hint, at=now)
                               for hint in new if hint.kind != Kind.IGNORED])

    error = info
    warn = info


def listener(conf: cfg.ConfigOpts, mailbox: Mailbox,
             observe: Callable[[Kind], None]) -> Any:
    """A listener on the topics of the configuration; it is not started.

    :param observe: is told what kind of hint each notification was
    """
    group = conf.notifications
    transport = oslo_messaging.get_notification_transport(
        conf, url=group.transport_url)
    return oslo_messaging.get_batch_notification_listener(
        transport,
        [oslo_messaging.Target(topic=topic) for topic in group.topics],
        [_Endpoint(mailbox, observe)], executor='threading',
        batch_size=group.batch_size, batch_timeout=group.batch_timeout)


class Listening:
    """Listens and leaves; who calls does not wait for the bus."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._listener: oslo_messaging.MessageHandlingServer | None = None
        # Whether there can be none by these options.
        self._failed = False
        # Whether it has connected: until then it cannot be stopped.
        self._listens = False

    def listen(self, mailbox: Mailbox,
               observe: Callable[[Kind], None]) -> None:
        """Begin to listen, unless that was done or could not be done.

        :param observe: is told what kind of hint each notification was
        """
        if self._listener is not None or self._failed or (
                not self._conf.notifications.enabled):
            return

        try:
            self._listener = listener(self._conf, mailbox, observe)
        except Exception as error:
            self._not_listening(error)
            self._failed = True
            return
        # Without a bus it tries for ever.
        self._listens = False
        threading.Thread(target=self._begin, args=(self._listener,),
                         name='listens', daemon=True).start()

    def _begin(self, listener: oslo_messaging.MessageHandlingServer
               ) -> None:
        try:
            listener.start()
        except Exception as error:
            self._not_listening(error)
            return
        with self._lock:
            wanted = self._listener is listener
            self._listens = self._listens or wanted
        if not wanted:
            self._end(listener)

    def leave(self) -> threading.Thread | None:
        """Listen no more; returns who sees to that, if there is anything."""
        with self._lock:
            listener, self._listener = self._listener, None
            self._failed = False
            listens = self._listens
        if listener is None or not listens:
            return None
        # A bus that hangs must not hold up who stands by.
        thread = threading.Thread(target=self._end, args=(listener,),
                                  name='leaves', daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _end(listener: oslo_messaging.MessageHandlingServer) -> None:
        listener.stop()
        listener.wait()

    @staticmethod
    def _not_listening(error: Exception) -> None:
        # The text may hold the URL with its password.
        LOG.error('No notifications are listened to: %s. The reaper lives '
                  'from its lists.', type(error).__name__)
