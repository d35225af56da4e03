# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from keystoneauth1 import exceptions as ks_exc
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler.client import report
from nova.scheduler import held_candidate
from nova.scheduler import held_room
from nova.scheduler import utils
from nova import test
from nova.tests.unit import fake_requests

RESOURCES = {'VCPU': 1, 'MEMORY_MB': 128}


def answer(status, body=None):
    return fake_requests.FakeResponse(
        status, '{}' if body is None else jsonutils.dumps(body))


def refused(code, detail):
    return answer(409, {'errors': [{'code': code, 'detail': detail}]})


class HeldRoomBase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.client = mock.Mock(spec=report.SchedulerReportClient)
        self.hold = {
            'instance_uuid': uuids.server,
            'allocations': {uuids.host: {'resources': RESOURCES}},
            'consumer_generation': 3, 'project_id': 'service',
            'user_id': 'service'}

    def held(self, status=200, **body):
        return answer(status, dict({
            'allocations': {uuids.host: {
                'resources': RESOURCES, 'generation': 7}},
            'consumer_type': 'NOVA_PENDING', 'consumer_generation': 3,
            'project_id': 'service', 'user_id': 'service'}, **body))


class HoldTestCase(HeldRoomBase):

    def find(self, status=200, **body):
        self.client.get.return_value = self.held(status, **body)
        return held_room.find(self.context, self.client, uuids.server)

    def test_find(self):
        self.assertEqual(self.hold, self.find())
        self.client.get.assert_called_once_with(
            '/allocations/' + uuids.server, version='1.38',
            global_request_id=self.context.global_id)

    def test_what_is_no_hold(self):
        self.assertIsNone(self.find(consumer_type='INSTANCE'))
        self.assertIsNone(self.find(allocations={}))
        # A placement that does not know the microversion.
        self.assertIsNone(self.find(status=406))
        self.assertRaises(ks_exc.ServiceUnavailable, self.find, status=503)

    def claim(self, *answers, found=None):
        self.client.put.side_effect = answers
        self.client.get.side_effect = [
            self.held(), *(found or [self.claimed()])]
        return held_room.claim(
            self.context, self.client, self.hold, 'owner', 'user')

    def claimed(self, **body):
        return answer(200, dict({
            'allocations': self.hold['allocations'],
            'consumer_type': 'INSTANCE', 'consumer_generation': 4,
            'project_id': 'owner', 'user_id': 'user'}, **body))

    def test_claim_that_is_another_one_s_still(self):
        for lost in ({'consumer_type': 'NOVA_PENDING'},
                     {'project_id': 'service'}, {'user_id': 'service'}):
            self.client.put.reset_mock()
            self.assertTrue(self.claim(
                answer(204), answer(204),
                found=[self.claimed(**lost), self.claimed()]))
            self.assertEqual([3, 4], [
                call.args[1]['consumer_generation']
                for call in self.client.put.call_args_list])
        conflict = refused('placement.concurrent_update',
                           'consumer generation conflict - expected 5')
        self.assertFalse(self.claim(
            answer(204), conflict, found=[self.claimed(user_id='service')]))
        self.client.put.reset_mock()
        self.assertFalse(self.claim(answer(204), found=[self.held(
            allocations={uuids.other: {'resources': RESOURCES}})]))
        self.client.put.assert_called_once()

    def test_claim_that_cannot_be_looked_at(self):
        for found in answer(503), answer(404):
            self.assertTrue(self.claim(answer(204), found=[found]))

    def test_claim_that_somebody_has_deleted(self):
        # What a delete in the same moment may have left is cleared.
        for cleared in (answer(204), refused(
                'placement.concurrent_update', 'consumer generation conflict'),
                answer(503)):
            self.client.put.reset_mock()
            self.assertFalse(self.claim(
                answer(204), cleared,
                found=[answer(200, {'allocations': {}})]))
            body = self.client.put.call_args.args[1]
            self.assertEqual(({}, None), (
                body['allocations'], body['consumer_generation']))

    def test_claim(self):
        self.assertTrue(self.claim(answer(204)))
        self.client.put.assert_called_once_with(
            '/allocations/' + uuids.server, {
                'allocations': self.hold['allocations'],
                'consumer_generation': 3, 'consumer_type': 'INSTANCE',
                'project_id': 'owner', 'user_id': 'user'},
            version='1.38', global_request_id=self.context.global_id)

    def test_what_was_changed_stays(self):
        for change in ({'consumer_type': 'INSTANCE'},
                       {'consumer_generation': 1}, {'project_id': 'other'},
                       {'allocations': {}},
                       {'allocations': {uuids.other: {
                           'resources': RESOURCES, 'generation': 7}}}):
            self.client.get.return_value = self.held(**change)
            self.assertFalse(held_room.drop(
                self.context, self.client, self.hold))
            self.assertFalse(held_room.claim(
                self.context, self.client, self.hold, 'owner', 'user'))
        self.client.put.assert_not_called()

    def test_provider_changes_meanwhile(self):
        conflict = refused('placement.concurrent_update',
                           'resource provider generation conflict')
        self.assertTrue(self.claim(*[conflict] * 3, answer(204)))
        self.client.put.reset_mock()
        self.assertFalse(self.claim(*[conflict] * 4))
        self.assertEqual(4, self.client.put.call_count)

    def test_what_is_not_tried_again(self):
        for no in (refused('placement.concurrent_update',
                           'consumer generation conflict - expected 4'),
                   refused('placement.undefined_code', 'over capacity')):
            self.client.put.reset_mock()
            self.assertFalse(self.claim(no))
            self.assertEqual(1, self.client.put.call_count)

    def test_placement_fails(self):
        self.assertRaises(ks_exc.BadGateway, self.claim, answer(502))
        for status in 400, 401, 403, 409, 429:
            self.assertRaises(ks_exc.HTTPClientError, self.claim,
                              fake_requests.FakeResponse(status, '<html>'))
        self.assertRaises(ks_exc.ConnectFailure, self.claim,
                          ks_exc.ConnectFailure())

    def test_drop(self):
        self.client.get.return_value = self.held()
        self.client.put.return_value = answer(204)
        self.assertTrue(held_room.drop(self.context, self.client, self.hold))
        body = self.client.put.call_args.args[1]
        self.assertEqual(({}, 3, 'NOVA_PENDING', 'service'), (
            body['allocations'], body['consumer_generation'],
            body['consumer_type'], body['project_id']))

    def test_drop_any(self):
        self.client.put.return_value = answer(204)
        with mock.patch.object(report, 'report_client_singleton',
                               return_value=self.client) as get_client:
            for find, dropped in (
                    ({'return_value': self.hold}, True),
                    ({'return_value': None}, True),
                    ({'side_effect': ks_exc.ConnectFailure}, False)):
                with mock.patch.object(held_room, 'find', **find):
                    self.assertEqual(dropped, report.drop_held_room(
                        self.context, uuids.server))
            self.client.put.assert_called_once()
            get_client.side_effect = ks_exc.EndpointNotFound
            self.assertFalse(report.drop_held_room(
                self.context, uuids.server))

    def test_uncounted(self):
        self.assertEqual({}, held_room.uncounted(self.context, 'service'))
        self.context.uncounted = self.hold
        for whose in ('service', ), ('service', 'service'):
            self.assertEqual(
                RESOURCES, held_room.uncounted(self.context, *whose))
        for whose in ('owner', ), ('service', 'user'):
            self.assertEqual({}, held_room.uncounted(self.context, *whose))


class CandidateBase(HeldRoomBase):

    def setUp(self):
        super().setUp()
        self.client.get.return_value = answer(
            200, {'resource_providers': [{'uuid': uuids.host}]})
        self.client.put.return_value = answer(204)

    def resources(self, vcpus=1, **extra_specs):
        return utils.ResourceRequest.from_request_spec(objects.RequestSpec(
            flavor=objects.Flavor(
                vcpus=vcpus, memory_mb=128, root_gb=0, ephemeral_gb=0, swap=0,
                extra_specs={name.replace('__', ':'): value
                             for name, value in extra_specs.items()}),
            is_bfv=False, requested_resources=[],
            image=objects.ImageMeta(properties=objects.ImageMetaProps())))

    def schedule(self):
        self.context.hold = held_candidate.ScheduledHold(self.hold)

    def claimed(self):
        """Return the hold that a claim of the scheduler is for, or None."""
        client = report.SchedulerReportClient(adapter=mock.Mock())
        with mock.patch.object(held_room, 'claim') as claim, mock.patch.object(
                client, 'put', return_value=answer(204)):
            client.claim_resources(
                self.context, uuids.server, {'allocations': {}}, 'owner',
                'user', allocation_request_version='1.36')
        return claim.call_args and claim.call_args.args[2]

    def candidates(self, **request):
        return held_candidate.candidates(
            self.context, self.client, self.resources(**request))


class CandidateTestCase(CandidateBase):

    def test_only_while_it_is_scheduled(self):
        self.assertIsNone(self.candidates())
        self.assertIsNone(self.claimed())
        self.schedule()
        self.assertIsNone(self.claimed())
        self.assertEqual((
            [{'allocations': self.hold['allocations'],
              'mappings': {'': [uuids.host]}}], {uuids.host: {}}),
            self.candidates())
        self.assertEqual(self.hold, self.claimed())
        # The second query for pinned CPUs.
        self.assertEqual(([], {}), self.candidates())
        self.client.put.assert_not_called()

    def test_misfits_are_given_back(self):
        self.client.get.return_value = self.held()
        for request in {'vcpus': 2}, {'resources1__CUSTOM_A': '1'}:
            self.client.put.reset_mock()
            self.schedule()
            for _time in range(2):
                self.assertIsNone(self.candidates(**request))
            self.assertIsNone(self.claimed())
            self.assertEqual(
                {}, self.client.put.call_args.args[1]['allocations'])

    def test_misfit_that_was_changed_meanwhile(self):
        self.client.get.return_value = self.held()
        self.client.put.return_value = refused(
            'placement.concurrent_update', 'consumer generation conflict')
        self.schedule()
        # No host at all: the claim would be added to what is there.
        self.assertEqual(([], {}), self.candidates(vcpus=2))
        self.assertIsNone(self.claimed())

    def test_placement_fails(self):
        for status in 500, 503:
            self.client.get.return_value = answer(status)
            self.schedule()
            # Nova extends a list by the second of pinned CPUs.
            self.assertEqual(([], {}), self.candidates())
        self.client.put.assert_not_called()

    def test_host_without_the_traits(self):
        for found in (answer(200, {'resource_providers': []}), answer(400)):
            self.client.get.return_value = found
            self.assertIn('traits', held_candidate.fit(
                self.context, self.client,
                self.resources(trait__CUSTOM_A='required'), self.hold)[1])
        self.assertIn('CUSTOM_A', self.client.get.call_args.args[0])

    def test_host_cannot_be_read(self):
        self.client.get.return_value = answer(500)
        self.assertRaises(
            exception.ResourceProviderRetrievalFailed, held_candidate.fit,
            self.context, self.client, self.resources(), self.hold)

    def test_aggregates_cannot_be_read(self):
        self.hold['allocations'] = {
            uuids.host: {'resources': {'VCPU': 1}},
            uuids.disks: {'resources': {'MEMORY_MB': 128}}}
        self.client.get_providers_in_tree.side_effect = (
            lambda _context, provider: [
                {'uuid': provider, 'root_provider_uuid': provider}])
        self.client.get_provider_traits.side_effect = (
            lambda _context, provider: mock.Mock(traits={
                'MISC_SHARES_VIA_AGGREGATE'} if provider == uuids.disks
                else set()))
        # The client returns None where Placement does not answer.
        self.client._get_provider_aggregates.return_value = None
        self.assertRaises(
            exception.ResourceProviderAggregateRetrievalFailed,
            held_candidate.fit, self.context, self.client,
            self.resources(), self.hold)
        self.schedule()
        self.assertEqual(([], {}), self.candidates())

    def test_pinned_processors(self):
        pinned = {'hw__cpu_policy': 'dedicated'}
        for held in {'PCPU': 1, 'MEMORY_MB': 128}, RESOURCES:
            self.hold['allocations'] = {uuids.host: {'resources': held}}
            self.assertIsNone(held_candidate.fit(
                self.context, self.client, self.resources(**pinned),
                self.hold)[1])
        self.flags(disable_fallback_pcpu_query=True, group='workarounds')
        self.assertIn('amounts', held_candidate.fit(
            self.context, self.client, self.resources(**pinned),
            self.hold)[1])


class GroupsTestCase(CandidateBase):
    """Which provider serves which group is found out again."""

    def setUp(self):
        super().setUp()
        self.traits = {uuids.host: {'CUSTOM_H'}}
        self.client.get_providers_in_tree.side_effect = (
            lambda _context, provider: [
                {'uuid': uuid, 'root_provider_uuid': uuids.host}
                for uuid in self.hold['allocations']])
        self.client.get_provider_traits.side_effect = (
            lambda _context, provider: mock.Mock(
                traits=self.traits.get(provider, set())))

    def hold_of(self, own=None, **amounts):
        """Hold something of providers below the host."""
        self.hold['allocations'] = {
            uuids.host: {'resources': dict(RESOURCES, **own or {})},
            **{getattr(uuids, name): {'resources': resources}
               for name, resources in amounts.items()}}

    def mappings(self, **extra_specs):
        """Return the mappings as lists of suffix and provider, and why not."""
        found, why = held_candidate.fit(
            self.context, self.client, self.resources(**extra_specs),
            self.hold)
        for candidate in found:
            self.assertEqual(self.hold['allocations'],
                             candidate['allocations'])
        return [candidate['mappings'] for candidate in found], why

    def test_one(self):
        self.hold_of(gpu={'VGPU': 1})
        self.assertEqual(
            ([{'': [uuids.host], '_1': [uuids.gpu]}], None),
            self.mappings(resources_1__VGPU='1'))
        self.schedule()
        found, summaries = self.candidates(resources_1__VGPU='1')
        self.assertEqual({uuids.host, uuids.gpu}, set(summaries))
        self.assertEqual([uuids.gpu], found[0]['mappings']['_1'])
        self.assertEqual(self.hold, self.claimed())
        self.client.put.assert_not_called()

    def test_each_way(self):
        self.hold_of(a={'VGPU': 1}, b={'VGPU': 1})
        specs = {'resources_1__VGPU': '1', 'resources_2__VGPU': '1'}
        ways, _why = self.mappings(**specs, group_policy='isolate')
        self.assertCountEqual(
            [[[uuids.a], [uuids.b]], [[uuids.b], [uuids.a]]],
            [[way['_1'], way['_2']] for way in ways])
        self.traits[uuids.b] = {'CUSTOM_A'}
        for kind in 'required', 'forbidden':
            ways, _why = self.mappings(**specs, trait_1__CUSTOM_A=kind)
            self.assertEqual([uuids.b if kind == 'required' else uuids.a],
                             [way['_1'][0] for way in ways])

    def test_two_of_one_provider(self):
        self.hold_of(a={'VGPU': 2})
        specs = {'resources_1__VGPU': '1', 'resources_2__VGPU': '1'}
        ways, _why = self.mappings(**specs, group_policy='none')
        self.assertEqual([{'': [uuids.host], '_1': [uuids.a],
                           '_2': [uuids.a]}], ways)
        for more in ({'group_policy': 'isolate'},
                     {'trait_1__CUSTOM_A': 'required'}):
            ways, why = self.mappings(**specs, **more)
            self.assertEqual([], ways)
            self.assertIn('groups', why)

    def test_of_a_group_and_of_none(self):
        self.hold_of({'CUSTOM_X': 1}, a={'CUSTOM_X': 2})
        ways, _why = self.mappings(resources__CUSTOM_X='1',
                                   resources_1__CUSTOM_X='2')
        self.assertEqual([{'': [uuids.host], '_1': [uuids.a]}], ways)
        # What is in no group is of one provider, for each class.
        self.hold_of({'CUSTOM_X': 1}, a={'CUSTOM_X': 1}, b={'CUSTOM_X': 1})
        ways, why = self.mappings(resources__CUSTOM_X='2',
                                  resources_1__CUSTOM_X='1')
        self.assertEqual([], ways)
        self.assertIn('groups', why)

    def test_all_of_the_host(self):
        self.hold_of({'CUSTOM_X': 1})
        self.assertEqual(
            [{'': [uuids.host], '_1': [uuids.host]}],
            self.mappings(resources_1__CUSTOM_X='1')[0])

    def test_traits_of_what_is_in_no_group(self):
        self.hold_of(a={'VGPU': 1})
        self.traits[uuids.a] = {'CUSTOM_A'}
        # A trait of the provider of a group is none of the others.
        self.assertEqual(1, len(self.mappings(
            resources_1__VGPU='1', trait__CUSTOM_A='forbidden')[0]))
        self.mappings(resources_1__VGPU='1', trait__CUSTOM_A='required')
        self.assertIn('required=CUSTOM_A', self.client.get.call_args.args[0])

    def test_in_one_subtree(self):
        self.hold_of(a={'VGPU': 1})
        resources = self.resources(resources_1__VGPU='1')
        resources._same_subtree = [['_1']]
        self.assertIn('subtree', held_candidate.fit(
            self.context, self.client, resources, self.hold)[1])
        resources._same_subtree = []
        resources.get_request_group('_1').in_tree = uuids.host
        self.assertIn('tree', held_candidate.fit(
            self.context, self.client, resources, self.hold)[1])

    def test_more_ways_than_are_looked_at(self):
        names = [f'gpu{number}' for number in range(8)]
        self.hold_of(**{name: {'VGPU': 1} for name in names})
        ways, why = self.mappings(group_policy='none', **{
            f'resources_{number}__VGPU': '1' for number in range(8)})
        self.assertEqual((100, None), (len(ways), why))

    def test_placement_fails_over_the_traits(self):
        self.hold_of(a={'VGPU': 1})
        self.client.get_provider_traits.side_effect = (
            exception.ResourceProviderTraitRetrievalFailed(uuid=uuids.a))
        self.schedule()
        self.assertEqual(([], {}), self.candidates(resources_1__VGPU='1'))
        self.client.put.assert_not_called()
