# SPDX-License-Identifier: Apache-2.0

"""nova-api with faults, for the --module of uwsgi."""

from nova.wsgi import osapi_compute

from tools.crash import faults

faults.install('nova-api')

application = osapi_compute.application
