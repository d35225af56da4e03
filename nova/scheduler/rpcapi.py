# SPDX-License-Identifier: Apache-2.0

import typing as ty

import oslo_messaging as messaging

import nova.conf
import nova_pending

CONF = nova.conf.CONF

released = nova_pending.released(__name__)

# How a scheduler refuses a method that it does not know.
_UNKNOWN = ('UnsupportedVersion', 'NoSuchMethod')


@nova_pending.over(released.SchedulerAPI)
class SchedulerAPI:
    '''
        * 4.6 - Added select_held_destination()
        * 4.7 - Added get_pending_verdict()
    '''  # noqa: H404

    @nova_pending.new
    def select_held_destination(self, ctxt, spec_obj, hold):
        """Call select_held_destination() of a scheduler.

        :returns: a list of lists of Selection objects, None if the scheduler
            that was asked does not know the method or [upgrade_levels]
            scheduler does not allow it; nothing has happened then
        :raises: NoValidHost
        """
        version = '4.6'
        if not self.client.can_send_version(version):
            return None
        cctxt = self.client.prepare(
            version=version, call_monitor_timeout=CONF.rpc_response_timeout,
            timeout=CONF.long_rpc_timeout)
        try:
            return cctxt.call(ctxt, 'select_held_destination',
                              spec_obj=spec_obj, hold=hold)
        except (messaging.UnsupportedVersion, messaging.NoSuchMethod):
            return None
        except messaging.RemoteError as exc:
            if exc.exc_type not in _UNKNOWN:
                raise
            return None

    @nova_pending.new
    def get_pending_verdict(
        self,
        ctxt,
        spec_obj,
        hosts: list[str] | None = None,
        marker: str | None = None,
        limit: int | None = None,
        reason: bool = True,
        is_tenant: bool = False,
        without: ty.Sequence[str] = (),
    ) -> dict[str, ty.Any] | None:
        """Call get_pending_verdict() of a scheduler.

        The parameters are those of pending_verdict.find().

        :returns: what that method returned, None if [upgrade_levels] scheduler
            says that there may be schedulers that do not know the method
        :raises: what oslo.messaging raises if no scheduler answers in time
        """
        version = '4.7'
        if not self.client.can_send_version(version):
            return None
        return self.client.prepare(
            version=version, timeout=CONF.api.pending_verdict_timeout).call(
                ctxt, 'get_pending_verdict', spec_obj=spec_obj, hosts=hosts,
                marker=marker, limit=limit, reason=reason,
                is_tenant=is_tenant, without=without)
