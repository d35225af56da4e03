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

"""A whole OpenStack control plane on one machine, each service a process.

``python -m tools.cloud demo`` brings it up and shows on it what nova-pending
does. Everything lies below one state directory; MariaDB and RabbitMQ are the
only servers that must be there already.

main           command line, exit codes, signals
settings       what one cloud is made of: names, addresses, secrets
databases, bus the servers that are used, and what is made and removed there
configuration  the services' configuration files
services       the services: how each is started and when it is ready
identity       users, roles and the catalogue in Keystone
l2agent        stand-in for the L2 agents of the compute hosts
processes      starts, watches and stops processes
plan           runs steps as soon as what they need is done
stack          the order in which all this comes up and goes down
client         runs the openstack client and shows what it answers
demo           the demonstration
"""
