# SPDX-License-Identifier: Apache-2.0

"""The microversions that tests speak, on whatever release they run."""

from nova.compute import pending
from nova.compute import pending_reason
from nova.compute import rebuild_in_cell0

PENDING = pending.API_VERSION
REBUILD = rebuild_in_cell0.API_VERSION
REASON = pending_reason.API_VERSION

#: The last microversion of the release, on which the others follow.
RELEASED = '2.%d' % (int(PENDING.partition('.')[2]) - 1)
