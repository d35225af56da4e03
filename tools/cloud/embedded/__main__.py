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

"""Runs a module of this package in an environment that does not have it.

``python -P .../tools/cloud/embedded/__main__.py MODULE ARGUMENT...``
"""

import pathlib
import runpy
import sys

# Last: what is installed is not to be found here.
sys.path.append(str(pathlib.Path(__file__).parents[3]))
runpy.run_module('tools.cloud.embedded.' + sys.argv.pop(1),
                 run_name='__main__', alter_sys=True)
