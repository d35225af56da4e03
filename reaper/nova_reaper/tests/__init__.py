# SPDX-License-Identifier: Apache-2.0

import os
from typing import NoReturn
import unittest

import hypothesis
from oslotest import base

# The same examples each time: a change is not to fail for one that it has
# nothing to do with. "HYPOTHESIS_PROFILE=random" looks for others.
hypothesis.settings.register_profile(
    'same', derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile('random', deadline=None)
hypothesis.settings.load_profile(
    os.environ.get('HYPOTHESIS_PROFILE', 'same'))

#: Where everything is expected to be there, nothing may be skipped.
REQUIRE_ALL = 'NOVA_PENDING_REQUIRE_ALL'


class TestCase(base.BaseTestCase):
    """What all tests of nova-reaper derive from."""

    def do_without(self, why: str) -> NoReturn:
        """Skip the test for want of something, or fail with REQUIRE_ALL."""
        if os.environ.get(REQUIRE_ALL) == '1':
            raise self.failureException(why)
        raise unittest.SkipTest(why)
