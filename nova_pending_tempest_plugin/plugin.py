# SPDX-License-Identifier: Apache-2.0

"""What tempest finds this package by."""

import pathlib

from tempest.test_discover import plugins

from nova_pending_tempest_plugin import config

_HERE = pathlib.Path(__file__).resolve().parent


class NovaPendingTempestPlugin(plugins.TempestPlugin):
    """Tests of PENDING and of the rebuild of servers that were never built."""

    def load_tests(self):
        return str(_HERE / 'tests'), str(_HERE.parent)

    def register_opts(self, conf):
        for group, options in config.OPTIONS.items():
            conf.register_opts(options, group=group)

    def get_opt_lists(self):
        return list(config.OPTIONS.items())
