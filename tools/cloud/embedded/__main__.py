# SPDX-License-Identifier: Apache-2.0

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
