# SPDX-License-Identifier: Apache-2.0

"""Room that is held in placement for a server that waits."""

import contextlib
from unittest import mock

from keystoneauth1 import exceptions as ks_exc
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids
from placement.handlers import util as placement_util
from placement.objects import allocation as allocation_obj
from placement.objects import consumer as consumer_obj

from nova.cmd import manage
from nova.compute import api as compute_api
from nova.conductor.tasks import rebuild_in_cell0
from nova.conductor.tasks import recover_builds
from nova import context as nova_context
from nova.scheduler.client import query
from nova.scheduler.client import report
from nova.scheduler import held_candidate
from nova.scheduler import held_room
from nova.scheduler import manager as scheduler_manager
from nova.scheduler import request_filter
from nova.scheduler import rpcapi as scheduler_rpcapi
from nova.tests.functional.api import client as api_client
from nova.tests.functional import held_room_base
from nova.tests.unit import fake_requests


class FakeResponse:

    def __init__(self, status_code, body):
        self.status_code = status_code
        self.body = body
        self.text = str(body)
        self.headers = {}
        self.url = ''

    def json(self):
        return self.body


class HeldRoomTestCase(held_room_base.HeldRoomBase):

    def test_server_lands_where_room_is_held(self):
        self.make_room()
        self.assertEqual(204, self.hold())
        self.fill()
        other = self.create_waiting(name='other')
        self.rebuild(other)
        self.wait_for(other, 'PENDING')
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual('INSTANCE', self.held()['consumer_type'])
        self.is_built()

    def test_requests_until_a_host_is_asked(self):
        self.make_room()
        find, claim = (('get', '/allocations/SERVER'),
                       ('put', '/allocations/SERVER'))
        self.assertEqual(
            [find, ('get', '/allocation_candidates'), find, claim],
            self.asked_until_a_host_is())
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.server = self.create_waiting_full()
        self.hold()
        self.assertEqual(
            [find, ('get', '/resource_providers'), find, claim, find],
            self.asked_until_a_host_is())

    def test_placement_loses_whose_the_claim_is(self):
        # As where a deadlock has undone that part of it: the write goes on.
        self.make_room()
        self.hold()
        update = placement_util.update_consumers
        lost = []

        def update_consumers(consumers, attributes):
            if not lost:
                lost.extend(consumers)
            else:
                update(consumers, attributes)

        with mock.patch.object(placement_util, 'update_consumers',
                               update_consumers):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
        self.assertTrue(lost)
        self.is_built()

    def test_claim_and_a_delete_at_once(self):
        # Placement on MariaDB deletes the consumer then and writes its
        # allocations, which nobody sees any more.
        self.make_room()
        self.hold()
        replace_all = allocation_obj.replace_all
        lost = []

        def replace(context, allocations):
            replace_all(context, allocations)
            if not lost:
                lost.append(allocations[0].consumer.uuid)
                consumers = consumer_obj.CONSUMER_TBL
                context.session.execute(consumers.delete().where(
                    consumers.c.uuid == lost[0]))

        with mock.patch.object(allocation_obj, 'replace_all', replace):
            self.rebuild(self.server)
            self.wait_for_pending()
        self.assertEqual([self.server['id']], lost)
        self.assertEqual({'VCPU': 0, 'MEMORY_MB': 0, 'DISK_GB': 0},
                         self.usages())
        self.rebuild(self.server)
        self.is_built()

    def usages(self, host='roomy'):
        return self.placement.get(
            '/resource_providers/%s/usages' % self.provider(host)
        ).body['usages']

    def asked_until_a_host_is(self):
        with self.asked() as asked, mock.patch(
                'nova.compute.rpcapi.ComputeAPI.build_and_run_instance'
        ) as build:
            self.rebuild(self.server)
            self._wait_for_assert(build.assert_called_once)
        return asked

    def test_server_without_a_hold(self):
        self.make_room()
        self.rebuild(self.server)
        self.is_built()

    def test_what_is_no_hold_is_deleted_before_it_is_scheduled(self):
        self.make_room()
        self.assertEqual(204, self.placement.put(
            '/allocations/%s' % self.server['id'], {
                'allocations': {self.provider(): {'resources': {'VCPU': 3}}},
                'consumer_generation': None, 'consumer_type': 'INSTANCE',
                'project_id': 'service', 'user_id': 'service'},
            version='1.38').status)
        self.rebuild(self.server)
        self.is_built()

    def test_verdict_knows_what_is_held(self):
        self.make_room()
        self.hold()
        self.fill()
        before = self.held()
        self.assertIn('now: rebuild', self.verdict()['advice'])
        with mock.patch('nova.scheduler.filters.compute_filter.ComputeFilter.'
                        'host_passes', return_value=False):
            self.assertEqual('refused', self.verdict()['reason'])
        # It would be given back, and there is no other room.
        self.set_trait('roomy', 'COMPUTE_STATUS_DISABLED')
        shown = self.verdict()
        self.assertEqual('no_room', shown['reason'])
        self.assertNotIn('now: rebuild', shown['advice'])
        self.assertEqual(before['consumer_generation'],
                         self.held()['consumer_generation'])

    def test_verdict_without_placement(self):
        self.make_room()
        self.hold()
        for url in '/allocations', '/resource_providers':
            with self.placement_fails('get', url, times=100):
                shown = self.verdict()
            self.assertEqual('no_room', shown['reason'])
            self.assertEqual(2, len(shown['hosts']))

    def test_verdict_without_candidates(self):
        self.make_room()
        with mock.patch('nova.scheduler.filters.compute_filter.ComputeFilter.'
                        'host_passes', return_value=False):
            self.server = self.create_waiting()
        with self.placement_fails('get', '/allocation_candidates', times=9,
                                  status_code=503, body={}):
            self.assertEqual('refused', self.verdict()['reason'])
        self.assertIn('now: rebuild', self.verdict()['advice'])

    def verdict(self):
        return self.admin_api.api_get(
            'servers/%s/pending' % self.server['id']).body['pending']

    # What the room is held on.

    def test_host_is_down(self):
        self.make_room()
        self.hold()
        self.admin_api.put_service_force_down(
            self.admin_api.get_services(
                host='roomy', binary='nova-compute')[0]['id'], True)
        self.rebuild(self.server)
        self.waits_again()

    def test_host_is_disabled(self):
        self.make_room()
        self.hold()
        self.admin_api.put_service(
            self.admin_api.get_services(
                host='roomy', binary='nova-compute')[0]['id'],
            {'status': 'disabled'})
        self.rebuild(self.server)
        self.waits_again()

    def test_host_is_gone(self):
        self.make_room()
        self.hold()
        self.computes['roomy'].stop()
        # Its provider stays as long as it has allocations.
        self.admin_api.api_delete('/os-services/%s' % (
            self.admin_api.get_services(
                host='roomy', binary='nova-compute')[0]['id']))
        self.rebuild(self.server)
        self.waits_again()

    def test_provider_that_is_no_host(self):
        self.make_room()
        self.assertEqual(200, self.placement.post(
            '/resource_providers', {'name': 'shelf', 'uuid': uuids.shelf},
            version='1.20').status)
        self.assertEqual(200, self.placement.put(
            '/resource_providers/%s/inventories' % uuids.shelf, {
                'resource_provider_generation': 0,
                'inventories': {
                    resource_class: {'total': amount, 'max_unit': amount}
                    for resource_class, amount in self.RESOURCES.items()}}
        ).status)
        self.assertEqual(204, self.hold(allocations={
            uuids.shelf: {'resources': self.RESOURCES}}))
        self.rebuild(self.server)
        if not hasattr(request_filter, 'owner_nova_filter'):
            # The scheduler does not ask for providers of its own.
            self.waits_again()
            self.rebuild(self.server)
        self.is_built()

    def test_host_is_full_by_then(self):
        self.make_room()
        self.hold()
        self.fill()
        self.set_inventory('DISK_GB', max_unit=2000)
        self.rebuild(self.server)
        self.waits_again()

    def test_host_has_less_by_then_and_room_for_nobody_else(self):
        self.make_room()
        self.hold()
        self.fill()
        self.set_inventory('DISK_GB', reserved=1000)
        self.rebuild(self.server)
        # Placement lets what is there already be, and what is held is.
        self.is_built()

    def test_filter_refuses(self):
        self.make_room()
        self.hold()
        with mock.patch('nova.scheduler.filters.compute_filter.ComputeFilter.'
                        'host_passes', return_value=False):
            self.rebuild(self.server)
            self.waits_again()
        self.rebuild(self.server)
        self.is_built()

    # What the room is.

    def misfit(self, **hold):
        """Hold what is not what the server asks for, and has to be dropped."""
        self.make_room()
        self.assertEqual(204, self.hold(**hold))
        self.rebuild(self.server)
        self.is_built()

    def test_less_than_is_asked_for(self):
        self.misfit(resources=dict(self.RESOURCES, DISK_GB=1))

    def test_more_than_is_asked_for(self):
        self.misfit(resources=dict(self.RESOURCES, VCPU=2))

    def test_another_class_of_resources(self):
        self.misfit(resources={'VCPU': 1, 'MEMORY_MB': 128})

    def test_two_hosts(self):
        self.make_room()
        self._start_compute('other')
        self.fill('other')
        self.misfit(allocations={
            self.provider('other'): {'resources': {'VCPU': 1}},
            self.provider(): {'resources': {
                'MEMORY_MB': 128, 'DISK_GB': 2001}}})

    def make_room(self):
        if 'roomy' not in self.computes:
            super().make_room()

    def test_host_that_is_not_in_the_zone(self):
        self.make_room()
        self.flags(compute_driver='fake.FakeDriver')
        self._start_compute('zoned')
        aggregate = self.admin_api.post_aggregate(
            {'aggregate': {'name': 'zone', 'availability_zone': 'zone'}})
        self.admin_api.add_host_to_aggregate(aggregate['id'], 'zoned')
        # It waits for room in its zone.
        self.assertEqual(204, self.placement.put(
            '/allocations/%s' % uuids.zoned, {
                'allocations': {self.provider('zoned'): {
                    'resources': {'DISK_GB': self.inventory('zoned')[
                        'DISK_GB']['total']}}},
                'consumer_generation': None, 'consumer_type': 'FILLER',
                'project_id': 'filler', 'user_id': 'filler'},
            version='1.38').status)
        self.server = self.create_waiting(az='zone')
        self.placement.delete('/allocations/%s' % uuids.zoned)
        self.assertEqual(204, self.hold(host='roomy'))
        self.rebuild(self.server)
        self.is_built('zoned')

    def test_trait_that_the_host_has_not(self):
        self.make_room()
        self.server = self.create_waiting_with(
            {'trait:CUSTOM_GOLD': 'required'})
        self.flags(compute_driver='fake.FakeDriver')
        self._start_compute('golden')
        self.assertEqual(204, self.hold())
        self.set_trait('golden', 'CUSTOM_GOLD')
        self.rebuild(self.server)
        self.is_built('golden')

    def test_trait_that_the_host_has(self):
        self.make_room()
        self.server = self.create_waiting_with({
            'trait:CUSTOM_GOLD': 'required',
            'trait:CUSTOM_LEAD': 'forbidden'})
        self.set_trait('roomy', 'CUSTOM_GOLD')
        self.assertEqual(204, self.hold())
        self.fill()
        self.rebuild(self.server)
        self.is_built()

    def create_waiting_with(self, extra_specs):
        """Create a server of a flavor with extra specs that has to wait."""
        self.placement.put('/traits/CUSTOM_GOLD', {}, version='1.6')
        self.placement.put('/traits/CUSTOM_LEAD', {}, version='1.6')
        flavor = self._create_flavor(vcpu=1, memory_mb=128, disk=1,
                                     ephemeral=2000, extra_spec=extra_specs)
        server = self._build_server(flavor_id=flavor, networks='none')
        return self.wait_for(
            self.api.post_server({'server': server}), 'PENDING')

    def set_trait(self, host, trait):
        url = '/resource_providers/%s/traits' % self.provider(host)
        body = self.placement.get(url, version='1.6').body
        body['traits'].append(trait)
        self.assertEqual(
            200, self.placement.put(url, body, version='1.6').status)

    def test_groups_of_the_flavor(self):
        self.placement.put('/traits/CUSTOM_GOLD', {}, version='1.6')
        self.make_room()
        self.server = self.create_waiting_with({
            'resources1:CUSTOM_NONE': '1', 'trait:CUSTOM_GOLD': 'required'})
        self.assertEqual(204, self.hold())
        self.rebuild(self.server)
        self.waits_again()

    def test_verdict_of_groups(self):
        self.server = self.create_waiting_with(
            {'resources1:CUSTOM_MAGIC': '1'})
        self.nested()
        self.assertEqual(204, self.hold(allocations={
            self.provider(): {'resources': self.RESOURCES},
            uuids.child: {'resources': {'CUSTOM_MAGIC': 1}}}))
        self.fill()
        self.assertIn('now: rebuild', self.verdict()['advice'])
        # That drops it, and takes the room all the same.
        self.rebuild(self.server)
        self.is_built(others={uuids.child: {'CUSTOM_MAGIC': 1}})

    def shared_disk(self, aggregate):
        """Let a host have its disk from a provider that is shared."""
        self.make_room()
        self.assertEqual(200, self.placement.post(
            '/resource_providers', {'name': 'pool', 'uuid': uuids.pool},
            version='1.20').status)
        self.assertEqual(200, self.placement.put(
            '/resource_providers/%s/inventories' % uuids.pool, {
                'resource_provider_generation': 0,
                'inventories': {'DISK_GB': {
                    'total': 2001, 'max_unit': 2001}}}).status)
        self.assertEqual(200, self.placement.put(
            '/resource_providers/%s/traits' % uuids.pool, {
                'resource_provider_generation': 1,
                'traits': ['MISC_SHARES_VIA_AGGREGATE']},
            version='1.6').status)
        for provider, its in ((uuids.pool, uuids.shared),
                              (self.provider(), aggregate)):
            url = '/resource_providers/%s/aggregates' % provider
            body = self.placement.get(url, version='1.19').body
            body['aggregates'] = [its]
            self.assertEqual(
                200, self.placement.put(url, body, version='1.19').status)
        self.assertEqual(204, self.hold(allocations={
            self.provider(): {'resources': {'VCPU': 1, 'MEMORY_MB': 128}},
            uuids.pool: {'resources': {'DISK_GB': 2001}}}))

    def test_shared_disk(self):
        self.shared_disk(aggregate=uuids.shared)
        self.rebuild(self.server)
        self.is_built(resources={'VCPU': 1, 'MEMORY_MB': 128},
                      others={uuids.pool: {'DISK_GB': 2001}})

    def test_shared_disk_of_other_hosts(self):
        self.shared_disk(aggregate=uuids.other)
        self.rebuild(self.server)
        self.is_built()

    def nested(self):
        self.make_room()
        self.placement.put('/resource_classes/CUSTOM_MAGIC', {},
                           version='1.7')
        self.assertEqual(200, self.placement.post(
            '/resource_providers', {
                'name': 'child', 'uuid': uuids.child,
                'parent_provider_uuid': self.provider()},
            version='1.20').status)
        self.assertEqual(200, self.placement.put(
            '/resource_providers/%s/inventories' % uuids.child, {
                'resource_provider_generation': 0,
                'inventories': {'CUSTOM_MAGIC': {'total': 1}}}).status)
        self.set_trait('child', 'CUSTOM_GOLD')

    def test_nested_providers(self):
        self.server = self.create_waiting_with({
            'resources:CUSTOM_MAGIC': '1',
            'trait:CUSTOM_GOLD': 'required'})
        self.nested()
        # As who holds room finds it.
        candidates = self.placement.get(
            '/allocation_candidates?resources=VCPU:1,MEMORY_MB:128,'
            'DISK_GB:2001,CUSTOM_MAGIC:1&required=CUSTOM_GOLD&in_tree=' +
            self.provider(), version='1.38').body['allocation_requests']
        self.assertEqual(1, len(candidates))
        self.assertEqual(
            204, self.hold(allocations=candidates[0]['allocations']))
        self.rebuild(self.server)
        self.is_built(others={uuids.child: {'CUSTOM_MAGIC': 1}})

    def test_trait_that_is_forbidden_below_the_host(self):
        self.server = self.create_waiting_with({
            'resources:CUSTOM_MAGIC': '1',
            'trait:CUSTOM_GOLD': 'forbidden'})
        self.nested()
        self.assertEqual(204, self.hold(allocations={
            self.provider(): {'resources': self.RESOURCES},
            uuids.child: {'resources': {'CUSTOM_MAGIC': 1}}}))
        self.rebuild(self.server)
        self.waits_again()

    # What happens between the look of the conductor and the claim.

    @contextlib.contextmanager
    def before_the_claim(self, function):
        claim = held_room.claim

        def late(*args):
            function()
            return claim(*args)

        with mock.patch.object(held_room, 'claim', late):
            yield

    @contextlib.contextmanager
    def before_the_scheduler(self, function):
        select = scheduler_manager.SchedulerManager.select_held_destination

        def late(*args, **kwargs):
            function()
            return select(*args, **kwargs)

        with mock.patch.object(scheduler_manager.SchedulerManager,
                               'select_held_destination', late):
            yield

    def test_taken_away_meanwhile(self):
        for meanwhile in (self.before_the_scheduler, self.before_the_claim):
            self.make_room()
            self.hold()
            with meanwhile(lambda: self.placement.delete(
                    '/allocations/%s' % self.server['id'])):
                self.rebuild(self.server)
                self.wait_for_pending()
            self.assertEqual({}, self.held()['allocations'])
        self.rebuild(self.server)
        self.is_built()

    @contextlib.contextmanager
    def after_the_look(self, function):
        select = query.SchedulerQueryClient.select_destinations

        def late(*args, **kwargs):
            function()
            return select(*args, **kwargs)

        with mock.patch.object(query.SchedulerQueryClient,
                               'select_destinations', late):
            yield

    def test_held_after_the_conductor_has_looked(self):
        self.make_room()
        with self.after_the_look(
                lambda: self.assertEqual(204, self.hold())):
            self.rebuild(self.server)
            self.waits_again()
        self.rebuild(self.server)
        self.is_built()

    def test_held_elsewhere_after_the_conductor_has_looked(self):
        self.make_room()
        self._start_compute('other')
        self.fill('other', left=2001)
        with self.after_the_look(
                lambda: self.assertEqual(204, self.hold(host='other'))):
            self.rebuild(self.server)
            self.waits_again()

    def test_changed_after_it_was_held_too_late(self):
        self.make_room()
        with self.after_the_look(
                lambda: self.assertEqual(204, self.hold())):
            with self.before_the_claim(lambda: self.placement.delete(
                    '/allocations/%s' % self.server['id'])):
                self.rebuild(self.server)
                self.waits_again()
        self.rebuild(self.server)
        self.is_built()

    def wait_for_pending(self):
        self.assertEqual('BUILD', self.api.get_server(
            self.server['id'])['status'])
        self.wait_for(self.server, 'PENDING')

    def test_second_writer_meanwhile(self):
        self.make_room()
        self.hold()
        with self.before_the_claim(lambda: self.assertEqual(204, self.hold(
                generation=self.held()['consumer_generation'],
                resources=dict(self.RESOURCES, VCPU=2)))):
            self.rebuild(self.server)
            self.waits_again()

    def test_second_writer_does_not_know_of_the_first(self):
        self.make_room()
        self.assertEqual(204, self.hold())
        self.assertEqual(409, self.hold())
        self.rebuild(self.server)
        self.is_built()

    def test_deleted_meanwhile(self):
        for meanwhile in (self.before_the_scheduler, self.before_the_claim):
            self.make_room()
            self.hold()
            with meanwhile(lambda: self.api.delete_server(
                    self.server['id'])):
                self.rebuild(self.server)
                self._wait_until_deleted(self.server)
            self._wait_for_assert(lambda: self.assertEqual(
                {}, self.held()['allocations']))
            self.assertEqual([], self.api.get_servers())
            self.server = self.create_waiting_full()

    # A scheduler that wakes when nobody waits for it any more.

    def wake_late(self):
        """Let the server wait again before a scheduler takes its hold.

        :returns: what wakes the scheduler, a function
        """
        self.make_room()
        self._start_compute('second')
        self.assertEqual(204, self.hold())
        asked = []

        def pause(_api, *args):
            asked.append(args)
            raise messaging.MessagingTimeout()

        with mock.patch.object(scheduler_rpcapi.SchedulerAPI,
                               'select_held_destination', pause):
            self.rebuild(self.server)
            self._wait_for_assert(lambda: self.assertTrue(asked))
        # No scheduler has answered: recovery returns the server.
        self._wait_for_assert(lambda: self.assertEqual(
            (1, 0), recover_builds.recover(
                nova_context.get_admin_context(),
                report.SchedulerReportClient(), -1, None)))
        self.wait_for(self.server, 'PENDING')
        self.assertEqual({}, self.held()['allocations'])
        return lambda: self.assertRaises(
            messaging.ExpectedException,
            self.scheduler.manager.select_held_destination, *asked[0])

    def finds_it_changed(self, wake):
        before = self.held()
        self.assertEqual(1, before['consumer_generation'])
        wake()
        self.assertEqual(before, self.held())

    def test_scheduler_that_wakes_when_the_server_runs(self):
        wake = self.wake_late()
        with mock.patch('nova.scheduler.filters.compute_filter.ComputeFilter.'
                        'host_passes', lambda _filter, host, _spec:
                        host.host == 'second'):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
        self.finds_it_changed(wake)
        self.is_built(host='second')

    def test_scheduler_that_wakes_when_other_room_is_held(self):
        wake = self.wake_late()
        self.hold(host='second')
        self.finds_it_changed(wake)
        self.rebuild(self.server)
        self.is_built(host='second')

    def test_scheduler_that_wakes_and_has_to_drop_what_was_held(self):
        wake = self.wake_late()
        self.rebuild(self.server)
        server = self.wait_for(self.server, 'ACTIVE')
        with mock.patch.object(held_candidate, 'fit',
                               return_value=([], 'old')):
            self.finds_it_changed(wake)
        self.is_built(host=server['OS-EXT-SRV-ATTR:host'])

    # Placement.

    @contextlib.contextmanager
    def placement_fails(self, method, url, times=1, **kwargs):
        """Let placement not answer, or answer what it is to answer."""
        original = getattr(report.SchedulerReportClient, method)
        left = [times]

        def fail(client, path, *args, **more):
            if path.startswith(url) and left[0] > 0:
                left[0] -= 1
                if not kwargs:
                    raise ks_exc.ConnectFailure()
                return FakeResponse(**kwargs)
            return original(client, path, *args, **more)

        with mock.patch.object(report.SchedulerReportClient, method, fail):
            yield

    def conflict(self, detail):
        return {'status_code': 409, 'body': {'errors': [{
            'code': 'placement.concurrent_update', 'detail': detail}]}}

    def test_placement_does_not_say_what_is_held(self):
        self.make_room()
        self.hold()
        with self.placement_fails('get', '/allocations'):
            self.rebuild(self.server)
            self.waits_again()
        self.rebuild(self.server)
        self.is_built()

    def test_proxy_before_placement_answers(self):
        self.make_room()
        self.hold()
        client = report.SchedulerReportClient()
        context = nova_context.get_admin_context()
        hold = held_room.find(context, client, self.server['id'])
        answer = fake_requests.FakeResponse(503, '<html>', {
            'Content-Type': 'text/html'})
        with mock.patch.object(
                client, 'get', return_value=answer), mock.patch.object(
                client, 'put', return_value=answer):
            # Nobody knows whether anything is held.
            self.assertRaises(
                ks_exc.ServiceUnavailable, held_room.find, context, client,
                self.server['id'])
            self.assertRaises(
                ks_exc.ServiceUnavailable, held_room.claim, context, client,
                hold, 'project', 'user')
            with mock.patch.object(report, 'report_client_singleton',
                                   return_value=client):
                self.assertFalse(report.drop_held_room(
                    context, self.server['id']))

    def test_placement_does_not_show_the_host(self):
        self.make_room()
        self.hold()
        with self.placement_fails('get', '/resource_providers'):
            self.rebuild(self.server)
            self.waits_again()

    def test_placement_does_not_take_the_claim(self):
        self.make_room()
        self.hold()
        with self.placement_fails('put', '/allocations'):
            self.rebuild(self.server)
            self.waits_again()
        self.assertEqual({}, self.held()['allocations'])
        self.rebuild(self.server)
        self.is_built()

    def test_conflict_about_the_host(self):
        self.make_room()
        self.hold()
        with self.placement_fails(
                'put', '/allocations', times=3,
                **self.conflict('resource provider generation conflict')):
            self.rebuild(self.server)
            self.is_built()

    def test_conflict_about_the_server(self):
        self.make_room()
        self.hold()
        with self.placement_fails(
                'put', '/allocations',
                **self.conflict('consumer generation conflict')):
            self.rebuild(self.server)
            self.waits_again()

    # A scheduler that is not upgraded.

    def test_scheduler_that_is_not_upgraded(self):
        self.flags(compute_driver='fake.FakeDriver')
        self.make_room()
        self.hold()
        with mock.patch.object(
                self.scheduler.manager, 'target',
                messaging.Target(version='4.5')):
            self.rebuild(self.server)
            self.is_built()

    def test_scheduler_that_is_pinned(self):
        self.make_room()
        self.hold()
        query_client = self.conductor.manager.compute_task_mgr.query_client
        query_client.scheduler_rpcapi.client.version_cap = '4.5'
        select = scheduler_manager.SchedulerManager.select_held_destination
        with mock.patch.object(
                scheduler_manager.SchedulerManager, 'select_held_destination',
                autospec=True, side_effect=select) as asked:
            self.rebuild(self.server)
            self.is_built()
        asked.assert_not_called()

    # Nothing is left behind.

    def test_deleted_while_it_waits(self):
        self.make_room()
        self.hold()
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.held()['allocations'])

    def test_api_dies_as_it_deletes_what_is_about_to_be_rebuilt(self):
        self.make_room()
        self.hold()
        task = rebuild_in_cell0.RebuildInCell0Task
        find = task._find_current

        def find_late(*args):
            with mock.patch.object(
                    compute_api.API, '_local_cleanup_bdm_volumes',
                    side_effect=RuntimeError()):
                self.assertRaises(
                    api_client.OpenStackApiException,
                    self.api.delete_server, self.server['id'])
            return find(*args)

        with mock.patch.object(task, '_find_current', find_late):
            self.rebuild(self.server)
            self._wait_until_deleted(self.server)
        self._wait_for_assert(lambda: self.assertEqual(
            {}, self.held()['allocations']))

    def delete_and_hold(self):
        self.api.delete_server(self.server['id'])
        self.assertEqual({}, self.held()['allocations'])
        self.assertEqual(204, self.hold())

    def test_held_again_after_it_was_deleted(self):
        self.make_room()
        with mock.patch('nova.conductor.manager.ComputeTaskManager.'
                        '_recheck_quota',
                        side_effect=lambda *_args, **_kwargs: (
                            self.delete_and_hold())):
            self.rebuild(self.server)
            self._wait_until_deleted(self.server)
        self._wait_for_assert(lambda: self.assertEqual(
            {}, self.held()['allocations']))

    def test_state_that_is_reset(self):
        self.make_room()
        self.hold()
        self.admin_api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'error'}})
        self.wait_for(self.server, 'ERROR')
        self.assertEqual({}, self.held()['allocations'])

    def test_state_that_is_reset_without_placement(self):
        self.make_room()
        self.hold()
        with self.placement_fails('get', '/allocations'):
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'error'}})
        self.wait_for(self.server, 'ERROR')
        self.rebuild(self.server)
        self.is_built()

    def test_state_that_is_reset_while_placement_is_busy(self):
        self.make_room()
        self.hold()
        with self.placement_fails('put', '/allocations', status_code=429,
                                  body={}):
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'error'}},
                check_response_status=[202])
        self.wait_for(self.server, 'ERROR')

    def test_state_of_a_server_in_a_cell_that_is_reset(self):
        self.make_room()
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')
        with self.asked() as asked:
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'error'}})
        self.assertEqual([], asked)
        self.assertNotEqual({}, self.held()['allocations'])

    def test_set_error(self):
        self.make_room()
        self.hold()
        self.flags(use_pending_state=False)
        with mock.patch('builtins.print'):
            self.assertEqual(0, manage.PendingCommands().set_error())
        self.assertEqual({}, self.held()['allocations'])

    def test_set_error_while_placement_is_busy(self):
        self.make_room()
        self.hold()
        self.flags(use_pending_state=False)
        with mock.patch('builtins.print'):
            with self.placement_fails('put', '/allocations', status_code=429,
                                      body={}):
                self.assertEqual(1, manage.PendingCommands().set_error())
            self.wait_for(self.server, 'PENDING')
            self.assertEqual('NOVA_PENDING', self.held()['consumer_type'])
            self.assertEqual(0, manage.PendingCommands().set_error())
        self.assertEqual({}, self.held()['allocations'])

    def test_held_while_it_is_set_to_error(self):
        self.make_room()
        self.flags(use_pending_state=False)
        drop, holds = report.drop_held_room, iter((self.hold,))

        def late(*args):
            dropped = drop(*args)
            for hold in holds:
                self.assertEqual(204, hold())
            return dropped

        with mock.patch('builtins.print'), mock.patch.object(
                report, 'drop_held_room', late):
            self.assertEqual(0, manage.PendingCommands().set_error())
        self.wait_for(self.server, 'ERROR')
        self.assertEqual({}, self.held()['allocations'])

    def test_recovery(self):
        self.make_room()
        self.hold()
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0'):
            self.rebuild(self.server)
        self.assertEqual((1, 0), recover_builds.recover(
            nova_context.get_admin_context(),
            report.SchedulerReportClient(), -1, None))
        self.wait_for(self.server, 'PENDING')
        self.assertEqual({}, self.held()['allocations'])

    def test_recovery_of_what_was_not_taken_out(self):
        self.make_room()
        self.hold()
        with mock.patch('nova.objects.unbuilt_instance.destroy_unchanged',
                        side_effect=KeyError):
            self.refused(500, self.server)
        self.assertEqual((1, 0), recover_builds.recover(
            nova_context.get_admin_context(),
            report.SchedulerReportClient(), -1, None))
        self.wait_for(self.server, 'PENDING')
        self.assertEqual({}, self.held()['allocations'])

    def test_rebuild_that_is_refused(self):
        self.make_room()
        self.hold()
        before = self.stored(self.server), self.held()
        self.refused(400, self.server, imageRef=uuids.missing)
        self.assertEqual(before, (self.stored(self.server), self.held()))

    # Who may make one.

    def test_hold_of_a_server_that_is_created(self):
        self.make_room()
        self.hold()
        with mock.patch.object(held_room, 'find') as find:
            self._create_server(flavor_id=self.small, networks='none')
        find.assert_not_called()
