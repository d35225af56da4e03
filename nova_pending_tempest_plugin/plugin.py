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
