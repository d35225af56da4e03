# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.pci import stats as pci_stats
from nova.scheduler import host_manager
from nova.scheduler import without_servers
from nova import test


def device(address, owner=None, parent=None, dev_type='type-PCI', **values):
    extra_info = values.pop('extra_info', {})
    return objects.PciDevice(
        id=int(address.replace(':', '').replace('.', ''), 16),
        compute_node_id=1, address=address, parent_addr=parent,
        vendor_id='10de', product_id='20b0', dev_type=dev_type, numa_node=0,
        status='allocated' if owner else 'available', instance_uuid=owner,
        request_id=uuids.request if owner else None, extra_info=extra_info,
        **values)


def pool(address, count, dev_type='type-PCI', **tags):
    return {'address': address, 'vendor_id': '10de', 'product_id': '20b0',
            'numa_node': 0, 'dev_type': dev_type, 'count': count, **tags}


class TakeOutTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.devices = []
        self.instances = []
        self.state = host_manager.HostState('host', 'node', uuids.cell)
        self.state.uuid = uuids.node
        self.state.free_ram_mb = 100
        self.state.vcpus_used = 8
        self.state.num_instances = 3
        self.state.num_io_ops = 2
        self.state.pci_stats = pci_stats.PciDeviceStats(None)
        self.state.instances = {
            uuid: None for uuid in (uuids.a, uuids.b, uuids.other)}

    def add(self, uuid, specs=(), **values):
        requests = [objects.InstancePCIRequest(
            request_id=uuids.request, count=1, spec=list(specs))]
        self.instances.append(objects.Instance(**{
            'uuid': uuid, 'vm_state': 'active', 'task_state': None,
            'os_type': None, 'project_id': 'p', 'numa_topology': None,
            'flavor': objects.Flavor(memory_mb=10, vcpus=2),
            'pci_requests': objects.InstancePCIRequests(requests=requests),
            **values}))

    def take_out(self, *uuids_):
        with mock.patch.object(
            objects.InstanceList, 'get_by_filters',
            return_value=objects.InstanceList(objects=self.instances),
        ) as self.asked, mock.patch.object(
            objects.ComputeNode, 'get_by_uuid',
            return_value=mock.Mock(id=1),
        ), mock.patch.object(
            objects.PciDeviceList, 'get_by_compute_node',
            return_value=objects.PciDeviceList(objects=self.devices),
        ), mock.patch.object(
            objects.PciDevice, 'save', side_effect=AssertionError,
        ):
            return without_servers.take_out(
                self.context, self.state, list(uuids_))

    def assertPools(self, *pools):
        self.assertEqual(list(pools), self.state.pci_stats.pools)

    def test_usage(self):
        self.add(uuids.a)
        self.add(uuids.b, task_state='rebuilding')
        known = self.state.instances
        self.assertEqual({uuids.a, uuids.b}, self.take_out(
            uuids.a, uuids.b, uuids.gone))
        self.asked.assert_called_once_with(
            self.context, {
                'uuid': [uuids.a, uuids.b, uuids.gone], 'host': 'host',
                'node': 'node', 'deleted': False, 'soft_deleted': True},
            expected_attrs=['flavor', 'numa_topology', 'pci_requests'])
        self.assertEqual(
            (120, 4, 1, 1),
            (self.state.free_ram_mb, self.state.vcpus_used,
             self.state.num_instances, self.state.num_io_ops))
        self.assertEqual({uuids.other}, set(self.state.instances))
        self.assertEqual(3, len(known))

    def test_none_of_them_is_there(self):
        self.assertEqual(set(), self.take_out(uuids.a))
        self.assertEqual((100, 8, 3, 2), (
            self.state.free_ram_mb, self.state.vcpus_used,
            self.state.num_instances, self.state.num_io_ops))

    def test_processors_that_the_host_does_not_know_as_pinned(self):
        for pinned, error in (({1}, exception.CPUUnpinningInvalid),
                              ({9}, exception.CPUUnpinningUnknown)):
            self.state.numa_topology = objects.NUMATopology(cells=[
                objects.NUMACell(
                    id=0, cpuset=set(), pcpuset={1, 2}, memory=10,
                    cpu_usage=0, memory_usage=0, mempages=[],
                    pinned_cpus={2}, siblings=[], socket=0)])
            self.instances = []
            self.add(uuids.a)
            self.add(uuids.b, numa_topology=objects.InstanceNUMATopology(
                cells=[objects.InstanceNUMACell(
                    id=0, cpuset=set(), pcpuset={0}, memory=1, pagesize=4,
                    cpu_policy='dedicated', cpuset_reserved=None,
                    cpu_pinning={0: min(pinned)})]))
            self.assertEqual({uuids.a}, self.take_out(uuids.a, uuids.b))

    def test_device_of_a_pool(self):
        self.state.pci_stats.pools = [pool('0000:81:00.0', 0)]
        self.devices = [device('0000:81:00.0', uuids.a),
                        device('0000:82:00.0', uuids.other)]
        self.add(uuids.a)
        self.take_out(uuids.a)
        self.assertPools(pool('0000:81:00.0', 1))

    def test_device_whose_pool_is_gone(self):
        self.devices = [device('0000:81:00.0', uuids.a, extra_info={
            'rp_uuid': uuids.provider, 'live_migratable': 'true',
            'capabilities': 'x'})]
        self.add(uuids.a, [{
            'vendor_id': '10de', 'product_id': '20b0', 'rp_uuids': 'x',
            'resource_class': 'CUSTOM_GPU', 'traits': 'CUSTOM_A',
            'colour': 'red'}])
        self.take_out(uuids.a)
        self.assertPools(pool(
            '0000:81:00.0', 1, rp_uuid=uuids.provider,
            live_migratable='true', colour='red'))

    def test_device_that_the_host_removes_once_it_is_free(self):
        self.state.pci_stats.pools = [pool('0000:81:00.0', 0)]
        self.devices = [device('0000:81:00.0', uuids.a, extra_info={
            'removed_when_freed': 'true'})]
        self.add(uuids.a)
        self.assertEqual({uuids.a}, self.take_out(uuids.a))
        self.assertPools(pool('0000:81:00.0', 0))

    def test_several_specs_tell_nothing_of_a_device(self):
        self.devices = [device('0000:81:00.0', uuids.a)]
        self.add(uuids.a, [{'colour': 'red'}, {'colour': 'blue'}])
        self.take_out(uuids.a)
        self.assertPools(pool('0000:81:00.0', 1))

    def test_pools_that_differ_in_their_tags(self):
        def pools(one, other):
            return [pool('0000:81:00.0', one, 'type-VF',
                         physical_network='One', remote_managed='false'),
                    pool('0000:81:00.0', other, 'type-VF',
                         physical_network='Other', remote_managed='false')]
        self.state.pci_stats.pools = pools(1, 0)
        self.devices = [
            device('0000:81:00.%d' % number, owner, '0000:81:00.0', 'type-VF')
            for number, owner in ((1, uuids.a), (2, uuids.other))]
        self.add(uuids.a, [{
            'physical_network': 'other', 'remote_managed': 'False'}])
        self.take_out(uuids.a)
        self.assertPools(*pools(1, 1))

    def test_physical_function_of_virtual_functions(self):
        self.devices = [device('0000:81:00.0', dev_type='type-PF')] + [
            device('0000:81:00.%d' % number, owner, '0000:81:00.0', 'type-VF')
            for number, owner in ((1, uuids.a), (2, uuids.b))]
        self.devices[0].status = 'unavailable'
        self.add(uuids.a)
        self.take_out(uuids.a)
        virtual = pool('0000:81:00.0', 1, 'type-VF', remote_managed='false')
        self.assertPools(virtual)
        self.instances = []
        self.add(uuids.b)
        self.take_out(uuids.b)
        virtual['count'] = 2
        self.assertPools(virtual, pool(
            '0000:81:00.0', 1, 'type-PF', remote_managed='false'))
