# SPDX-License-Identifier: Apache-2.0

"""The parts of the *embedded* profile: a cloud of Python and nothing else.

SQLite files stand in for the database server, and the in-process bus of
oslo.messaging for RabbitMQ, so that what must share the bus shares a process.

databases        the SQLite files, and the bus that is no server
transactions     lets threads and processes write to one SQLite file
scopes           which service of a process a thread works for
wsgi             serves one WSGI application
neutron_process  Neutron's API, its RPC server and the stand-in of its agents
neutron_schema   makes Neutron's tables, as its migrations cannot in SQLite
cinder_process   Cinder's API, its scheduler and its volume manager
nova_process     nova-api, nova-conductor, nova-scheduler and the computes
services         how all these are started
stack            the order in which they come up
"""
