# SPDX-License-Identifier: Apache-2.0

"""What one cloud is made of: names, addresses and secrets."""

import dataclasses
import pathlib
import secrets
import sys

from tools.cloud import ports

#: The name that the first conductor, the API and the scheduler have as hosts.
CONTROL = 'control'

DATABASE_URL = 'mysql+pymysql://root@127.0.0.1:3306'
BUS_URL = 'rabbit://guest:guest@127.0.0.1:5672/'

#: The services with an HTTP API, and the path of their endpoint.
APIS = {
    'keystone': '/v3',
    'placement': '',
    'glance': '',
    'neutron': '',
    'nova': '/v2.1',
    'cinder': '/v3',
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
    :ivar libvirt: whether there is a host with real guests beside them
    :ivar hypervisor: the hypervisor.Hypervisor of that host
    :ivar pci: who keeps count of three PCI devices that each compute host
        has, "nova" or "placement"; None for hosts without devices
    :ivar cinder: whether the cloud has Cinder
    :ivar dashboard: whether there is a Horizon with our panels
    :ivar reaper: whether there is a nova-reaper
    :ivar stock: whether nova-pending is left off
    :ivar in_tree: the Python environment with the branch of Nova, whose
        services run in place of those of this environment, or None
    :ivar owner: whether the cloud comes up with a user who owns servers
    :ivar workers: how many processes each API and each conductor has
    :ivar conductors: how many conductors work for the whole cloud
    :ivar cells: how many cells there are beside cell0. One shares the bus and
        the conductors of the cloud; several have a bus and a conductor each.
    :ivar password: of every user in Keystone
    """

    state: pathlib.Path
    databases: object
    bus: object
    ports: dict
    hosts: tuple = ('compute1', 'compute2')
    host_vcpus: int = 2
    libvirt: bool = False
    hypervisor: object = None
    pci: str = None
    cinder: bool = True
    dashboard: bool = False
    reaper: bool = False
    stock: bool = False
    in_tree: str = None
    owner: bool = True
    workers: int = 1
    conductors: int = 1
    cells: int = 1
    password: str = dataclasses.field(
        default_factory=lambda: secrets.token_hex(16))

    @property
    def etc(self):
        """Return the directory of the configuration files."""
        return self.state / 'etc'

    @property
    def var(self):
        """Return the directory of the services' data."""
        return self.state / 'var'

    @property
    def libvirt_host(self):
        """Return the name of the host with real guests, or None."""
        return 'compute3' if self.libvirt else None

    @property
    def all_hosts(self):
        """Return the names of all hosts that have a nova-compute."""
        return (*self.hosts, *filter(None, [self.libvirt_host]))

    @property
    def cell_names(self):
        """Return the names of the cells beside cell0."""
        return ['cell%d' % (number + 1) for number in range(self.cells)]

    @property
    def separate_cells(self):
        """Return the names of cells with their own bus and conductor."""
        return self.cell_names if self.cells > 1 else []

    def cell_of(self, host):
        """Return the name of the cell of a compute host."""
        return self.cell_names[self.all_hosts.index(host) % self.cells]

    def bus_url(self, cell):
        """Return the URL of the bus of a cell."""
        return (self.bus.url_of(cell) if cell in self.separate_cells
                else self.bus.url)

    def cell_database(self, cell):
        """Return the name of the database of a cell."""
        return 'nova' if cell == 'cell1' else 'nova_' + cell

    @property
    def conductor_hosts(self):
        """Return the host names of the conductors of the whole cloud."""
        return [CONTROL, *('%s%d' % (CONTROL, number + 2)
                           for number in range(self.conductors - 1))]

    @staticmethod
    def nova_file(host):
        """Return the configuration of what runs on a host of Nova."""
        return '%s/nova.conf' % ('nova' if host == CONTROL else host)

    def url(self, api):
        """Return the URL of the endpoint of one of APIS."""
        return 'http://%s:%d%s' % (ports.HOST, self.ports[api], APIS[api])
