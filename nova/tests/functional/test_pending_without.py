# SPDX-License-Identifier: Apache-2.0

"""A host that is judged as it would be without some of its servers.

The hosts, their devices and their topologies are those of nova.tests.fixtures.
Each judgement is compared with what happens: the servers are deleted, and the
one that waits is rebuilt.
"""

import re
from unittest import mock
from urllib import parse as urlparse

from oslo_db import exception as db_exc
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import exception
from nova import objects
from nova.scheduler import host_refusals
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base
from nova.tests.functional.libvirt import test_pci_in_placement
from nova.tests.functional.libvirt import test_pci_sriov_servers
from nova.tests.functional.libvirt import test_vgpu
from nova.tests.functional import shared_work
from nova.tests.functional import test_pending_reason

CONF = nova.conf.CONF

# The fixture says of the image of the servers that it is not public.
_PUBLIC_IMAGE = nova_fixtures.GlanceFixture.image2['id']

_UUID = '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'


def query_of(host, servers):
    return '?host=%s' % host + ''.join(
        '&without=' + (server if isinstance(server, str) else server['id'])
        for server in servers)


def update(test, model, of=None, **values):
    """Change rows of the cell of the hosts."""
    with nova_context.target_cell(
            nova_context.get_admin_context(),
            test.cell_mappings['cell1']) as cctxt:
        with main_db_api.get_context_manager(cctxt).writer.using(cctxt):
            cctxt.session.query(model).filter_by(**of or {}).update(values)


class JudgedMixin:
    """Hosts of libvirt, for servers without networks."""

    microversion = 'latest'

    def setUp(self):
        self.useFixture(shared_work.SharedWork())
        super().setUp()
        self.flags(use_pending_state=True)

        # The flavors of the servers without networks, by their IDs.
        self.flavors = {}

    def create(self, flavor, state='ACTIVE', networks='none', **kwargs):
        server = self._create_server(
            flavor_id=flavor, networks=networks, expected_state=state,
            **kwargs)
        if networks == 'none':
            self.flavors[server['id']] = flavor
        return server

    def refused_by(self, waiting, *without, host='compute1'):
        """Return what refuses a host without some of its servers.

        A server that is not created is refused for the same.
        """
        # What a nova-scheduler does not have in its configuration.
        device_spec = CONF.pci.device_spec
        self.flags(device_spec=[], group='pci')
        try:
            answer = self.admin_api.api_get('/servers/%s/pending%s' % (
                waiting['id'], query_of(host, without))).body['pending']
            if waiting['id'] in self.flavors:
                unsaved = self.admin_api.api_post('/pending', {'pending': {
                    'server': {
                        'flavorRef': self.flavors[waiting['id']],
                        'imageRef': _PUBLIC_IMAGE,
                        'project_id': waiting['tenant_id']},
                    'hosts': [host],
                    'without': [server['id'] for server in without],
                }}).body['pending']
                self.assertEqual(answer['hosts'], unsaved['hosts'])
                self.assertEqual(self.parameters(answer),
                                 self.parameters(unsaved))
        finally:
            self.flags(device_spec=device_spec, group='pci')
        self.assertNotIn('unavailable', answer)
        (judged, ) = answer['hosts']
        self.assertEqual(host, judged['host'])
        return judged['refused_by']

    @staticmethod
    def parameters(answer):
        """Return the parameters of requests, without the IDs of devices."""
        return [sorted(urlparse.parse_qsl(re.sub(_UUID, '', request)))
                for request in answer['requests']]

    def assertFits(self, waiting, *without):
        """End servers; the one that waits fits as it was judged to do."""
        self.assertIsNone(self.refused_by(waiting, *without))
        for server in without:
            self._delete_server(server)
        self.assertIsNone(self.refused_by(waiting))
        self.api.post_server_action(waiting['id'], {'rebuild': {}})
        self._wait_for_state_change(waiting, 'ACTIVE')

    def assertDoesNotFit(self, waiting, *without):
        """End servers; the one that waits does not fit, as it was judged."""
        refused_by = self.refused_by(waiting, *without)
        self.assertIsNotNone(refused_by)
        for server in without:
            self._delete_server(server)
        self.assertEqual(refused_by, self.refused_by(waiting))
        self.api.post_server_action(waiting['id'], {'rebuild': {}})
        self._wait_for_server_parameter(waiting, {
            'status': 'PENDING', 'OS-EXT-STS:task_state': None})


class NUMATestCase(JudgedMixin, base.ServersTestBase):

    ADDITIONAL_FILTERS = ['NUMATopologyFilter']
    FILTER = 'NUMATopologyFilter'

    def start(self):
        """Start a host of two NUMA nodes, of 4 CPUs each, all to be pinned."""
        self.flags(cpu_dedicated_set='0-7', cpu_shared_set=None,
                   group='compute')
        self.flags(vcpu_pin_set=None)
        self.start_compute(host_info=fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=2, cpu_threads=2))

    def flavor(self, vcpu):
        return self._create_flavor(
            vcpu=vcpu, memory_mb=512, disk=1,
            extra_spec={'hw:cpu_policy': 'dedicated'})

    def node_of(self, server):
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            (cell, ) = objects.Instance.get_by_uuid(
                cctxt, server['id']).numa_topology.cells
            return cell.id

    def fill(self, vcpu):
        """Fill the host with pinned servers, and return those of each node."""
        nodes = {0: [], 1: []}
        for _number in range(8 // vcpu):
            server = self.create(self.flavor(vcpu))
            nodes[self.node_of(server)].append(server)
        return nodes

    def test_pinned(self):
        self.start()
        nodes = self.fill(2)
        waiting = self.create(self.flavor(4), 'PENDING')
        (a, b), (c, d) = nodes.values()
        self.assertEqual(self.FILTER, self.refused_by(waiting))
        self.assertEqual(self.FILTER, self.refused_by(waiting, a))
        # Placement has room in both cases: the nodes of the host tell.
        self.assertEqual(self.FILTER, self.refused_by(waiting, a, c))
        self.assertEqual(self.FILTER, self.refused_by(waiting, d, b))
        self.assertIsNone(self.refused_by(waiting, c, d))
        self.assertFits(waiting, a, b)

    def test_pinned_to_the_wrong_nodes(self):
        self.start()
        nodes = self.fill(2)
        waiting = self.create(self.flavor(4), 'PENDING')
        self.assertDoesNotFit(waiting, nodes[0][0], nodes[1][0])

    def test_huge_pages(self):
        self.flags(vcpu_pin_set=None)
        host_info = fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=2, cpu_threads=2)
        for cell in host_info.numa_topology.cells:
            cell.mempages = fakelibvirt.create_mempages([
                (4, (host_info.kB_mem - 2048 * 1024) // 4), (2048, 1024)])
        self.start_compute(host_info=host_info)
        flavor = self._create_flavor(
            vcpu=1, memory_mb=2048, disk=1,
            extra_spec={'hw:mem_page_size': 'large'})
        small = self.create(self._create_flavor(
            vcpu=1, memory_mb=2048, disk=1))
        servers = [self.create(flavor) for _node in range(2)]
        waiting = self.create(flavor, 'PENDING')
        self.assertEqual(self.FILTER, self.refused_by(waiting))
        self.assertEqual(self.FILTER, self.refused_by(waiting, small))
        self.assertIsNone(self.refused_by(waiting, servers[1]))
        self.assertFits(waiting, servers[0])

    def test_nothing_is_claimed_written_or_kept(self):
        self.start()
        servers = sum(self.fill(4).values(), [])
        waiting = self.create(self.flavor(4), 'PENDING')
        host_manager = self.scheduler.manager.host_manager
        known = dict(host_manager._instance_info['compute1']['instances'])
        before = self.rows()
        self.notifier.reset()
        with mock.patch('nova.scheduler.client.report.SchedulerReportClient.'
                        'put', side_effect=AssertionError):
            self.assertIsNone(self.refused_by(waiting, *servers))
        self.assertEqual(before, self.rows())
        self.assertEqual(
            known, host_manager._instance_info['compute1']['instances'])
        self.assertEqual([], self.notifier.versioned_notifications)
        self.assertEqual(self.FILTER, self.refused_by(waiting))

    def rows(self):
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            with main_db_api.get_context_manager(cctxt).reader.using(cctxt):
                return [
                    {column.name: getattr(row, column.name)
                     for column in model.__table__.columns
                     # The host reports now and then.
                     if column.name != 'updated_at'}
                    for model in (models.ComputeNode, models.Instance,
                                  models.InstanceExtra)
                    for row in cctxt.session.query(model)]

    def test_host_has_not_reported_yet(self):
        self.start()
        servers = sum(self.fill(4).values(), [])
        waiting = self.create(self.flavor(4), 'PENDING')
        topology = objects.NUMATopology.obj_from_db_obj(
            objects.ComputeNode.get_by_nodename(
                nova_context.get_admin_context(), 'compute1').numa_topology)
        for cell in topology.cells:
            cell.pinned_cpus = set()
        update(self, models.ComputeNode, numa_topology=topology._to_json())
        response = self.admin_api.api_request(
            'servers/%s/pending%s' % (
                waiting['id'], query_of('compute1', servers)),
            check_response_status=[409])
        self.assertIn('about to change', response.text)


class _PciBase(JudgedMixin, test_pci_in_placement.PlacementPCIReportingTests):
    """One host with two devices, which two servers have."""

    in_placement = False
    FILTER = 'PciPassthroughFilter'
    pci_info = {'num_pci': 2, 'num_pfs': 0, 'num_vfs': 0}
    products = (fakelibvirt.PCI_PROD_ID, fakelibvirt.PF_PROD_ID,
                fakelibvirt.VF_PROD_ID)

    def setUp(self):
        super().setUp()
        self.flags(group='filter_scheduler',
                   pci_in_placement=self.in_placement)
        self.flags(group='pci', report_in_placement=self.in_placement,
                   device_spec=self._to_list_of_json_str([{
                       'vendor_id': fakelibvirt.PCI_VEND_ID,
                       'product_id': product} for product in self.products]))
        self.start_compute(
            pci_info=fakelibvirt.HostPCIDevicesInfo(**self.pci_info))

    def flavor(self, alias):
        return self._create_flavor(
            vcpu=1, memory_mb=512, disk=1,
            extra_spec={'pci_passthrough:alias': alias})


class PciOutsidePlacementTestCase(_PciBase):

    def test_devices(self):
        flavor = self.flavor('a-pci-dev:1')
        servers = [self.create(flavor) for _device in range(2)]
        waiting = self.create(flavor, 'PENDING')
        both = self.create(self.flavor('a-pci-dev:2'), 'PENDING')
        self.assertEqual(self.FILTER, self.refused_by(waiting))
        self.assertEqual(self.FILTER, self.refused_by(both, servers[0]))
        self.assertIsNone(self.refused_by(both, *servers))
        self.assertFits(waiting, servers[1])

    def test_pools_that_the_host_has_dropped(self):
        """A host that starts again drops the pools that are empty."""
        flavor = self.flavor('a-pci-dev:1')
        servers = [self.create(flavor) for _device in range(2)]
        waiting = self.create(flavor, 'PENDING')
        both = self.create(self.flavor('a-pci-dev:2'), 'PENDING')
        self.restart_compute_service('compute1')
        self.assertEqual([], self.pools())
        self.assertEqual(self.FILTER, self.refused_by(waiting))
        self.assertEqual(self.FILTER, self.refused_by(both, servers[0]))
        self.assertIsNone(self.refused_by(both, *servers))
        self.assertFits(waiting, servers[0])

    def pools(self):
        return objects.ComputeNode.get_by_nodename(
            self.ctxt, 'compute1').pci_device_pools.objects

    def restart_with(self, devices):
        self.restart_compute_service(
            'compute1', pci_info=fakelibvirt.HostPCIDevicesInfo(
                num_pci=devices, num_pfs=0, num_vfs=0),
            keep_hypervisor_state=False)

    def test_device_that_the_host_does_not_have_any_more(self):
        flavor = self.flavor('a-pci-dev:1')
        servers = {}
        for _device in range(2):
            server = self.create(flavor)
            (device, ) = objects.PciDeviceList.get_by_instance_uuid(
                self.ctxt, server['id'])
            servers[device.address] = server
        (_, kept), (_, gone) = sorted(servers.items())
        waiting = self.create(flavor, 'PENDING')
        self.restart_with(1)
        self.assertIsNone(self.refused_by(waiting, kept))
        self.assertEqual(self.FILTER, self.refused_by(waiting, gone))
        # The device is there again.
        self.restart_with(2)
        self.assertIsNone(self.refused_by(waiting, gone))
        self.restart_with(1)
        self.assertDoesNotFit(waiting, gone)

    def test_server_without_a_device(self):
        flavor = self.flavor('a-pci-dev:1')
        other = self.create(self._create_flavor(
            vcpu=1, memory_mb=512, disk=1))
        for _device in range(2):
            self.create(flavor)
        waiting = self.create(flavor, 'PENDING')
        self.assertDoesNotFit(waiting, other)


class PciInPlacementTestCase(PciOutsidePlacementTestCase):

    in_placement = True


class VirtualFunctionsTestCase(_PciBase):
    """A physical function and its two virtual functions."""

    pci_info = {'num_pci': 0, 'num_pfs': 1, 'num_vfs': 2}

    def test_physical_function(self):
        servers = [self.create(self.flavor('a-vf:1')) for _vf in range(2)]
        waiting = self.create(self.flavor('a-pf:1'), 'PENDING')
        for server in servers:
            self.assertEqual(self.FILTER, self.refused_by(waiting, server))
        self.assertFits(waiting, *servers)

    def test_virtual_functions(self):
        server = self.create(self.flavor('a-pf:1'))
        waiting = self.create(self.flavor('a-vf:2'), 'PENDING')
        other = self.create(self.flavor('a-pci-dev:1'), 'PENDING')
        self.assertEqual(self.FILTER, self.refused_by(waiting))
        self.assertEqual(self.FILTER, self.refused_by(other, server))
        self.assertFits(waiting, server)


class VirtualFunctionsInPlacementTestCase(_PciBase):
    """The virtual functions of one provider, which has one pool."""

    in_placement = True
    pci_info = VirtualFunctionsTestCase.pci_info
    products = (fakelibvirt.VF_PROD_ID, )

    def test_virtual_functions(self):
        servers = [self.create(self.flavor('a-vf:1')) for _vf in range(2)]
        waiting = self.create(self.flavor('a-vf:2'), 'PENDING')
        self.restart_compute_service('compute1')
        self.assertEqual(
            self.FILTER, self.refused_by(waiting, servers[0]))
        self.assertFits(waiting, *servers)


class PciAffinityTestCase(_PciBase):
    """Each NUMA node has two processors to be pinned, and one device."""

    def setUp(self):
        self.flags(cpu_dedicated_set='2-3,6-7', cpu_shared_set='0-1,4-5',
                   group='compute')
        super().setUp()

    def test_device_and_processors_of_one_node(self):
        devices, pinned = {}, {}
        for _node in range(2):
            server = self.create(self.flavor('a-pci-dev:1'))
            (device, ) = objects.PciDeviceList.get_by_instance_uuid(
                self.ctxt, server['id'])
            devices[device.numa_node] = server
            server = self.create(self._create_flavor(
                vcpu=2, memory_mb=512, disk=1,
                extra_spec={'hw:cpu_policy': 'dedicated'}))
            (cell, ) = objects.Instance.get_by_uuid(
                self.ctxt, server['id']).numa_topology.cells
            pinned[cell.id] = server
        waiting = self.create(self._create_flavor(
            vcpu=2, memory_mb=512, disk=1, extra_spec={
                'hw:cpu_policy': 'dedicated',
                'pci_passthrough:alias': 'a-pci-dev:1'}), 'PENDING')
        for one, other in (0, 1), (1, 0):
            self.assertEqual('NUMATopologyFilter', self.refused_by(
                waiting, devices[one], pinned[other]))
        self.assertIsNone(self.refused_by(waiting, devices[0], pinned[0]))
        self.assertFits(waiting, devices[1], pinned[1])


class PciAffinityInPlacementTestCase(PciAffinityTestCase):

    in_placement = True


class NetworksTestCase(JudgedMixin,
                       test_pci_sriov_servers._PCIServersTestBase):
    """A virtual function for a port, whose network the host alone knows."""

    PCI_ALIAS = []
    PCI_DEVICE_SPEC = test_pci_sriov_servers.SRIOVServersTest.PCI_DEVICE_SPEC

    def test_port(self):
        self.neutron = self.useFixture(base.LibvirtNeutronFixture(self))
        self.start_compute(pci_info=fakelibvirt.HostPCIDevicesInfo(
            num_pfs=1, num_vfs=1))
        flavor = self._create_flavor(vcpu=1, memory_mb=512, disk=1)
        ports = [base.LibvirtNeutronFixture.network_4_port_1,
                 base.LibvirtNeutronFixture.network_4_port_2]
        for port in ports:
            self.neutron.create_port({'port': port})
        server = self.create(flavor, networks=[{'port': ports[0]['id']}])
        waiting = self.create(
            flavor, 'PENDING', networks=[{'port': ports[1]['id']}])
        self.restart_compute_service('compute1')
        self.assertEqual('PciPassthroughFilter', self.refused_by(waiting))
        self.assertFits(waiting, server)


class VGPUTestCase(JudgedMixin, test_vgpu.VGPUTestBase):
    """Each server has a VGPU, which no filter looks at, and processors."""

    ADDITIONAL_FILTERS = ['NUMATopologyFilter']

    def test_vgpu(self):
        self.flags(cpu_dedicated_set='0-7', cpu_shared_set=None,
                   group='compute')
        self.flags(enabled_mdev_types=fakelibvirt.NVIDIA_11_VGPU_TYPE,
                   group='devices')
        self.start_compute_with_vgpu('compute1')
        flavor = self._create_flavor(
            vcpu=4, memory_mb=512, disk=1, extra_spec={
                'resources:VGPU': '1', 'hw:cpu_policy': 'dedicated'})
        servers = [self.create(flavor) for _node in range(2)]
        waiting = self.create(flavor, 'PENDING')
        self.assertEqual('NUMATopologyFilter', self.refused_by(waiting))
        self.assertFits(waiting, servers[1])


class _FakesBase(test_pending_reason.PendingReasonBase):

    FILTERS = ('NumInstancesFilter', 'IoOpsFilter')

    def _setup_scheduler_service(self):
        self.flags(enabled_filters=CONF.filter_scheduler.enabled_filters + [
            *self.FILTERS], group='filter_scheduler')
        return super()._setup_scheduler_service()

    def running(self, **kwargs):
        return self._create_server(
            flavor_id=self.small, networks='none', **kwargs)

    def refused_by(self, waiting, *without, host='compute'):
        (judged, ) = self.pending(
            waiting, self.admin_api, query_of(host, without))['hosts']
        return judged['refused_by']


class UsageTestCase(_FakesBase):
    """Filters that look at the servers of a host."""

    def test_number_of_servers(self):
        servers = [self.running() for _number in range(2)]
        self.flags(max_instances_per_host=1, group='filter_scheduler')
        waiting = self.waiting()
        self.assertEqual('NumInstancesFilter', self.refused_by(waiting))
        self.assertEqual(
            'NumInstancesFilter', self.refused_by(waiting, servers[0]))
        self.assertIsNone(self.refused_by(waiting, *servers))
        # A server that is named twice is one server.
        self.assertEqual('NumInstancesFilter', self.refused_by(
            waiting, servers[0], servers[0]))

    def test_servers_that_write_and_read_much(self):
        calm, busy = self.running(), self.running()
        update(self, models.ComputeNode, stats=jsonutils.dumps(
            {'num_instances': '2', 'io_workload': '1'}))
        update(self, models.Instance, {'uuid': busy['id']},
               task_state='image_snapshot')
        self.flags(max_io_ops_per_host=1, group='filter_scheduler')
        waiting = self.waiting()
        self.assertEqual('IoOpsFilter', self.refused_by(waiting, calm))
        self.assertIsNone(self.refused_by(waiting, busy))

    def test_members_of_its_group(self):
        group = self.api.post_server_groups(
            {'name': 'apart', 'policy': 'anti-affinity'})['id']
        member, waiting = (self.wait_for(self.api.post_server({
            'server': self._build_server(
                flavor_id=self.small, networks='none'),
            'os:scheduler_hints': {'group': group}}), status)
            for status in ('ACTIVE', 'PENDING'))
        other = self.running()
        self.assertEqual('ServerGroupAntiAffinityFilter',
                         self.refused_by(waiting, other))
        self.assertIsNone(self.refused_by(waiting, member))


class RequestTestCase(_FakesBase):
    """Who may ask for what."""

    NUMBER_OF_CELLS = 2

    def setUp(self):
        super().setUp()
        self.server = self.running()
        self.server2 = self.running()
        self.waiter = self.create_waiting()

    def refused(self, status, query, api=None, waiting=None):
        return self.refusal(
            status, waiting or self.waiter, api or self.admin_api, query=query)

    def test_owners_may_not(self):
        for server in self.server['id'], uuids.unknown:
            self.assertIn('compute:server:pending:hosts:show', self.refused(
                403, query_of('compute', [server]), self.api))
        # Whether there is a server to ask for is not told.
        self.assertIn('compute:server:pending:hosts:show', self.refused(
            403, query_of('compute', [self.server]), self.api,
            uuids.unknown))

    def test_malformed(self):
        for query in query_of('compute', ['malformed']), query_of(
                'compute', ['']), '?host=compute&without':
            for api in self.api, self.admin_api:
                self.assertIn('uuid', self.refused(400, query, api))

    def test_one_host_and_not_too_many_servers(self):
        many = [self.server] * 80
        self.assertEqual(
            'compute', self.pending(
                self.waiter, self.admin_api,
                query=query_of('compute', many))['hosts'][0]['host'])
        message = self.refused(
            400, query_of('compute', many + [self.server]))
        self.assertIn('query parameters without', message)
        self.assertIn('is too long', message)
        for query in (query_of('compute', [self.server])[len('?host=compute'):]
                      .replace('&', '?'),
                      query_of('compute&host=b', [self.server])):
            self.assertEqual(
                'Name one host to judge without the servers: '
                '?host=HOST&without=ID&without=ID', self.refused(400, query))

    def test_not_on_the_host(self):
        self._start_compute('second', cell_name='cell2')
        elsewhere = self.admin_api.post_server({'server': {
            **self._build_server(flavor_id=self.small, networks='none'),
            'host': 'second'}})
        self.wait_for(elsewhere, 'ACTIVE')
        for server in elsewhere, self.waiter, {'id': uuids.unknown}:
            message = self.refused(
                409, query_of('compute', [self.server, server]))
            self.assertEqual(
                'The servers %s are not on host compute, or are about to '
                'change: leave out those that are gone or elsewhere, and ask '
                'again.' % server['id'], message)
        self.assertIsNone(
            self.refused_by(self.waiter, elsewhere, host='second'))
        for host in 'second', 'unknown':
            self.assertIn('not on host ' + host, self.refused(
                409, query_of(host, [self.server])))

    def test_gone_meanwhile(self):
        query = query_of('compute', [self.server, self.server2])
        self.pending(self.waiter, self.admin_api, query=query)
        self._delete_server(self.server)
        message = self.refused(409, query)
        self.assertIn(self.server['id'], message)
        self.assertNotIn(self.server2['id'], message)
        self.assertIsNone(self.refused_by(self.waiter, self.server2))

    def test_not_waiting(self):
        self.assertIn('does not wait', self.refused(
            409, query_of('compute', [self.server]), waiting=self.server2))

    def test_service(self):
        service = test_pending_reason.RouteTestCase.client_of(
            self, uuids.service, roles=['service'])
        self.assertEqual(
            'compute', self.pending(
                self.waiter, service, query=query_of(
                    'compute', [self.server]))['hosts'][0]['host'])

    def test_cell_that_does_not_answer(self):
        with mock.patch.object(host_refusals, '_get_rows',
                               side_effect=db_exc.DBConnectionError()):
            self.assertEqual([], self.pending(
                self.waiter, self.admin_api,
                query=query_of('compute', [self.server]))['hosts'])

    def assertUnavailable(self):
        shown = self.pending(self.waiter, self.admin_api,
                             query=query_of('compute', [self.server]))
        self.assertIsNone(shown['hosts'])
        self.assertIn('No scheduler', shown['unavailable'])

    def test_older_schedulers(self):
        """Of a scheduler that does not know the question nothing is asked."""
        self.flags(scheduler='4.6', group='upgrade_levels')
        self.assertUnavailable()

    def test_older_scheduler_is_asked(self):
        target = self.scheduler.manager.target
        with mock.patch.object(target, 'version', '4.6'):
            self.assertUnavailable()


class UnsavedTestCase(_FakesBase):
    """A server that is not created is judged as it would be when it is."""

    def setUp(self):
        super().setUp()
        self.server = {
            'flavorRef': self.small, 'project_id': uuids.project,
            'imageRef': _PUBLIC_IMAGE}

    def judge(self, api=None, status=200, hosts=None, without=None, **server):
        pending = {'server': {
            name: value for name, value in {**self.server, **server}.items()
            if value is not None}}
        if hosts is not None:
            pending['hosts'] = hosts
        if without is not None:
            pending['without'] = without
        answer = (api or self.admin_api).api_request(
            '/pending', method='POST', headers={
                'Content-Type': 'application/json'},
            body=jsonutils.dumps({'pending': pending}),
            check_response_status=[status]).json()
        if status == 200:
            return answer['pending']
        ((_name, error), ) = answer.items()
        self.assertEqual(status, error['code'])
        return error['message']

    def refused_by(self, host='compute', **kwargs):
        (judged, ) = self.judge(hosts=[host], **kwargs)['hosts']
        self.assertEqual(host, judged['host'])
        return judged['refused_by']

    def request(self, **server):
        """Return what a server would ask of Placement, by the parameter."""
        (request, ) = self.judge(hosts=['compute'], **server)['requests']
        return {name: value.split(',')
                for name, value in urlparse.parse_qsl(request)}

    def test_reason(self):
        answer = self.judge()
        self.assertEqual(('fits', []), (answer['reason'], answer['hosts']))
        self.fill()
        self.assertEqual('no_room', self.judge()['reason'])
        self.assertEqual('nothing_fits',
                         self.judge(flavorRef=self.large)['reason'])
        # The reason is the costly part.
        self.assertIsNone(self.judge(hosts=['compute'])['reason'])

    def test_as_the_server_is_judged_that_is_created(self):
        self.flags(max_instances_per_host=1, group='filter_scheduler')
        self.running()
        answer = self.judge(hosts=['compute'])
        self.assertEqual(
            'NumInstancesFilter', answer['hosts'][0]['refused_by'])
        created = self.pending(self.waiting(), self.admin_api, '?host=compute')
        for key in 'requests', 'hosts':
            self.assertEqual(created[key], answer[key])

    def test_without_servers(self):
        self.flags(max_instances_per_host=1, group='filter_scheduler')
        servers = [self.running()['id']]
        self.assertEqual('NumInstancesFilter', self.refused_by())
        self.assertIsNone(self.refused_by(without=servers))
        self.assertIn('are not on host compute', self.judge(
            status=409, hosts=['compute'], without=[uuids.unknown]))

    def test_several_hosts(self):
        self._start_compute('second')
        servers = [self.admin_api.post_server({'server': {
            **self._build_server(flavor_id=self.small, networks='none'),
            'host': host}}) for host in ('compute', 'second', 'compute')]
        for server in servers:
            self.wait_for(server, 'ACTIVE')
        self.flags(max_instances_per_host=1, group='filter_scheduler')
        answer = self.judge(hosts=['compute', 'second', 'unknown'],
                            without=[server['id'] for server in servers[:2]])
        self.assertEqual(
            {'compute': 'NumInstancesFilter', 'second': None},
            {item['host']: item['refused_by'] for item in answer['hosts']})

    def test_root_disk(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=2, ephemeral=1)
        for image, amount in (self.server['imageRef'], 3), (None, 1):
            self.assertIn('DISK_GB:%d' % amount, self.request(
                flavorRef=flavor, imageRef=image)['resources'])

    def test_image(self):
        with mock.patch.object(self.glance, 'show', return_value={
                **self.glance.show(None, self.server['imageRef']),
                'properties': {'trait:CUSTOM_OF_IMAGE': 'required'}}):
            self.assertIn('CUSTOM_OF_IMAGE',
                          self.request()['required'])

    def test_image_of_another_project(self):
        image = {**self.glance.show(None, self.server['imageRef']),
                 'is_public': False, 'owner': uuids.other}
        with mock.patch.object(self.glance, 'show', return_value=image):
            self.assertIn('Image %s could not be found' % image['id'],
                          self.judge(status=400))
            self.judge(project_id=uuids.other)

    def test_device_profile(self):
        flavor = self._create_flavor(
            extra_spec={'accel:device_profile': 'unknown'})
        with mock.patch(
                'nova.accelerator.cyborg.get_device_profile_request_groups',
                side_effect=exception.DeviceProfileError(
                    name='unknown', msg='no answer')):
            self.assertIn('no answer',
                          self.judge(status=503, flavorRef=flavor))

    def test_more_hosts_than_a_page_has(self):
        self._start_compute('second')
        self.flags(max_limit=1, group='api')
        self.assertEqual(2, len(self.judge(
            hosts=['compute', 'second'])['hosts']))

    def test_zone(self):
        aggregate = self.admin_api.post_aggregate({'aggregate': {
            'name': 'a', 'availability_zone': 'here'}})
        self.admin_api.add_host_to_aggregate(aggregate['id'], 'compute')
        self._start_compute('second')
        self.assertIsNone(self.refused_by(availability_zone='here'))
        self.assertIsNotNone(self.refused_by(
            'second', availability_zone='here'))
        for zone in 'unknown', 'here:compute':
            self.assertEqual(
                'No server can be created from this request: The requested '
                'availability zone is not available',
                self.judge(status=400, availability_zone=zone))

    def test_project(self):
        aggregate = self.admin_api.post_aggregate({'aggregate': {'name': 'a'}})
        self.admin_api.add_host_to_aggregate(aggregate['id'], 'compute')
        self.admin_api.api_post(
            '/os-aggregates/%s/action' % aggregate['id'],
            {'set_metadata': {'metadata': {
                'filter_tenant_id': uuids.project}}})
        self.flags(limit_tenants_to_placement_aggregate=True,
                   placement_aggregate_required_for_tenants=True,
                   group='scheduler')
        self.assertIsNone(self.refused_by())
        # The request filter refuses every host.
        self.assertEqual('require_tenant_aggregate',
                         self.refused_by(project_id=uuids.other))
        answer = self.judge(project_id=uuids.other)
        self.assertEqual(('refused', []),
                         (answer['reason'], answer['requests']))

    def test_refused_as_a_create(self):
        self.assertEqual(
            'No server can be created from this request: Flavor unknown could '
            'not be found.', self.judge(status=400, flavorRef='unknown'))
        self.assertIn('Image %s could not be found' % uuids.unknown,
                      self.judge(status=400, imageRef=uuids.unknown))
        flavor = self._create_flavor(
            extra_spec={'pci_passthrough:alias': 'unknown:1'})
        self.assertEqual('PCI alias unknown is not defined',
                         self.judge(status=400, flavorRef=flavor))

    def test_malformed(self):
        for bad in (
                {'flavorRef': None}, {'project_id': None}, {'imageRef': 'x'},
                {'imageRef': ''}, {'colour': 'red'}, {'hosts': 'compute'},
                {'hosts': ['compute'], 'without': ['x']},
                {'hosts': ['compute'] * 81}):
            self.judge(status=400, **bad)
        self.assertIn('Name in "hosts"', self.judge(
            status=400, without=[uuids.server]))

    def test_who_may_ask(self):
        self.assertIn('compute:server:pending:hosts:show',
                      self.judge(self.api, 403))
        service = test_pending_reason.RouteTestCase.client_of(
            self, uuids.service, roles=['service'])
        self.assertEqual(self.judge(), self.judge(service))

    def test_older_microversions(self):
        self.speak(test_pending_reason.REBUILD)
        self.judge(status=404)

    def test_nothing_is_claimed_or_written(self):
        def state():
            mappings = objects.InstanceMappingList.get_by_project_id(
                nova_context.get_admin_context(), self.api.project_id)
            return (self._get_provider_usages(provider),
                    self._get_allocations_by_provider_uuid(provider),
                    self.admin_api.get_servers(
                        search_opts={'all_tenants': 1}), len(mappings))

        (provider, ) = (item['uuid'] for item in self._get_all_providers())
        server = self.running()
        before = state()
        self.judge(hosts=['compute'], without=[server['id']])
        self.judge()
        self.assertEqual(before, state())

    def test_services_that_fail(self):
        self.flags(scheduler='4.6', group='upgrade_levels')
        self.assertIn('no scheduler answers', self.judge(status=503))
        self.flags(scheduler=None, group='upgrade_levels')
        with mock.patch.object(
                self.glance, 'show', side_effect=(
                    exception.GlanceConnectionFailed(
                        server='glance', reason='it is down'))):
            self.assertIn('it is down', self.judge(status=503))
