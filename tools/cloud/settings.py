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

"""What one cloud is made of: names, addresses and secrets."""

import dataclasses
import pathlib
import secrets
import sys

from tools.cloud import ports

DATABASE_URL = 'mysql+pymysql://root@127.0.0.1:3306'
BUS_URL = 'rabbit://guest:guest@127.0.0.1:5672/'

#: The services with an HTTP API, and the path of their endpoint.
APIS = {
    'keystone': '/v3',
    'placement': '',
    'glance': '',
    'neutron': '',
    'nova': '/v2.1',
}

REGION = 'RegionOne'

#: Where pip put the services, and where their own configuration lies.
PREFIX = pathlib.Path(sys.prefix)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one cloud.

    :ivar state: the directory that everything of the cloud lies in
    :ivar databases: the databases.Databases
    :ivar bus: the bus.Bus
    :ivar ports: the number of the port of each of APIS
    :ivar hosts: the names of the compute hosts
    :ivar host_vcpus: how many VCPU each of them has room for
    :ivar password: of every user in Keystone
    """

    state: pathlib.Path
    databases: object
    bus: object
    ports: dict
    hosts: tuple = ('compute1', 'compute2')
    host_vcpus: int = 2
    password: str = dataclasses.field(
        default_factory=lambda: secrets.token_hex(16))

    @property
    def etc(self):
        """The directory of the configuration files."""
        return self.state / 'etc'

    @property
    def var(self):
        """The directory of the services' data."""
        return self.state / 'var'

    def url(self, api):
        """Return the URL of the endpoint of one of APIS."""
        return 'http://%s:%d%s' % (ports.HOST, self.ports[api], APIS[api])
