# SPDX-License-Identifier: Apache-2.0

"""Turns versioned notifications of Nova into hints of what to look at.

A notification may be lost, come twice or late. A notification decides nothing,
but tells which host or server to ask for. Only the active reaper listens.
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

from nova_reaper.clients import shapes

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

    :ivar host: the host whose room has changed, '' if not known
    :ivar preemptible: whether the server's flavor says that it may be ended,
        or for how long it may run
    :ivar at: when the hint came, by the monotonic clock of this process
    """

    kind: Kind
    host: str = ''
    server: str = ''
    preemptible: bool = False
    at: float = dataclasses.field(
        default_factory=lambda: time.monotonic(), compare=False)


# What each notification of a server means, by its type without "instance.":
# the first kind is of the server, the second of the room on its host.
_EVENTS: dict[str, tuple[Kind, Kind | None]] = {
    # Nova sends these when the allocation is gone and the host's record is
    # saved.
    **dict.fromkeys(('delete.end', 'shelve_offload.end'),
                    (Kind.ENDED, Kind.HOST)),
    **dict.fromkeys((
        'create.error', 'resize_confirm.end', 'resize_revert.end',
        'live_migration_post.end', 'live_migration_rollback.end',
        'evacuate.end'), (Kind.SERVER, Kind.HOST)),
    **dict.fromkeys((
        'create.end', 'unshelve.end', 'resize_finish.end', 'rebuild.end',
        'live_migration_post_dest.end'), (Kind.SERVER, Kind.TAKEN)),
    **dict.fromkeys((
        'lock', 'unlock', 'power_off.end', 'power_on.end', 'shelve.end',
        'soft_delete.end', 'restore.end'), (Kind.SERVER, None))}
# The listener drops all other notifications unread.
EVENT_TYPES = (r'^(compute_task\.build_instances\.error|instance\.|service\.'
               r'|aggregate\.|flavor\.)')


def hints(event_type: str, publisher_id: str, payload: Mapping[str, Any]
          ) -> list[Hint]:
    """Return what a notification hints at; IGNORED alone if nothing."""
    try:
        found = _hints(event_type, publisher_id, payload['nova_object.data'])
    except (AttributeError, KeyError, TypeError):
        # An unversioned notification, or a notification of another release: a
        # list finds what has changed.
        found = []
    return found or [Hint(Kind.IGNORED)]


def _hints(event_type: str, publisher_id: str, data: Mapping[str, Any]
           ) -> list[Hint]:
    if event_type == 'compute_task.build_instances.error':
        waits = data['state'] == 'pending'
        return [Hint(Kind.WAITS, server=data['instance_uuid'])] * waits
    if event_type.startswith('service.'):
        if data['binary'] != 'nova-compute':
            return []
        return [Hint(Kind.HOST, data['host']), Hint(Kind.SHAPE, data['host'])]
    if event_type.startswith(('aggregate.', 'flavor.')):
        return [] if event_type.endswith('.start') else [Hint(Kind.SHAPE)]
    server, host = data['uuid'], data['host'] or ''
    specs = data['flavor']['nova_object.data'].get('extra_specs') or {}
    mark = next((specs[name] for name in shapes.PREEMPTIBLE if name in specs),
                '')
    preemptible = shapes.MAX_RUN_TIME in specs or (
        str(mark).strip().lower() == 'true')
    if event_type == 'instance.update':
        change = data['state_update']['nova_object.data']
        if change['state'] == 'pending' and not change['new_task_state']:
            return [Hint(Kind.WAITS, server=server)]
        if change['state'] == change['old_state']:
            return []
        failed = change['state'] == 'error' and host
        return [Hint(Kind.SERVER, host, server, preemptible),
                *([Hint(Kind.HOST, host)] if failed else [])]
    kind, room = _EVENTS.get(event_type.removeprefix('instance.'),
                             (Kind.IGNORED, None))
    if kind == Kind.IGNORED:
        return []
    found = [Hint(kind, host, server, preemptible)]
    if room:
        # After a move the host that sends the notification is not the host
        # that has the server.
        service, _, speaker = publisher_id.partition(':')
        hosts = {host, speaker if service == 'nova-compute' else ''}
        found += [Hint(room, name) for name in sorted(filter(None, hosts))]
    return found


class Mailbox:
    """Keeps hints until the engine takes them, without repetitions.

    So a flood of notifications fills the mailbox with no more hints than there
    are hosts and servers.
    """

    def __init__(self) -> None:
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._hints: dict[Hint, Hint] = {}

    def put(self, new: Sequence[Hint]) -> None:
        """Add hints; of two that are the same the first stays."""
        with self._lock:
            for hint in new:
                self._hints.setdefault(hint, hint)
            self._changed.set()

    def take(self, timeout: float) -> list[Hint]:
        """Take all hints; wait for the first hint up to the timeout."""
        self._changed.wait(max(timeout, 0))
        with self._lock:
            self._changed.clear()
            taken, self._hints = list(self._hints.values()), {}
            return taken

    def wake(self) -> None:
        """End the wait that lasts, or the next wait, without a hint."""
        self._changed.set()


class _Endpoint:
    """What the listener calls with each batch."""

    filter_rule = oslo_messaging.NotificationFilter(event_type=EVENT_TYPES)

    def __init__(self, mailbox: Mailbox,
                 observe: Callable[[Kind], None]) -> None:
        self._mailbox = mailbox
        self._observe = observe

    def info(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for message in messages:
            new = hints(message['event_type'], message['publisher_id'],
                        message['payload'])
            for hint in new:
                self._observe(hint.kind)
            self._mailbox.put([hint for hint in new
                               if hint.kind != Kind.IGNORED])

    error = info
    warn = info


def listener(conf: cfg.ConfigOpts, mailbox: Mailbox,
             observe: Callable[[Kind], None]) -> Any:
    """Return a listener that is not started, and tells the kinds of hints."""
    group = conf.notifications
    transport = oslo_messaging.get_notification_transport(
        conf, url=group.transport_url)
    return oslo_messaging.get_batch_notification_listener(
        transport,
        [oslo_messaging.Target(topic=topic) for topic in group.topics],
        [_Endpoint(mailbox, observe)], executor='threading',
        batch_size=group.batch_size, batch_timeout=group.batch_timeout)


class Listening:
    """Listens and leaves; callers do not wait for the bus."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        # The event ends the thread that listens; None while nobody is to
        # listen. The thread is known once it has connected to the bus: a
        # thread that still connects cannot be stopped.
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def listen(self, mailbox: Mailbox,
               observe: Callable[[Kind], None]) -> None:
        """Begin to listen, unless a thread listens or has failed to."""
        if self._over is None and self._conf.notifications.enabled:
            self._over = threading.Event()
            threading.Thread(
                target=self._run, args=(self._over, mailbox, observe),
                name='listens', daemon=True).start()

    def _run(self, over: threading.Event, mailbox: Mailbox,
             observe: Callable[[Kind], None]) -> None:
        try:
            made = listener(self._conf, mailbox, observe)
            # A listener tries to connect for ever.
            made.start()
        except Exception as error:
            # The text of the error may hold the URL with its password.
            LOG.error('No notifications are listened to: %s. The reaper lives '
                      'from its lists.', type(error).__name__)
            return
        if over is self._over:
            self._thread = threading.current_thread()
        over.wait()
        made.stop()
        made.wait()

    def leave(self) -> threading.Thread | None:
        """Stop listening; return the thread that does so, if any."""
        thread, self._thread = self._thread, None
        if self._over:
            self._over.set()
            self._over = None
        # A bus that hangs must not hold up a reaper that stands by.
        return thread
