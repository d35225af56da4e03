# SPDX-License-Identifier: Apache-2.0

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
