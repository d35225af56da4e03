# SPDX-License-Identifier: Apache-2.0

"""Whether there is room for servers that are not created yet."""

import copy
import json
import threading
from typing import Any

import fixtures
from oslo_utils import timeutils
import webob

from nova_reaper.cloud import model
from nova_reaper.report import http
from nova_reaper.report import probe
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


class ProbeTestCase(test_engine.EngineTestCase):
    """The API in front of an engine, on a real Placement."""

    def setUp(self) -> None:
        super().setUp()
        # The machine of the tests may be busy.
        self.useFixture(fixtures.MockPatchObject(probe, 'LONGEST', 60))
        self.nova.add_host('h1', 8)
        self.add_flavor('small', 4)
        self.restart()

    def restart(self) -> None:
        self.api = http.Api(self.conf, self.shown, self.book)

    def add_flavor(self, name: str, vcpus: int, **specs: str) -> None:
        self.nova.flavors[name] = {
            'id': f'id-{name}', 'name': name, 'vcpus': vcpus,
            'ram': vcpus * 1024, 'disk': 0, 'ephemeral': 0, 'swap': 0,
            'extra_specs': specs}

    def ask(self, status: int = 200, project: str | None = 'owner',
            roles: str = 'member,reader', **body: Any) -> Any:
        return self.post(status, body, project, roles).json

    def post(self, status: int, body: Any, project: str | None = 'owner',
             roles: str = 'member,reader') -> webob.Response:
        headers = {'X-User-Id': 'u', 'X-Roles': roles,
                   'X-Identity-Status': 'Confirmed'}
        if project:
            headers['X-Project-Id'] = project
        request = webob.Request.blank(
            '/v1/probe', method='POST', headers=headers,
            body=body if isinstance(body, bytes) else json.dumps(
                body).encode())
        response = request.get_response(self.api)
        self.assertEqual(status, response.status_int, response.text)
        return response

    def probe(self, flavor: str = 'small', **body: Any) -> Any:
        """The answer, after which everything is as it was before."""
        before, log = self.state(), len(self.nova.calls)
        answer = self.ask(flavor=flavor, **body)['probe']
        self.assertEqual(before, self.state())
        self.assertEqual(log, len(self.nova.calls))
        return answer

    def verdict(self, flavor: str = 'small', **body: Any) -> Any:
        answer = self.probe(flavor, **body)
        return answer['verdict'], answer['now'], answer['after_ends']

    def state(self) -> Any:
        """What the engine plans by."""
        known = self.engine.world
        index = known.index
        kept = vars(index.exclusions)
        said = {name: {key: repr(value) for key, value in kept[name].items()
                       if len(value)} for name in (
            '_refused', '_masks', '_refused_on', '_crowded', '_named',
            '_not_offered', '_withheld', '_denied')}
        return copy.deepcopy((
            index.plans, {name: index.free[index.classes[name]].tolist()
                          for name in ('VCPU', 'MEMORY_MB')},
            [server.id for server in index.slots.servers if server],
            index.slots.endable.tolist(), list(known.planner.ends),
            dict(known.planner.to_end),
            list(known.servers),
            [item.id for item in known.queue.in_order()], said,
            self.engine.observed))

    def test_now(self) -> None:
        self.turns()
        self.assertEqual(
            {'count': 1, 'verdict': 'now', 'now': 1, 'after_ends': 0,
             'room_by': None, 'reason': None, 'hindrance': None,
             'detail': 'A host has room.'}, self.probe())
        self.assertEqual(('now', 1, 0), self.verdict('id-small'))

    def test_pci_devices(self) -> None:
        gpu: Any = {'pci_passthrough:alias': 'a1:1'}
        self.add_flavor('gpu', 2, **gpu)
        self.add_flavor('two', 2, **{'pci_passthrough:alias': 'a1:2'})
        self.nova.add_server('v', 2, 'h1', preemptible=True, **gpu)
        self.nova.add_server('w', 2, 'h1', preemptible=True)
        self.turns()
        # Placement has room for each of them.
        self.nova.devices['h1'] = {'a1': 2}
        self.assertEqual(('now', 1, 0), self.verdict('gpu'))
        self.nova.devices['h1'] = {'a1': 1}
        answer = self.probe('gpu')
        self.assertEqual(
            ('after_ends', 'Room can be made for it.'),
            (answer['verdict'], answer['detail']))
        answer = self.probe('two')
        self.assertEqual(('later', 'refused'),
                         (answer['verdict'], answer['reason']))

    def test_filters(self) -> None:
        self.nova.add_host('h2', 8)
        self.turns()
        for name in ('ComputeCapabilitiesFilter', 'ServerGroupAffinityFilter'):
            self.nova.refused_by = {'h1': name}
            self.assertEqual(('now', 2, 0), self.verdict(count=2))
            self.assertEqual(('later', 2, 0), self.verdict(count=3))
            self.nova.refused_by['h2'] = name
            answer = self.probe()
            self.assertEqual(
                ('later', 0, 'refused'), (
                    answer['verdict'], answer['now'], answer['reason']))

    def test_filters_refuse_what_ends_would_leave(self) -> None:
        self.nova.add_server('v', 8, 'h1', preemptible=True)
        self.nova.refused_by['h1'] = 'ComputeCapabilitiesFilter'
        self.turns()
        self.assertEqual(('later', 0, 0), self.verdict())
        self.nova.refused_by.clear()
        self.assertEqual(('after_ends', 0, 2), self.verdict(count=2))

    def test_filters_of_usage(self) -> None:
        self.nova.add_server('v', 2, 'h1', preemptible=True)
        self.nova.add_server('w', 2, 'h1')
        self.turns()
        self.nova.most['h1'] = 1
        self.assertEqual('after_ends', self.probe()['verdict'])
        self.nova.most['h1'] = 0
        self.assertEqual('later', self.probe()['verdict'])

    def test_a_request_filter_refuses_every_host(self) -> None:
        self.nova.nowhere = True
        self.turns()
        self.assertEqual(
            ('later', 'refused', 'The scheduler refuses the hosts that have '
             'room, or all that could take it.'),
            tuple(self.probe()[key] for key in (
                'verdict', 'reason', 'detail')))

    def test_a_cell_that_does_not_answer(self) -> None:
        self.turns()
        self.nova.cell_down.add('h1')
        self.assertEqual('later', self.probe()['verdict'])

    def test_a_victim_that_goes_meanwhile(self) -> None:
        server = self.nova.add_server('v', 8, 'h1', preemptible=True)
        self.turns()
        del self.nova.servers[server]
        self.assertEqual('later', self.ask(flavor='small')['probe']['verdict'])

    def test_what_nova_is_asked(self) -> None:
        """Only some of many hosts are judged for one probe."""
        for number in range(2, 50):
            self.nova.add_host(f'h{number}', 8)
        self.turns()
        self.nova.judged.clear()
        self.assertEqual(('now', 3, 0), self.verdict(count=3))
        self.assertEqual([1, probe.HOSTS], self.nova.judged)
        self.nova.judged.clear()
        self.nova.refused_by = dict.fromkeys(
            self.nova.hosts, 'ComputeCapabilitiesFilter')
        del self.nova.refused_by['h31']
        self.assertEqual(('now', 1, 0), self.verdict())
        self.assertLessEqual(len(self.nova.judged), 1 + probe.ROUNDS)

    def test_by_when(self) -> None:
        limit: dict[str, Any] = {'reaper:max_run_time': '3600'}
        server = self.nova.add_server('s', 8, 'h1', **limit)
        self.nova.servers[server]['OS-SRV-USG:launched_at'] = (
            model.time_text(timeutils.utcnow(True)))
        self.turns()
        self.assertEqual('later', self.probe()['verdict'])
        by = timeutils.parse_isotime(self.probe(count=2)['room_by'])
        group = self.conf.reaper
        self.assertAlmostEqual(
            3600 + group.stop_timeout + group.end_timeout,
            (by - timeutils.utcnow(True)).total_seconds(), delta=60)
        # The reaper ends no servers in this mode.
        self.conf.set_override('mode', 'fill', 'reaper')
        self.turns()
        self.assertIsNone(self.probe()['room_by'])

    def test_by_when_for_the_first_that_would_wait(self) -> None:
        limit: dict[str, Any] = {'reaper:max_run_time': '3600'}
        self.nova.add_server('a', 2, 'h1')
        self.nova.add_server('s', 2, 'h1', **limit)
        for server in self.nova.servers.values():
            server['OS-SRV-USG:launched_at'] = (
                model.time_text(timeutils.utcnow(True)))
        self.turns()
        # The first server takes what is free, and the end leaves too little.
        self.assertEqual(('later', 1, 0), self.verdict(count=2))
        self.assertIsNone(self.probe(count=2)['room_by'])

    def test_by_when_not_where_filters_refuse(self) -> None:
        limit: dict[str, Any] = {'reaper:max_run_time': '3600'}
        server = self.nova.add_server('s', 4, 'h1', **limit)
        self.nova.servers[server]['OS-SRV-USG:launched_at'] = (
            model.time_text(timeutils.utcnow(True)))
        self.nova.refused_by['h1'] = 'ComputeCapabilitiesFilter'
        self.turns()
        answer = self.probe()
        self.assertEqual(('later', None),
                         (answer['verdict'], answer['room_by']))

    def test_several(self) -> None:
        self.nova.add_server('v', 2, 'h1', preemptible=True)
        self.turns()
        self.assertEqual(('after_ends', 1, 1), self.verdict(count=2))
        self.assertEqual(('later', 1, 1), self.verdict(count=20))
        self.assertEqual(('now', 1, 0), self.verdict())

    def test_room_that_ends_leave_over(self) -> None:
        self.nova.add_server('v', 8, 'h1', preemptible=True)
        self.turns()
        answer = self.probe(count=2)
        self.assertEqual(
            ('after_ends', 0, 2, 'no_room', 'Room can be made for it.'),
            tuple(answer[key] for key in (
                'verdict', 'now', 'after_ends', 'reason', 'detail')))

    def test_filters_judge_what_ends_leave_over_without_the_victims(
            self) -> None:
        self.nova.add_server('v', 8, 'h1', preemptible=True)
        self.turns()
        self.nova.most['h1'] = 0
        self.assertEqual(('after_ends', 0, 2), self.verdict(count=2))

    def test_accepted_victims_are_judged_once(self) -> None:
        for number in range(2, 5):
            self.nova.add_host(f'h{number}', 8)
        for number in range(1, 5):
            self.nova.add_server(f'v{number}', 8, f'h{number}',
                                 preemptible=True)
        for host in ('h3', 'h4'):
            self.nova.refused_by[host] = 'ComputeCapabilitiesFilter'
        self.turns()
        self.nova.judged.clear()
        self.assertEqual(('later', 0, 4), self.verdict(count=20))
        self.assertEqual(5, len(self.nova.judged))

    def test_a_preemptible_server_ends_none_of_its_like(self) -> None:
        self.nova.add_server('v', 8, 'h1', preemptible=True)
        self.add_flavor('spot', 4, **{'reaper:preemptible': 'true'})
        self.turns()
        self.assertEqual('later', self.probe('spot')['verdict'])
        self.assertEqual('after_ends', self.probe('small')['verdict'])

    def test_later(self) -> None:
        self.nova.add_server('s', 8, 'h1')
        self.turns()
        answer = self.probe()
        self.assertEqual(
            ('later', 'no_room', 'No host that could take it has room.'),
            (answer['verdict'], answer['reason'], answer['detail']))
        # Administrators read numbers, and no names of hosts either.
        detail = self.ask(flavor='small', roles='admin')['probe']['detail']
        self.assertIn('1 of 1 hosts could take it', detail)
        self.assertNotIn('h1', detail)

    def test_never(self) -> None:
        self.add_flavor('large', 16)
        self.add_flavor('fast', 1, **{'trait:CUSTOM_FAST': 'required'})
        self.turns()
        for flavor in ('large', 'fast'):
            answer = self.probe(flavor)
            self.assertEqual(('never', 'nothing_fits'),
                             (answer['verdict'], answer['reason']))

    def test_protected(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        self.nova.add_server('v', 4, 'h1', preemptible=True)
        self.nova.add_server('w', 4, 'h1', preemptible=True)
        self.turns()
        answer = self.probe(count=2)
        self.assertEqual(
            ('later', 0, 1, 'protected'), tuple(answer[key] for key in (
                'verdict', 'now', 'after_ends', 'hindrance')))

    def test_not_where_the_reaper_does_not_end_any(self) -> None:
        self.nova.add_server('v', 8, 'h1', preemptible=True)
        self.add_flavor('never', 4, **{'reaper:wait': 'never'})
        self.turns()
        self.assertEqual('not_asked', self.probe('never')['hindrance'])
        for mode in ('fill', 'observe'):
            self.conf.set_override('mode', mode, 'reaper')
            self.turns(2)
            answer = self.probe()
            self.assertEqual(('later', 'mode'),
                             (answer['verdict'], answer['hindrance']))

    def test_room_of_which_only_placement_knows_that_it_is_taken(self
                                                                 ) -> None:
        self.turns()
        self.room.allocate(fakes.new_id(), self.nova.hosts['h1'], 'other',
                           VCPU=8)
        self.assertEqual('later', self.probe()['verdict'])

    def test_traits(self) -> None:
        self.nova.add_host('h2', 8)
        self.room.set_traits(self.nova.hosts['h2'], 'CUSTOM_FAST')
        self.nova.add_server('s', 8, 'h2')
        self.add_flavor('fast', 4, **{'trait:CUSTOM_FAST': 'required'})
        self.add_flavor('slow', 4, **{'trait:CUSTOM_FAST': 'forbidden'})
        self.turns()
        self.assertEqual('later', self.probe('fast')['verdict'])
        self.assertEqual('now', self.probe('slow')['verdict'])

    def test_zones(self) -> None:
        self.nova.add_host('h2', 8)
        for host, zone in (('h1', 'full'), ('h2', 'free')):
            aggregate = fakes.new_id()
            self.nova.zones[aggregate] = zone
            self.room._put(self.nova.hosts[host], 'aggregates', [aggregate])
        self.nova.add_server('s', 8, 'h1')
        self.turns()
        self.assertEqual('later', self.probe(zone='full')['verdict'])
        self.assertEqual(('later', 2, 0), self.verdict(zone='free', count=3))
        self.assertEqual('now', self.probe(zone='nova')['verdict'])
        answer = self.ask(400, flavor='small', zone='none')
        self.assertIn('availability zone is not available',
                      answer['error']['message'])

    def test_what_providers_below_hosts_have(self) -> None:
        for colour in ('red', 'blue'):
            self.add_flavor(colour, 4, **{
                'resources1:CUSTOM_GPU': '1',
                'trait1:CUSTOM_' + colour.upper(): 'required'})
        self.room.client.request('PUT', '/resource_classes/CUSTOM_GPU')
        gpu = self.room.add_host('gpu', self.nova.hosts['h1'], CUSTOM_GPU=1)
        self.room.set_traits(gpu, 'CUSTOM_RED')
        self.turns()
        # Lists read the GPUs of hosts only if a server waits for a GPU.
        answer = self.post(503, {'flavor': 'blue'})
        seconds = self.conf.reaper.pending_list_interval
        self.assertEqual(str(seconds), answer.headers['Retry-After'])
        self.turns(seconds + 5)
        self.assertEqual('never', self.probe('blue')['verdict'])
        self.assertEqual('now', self.probe('red')['verdict'])

    def test_ends_for_what_providers_below_hosts_have(self) -> None:
        self.add_flavor('gpu', 2, **{'resources1:CUSTOM_GPU': '1'})
        self.room.client.request('PUT', '/resource_classes/CUSTOM_GPU')
        gpus = [self.room.add_host(f'gpu{at}', self.nova.hosts['h1'],
                                   CUSTOM_GPU=1) for at in range(3)]
        having = self.nova.add_server('v', 2, 'h1', preemptible=True)
        consumer = self.room.placement.consumer(having)
        self.room.placement.write([consumer.with_amounts(
            {**consumer.amounts, gpus[0]: {'CUSTOM_GPU': 1}})])
        self.turns()
        # Placement alone tells that there is room for a single server.
        self.assertEqual(('now', 1, 0), self.verdict('gpu'))
        self.post(503, {'flavor': 'gpu', 'count': 2})
        self.turns(self.conf.reaper.pending_list_interval + 5)
        self.assertEqual(('now', 2, 0), self.verdict('gpu', count=2))
        self.assertEqual(('after_ends', 2, 1), self.verdict('gpu', count=3))
        # A list of all servers forgets what probes have asked for.
        self.turns(2 * self.conf.reaper.full_list_interval)
        self.assertIsNone(self.engine.source.trees)

    def test_a_root_disk(self) -> None:
        self.add_flavor('disk', 4)
        self.nova.flavors['disk']['disk'] = 10
        self.turns()
        self.assertEqual('now', self.probe('disk')['verdict'])
        self.assertEqual('never',
                         self.probe('disk', image=fakes.new_id())['verdict'])

    def test_an_id_goes_before_a_name(self) -> None:
        self.add_flavor('id-small', 16)
        self.turns()
        self.assertEqual('now', self.probe('id-small')['verdict'])
        self.assertEqual('never', self.probe('id-id-small')['verdict'])

    def test_flavors_of_others(self) -> None:
        self.nova.access['id-small'] = ['owner']
        self.turns()
        self.assertEqual('now', self.probe()['verdict'])
        for flavor, project in (('small', 'other'), ('id-small', 'other'),
                                ('none', 'owner')):
            answer = self.ask(400, project, flavor=flavor)
            self.assertIn('no such flavor', answer['error']['message'])

    def test_bad_requests(self) -> None:
        self.turns()
        for body in ({}, {'flavor': ''}, {'flavor': 1}, b'x', b'[]', b'[' * 9,
                     {'flavor': 'small', 'count': 0},
                     {'flavor': 'small', 'count': 21},
                     {'flavor': 'small', 'count': True},
                     {'flavor': 'small', 'image': None},
                     {'flavor': 'small', 'image': 'cirros'},
                     {'flavor': 'small', 'zone': 'z' * 256},
                     {'flavor': 'small', 'colour': 'red'}):
            self.post(400, body)
        # No refused probe counts.
        self.assertEqual('now', self.probe()['verdict'])
        self.ask(403, None, flavor='small')
        self.ask(403, roles='', flavor='small')

    def test_a_project_may_ask_so_often(self) -> None:
        self.turns()
        for _ in range(http.PROBES):
            self.ask(flavor='small')
        answer = self.post(429, {'flavor': 'small'})
        self.assertIn('10 times a minute', answer.json['error']['message'])
        self.assertTrue(1 < int(answer.headers['Retry-After']) <= 60)
        self.ask(project='other', flavor='small')
        self.offset += 61
        self.ask(flavor='small')

    def test_all_projects_may_ask_so_often(self) -> None:
        self.turns()
        self.useFixture(fixtures.MockPatchObject(http, 'PROBES_OF_ALL', 2))
        for project in 'ab':
            self.ask(project=project, flavor='small')
        answer = self.post(503, {'flavor': 'small'})
        self.assertTrue(1 < int(answer.headers['Retry-After']) <= 60)

    def test_few_at_a_time(self) -> None:
        self.turns()
        for _ in range(http.AT_ONCE):
            self.assertTrue(self.api._probing.acquire(blocking=False))
        answer = self.post(503, {'flavor': 'small'})
        self.assertEqual('1', answer.headers['Retry-After'])
        self.api._probing.release()
        self.ask(flavor='small')
        # The place is free again.
        self.ask(flavor='small')

    def test_decisions_that_take_long(self) -> None:
        self.turns()
        self.useFixture(fixtures.MockPatchObject(probe, 'LONGEST', -1))
        before = self.state()
        answer = self.ask(400, flavor='small', count=2)
        self.assertIn('ask for fewer', answer['error']['message'])
        self.assertEqual(before, self.state())
        self.assertEqual('now', self.probe()['verdict'])

    def test_services_that_fail(self) -> None:
        self.turns()
        for verb, path in (('GET', '/flavors/detail'),
                           ('POST', '/pending')):
            self.nova.before.append((
                verb, path, lambda: self.nova.error(500)))
            answer = self.post(503, {'flavor': 'small', 'zone': 'nova'})
            self.assertIn('does not answer', answer.json['error']['message'])

    def test_before_everything_is_known(self) -> None:
        self.assertIn('not known yet',
                      self.ask(503, flavor='small')['error']['message'])

    def test_a_decision_that_fails_leaves_nothing(self) -> None:
        self.turns()
        before = self.state()
        self.useFixture(fixtures.MockPatchObject(
            self.engine.world.planner, '_without_ends',
            side_effect=[RuntimeError]))
        self.ask(500, flavor='small')
        self.assertEqual(before, self.state())

    def test_no_service_is_asked_under_the_lock_of_the_engine(self) -> None:
        self.turns()
        free = []

        def look() -> None:
            if self.engine.lock.acquire(blocking=False):
                self.engine.lock.release()
                free.append(True)

        def look_from_elsewhere() -> None:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

        for verb, path in (('GET', '/flavors/detail'),
                           ('POST', '/pending')):
            self.nova.before.append((verb, path, look_from_elsewhere))
        self.useFixture(fixtures.MockPatchObject(
            self.engine.source, 'read_room', lambda request:
            look_from_elsewhere()))
        self.ask(flavor='small', zone='nova')
        self.assertEqual([True] * 3, free)
