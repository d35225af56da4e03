# SPDX-License-Identifier: Apache-2.0

"""The microversions that tests speak, on whatever release they run."""

from nova.compute import pending

PENDING = pending.API_VERSION

#: The last microversion that does not know PENDING.
RELEASED = '2.%d' % (int(PENDING.partition('.')[2]) - 1)
