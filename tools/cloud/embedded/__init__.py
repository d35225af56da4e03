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
