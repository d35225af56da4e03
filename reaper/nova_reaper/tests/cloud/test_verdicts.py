# SPDX-License-Identifier: Apache-2.0

"""Nova's filters are asked about the best hosts, when one decides."""

import time
from typing import Any
from unittest import mock

import fixtures

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.events import bus
from nova_reaper import tests
from nova_reaper.tests import brute_force
from nova_reaper.tests import test_engine


class SevenHostsTestCase(test_engine.EngineTestCase):
    """Seven hosts have room, and Nova is asked about four at a time."""

    mode = 'fill'

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(choose, 'CANDIDATES', 4))
        for number in range(7):
            self.nova.add_host(f'h{number}', 8)

    def refuse(self, count: int) -> None:
        self.nova.refused_by.update(dict.fromkeys(
            list(self.nova.hosts)[:count], 'ComputeFilter'))


class FewHostsTestCase(SevenHostsTestCase):
    """What Nova is asked, and what becomes of its answers."""

    def test_a_question_is_about_the_best(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.turns(11)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([1, 4], self.nova.judged)

    def test_refused_hosts_make_room_for_the_next(self) -> None:
        self.refuse(5)
        waiting = self.nova.add_server('w', 8)
        self.turns(14)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([1, 4, 3, 2], self.nova.judged)
        # Servers of the same kind are spared what is known by then.
        del self.nova.judged[:]
        another = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=another)
        self.turns(11)
        self.assertEqual('ACTIVE', self.status(another))
        self.assertEqual([1], self.nova.judged)

    def test_all_of_them_refuse(self) -> None:
        self.refuse(7)
        waiting = self.nova.add_server('w', 8)
        self.turns(12)
        self.assertEqual([1, 4, 3], self.nova.judged)
        entry = self.shown.entry(waiting)
        assert entry and entry.decision
        self.assertEqual((model.Reason.REFUSED, 0, []), (
            entry.decision.reason, entry.waiting.failures, self.actions()))

    def test_a_host_is_freed_while_nova_judges(self) -> None:
        for name in list(self.nova.hosts)[1:]:
            self.nova.add_server('o', 8, name)
        pinned = self.nova.add_server('o', 2, 'h0')
        self.nova.pinned = {'h0': 0}
        judge = self.nova._pending

        def freed(*args: Any) -> Any:
            answer = judge(*args)
            if len(self.nova.judged) == 2:
                self.nova.finish(pinned)
                self.engine._refreshed(
                    'h0', self.engine.source.read_host('h0'))
            return answer

        self.turns(5)
        with mock.patch.object(self.nova, '_pending', freed):
            waiting = self.nova.add_server('w', 4)
            self.hint(bus.Kind.WAITS, server=waiting)
            self.turns(10)
        self.assertEqual('ACTIVE', self.status(waiting))


class ObservedTestCase(SevenHostsTestCase):
    """The reaper only says what it would do: filters are asked, too."""

    mode = 'observe'

    def test_a_question_is_about_the_best(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.turns(8)
        self.assertIn(waiting, self.engine.observed)
        self.assertEqual([1, 4], self.nova.judged)

    def test_refused_hosts_make_room_for_the_next(self) -> None:
        self.refuse(5)
        waiting = self.nova.add_server('w', 8)
        self.turns(11)
        self.assertIn(self.engine.observed[waiting].host,
                      list(self.nova.hosts)[5:])


class CandidatesTestCase(tests.TestCase):
    """Which hosts come next."""

    def candidates(self, victims: tuple[str, ...] = ()) -> tuple[str, ...]:
        decision = model.Decision('w', model.Verdict.ROOM, 'a', victims)
        return choose.candidates(
            self.index, brute_force.waiting({'VCPU': 4, 'MEMORY_MB': 4}),
            decision)

    def test_hosts_with_room(self) -> None:
        self.index = brute_force.world({
            'a': {'VCPU': 4, 'MEMORY_MB': 4}, 'b': {'VCPU': 9, 'MEMORY_MB': 9},
            'c': {'VCPU': 9, 'MEMORY_MB': 5}, 'd': {'VCPU': 1, 'MEMORY_MB': 9},
        }, []).index(model.Options())
        self.assertEqual(('c', 'b'), self.candidates())

    def test_hosts_that_could_have_room(self) -> None:
        def servers(host: str, count: int) -> list[model.Server]:
            return [model.Server(
                f'{host}{number}', host, {
                    'VCPU': 4 // count, 'MEMORY_MB': 4 // count},
                preemptible=True) for number in range(count)]

        full = {'VCPU': 4, 'MEMORY_MB': 4}
        self.index = brute_force.world(
            {'a': full, 'b': full, 'c': full, 'd': full},
            [*servers('a', 1), *servers('b', 4), *servers('c', 2),
             model.Server('e', 'd', full)]).index(model.Options())
        self.assertEqual(('c', 'b'), self.candidates(('a0',)))


class RateTestCase(tests.TestCase):
    """How much Nova's schedulers are asked."""

    def test_hosts_count(self) -> None:
        client = mock.Mock(spec=nova.Client)
        client.pages.return_value = [{
            'reason': 'no_room', 'message': '', 'advice': ''}]
        asked = nova.Nova(client, rest.Pace(100))
        with mock.patch.object(time, 'monotonic', lambda: 1e9), (
                mock.patch.object(time, 'sleep')) as sleep:
            asked.pending('w', ['h'] * 85)
            sleep.assert_not_called()
            asked.with_auth(mock.Mock())
            asked.pending('w', ())
        self.assertAlmostEqual(1.0, sleep.call_args.args[0], 5)
        self.assertEqual([(['h'] * 85, None), (None, 0)], [
            (call.kwargs['host'], call.kwargs['limit'])
            for call in client.pages.call_args_list])

    def test_the_reason_is_asked_for_what_no_host_has_itself(self) -> None:
        service = mock.Mock()
        forms = shapes.Shapes(service)
        server = mock.Mock(shelved=False, failed=False, id='w', project='p',
                           kind='', status='PENDING',
                           flavor=nova.Flavor('f', 1, 1, 1))
        for resource, asked, shape in (
                ('VCPU:1', [(['h'],)], {'VCPU': 1}),
                ('VCPU:1,VGPU:1', [(['h'],), ((),)], {'VCPU': 1})):
            service.pending.reset_mock()
            service.pending.return_value = nova.Pending(
                model.Reason.NO_ROOM, '', '', (f'resources={resource}',))
            answer = forms.ask(server, {'uuid': 'h'}, {'VCPU'})
            self.assertEqual(asked, [call.args[1:] for call
                                     in service.pending.call_args_list])
            self.assertEqual(shape, answer.shape.amounts)
