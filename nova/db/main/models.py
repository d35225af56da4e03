# SPDX-License-Identifier: Apache-2.0

import sqlalchemy as sa
from sqlalchemy.ext import hybrid

from nova.compute import pending
from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


def _hidden(instance):
    return pending.as_error(instance.vm_state)


def _hidden_expression(model):
    return sa.case((model.vm_state == vm_states.PENDING, vm_states.ERROR),
                   else_=model.vm_state)


@nova_pending.over(released.Instance)
class Instance:

    #: The vm_state for clients that do not know PENDING. The underscore keeps
    #: the REST API from taking it as a filter.
    _vm_state_hidden = nova_pending.new(
        hybrid.hybrid_property(_hidden, expr=_hidden_expression))
