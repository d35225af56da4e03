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

from oslo_versionedobjects import fixture

from nova import objects
from nova import test
from nova.tests.unit.objects import test_objects

# Another fingerprint than in the release, at the released version: a service
# without the layer cannot take a newer one, and never calls what is new.
OBJECT_DATA = {
    'RequestSpec': '1.15-694f8d44dd03e0bd3131f3624c5d8e66',
}


class ObjectVersionsTestCase(test.NoDBTestCase):

    def differences(self, expected):
        checker = fixture.ObjectVersionChecker(test_objects.get_nova_objects())
        return checker.test_hashes({**test_objects.object_data, **expected})

    def test_fingerprints(self):
        self.assertEqual(({}, {}), self.differences(OBJECT_DATA))

    def test_request_spec_is_the_released_one_but_for_two_methods(self):
        for name in ('undo_rebuild', 'end_rebuild'):
            self.addCleanup(setattr, objects.RequestSpec, name,
                            vars(objects.RequestSpec)[name])
            delattr(objects.RequestSpec, name)
        self.assertEqual(({}, {}), self.differences({}))
