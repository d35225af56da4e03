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

"""Why a server waits for a host, and what would help.

What its last attempt has left in cell0 tells some of it. Whether its rebuild
would be refused, for the quota or anything else, the checks of the rebuild
tell. The rest a scheduler tells, which is asked for a short time only.
"""

import threading
import time
import weakref

from oslo_log import log as logging
import oslo_messaging as messaging

from nova import cache_utils
from nova.compute import action_history
from nova.compute import rebuild_image
from nova.compute import rebuild_quota
from nova.compute import rebuild_request
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova import objects
from nova.scheduler import pending_verdict
from nova.scheduler import rpcapi
from nova import utils

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The microversion that tells why a server waits.
API_VERSION = '2.107'

EXPECTED_ATTRS = ('flavor', 'metadata', 'system_metadata', 'tags',
                  'numa_topology', 'pci_requests', 'keypairs',
                  'trusted_certs')

NO_ROOM = pending_verdict.NO_ROOM
REFUSED = pending_verdict.REFUSED
NO_SUCH_HOST = pending_verdict.NO_SUCH_HOST
NOTHING_FITS = pending_verdict.NOTHING_FITS
BUILD_FAILED = 'build_failed'
QUOTA = 'quota'
UNKNOWN = 'unknown'

# Reasons of which the scheduler may know more than the last fault tells.
_OF_SCHEDULER = (NO_ROOM, REFUSED, NO_SUCH_HOST, UNKNOWN)

# Seconds after which an answer of a scheduler was dear enough to be kept.
_DEAR = 1.0

# Until when, by the monotonic clock, no scheduler is asked for owners: none
# has answered a compute API, and each asked in vain keeps a thread for long.
_silent_until = weakref.WeakKeyDictionary()

_client_lock = threading.Lock()
_client = None


class InstanceNotPending(exception.NotFound):
    msg_fmt = _("Instance %(instance_uuid)s does not wait for a host.")


class InstanceBeingRebuilt(exception.InstanceInvalidState):
    msg_fmt = _("Instance %(instance_uuid)s is in task_state %(state)s: why "
                "it waits can be told again if it still waits after that.")


def explain(api, context, instance, with_hosts=False, hosts=None, limit=None,
            marker=None):
    """Tell why a server waits.

    :param api: the compute API
    :param context: the request context, targeted at the server's cell
    :param instance: the Instance, with EXPECTED_ATTRS
    :param with_hosts: whether to tell the requests to Placement and the hosts
    :param hosts: names of the hosts to tell, None for all
    :param limit: how many hosts to tell at most
    :param marker: the provider UUID of the last host of the page before
    :returns: the body of GET /servers/{id}/pending (see its schema), without
        hosts_links
    :raises: InstanceNotPending (404), InstanceBeingRebuilt (409),
        MarkerNotFound (400)
    """
    _check_is_waiting(context, instance)
    attempts = _find_attempts(instance)
    answer = {
        'since': utils.isotime(instance.created_at),
        # The server has its latest actions only.
        'attempts': _rebuild_data(context, instance.uuid).get(
            'attempts') or max(len(attempts), 1),
        # The request for a server comes before its record.
        'last_attempt': utils.isotime(max(
            [instance.created_at,
             *(action.start_time for action in attempts)])),
    }
    found = _Explanation(api, context, instance)
    found.find(with_hosts, hosts, limit, marker,
               key='pending-%s-%s' % (instance.uuid, answer['attempts']))
    answer.update(reason=found.reason, message=found.message,
                  advice=found.advise())
    if found.forbidden:
        answer['rebuild_forbidden'] = found.forbidden
    if with_hosts:
        answer.update(requests=found.requests, hosts=found.hosts)
        if found.hosts is None:
            answer['unavailable'] = found.unavailable
    return answer


def _check_is_waiting(context, instance):
    if instance.vm_state == vm_states.PENDING:
        if instance.task_state is not None:
            raise InstanceBeingRebuilt(
                instance_uuid=instance.uuid, state=instance.task_state)
    elif instance.vm_state == vm_states.BUILDING and _rebuild_data(context, instance.uuid):
        # It has waited, and will again if its rebuild finds no host.
        raise InstanceBeingRebuilt(
            instance_uuid=instance.uuid, state=instance.task_state)
    else:
        raise InstanceNotPending(instance_uuid=instance.uuid)


def _find_attempts(instance):
    return [action for action in
            objects.InstanceActionList.get_by_instance_uuid(
                instance._context, instance.uuid)
            if action.action in action_history.ATTEMPTS]


class _Explanation:
    """Why one server waits: find(), then what it has found."""

    def __init__(self, api, context, instance):
        self.request = _Request(api, context, instance, None, [], {})
        self.instance = instance
        self.message = instance.fault.message if instance.fault else ''
        self.reason = _reason_of(self.message)
        self.requests = self.hosts = self.filter = None
        self.unavailable = None
        #: Why a rebuild is refused to who asks, and to its owner is not.
        self.forbidden = None
        self.fits = False

    def find(self, with_hosts, hosts, limit, marker, key):
        is_made = False
        try:
            self.request.make()
            is_made = True
            self._check_project()
            rebuild_quota.check(self.request)
        except exception.OverQuota as exc:
            self.reason, self.message = QUOTA, exc.format_message()
            if not is_made:
                # That of ports comes before the request for the scheduler.
                self.unavailable = self.message
                return
        except (rebuild_image.RebuildRefused,
                rebuild_request.RequestUnknown, exception.Forbidden,
                exception.InvalidVolume, exception.VolumeNotFound) as exc:
            self.reason, self.message = UNKNOWN, exc.format_message()
            self.unavailable = self.message
            return
        except Exception as exc:
            # Neutron, Glance or another service is down. That is no reason
            # to keep from the owner what is stored with the server, and each
            # request of an owner must not write a traceback.
            LOG.warning('What the server asks for could not be made again: '
                        '%s: %s', type(exc).__name__, exc,
                        instance=self.instance)
            self.unavailable = _('A service that the request of the server '
                                 'needs does not answer.')
            return
        if with_hosts or self.reason in _OF_SCHEDULER:
            self._ask_scheduler(with_hosts, hosts, limit, marker, key)

    def _check_project(self):
        try:
            self.request.check_project()
        except rebuild_request.OfOtherProject as exc:
            self.forbidden = exc.format_message()

    def _ask_scheduler(self, with_hosts, hosts, limit, marker, key):
        known = None
        if not with_hosts or hosts or marker:
            known = _cached(key)
        wanted = self.reason in _OF_SCHEDULER and known is None
        if not with_hosts and not wanted:
            self._apply(*known)
            return
        if not with_hosts and time.monotonic() < _silent_until.get(
                self.request.api, 0.0):
            return
        context = nova_context.RequestContext.from_dict(
            self.request.context.to_dict())
        begun = time.monotonic()
        try:
            verdict = rpcapi.SchedulerAPI().get_pending_verdict(
                context, self.request.request_spec, hosts=hosts,
                marker=marker, limit=limit if with_hosts else 0,
                reason=wanted, is_tenant=not with_hosts)
            _silent_until.pop(self.request.api, None)
        except exception.MarkerNotFound:
            raise
        except Exception as exc:
            # None answers in time, does not know the question, or fails.
            LOG.warning('No scheduler tells why a server waits: %s', exc,
                        instance=self.instance)
            if isinstance(exc, messaging.MessagingTimeout):
                _silent_until[self.request.api] = (
                    time.monotonic() + CONF.api.pending_verdict_timeout)
            verdict = None
        if verdict is None:
            self.unavailable = _('No scheduler tells which hosts refuse the '
                                 'server.')
        else:
            if with_hosts:
                self.requests, self.hosts = (
                    verdict['requests'], verdict['hosts'])
            if wanted and verdict['reason']:
                known = verdict['reason'], verdict['filter']
                if time.monotonic() - begun >= _DEAR:
                    _cache(key, known)
        if known and self.reason in _OF_SCHEDULER:
            self._apply(*known)

    def _apply(self, reason, filter_):
        if reason == pending_verdict.FITS:
            # Since the last attempt. What that has left still holds.
            self.fits = True
            return
        self.reason = reason
        if reason == REFUSED and filter_:
            self.message = _(
                '%(fault)s The last hosts were refused by %(filter)s.') % {
                    'fault': self.message.strip(), 'filter': filter_}

    def advise(self):
        """Return one sentence that says what would help."""
        if self.fits:
            return _('There is a host that could take it now: rebuild the '
                     'server.')
        if self.reason == NO_SUCH_HOST and self._is_forced():
            return _('Rebuild the server with an availability zone that names '
                     'no host, or ask the administrator for the host.')
        return {
            NO_ROOM: _('Wait until there is room and rebuild the server, or '
                       'rebuild it with a smaller flavor.'),
            REFUSED: _('Rebuild the server with a flavor, an image or an '
                       'availability zone that the hosts with room accept, '
                       'or ask the administrator what the filter requires.'),
            NO_SUCH_HOST: _('Delete the server and create it again without '
                            'asking for this host, or ask the administrator '
                            'for the host.'),
            NOTHING_FITS: _('Rebuild the server with a flavor, an image or '
                            'an availability zone for which there are hosts: '
                            'no host could take it, even if it were empty.'),
            BUILD_FAILED: _('Rebuild the server, with another image or flavor '
                            'if the message says that one of them is the '
                            'cause.'),
            QUOTA: _('Delete servers that are not needed or ask for more '
                     'quota, and rebuild the server.'),
            UNKNOWN: _('Correct what the message says and rebuild the server, '
                       'or ask the administrator.'),
        }[self.reason]

    def _is_forced(self):
        """Whether the host is that of the zone, which can be replaced."""
        spec = getattr(self.request, 'request_spec', None)
        return bool(spec and (spec.force_hosts or spec.force_nodes))


class _Request(rebuild_request.Request):
    """The request of the server as its rebuild would make it."""

    def check_devices(self):
        """Check what is there; nothing is reserved for a look."""
        for bdm in self.bdms:
            if bdm.volume_id:
                self.check_volume(bdm)


def _reason_of(message):
    """Return the reason that the fault of the last attempt tells.

    :param message: the message of the fault
    """
    def found_none(reason):
        return exception.NoValidHost(reason=reason).format_message().strip()

    if message.startswith(found_none(_('No such host'))):
        return NO_SUCH_HOST
    if message.startswith(found_none(_('There are not enough hosts '
                                       'available.'))):
        return REFUSED
    if message.startswith(found_none('')):
        return NO_ROOM
    if message.startswith(tuple(
            failed(reason='').format_message().strip() for failed in
            (exception.BuildFailed, exception.MaxRetriesExceeded))):
        return BUILD_FAILED
    return UNKNOWN


def _get_client():
    global _client
    seconds = CONF.api.pending_verdict_cache_time
    if _client is None or _client[0] != seconds:
        _client = seconds, cache_utils.get_client(seconds)
    return _client[1]


def _cached(key):
    if not CONF.api.pending_verdict_cache_time:
        return None
    with _client_lock:
        return _get_client().get(key)


def _cache(key, verdict):
    if CONF.api.pending_verdict_cache_time:
        with _client_lock:
            _get_client().set(key, verdict)


def _rebuild_data(context, instance_uuid):
    try:
        return objects.RequestSpec.get_by_instance_uuid(
            context, instance_uuid).rebuild_data or {}
    except exception.RequestSpecNotFound:
        return {}
