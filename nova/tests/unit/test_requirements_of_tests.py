# SPDX-License-Identifier: Apache-2.0

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
