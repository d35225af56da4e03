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

"""Starts the service that the first argument names, with faults."""

import importlib
import sys

from oslo_service import backend

from tools.crash import faults

service = sys.argv.pop(1)
if service == 'nova-reaper':
    # As it does itself, before it imports what it is made of.
    backend.init_backend(backend.BackendType.THREADING)
    module = 'nova_reaper.cli.main'
else:
    # It selects the backend of its threads, before anything else of Nova.
    module = 'nova.cmd.' + service.removeprefix('nova-')
main = importlib.import_module(module).main
faults.install(service)
if service == 'nova-conductor':
    faults.hasten_recovery()
sys.exit(main())
