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

"""Runs the tests with Django, and ends with a line that tells their sum."""

import sys

import django
from django.test import runner


class Runner(runner.DiscoverRunner):

    def suite_result(self, suite, result, **kwargs):
        failed = super().suite_result(suite, result, **kwargs)
        print('%d passed, %d failed, %d skipped' % (
            result.testsRun - failed - len(result.skipped), failed,
            len(result.skipped)), flush=True)
        return failed


if __name__ == '__main__':
    django.setup()
    sys.exit(bool(Runner(verbosity=1).run_tests(
        sys.argv[1:] or ['pending_dashboard.tests'])))
