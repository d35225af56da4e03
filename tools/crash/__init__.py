# SPDX-License-Identifier: Apache-2.0

"""Kills the processes of a real cloud in the middle of a rebuild in cell0.

``tox -e crash`` brings the local cloud (tools/cloud) up once and runs the
tests of this directory on it. The shipped code has no hooks: nova-api,
nova-conductor, nova-compute and nova-reaper are started through modules of
this directory that wrap functions of theirs.

faults     within a service: dies, or loses a connection, at a function
wsgi       starts nova-api with faults
service    starts the others with faults
crashing   the cloud whose services can be told where to fail
clouds     the same, as those see it who use it and who run it
watch      asks the API all the time what it shows of some servers
base       what the tests share: the cloud, servers, and what must hold
reaping    nova-reaper on that cloud: it is started for its own tests alone
"""
