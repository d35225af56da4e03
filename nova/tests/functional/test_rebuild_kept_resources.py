# SPDX-License-Identifier: Apache-2.0

"""What a server needs beside cores, memory and disk holds for a rebuild.

The server waits for just that: a host with all else is there from the start.
What is not persisted in its request spec has to be made again, or it would be
built there.
"""

import copy

import os_resource_classes as orc
from oslo_serialization import jsonutils

import nova.conf
from nova.tests.fixtures import cyborg as cyborg_fixture
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as libvirt_base
from nova.tests.functional import rebuild_twins
from nova.tests.functional import test_servers_resource_request as base
from nova.virt import fake

CONF = nova.conf.CONF

NORMAL = 'CUSTOM_VNIC_TYPE_NORMAL'
DIRECT = 'CUSTOM_VNIC_TYPE_DIRECT'
PHYSNET = 'CUSTOM_PHYSNET2'
BANDWIDTH = {orc.NET_BW_IGR_KILOBIT_PER_SEC: 10000,
             orc.NET_BW_EGR_KILOBIT_PER_SEC: 10000}


class ResourcesTestCase(rebuild_twins.TwinsTestCase):

    filters = ('PciPassthroughFilter', 'NUMATopologyFilter')

    def setUp(self):
        # Or a host that lacks it would pass the server on to one that has it.
        self.flags(max_attempts=1, group='scheduler')
        super().setUp()

    def _setup_scheduler_service(self):
        enabled = CONF.filter_scheduler.enabled_filters
        self.flags(enabled_filters=enabled + [
            name for name in self.filters if name not in enabled],
            group='filter_scheduler')
        return super()._setup_scheduler_service()

    def provider(self, name, parent, resources, traits):
        """Create a resource provider.

        :param parent: the UUID of the one that it is a part of
        :param resources: how much there is of what
        :returns: its UUID
        """
        uuid = self.placement.post(
            '/resource_providers', version='1.20',
            body={'name': name, 'parent_provider_uuid': parent}).body['uuid']
        self._update_inventory(uuid, {
            'resource_provider_generation': 0,
            'inventories': {resource: {'total': total}
                            for resource, total in resources.items()}})
        for trait in traits:
            self._create_trait(trait)
        self._set_provider_traits(uuid, list(traits))
        return uuid

    def kept(self, request, **kwargs):
        # In turn: there is no more than one of the two needs.
        server, _twin = super().kept(
            request, times=2, between=self.delete, **kwargs)
        return server

    def allocated(self, server, provider):
        return self.all_known[server['id']]['allocations'][provider]

    def all_of(self, server):
        known = super().all_of(server)
        self.all_known = dict(getattr(self, 'all_known', {}),
                              **{server['id']: known})
        return known


class PortsTestCase(ResourcesTestCase):
    """Ports that need bandwidth, packets, or a function of a card."""

    compute_driver = 'fake.FakeDriverWithPciResources'
    neutron_fixture = base.ResourceRequestNeutronFixture

    def setUp(self):
        self.useFixture(fake.FakeDriverWithPciResources.
                        FakeDriverWithPciResourcesConfigFixture())
        super().setUp()
        self.neutron = self.useFixture(self.neutron_fixture(self))
        [self.host] = [host['uuid'] for host in self._get_all_providers()]
        self.isolating = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'group_policy': 'isolate'})
        self.providers = {}

    def make_room(self):
        agent = self.provider(
            'agent', self.host,
            {orc.NET_PACKET_RATE_KILOPACKET_PER_SEC: 10000}, [NORMAL])
        bridge = self.provider('bridge', agent, BANDWIDTH, [NORMAL, PHYSNET])
        cards = self.provider('compute:NIC Switch agent', self.host, {}, [])
        card = self.provider('compute:NIC Switch agent:compute-ens2', cards,
                             BANDWIDTH, [DIRECT, PHYSNET])
        self.providers = {'agent': agent, 'bridge': bridge, 'card': card}

    def asked(self, *ports):
        return self.request(self.isolating, networks=[
            {'port': port['id']} for port in ports])

    def bound(self, server, port):
        """Return what a port of a server was told where it is bound."""
        [port] = [known for known in self.all_known[server['id']]['ports']
                  if known['id'] == port['id']]
        return port['binding:profile']

    def test_bandwidth(self):
        port = self.neutron.port_with_resource_request
        server = self.kept(self.asked(self.neutron.port_1, port))
        self.assertEqual(
            port['resource_request']['resources'],
            self.allocated(server, self.providers['bridge']))
        self.assertEqual(self.providers['bridge'],
                         self.bound(server, port)['allocation'])

    def test_bandwidth_of_a_function_of_a_card(self):
        port = self.neutron.port_with_sriov_resource_request
        server = self.kept(self.asked(
            self.neutron.port_with_resource_request, port))
        self.assertEqual(
            port['resource_request']['resources'],
            self.allocated(server, self.providers['card']))
        profile = self.bound(server, port)
        self.assertEqual(self.providers['card'], profile['allocation'])
        # Of the card that has the bandwidth, not of the other one.
        self.assertEqual('0000:02:00.1', profile['pci_slot'])


class PortsOfSeveralGroupsTestCase(PortsTestCase):
    """The same, where a port has groups of resources in one subtree."""

    neutron_fixture = base.MultiGroupResourceRequestNeutronFixture

    def test_bandwidth(self):
        port = self.neutron.port_with_resource_request
        server = self.kept(self.asked(self.neutron.port_1, port))
        bandwidth, packets = port['resource_request']['request_groups']
        self.assertEqual(
            bandwidth['resources'],
            self.allocated(server, self.providers['bridge']))
        self.assertEqual(
            packets['resources'],
            self.allocated(server, self.providers['agent']))
        self.assertEqual(
            {bandwidth['id']: self.providers['bridge'],
             packets['id']: self.providers['agent']},
            self.bound(server, port)['allocation'])

    def test_bandwidth_of_a_function_of_a_card(self):
        port = self.neutron.port_with_sriov_resource_request
        server = self.kept(self.asked(port))
        self.assertEqual(
            {port['id']: self.providers['card']},
            self.bound(server, port)['allocation'])


class AcceleratorsTestCase(ResourcesTestCase):

    def setUp(self):
        super().setUp()
        self.cyborg = self.useFixture(cyborg_fixture.CyborgFixture())
        [self.host] = [host['uuid'] for host in self._get_all_providers()]

    def make_room(self):
        self.device = self.provider(
            'device', self.host, {orc.FPGA: 1}, [self.cyborg.trait])

    def delete(self, server):
        super().delete(server)
        # The next one gets the same device.
        self.cyborg.call_create_arq_count = 0

    def test_device_profile_of_the_flavor(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'accel:device_profile': self.cyborg.dp_name})
        server = self.kept(self.request(flavor))
        self.assertEqual({orc.FPGA: 1}, self.allocated(server, self.device))
        self.assertEqual(1, len(self.told[server['id']]['accel_uuids']))

    def test_device_profile_of_a_port(self):
        port = self.neutron.ports_with_accelerator[0]
        self.neutron._networks[
            self.neutron.network_2['id']] = self.neutron.network_2
        self.neutron._ports[port['id']] = copy.deepcopy(port)
        server = self.kept(self.request(
            self.small, networks=[{'port': port['id']}]))
        self.assertEqual({orc.FPGA: 1}, self.allocated(server, self.device))
        [bound] = self.all_known[server['id']]['ports']
        self.assertIn('arq_uuid', bound['binding:profile'])


class LibvirtTestCase(ResourcesTestCase, libvirt_base.ServersTestBase):
    """Topologies and devices that only libvirt's driver knows."""

    compute_driver = 'libvirt.LibvirtDriver'

    alias = 'device'

    def setUp(self):
        self.flags(
            group='pci',
            device_spec=[jsonutils.dumps(
                {'vendor_id': fakelibvirt.PCI_VEND_ID,
                 'product_id': product, 'physical_network': 'physnet4'})
                for product in (fakelibvirt.PF_PROD_ID,
                                fakelibvirt.VF_PROD_ID)] + [
                jsonutils.dumps({'vendor_id': fakelibvirt.PCI_VEND_ID,
                                 'product_id': fakelibvirt.PCI_PROD_ID})],
            alias=[jsonutils.dumps(
                {'vendor_id': fakelibvirt.PCI_VEND_ID,
                 'product_id': product, 'name': alias})
                for alias, product in (
                    (self.alias, fakelibvirt.PCI_PROD_ID),
                    ('nowhere', 'ffff'))])
        super().setUp()
        self.neutron = self.useFixture(
            libvirt_base.LibvirtNeutronFixture(self))

    def dedicate(self):
        self.flags(cpu_dedicated_set='0-7', group='compute')

    def has_no_devices(self):
        self.start_compute('compute')

    def has_devices(self):
        self.start_compute(
            'roomy', pci_info=fakelibvirt.HostPCIDevicesInfo(
                num_pci=1, num_pfs=1, num_vfs=1))

    def flavor(self, **extra_spec):
        return self._create_flavor(
            vcpu=2, memory_mb=128, disk=1, extra_spec={
                name.replace('__', ':'): value
                for name, value in extra_spec.items()})

    def numa(self, server):
        return self.all_known[server['id']]['rows']['instance_extra'][0][
            'numa_topology']

    def devices(self, server):
        """Return the products of which the server has claimed a device."""
        claimed = self.all_known[server['id']]['rows']['pci_devices']
        self.assertEqual({'allocated'} if claimed else set(),
                         {device['status'] for device in claimed})
        return [device['product_id'] for device in claimed]

    def test_topology_and_pinned_cores(self):
        self.dedicate()
        self.start_compute('compute', host_info=fakelibvirt.HostInfo(
            cpu_nodes=1, cpu_sockets=1, cpu_cores=4, cpu_threads=2))
        server = self.kept(
            self.request(self.flavor(hw__numa_nodes='2',
                                     hw__cpu_policy='dedicated')),
            room=lambda: self.start_compute('roomy'))
        self.assertEqual('roomy', server['OS-EXT-SRV-ATTR:host'])
        cells = self.numa(server)['nova_object.data']['cells']
        self.assertEqual(2, len(cells))
        for cell in cells:
            self.assertEqual(
                1, len(cell['nova_object.data']['cpu_pinning_raw']))

    def test_topology_of_another_image(self):
        self.has_no_devices()
        image = dict(self.glance.image1, properties=dict(
            self.glance.image1['properties'], hw_numa_nodes=2))
        del image['id']
        image = self.glance.create(None, image)['id']
        request = self.request(self.flavor(
            pci_passthrough__alias=self.alias + ':1'))
        twin = copy.deepcopy(request)
        twin['server']['imageRef'] = image
        server = self.kept(
            request, twin=twin, imageRef=image, room=self.has_devices)
        self.assertEqual(
            2, len(self.numa(server)['nova_object.data']['cells']))
        self.assertEqual([fakelibvirt.PCI_PROD_ID], self.devices(server))

    def test_device_of_the_flavor(self):
        self.has_no_devices()
        server = self.kept(
            self.request(self.flavor(
                pci_passthrough__alias=self.alias + ':1')),
            room=self.has_devices)
        self.assertEqual('roomy', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual([fakelibvirt.PCI_PROD_ID], self.devices(server))

    def test_device_and_topology_of_the_flavor(self):
        self.dedicate()
        self.has_no_devices()
        server = self.kept(
            self.request(self.flavor(
                pci_passthrough__alias=self.alias + ':1',
                hw__cpu_policy='dedicated', hw__numa_nodes='1')),
            room=self.has_devices)
        self.assertEqual('roomy', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual([fakelibvirt.PCI_PROD_ID], self.devices(server))
        [cell] = self.numa(server)['nova_object.data']['cells']
        self.assertEqual(
            2, len(cell['nova_object.data']['cpu_pinning_raw']))

    def test_device_that_no_host_has(self):
        self.has_no_devices()
        server = self.create_at(None, self.api, self.request(self.flavor(
            pci_passthrough__alias='nowhere:1')), 'PENDING')
        self.has_devices()
        for image in (None, self.glance.image2['id']):
            self.rebuild(server, imageRef=image)
            self.wait_for(server, 'PENDING')
        self.assertEqual({}, self.told)

    def test_device_of_the_flavor_counted_in_placement(self):
        self.flags(group='pci', report_in_placement=True)
        self.flags(group='filter_scheduler', pci_in_placement=True)
        self.has_no_devices()
        server = self.kept(
            self.request(self.flavor(
                pci_passthrough__alias=self.alias + ':1')),
            room=self.has_devices)
        self.assertEqual(
            [{'CUSTOM_PCI_%s_%s' % (fakelibvirt.PCI_VEND_ID,
                                    fakelibvirt.PCI_PROD_ID): 1}],
            [resources for resources in self.all_known[server['id']][
                'allocations'].values() if orc.VCPU not in resources])

    def test_port_on_a_function_of_a_card(self):
        port = self.neutron.network_4_port_1
        self.neutron.create_port({'port': port})
        self.has_no_devices()
        server = self.kept(
            self.request(self.flavor(), networks=[{'port': port['id']}]),
            room=self.has_devices)
        [bound] = self.all_known[server['id']]['ports']
        self.assertIn('pci_slot', bound['binding:profile'])
        self.assertEqual([fakelibvirt.VF_PROD_ID], self.devices(server))
