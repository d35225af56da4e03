# SPDX-License-Identifier: Apache-2.0

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
