# SPDX-License-Identifier: Apache-2.0

import itertools

from nova.policies import server_pending
import nova_pending

released = nova_pending.released(__name__)


def list_rules():
    return itertools.chain(released.list_rules(), server_pending.list_rules())
