# SPDX-License-Identifier: Apache-2.0

"""What a test needs of its machine, and what happens where it is lacking."""

import os

#: Set to 1 where everything is expected to be there, in CI for instance.
REQUIRE_ALL = 'NOVA_PENDING_REQUIRE_ALL'


def lacks(test, what):
    """Skip a test for something that the machine lacks.

    :param test: the test case, or its class in setUpClass
    :param what: a sentence that says what is lacking, and how to get it
    :raises: the exception that skips the test; an AssertionError instead if
        NOVA_PENDING_REQUIRE_ALL=1 is set
    """
    if os.environ.get(REQUIRE_ALL) == '1':
        raise AssertionError('%s, and %s=1 is set' % (
            what.rstrip('.'), REQUIRE_ALL))
    raise test.skipException(what)


class DatabaseServer:
    """Mixed into the opportunistic tests of oslo.db, which skip themselves."""

    def skipTest(self, reason):
        lacks(self, '%s: the user openstack_citest, with the same word as '
              'password and database, must have all rights on localhost.'
              % reason)
