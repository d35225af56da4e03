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

"""Gives a server back its volumes and its guest if it was not re-imaged."""

from oslo_log import log as logging

from nova.compute import cinder_reimage
from nova.compute import power_state
from nova.compute import task_states
from nova.i18n import _
from nova import objects

LOG = logging.getLogger(__name__)


class Rollback:
    """The way back of a rebuild whose guest was touched."""

    def __init__(self, rebuild):
        """:param rebuild: the nova.compute.volume_reimage.VolumeRebuild"""
        self.rebuild = rebuild
        self.manager = rebuild.manager
        self.context = rebuild.context
        self.instance = rebuild.instance

    def attach_again(self, exc):
        """Attach the volumes, trying several times.

        :param exc: why
        :raises: ReimageFailed
        """
        for last in cinder_reimage.tries():
            try:
                # The root is not to wait for one that cannot be attached.
                for attachment in (self.rebuild.root, *self.rebuild.others):
                    self._connect(attachment)
                return
            except Exception as second:
                if last or self.rebuild.is_deleted():
                    LOG.exception('The volumes could not be attached again.',
                                  instance=self.instance)
                    raise cinder_reimage.ReimageFailed(
                        volume_id=self.rebuild.root.bdm.volume_id,
                        reason=_('%(reason)s, and its volumes could not be '
                                 'attached again: %(second)s') % {
                                     'reason': cinder_reimage.reason(exc),
                                     'second': cinder_reimage.reason(second)})
                LOG.warning('The volumes are not attached again: %s', second,
                            instance=self.instance)

    def _connect(self, attachment):
        """Connect a volume to the host, if it was connected or has a guest."""
        attachment.restore()
        if attachment.is_reserved and (
                attachment.was_connected or
                self.rebuild.guest_state != power_state.NOSTATE):
            attachment.ensure()
            self.manager._prep_block_device(
                self.context, self.instance,
                objects.BlockDeviceMappingList(objects=[attachment.bdm]))
            attachment.is_reserved = False

    def start_again(self, spawn):
        """Bring the guest back, in the power state that it had.

        :param spawn: arguments for the driver
        """
        manager, context, instance = self.manager, self.context, self.instance
        running = self.rebuild.guest_state == power_state.RUNNING
        state = manager._get_power_state(instance)
        if state == power_state.NOSTATE:
            if 'accel_info' not in spawn:
                spawn['accel_info'] = manager._get_accel_info(
                    context, instance)
            manager.driver.spawn(
                context, instance, instance.image_meta, [], None,
                block_device_info=manager._get_instance_block_device_info(
                    context, instance, bdms=self.rebuild.bdms),
                power_on=running, **spawn)
        elif running and state != power_state.RUNNING:
            manager._power_on(context, instance)
        instance.power_state = manager._get_power_state(instance)
        instance.save(expected_task_state=[task_states.REBUILDING])
