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

import sqlalchemy as sa
from sqlalchemy.ext import hybrid

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


def _hidden(instance):
    if instance.vm_state == vm_states.PENDING:
        return vm_states.ERROR
    return instance.vm_state


def _hidden_expression(model):
    return sa.case((model.vm_state == vm_states.PENDING, vm_states.ERROR),
                   else_=model.vm_state)


@nova_pending.over(released.Instance)
class Instance:

    #: The vm_state for clients that do not know PENDING. The underscore keeps
    #: the REST API from taking it as a filter.
    _vm_state_hidden = nova_pending.new(
        hybrid.hybrid_property(_hidden, expr=_hidden_expression))
