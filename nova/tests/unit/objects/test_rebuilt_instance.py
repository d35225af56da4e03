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

from oslo_utils.fixture import uuidsentinel as uuids
from oslo_versionedobjects import exception as ovo_exception

from nova.compute import vm_states
from nova import objects
from nova import test


class RebuiltInstanceTestCase(test.NoDBTestCase):

    def test_state_of_what_is_in_no_cell(self):
        """An administrator resets it while it has only a build request."""
        instance = objects.Instance(
            uuid=uuids.server, vm_state=vm_states.ERROR, host=None,
            launched_at=None)
        self.assertRaises(ovo_exception.OrphanedObjectError, instance.save)
