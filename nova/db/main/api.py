# SPDX-License-Identifier: Apache-2.0

from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


def _exact_instance_filter(query, filters, legal_keys):
    return released._exact_instance_filter(
        query, filters, legal_keys + [pending.HIDDEN_COLUMN])
