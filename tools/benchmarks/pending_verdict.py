# SPDX-License-Identifier: Apache-2.0

"""How long a question why a server waits keeps a thread of nova-scheduler.

    .tox/nova/bin/python tools/benchmarks/pending_verdict.py [HOSTS]

A cell's database (SQLite) with so many hosts, 10,000 unless told otherwise;
host manager, filters and database layer are those of the release, Placement is
a stand-in that answers at once and counts what it is asked. The output has the
median of three runs for each question: seconds of this process, seconds of
CPU, and requests to Placement. It compares them with a real scheduling of
1,000 candidates, the most that Nova asks Placement for.
"""

import statistics
import sys
import time

import fixtures
from oslo_utils import timeutils
from oslo_utils import uuidutils

from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import objects
from nova.scheduler import host_manager
from nova.scheduler import pending_verdict
from nova import test

HOSTS = 10000
_RUNS = 3
_NODE = {'vcpus': 64, 'memory_mb': 262144, 'local_gb': 2000}


def _print(text):
    # The tests of the release keep what is printed.
    print(text, file=sys.__stdout__, flush=True)


class _Answer:

    def __init__(self, body, status_code=200):
        self.status_code = status_code
        self._body = body

    def json(self):
        return self._body


class _Placement:
    """Hosts that are full, all alike, and none with a trait."""

    def __init__(self, uuids, candidates=()):
        self.uuids = uuids
        self.candidates = candidates
        self.asked = 0

    def get_allocation_candidates(self, context, request):
        self.asked += 1
        return ([{'allocations': {each: {'resources': {}}},
                  'mappings': {'': [each]}} for each in self.candidates],
                {each: {} for each in self.candidates}, '1.36')

    def get(self, url, **kwargs):
        self.asked += 1
        if url.endswith('/inventories'):
            return _Answer({'inventories': {
                name: {'total': _NODE[column], 'reserved': 0, 'min_unit': 1,
                       'allocation_ratio': 1.0, 'step_size': 1,
                       'max_unit': _NODE[column]}
                for name, column in (('VCPU', 'vcpus'),
                                     ('MEMORY_MB', 'memory_mb'),
                                     ('DISK_GB', 'local_gb'))}})
        if url.endswith('/traits'):
            return _Answer({'traits': ['OWNER_NOVA']})
        if 'in_tree=' in url:
            root = url.rpartition('=')[2]
            return _Answer({'resource_providers': [
                {'uuid': root, 'root_provider_uuid': root}]})
        if url.endswith('=OWNER_NOVA'):
            return _Answer({'resource_providers': [
                {'uuid': each, 'root_provider_uuid': each}
                for each in self.uuids]})
        return _Answer({'resource_providers': []})


class _Benchmark(test.TestCase):

    def runTest(self):
        count = int(sys.argv[1]) if len(sys.argv) > 1 else HOSTS
        self.context = nova_context.get_admin_context()
        uuids = self._make_hosts(count)
        # They are up for as long as this runs.
        self.flags(service_down_time=100000)
        # Nothing else is to run meanwhile.
        self.flags(track_instance_changes=False, group='filter_scheduler')
        self.manager = host_manager.HostManager()
        # As nova-compute tells it: without, each host's are read.
        self.manager._instance_info = {
            'host%05d' % number: {'instances': {}, 'updated': True}
            for number in range(count)}
        self.useFixture(fixtures.MockPatch(
            'nova.scheduler.request_filter.ALL_REQUEST_FILTERS', []))
        self.useFixture(fixtures.MockPatch(
            'nova.scheduler.utils.setup_instance_group'))
        _print('%-50s %8s %8s %8s' % (
            '%d hosts' % count, 'seconds', 'CPU', 'requests'))
        full = _Placement(uuids)
        some = _Placement(uuids, uuids[:1000])
        spec = self._spec()
        refused = self._spec({'capabilities:hypervisor_type': 'other'})
        self._measure('released: states and filters of 1,000 candidates',
                      some, lambda: self._released(uuids[:1000], spec))
        self._measure('one host, the reason known', full, lambda: self._find(
            spec, full, hosts=['host00001'], limit=1000, reason=False))
        self._measure('the 32 hosts that nova-reaper asks about', full,
                      lambda: self._find(
                          spec, full, limit=1000, reason=False, hosts=[
                              'host%05d' % number for number in range(32)]))
        self._measure('a page of 1,000 hosts, the reason known', full,
                      lambda: self._find(spec, full, limit=1000,
                                         reason=False))
        for text, placement, asked in (
                ('no_room', full, spec),
                ('refused, 1,000 of them with room', some, refused),
                ('refused, none with room', full, refused),
                ('nothing_fits: larger than any', full,
                 self._spec(vcpus=128)),
                ('nothing_fits: a trait that nobody has', full,
                 self._spec({'trait:CUSTOM_RARE': 'required'}))):
            found = self._measure(
                'reason ' + text, placement,
                lambda: self._find(asked, placement, limit=0))
            self.assertEqual(text.partition(':')[0].partition(',')[0],
                             found['reason'])

    def _make_hosts(self, count):
        now = timeutils.utcnow()
        nodes = [dict(
            _NODE, uuid=uuidutils.generate_uuid(), host='host%05d' % number,
            hypervisor_hostname='host%05d' % number, vcpus_used=64,
            memory_mb_used=262144, local_gb_used=2000, free_ram_mb=0,
            free_disk_gb=0, disk_available_least=0, running_vms=0,
            current_workload=0, cpu_info='{}', hypervisor_type='QEMU',
            hypervisor_version=9000000, cpu_allocation_ratio=1.0,
            ram_allocation_ratio=1.0, disk_allocation_ratio=1.0, stats='{}',
            supported_instances='[["x86_64", "kvm", "hvm"]]',
            host_ip='127.0.0.1', updated_at=now) for number in range(count)]
        services = [dict(
            host=node['host'], binary='nova-compute', topic='compute',
            report_count=1, disabled=False, version=100,
            last_seen_up=now,
            uuid=uuidutils.generate_uuid()) for node in nodes]
        with nova_context.target_cell(
                self.context, self.cell_mappings['cell1']) as cctxt:
            with main_db_api.get_context_manager(cctxt).writer.using(
                    cctxt) as session:
                session.execute(models.ComputeNode.__table__.insert(), nodes)
                session.execute(models.Service.__table__.insert(), services)
        return sorted(node['uuid'] for node in nodes)

    def _spec(self, extra_specs=None, vcpus=4):
        flavor = objects.Flavor(
            id=1, flavorid='1', name='f', vcpus=vcpus, memory_mb=8192,
            root_gb=20, ephemeral_gb=0, swap=0, extra_specs=extra_specs or {})
        return objects.RequestSpec(
            self.context, flavor=flavor, image=objects.ImageMeta(
                properties=objects.ImageMetaProps()),
            numa_topology=None, pci_requests=None, instance_group=None,
            instance_uuid=uuidutils.generate_uuid(), project_id='p',
            num_instances=1,
            requested_destination=None, requested_resources=[],
            force_hosts=None, force_nodes=None, ignore_hosts=None,
            scheduler_hints={}, availability_zone=None, is_bfv=False,
            request_level_params=objects.RequestLevelParams(), retry=None)

    def _released(self, uuids, spec):
        states = list(self.manager.get_host_states_by_uuids(
            self.context, uuids, spec))
        for state in states:
            state.allocation_candidates = [{'mappings': {'': [state.uuid]}}]
        return self.manager.get_filtered_hosts(states, spec)

    def _find(self, spec, placement, **options):
        return pending_verdict.find(
            self.context, spec.obj_clone(), self.manager, placement,
            **options)

    def _measure(self, text, placement, function):
        runs = []
        for _run in range(_RUNS):
            asked = placement.asked
            wall, cpu = time.perf_counter(), time.process_time()
            found = function()
            runs.append((time.perf_counter() - wall,
                         time.process_time() - cpu,
                         placement.asked - asked))
        _print('%-50s %8.2f %8.2f %8d' % (
            text, *(statistics.median(each) for each in zip(*runs))))
        return found


if __name__ == '__main__':
    result = _Benchmark().run()
    for _test, text in result.errors + result.failures:
        sys.exit(text)
