# SPDX-License-Identifier: Apache-2.0

"""Why a server waits for a host, and what would help.

The last attempt has left the fault, the actions and the request spec of the
server; a scheduler judges the request spec. An owner learns no more than that.
Administrators and services also learn why a rebuild would be refused, from the
checks of the rebuild, which ask other services.

A scheduler also judges the request for a server that nobody has created.
"""

import time
import typing as ty

from keystoneauth1 import exceptions as ks_exc
from oslo_log import log as logging
import oslo_messaging as messaging
from oslo_utils import uuidutils

from nova.compute import api
from nova.compute import flavors
from nova.compute import rebuild_correction
from nova.compute import rebuild_image
from nova.compute import rebuild_request
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova import objects
from nova.pci import request as pci_request
from nova.scheduler import pending_verdict
from nova.scheduler import rpcapi
from nova import utils
from nova.virt import hardware

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The microversion that tells why a server waits.
API_VERSION = '2.107'

#: The attributes of an Instance that the checks of a rebuild read.
EXPECTED_ATTRS = ('flavor', 'metadata', 'system_metadata', 'tags',
                  'numa_topology', 'pci_requests', 'keypairs',
                  'trusted_certs')

NO_ROOM = pending_verdict.NO_ROOM
REFUSED = pending_verdict.REFUSED
NO_SUCH_HOST = pending_verdict.NO_SUCH_HOST
NOTHING_FITS = pending_verdict.NOTHING_FITS
FITS = pending_verdict.FITS
BUILD_FAILED = 'build_failed'
QUOTA = 'quota'
UNKNOWN = 'unknown'

# The actions of a server in cell0 that have looked for a host for it.
_ATTEMPTS = ('create', 'rebuild')

# A scheduler may know more about these reasons than the last attempt has left.
_OF_SCHEDULER = (NO_ROOM, REFUSED, NO_SUCH_HOST, UNKNOWN)


class InstanceNotPending(exception.InstanceInvalidState):
    msg_fmt = _("Instance %(instance_uuid)s does not wait for a host: it is "
                "in vm_state %(vm_state)s, task_state %(task_state)s.")


class ServersNotOnHost(exception.NovaException):
    msg_fmt = _("The servers %(servers)s are not on host %(host)s, or are "
                "about to change: leave out those that are gone or elsewhere, "
                "and ask again.")


class RequestRefused(exception.InvalidRequest):
    msg_fmt = _("No server can be created from this request: %(reason)s")


class RequestNotJudged(exception.NovaException):
    msg_fmt = _("The request cannot be judged at the moment, ask again later: "
                "%(reason)s")


class Page(ty.NamedTuple):
    """The hosts that an administrator or a service asks for."""
    #: Names of hosts, None for all.
    hosts: list[str] | None
    #: How many hosts to show, None for all that are named.
    limit: int | None
    #: The provider UUID of the last host of the page before, or None.
    marker: str | None
    #: UUIDs of servers without which the host is judged.
    without: ty.Sequence[str] = ()


class PendingReason:
    """Tells why servers wait."""

    def __init__(self, compute_api: api.API) -> None:
        self.compute_api = compute_api
        # Until this time of the monotonic clock no scheduler is asked for
        # owners: none has answered, and each request would wait in vain.
        self._silent_until = 0.0

    def explain(self, context: nova_context.RequestContext,
                instance: 'objects.Instance',
                page: Page | None = None) -> dict[str, ty.Any]:
        """Tell why a server waits.

        :param context: the request context, targeted at the server's cell
        :param instance: the Instance; with EXPECTED_ATTRS if page is given
        :param page: the hosts to show, None for an owner, who sees no hosts
        :returns: the body of GET /servers/{id}/pending (see its schema),
            without hosts_links
        :raises: InstanceNotPending (409), ServersNotOnHost (409),
            MarkerNotFound (400)
        """
        if (instance.vm_state != vm_states.PENDING or
                instance.task_state is not None):
            raise InstanceNotPending(
                instance_uuid=instance.uuid, vm_state=instance.vm_state,
                task_state=instance.task_state)
        spec = objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
        answer = self._describe(instance, spec)
        unavailable = None
        if page is None:
            try:
                rebuild_request.check_known(spec)
                _complete(spec)
            except rebuild_request.RequestUnknown as exc:
                unavailable = _tell_unknown(answer, exc)
        else:
            rebuild = _Rebuild(self.compute_api, context, instance)
            unavailable = rebuild.find_refusal(answer)
            if unavailable is None:
                spec = rebuild.request_spec
            answer.update(requests=None, hosts=None)
        fits = False
        if unavailable is None and (
                page is not None or answer['reason'] in _OF_SCHEDULER):
            verdict = self._ask_scheduler(context, spec, page)
            if verdict is None:
                unavailable = _('No scheduler tells which hosts refuse the '
                                'server.')
            elif page is not None and verdict.get('absent'):
                raise ServersNotOnHost(host=', '.join(page.hosts or ()),
                                       servers=', '.join(verdict['absent']))
            else:
                fits = _apply(verdict, answer, page is not None)
        if page is not None and unavailable is not None:
            answer['unavailable'] = unavailable
        answer.setdefault('advice', _advise(answer['reason'], fits, bool(
            spec.force_hosts or spec.force_nodes)))
        return answer

    def judge(self, context: nova_context.RequestContext,
              asked: dict[str, ty.Any]) -> dict[str, ty.Any]:
        """Tell what a server that is not created would ask for.

        :param context: an administrator's context
        :param asked: the server and the hosts, as POST /pending has them
        :returns: the body of the answer to POST /pending (see its schema)
        :raises: RequestRefused and what a create raises for a flavor and an
            image (400), ServersNotOnHost (409), RequestNotJudged (503)
        """
        try:
            with rebuild_image.refusals(RequestRefused):
                spec = self._make_request_spec(context, asked['server'])
        except (exception.GlanceConnectionFailed,
                ks_exc.ClientException) as exc:
            raise RequestNotJudged(reason=exc)
        hosts = asked.get('hosts', [])
        verdict = self._ask_scheduler(context, spec, Page(
            hosts, None if hosts else 0, None,
            asked.get('without', ())))
        # A request filter that excludes every host is the reason then.
        if verdict is None or not (verdict['requests'] or verdict['reason']):
            raise RequestNotJudged(reason=_('no scheduler answers'))
        if verdict['absent']:
            raise ServersNotOnHost(host=', '.join(hosts),
                                   servers=', '.join(verdict['absent']))
        return {key: verdict[key] for key in ('reason', 'requests', 'hosts')}

    def _make_request_spec(self, context, server) -> 'objects.RequestSpec':
        """Make the request spec of a server as a create makes it.

        The server has no networks, and if no image is named a root volume.
        """
        flavor = flavors.get_flavor_by_flavor_id(
            ctxt=context, flavorid=str(server['flavorRef']), read_deleted='no')
        if flavor.disabled:
            raise exception.FlavorNotFound(flavor_id=flavor.flavorid)
        correction = rebuild_correction.Correction(zone=(
            server.get('availability_zone') or CONF.default_schedule_zone,
            None, None))
        correction.check_zone(self.compute_api, context, None)
        image_id, image = self.compute_api._get_image(
            context, server.get('imageRef'))
        # Glance shows an administrator the images of all projects.
        if not (image.get('is_public', True) or
                image.get('owner') == server['project_id']):
            raise exception.ImageNotFound(image_id=image_id)
        self.compute_api._check_image_arch(image=image)
        self.compute_api._checks_for_create_and_rebuild(
            context, image_id, image, flavor, {}, [], None,
            objects.service.get_minimum_version_all_cells(
                context, ['nova-compute']))
        image_meta = objects.ImageMeta.from_dict(image)
        spec = objects.RequestSpec.from_components(
            context, uuidutils.generate_uuid(), image, flavor,
            hardware.numa_get_constraints(flavor, image_meta),
            pci_request.get_pci_requests_from_flavor(
                flavor,
                affinity_policy=hardware.get_pci_numa_policy_constraint(
                    flavor, image_meta)),
            {}, None, None, project_id=server['project_id'])
        correction.apply_to_spec(spec, flavor)
        spec.is_bfv = image_id is None
        try:
            spec.requested_resources.extend(
                rebuild_request.accelerators_of(context, flavor))
        except exception.DeviceProfileError as exc:
            raise RequestNotJudged(reason=exc)
        return spec

    @staticmethod
    def _describe(instance, spec) -> dict[str, ty.Any]:
        """Return the part of the answer that the last attempt has left."""
        attempts = [action for action in
                    objects.InstanceActionList.get_by_instance_uuid(
                        instance._context, instance.uuid)
                    if action.action in _ATTEMPTS]
        message = instance.fault.message if instance.fault else ''
        return {
            'since': utils.isotime(instance.created_at),
            # Only the latest actions of a server are kept.
            'attempts': (spec.rebuild_data or {}).get('attempts') or max(
                len(attempts), 1),
            # The request for a server comes before its record.
            'last_attempt': utils.isotime(max(
                [instance.created_at,
                 *(action.start_time for action in attempts)])),
            'asked_to_wait': asked_to_wait(spec),
            'reason': _reason_of(message),
            'message': message,
        }

    def _ask_scheduler(self, context, spec, page: Page | None) -> dict | None:
        """Return what a scheduler says of a request spec, None if none does.

        The scheduler looks for the reason too, unless an administrator asks
        for certain hosts: the reason is the costly part.
        """
        is_tenant = page is None
        if page is None:
            if time.monotonic() < self._silent_until:
                return None
            page = Page(None, 0, None)
        try:
            verdict = rpcapi.SchedulerAPI().get_pending_verdict(
                nova_context.RequestContext.from_dict(context.to_dict()),
                spec, hosts=page.hosts, marker=page.marker, limit=page.limit,
                reason=not (page.hosts or page.marker), is_tenant=is_tenant,
                without=page.without)
        except exception.MarkerNotFound:
            raise
        except Exception as exc:
            # No scheduler answers in time, or none knows the question.
            LOG.warning('No scheduler tells why server %s waits: %s',
                        spec.instance_uuid, exc)
            if isinstance(exc, messaging.MessagingTimeout):
                self._silent_until = (
                    time.monotonic() + CONF.api.pending_verdict_timeout)
            return None
        self._silent_until = 0.0
        return verdict


class _Rebuild(rebuild_request.Request):
    """The request of the server as its rebuild would make it."""

    def __init__(self, compute_api: api.API, context, instance) -> None:
        super().__init__(compute_api, context, instance, None, {})

    def check_devices(self) -> None:
        """Check the volumes that exist; this request reserves nothing."""
        for bdm in self.bdms:
            if bdm.volume_id:
                self.check_volume(bdm)

    def find_refusal(self, answer: dict[str, ty.Any]) -> str | None:
        """Put into an answer why the rebuild would be refused.

        :returns: why there is no request that a scheduler could judge, None
            if there is one
        """
        is_made = False
        try:
            self.make()
            is_made = True
            try:
                self.check_project()
            except rebuild_request.OfOtherProject as exc:
                # The owner may rebuild the server, this administrator not.
                answer['rebuild_forbidden'] = exc.format_message()
            self.check_quota()
        except exception.OverQuota as exc:
            answer.update(reason=QUOTA, message=exc.format_message())
        except rebuild_request.RequestUnknown as exc:
            return _tell_unknown(answer, exc)
        except (rebuild_image.RebuildRefused, exception.Forbidden,
                exception.InvalidVolume, exception.VolumeNotFound) as exc:
            answer.update(reason=UNKNOWN, message=exc.format_message())
        except Exception as exc:
            # Neutron, Glance or another service is down. The answer still has
            # what is stored with the server; no traceback is logged each time.
            LOG.warning('What the server asks for could not be made again: '
                        '%s: %s', type(exc).__name__, exc,
                        instance=self.record)
            return _('A service that the request of the server needs does not '
                     'answer.')
        return None if is_made else answer['message']


def asked_to_wait(request_spec: 'objects.RequestSpec') -> bool:
    """Whether the owner of a server knows of PENDING.

    :returns: True if it was created at microversion 2.105 or later, or rebuilt
        since at the microversion that rebuilds such servers or later
    """
    return bool((request_spec.rebuild_data or {}).get('asked_to_wait'))


def _tell_unknown(
    answer: dict[str, ty.Any], exc: rebuild_request.RequestUnknown,
) -> str:
    """Put into an answer that the server can never be rebuilt.

    :returns: why there is no request that a scheduler could judge
    """
    answer.update(reason=UNKNOWN, message=exc.format_message(),
                  advice=_('Delete the server and create it again.'))
    return answer['message']


def _complete(spec: 'objects.RequestSpec') -> None:
    """Add to a stored request spec what a scheduler iterates.

    What ports and accelerators need is not stored, and is not judged.
    """
    spec.num_instances = 1
    spec.requested_resources = []
    spec.request_level_params = objects.RequestLevelParams()
    spec.generate_request_groups_from_pci_requests()


def _apply(verdict: dict, answer: dict, with_hosts: bool) -> bool:
    """Put what a scheduler says into an answer.

    :param with_hosts: whether the answer has hosts and filters
    :returns: whether there is a host that could take the server now
    """
    if with_hosts:
        answer.update(requests=verdict['requests'], hosts=verdict['hosts'])
    if answer['reason'] not in _OF_SCHEDULER:
        return False
    reason = verdict['reason']
    if reason in (None, FITS):
        return reason == FITS
    answer['reason'] = reason
    if reason == REFUSED and with_hosts and verdict['filter']:
        answer['message'] = _(
            '%(fault)s The last hosts were refused by %(filter)s.') % {
                'fault': answer['message'].strip(),
                'filter': verdict['filter']}
    return False


def _advise(reason: str, fits: bool, is_forced: bool) -> str:
    """Return one sentence that says what would help.

    :param fits: whether there is a host that could take the server now
    :param is_forced: whether the availability zone names a host
    """
    if fits:
        return _('There is a host that could take it now: rebuild the '
                 'server.')
    if reason == NO_SUCH_HOST and is_forced:
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
    }[reason]


def _reason_of(message: str) -> str:
    """Return the reason that the message of the last fault tells."""
    def found_none(reason):
        return exception.NoValidHost(reason=reason).format_message().strip()

    if message.startswith(found_none(_('No such host'))):
        return NO_SUCH_HOST
    if message.startswith(found_none(_('There are not enough hosts '
                                       'available.'))):
        return REFUSED
    if message.startswith(found_none('')):
        return NO_ROOM
    if message.startswith(exception.MaxRetriesExceeded(
            reason='').format_message().strip()):
        return BUILD_FAILED
    return UNKNOWN
