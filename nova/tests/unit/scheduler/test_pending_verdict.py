# SPDX-License-Identifier: Apache-2.0

from unittest import mock

import fixtures
from oslo_utils.fixture import uuidsentinel as uuids

from nova import objects
from nova.scheduler import empty_hosts
from nova.scheduler import pending_verdict
from nova.scheduler import utils
from nova import test


class AllowanceTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.useFixture(fixtures.MockPatch(
            'time.monotonic', side_effect=lambda: self.now))
        self.allowance = pending_verdict.Allowance(share=0.1, store=10)

    def spend(self, seconds):
        with self.allowance.spend() as allowed:
            self.now += seconds
        return allowed

    def test_store_and_share(self):
        self.assertTrue(self.spend(4))
        self.assertTrue(self.spend(8))
        self.assertFalse(self.spend(0))
        # A tenth of the time that passes.
        self.now += 100
        self.assertTrue(self.spend(9.5))
        self.assertTrue(self.spend(1))
        self.assertFalse(self.spend(0))

    def test_store_is_bounded(self):
        self.now += 100000
        self.assertTrue(self.spend(12))
        self.assertFalse(self.spend(0))

    def test_many_at_once(self):
        with self.allowance.spend() as first:
            others = [self.spend(0) for _time in range(3)]
            self.assertTrue(first)
            self.assertEqual([True] * 3, others)
        allowance = pending_verdict.Allowance(share=0, store=2)
        with allowance.spend(), allowance.spend():
            with allowance.spend() as third:
                self.assertFalse(third)

    def test_error(self):
        self.assertRaises(ValueError, self.fail_after, 12)
        self.assertFalse(self.spend(0))

    def fail_after(self, seconds):
        with self.allowance.spend():
            self.now += seconds
            raise ValueError()


class EmptyHostsTestCase(test.NoDBTestCase):
    """Trees of a host (VCPU, MEMORY_MB) and a child (VGPU, a trait)."""

    def setUp(self):
        super().setUp()
        self.asked = []
        self.traits = {uuids.host: ['OWNER_NOVA'], uuids.child: ['CUSTOM_A']}
        self.inventories = {
            uuids.host: {'VCPU': self.inventory(8, reserved=1, ratio=2.0),
                         'MEMORY_MB': self.inventory(1024)},
            uuids.child: {'VGPU': self.inventory(4, step_size=2)}}
        self.sharing = []

    def inventory(self, total, reserved=0, ratio=1.0, step_size=1):
        return {'total': total, 'reserved': reserved, 'min_unit': 1,
                'max_unit': total, 'step_size': step_size,
                'allocation_ratio': ratio}

    def get(self, url, **_kwargs):
        self.asked.append(url)
        parts = url.split('/')
        if url.endswith('/inventories'):
            body = {'inventories': self.inventories[parts[2]]}
        elif url.endswith('/traits'):
            body = {'traits': self.traits[parts[2]]}
        elif 'in_tree' in url:
            body = {'resource_providers': [
                {'uuid': each, 'root_provider_uuid': uuids.host}
                for each in self.inventories]}
        elif 'MISC_SHARES' in url:
            body = {'resource_providers': self.sharing}
        else:
            trait = url.rpartition('=')[2]
            body = {'resource_providers': [
                {'uuid': each, 'root_provider_uuid': uuids.host}
                for each, traits in self.traits.items() if trait in traits]}
        return mock.Mock(status_code=200, json=lambda: body)

    def could_hold(self, vcpus=1, memory_mb=128, disk=0, **extra_specs):
        flavor = objects.Flavor(
            vcpus=vcpus, memory_mb=memory_mb, root_gb=disk, ephemeral_gb=0,
            swap=0, extra_specs={
                name.replace('__', ':'): value
                for name, value in extra_specs.items()})
        spec = objects.RequestSpec(
            flavor=flavor, is_bfv=False, requested_resources=[],
            image=objects.ImageMeta(properties=objects.ImageMetaProps()))
        request = utils.ResourceRequest.from_request_spec(spec)
        return empty_hosts.EmptyHosts(
            mock.Mock(), mock.Mock(get=self.get), [request]).could_hold(
                uuids.host)

    def test_sizes(self):
        self.assertTrue(self.could_hold())
        # Of 14 that there are, one server has 8 at most.
        self.assertTrue(self.could_hold(vcpus=8))
        self.assertFalse(self.could_hold(vcpus=9))
        self.assertTrue(self.could_hold(memory_mb=1024))
        self.assertFalse(self.could_hold(memory_mb=1025))

    def test_child(self):
        self.assertTrue(self.could_hold(resources__VGPU='2'))
        self.assertFalse(self.could_hold(resources__VGPU='1'))
        self.assertFalse(self.could_hold(resources__VGPU='6'))
        self.assertTrue(self.could_hold(
            resources1__VGPU='2', trait1__CUSTOM_A='required'))
        self.assertFalse(self.could_hold(
            resources1__VGPU='2', trait1__CUSTOM_A='forbidden'))
        self.assertFalse(self.could_hold(
            resources1__VGPU='2', trait1__CUSTOM_B='required'))

    def test_traits(self):
        self.assertTrue(self.could_hold(trait__CUSTOM_A='required'))
        self.assertFalse(self.could_hold(trait__CUSTOM_B='required'))
        self.assertFalse(self.could_hold(trait__OWNER_NOVA='forbidden'))

    def test_shared_disk(self):
        self.assertFalse(self.could_hold(disk=1))
        self.sharing = [{'uuid': uuids.pool, 'root_provider_uuid': uuids.pool}]
        self.assertTrue(self.could_hold(disk=1))
        self.assertFalse(self.could_hold(disk=1, vcpus=9))

    def test_trees_are_not_read_without_end(self):
        flavor = objects.Flavor(
            vcpus=9, memory_mb=128, root_gb=0, ephemeral_gb=0, swap=0,
            extra_specs={'trait:CUSTOM_A': 'required'})
        request = utils.ResourceRequest.from_request_spec(objects.RequestSpec(
            flavor=flavor, is_bfv=False, requested_resources=[],
            image=objects.ImageMeta(properties=objects.ImageMetaProps())))
        empty = empty_hosts.EmptyHosts(
            mock.Mock(), mock.Mock(get=self.get), [request])
        self.assertFalse(any(empty.could_hold(uuids.host)
                             for _time in range(empty_hosts._TREES)))
        read = self.trees_read()
        # What was not read is taken for granted, but for the traits.
        self.assertTrue(empty.could_hold(uuids.host))
        self.assertFalse(empty.could_hold(uuids.other))
        self.assertEqual(read, self.trees_read())

    def trees_read(self):
        return len([url for url in self.asked if 'in_tree' in url])

    def test_traits_are_asked_for_once(self):
        request = utils.ResourceRequest.from_request_spec(objects.RequestSpec(
            flavor=objects.Flavor(
                vcpus=1, memory_mb=128, root_gb=0, ephemeral_gb=0, swap=0,
                extra_specs={'trait:CUSTOM_B': 'required'}),
            is_bfv=False, requested_resources=[],
            image=objects.ImageMeta(properties=objects.ImageMetaProps())))
        empty = empty_hosts.EmptyHosts(
            mock.Mock(), mock.Mock(get=self.get), [request])
        for _time in range(100):
            self.assertFalse(empty.could_hold(uuids.host))
        self.assertEqual(1, len([
            url for url in self.asked if url.endswith('=CUSTOM_B')]))

    def test_placement_is_down(self):
        self.get = mock.Mock(return_value=mock.Mock(status_code=503))
        self.assertRaises(
            empty_hosts.PlacementUnavailable, self.could_hold)

    def test_host_that_placement_does_not_know(self):
        self.inventories = {}
        self.assertFalse(self.could_hold())

    def test_groups_that_one_provider_would_have_to_serve(self):
        """No proof, so the host counts as one that could take them."""
        self.assertTrue(self.could_hold(
            resources1__VGPU='2', resources1__MEMORY_MB='1'))
