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

import fixtures
import testtools

from nova.tests.unit import requirements_of_tests


class LacksTest(testtools.TestCase):

    def test_skips(self):
        self.useFixture(fixtures.EnvironmentVariable(
            requirements_of_tests.REQUIRE_ALL))
        exc = self.assertRaises(
            self.skipException, requirements_of_tests.lacks, self,
            'MariaDB is not there: install it.')
        self.assertEqual('MariaDB is not there: install it.', str(exc))

    def test_fails_where_everything_is_required(self):
        self.useFixture(fixtures.EnvironmentVariable(
            requirements_of_tests.REQUIRE_ALL, '1'))
        exc = self.assertRaises(
            AssertionError, requirements_of_tests.lacks, self,
            'MariaDB is not there: install it.')
        self.assertEqual(
            'MariaDB is not there: install it, and '
            'NOVA_PENDING_REQUIRE_ALL=1 is set', str(exc))
