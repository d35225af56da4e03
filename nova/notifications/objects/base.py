# SPDX-License-Identifier: Apache-2.0

from oslo_utils import versionutils

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.NotificationPayloadBase)
class NotificationPayloadBase:

    #: The last version of a payload in which no state can be PENDING, where
    #: there is a later one.
    VERSION_BEFORE_PENDING = nova_pending.new(None)

    @nova_pending.new
    def says_pending(self):
        """Whether a state in this payload is PENDING."""
        return 'state' in self and self.state == vm_states.PENDING

    def obj_to_primitive(self, target_version=None, version_manifest=None):
        # A subclass without a version for the state must not inherit that of
        # its parent.
        before = vars(type(self)).get('VERSION_BEFORE_PENDING')
        if before and target_version is None and not self.says_pending():
            # A consumer that does not know the version for the state can
            # read each payload that does not say PENDING.
            target_version = before
        return released.NotificationPayloadBase.obj_to_primitive(
            self, target_version, version_manifest)

    def obj_make_compatible(self, primitive, target_version):
        before = vars(type(self)).get('VERSION_BEFORE_PENDING')
        if before:
            version = versionutils.convert_version_to_tuple(target_version)
            if version <= versionutils.convert_version_to_tuple(before):
                _replace_pending(primitive)
            if target_version == before and not getattr(
                    self, '_obj_version_manifest', None):
                # No nested object has changed between the two versions.
                return
        released.NotificationPayloadBase.obj_make_compatible(
            self, primitive, target_version)


def _replace_pending(fields):
    """Put ERROR in the place of PENDING in the fields of a primitive."""
    for name in ('state', 'old_state'):
        if fields.get(name) == vm_states.PENDING:
            fields[name] = vm_states.ERROR
    if fields.get('state_update'):
        _replace_pending(fields['state_update']['nova_object.data'])
