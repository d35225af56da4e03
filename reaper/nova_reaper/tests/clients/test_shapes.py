# SPDX-License-Identifier: Apache-2.0

"""What owners write into the metadata of their servers protects nobody."""

from urllib import parse

from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import tests
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


class OwnersMarksTestCase(test_engine.EngineTestCase):
    """The preemptible server bears marks of the reaper's that are none."""

    def serve(self, **marks: str) -> None:
        self.nova.add_host('h1', 8)
        self.nova.add_server(
            's', 8, 'h1', preemptible=True, metadata={
                f'reaper:{name}': value for name, value in marks.items()})
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.assertTrue(self.engine.recovered)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_for_another(self) -> None:
        self.serve(**{'for': 'x'})

    def test_for_the_name_of_a_route(self) -> None:
        self.serve(**{'for': 'detail', 'terminate_at': 'x'})

    def test_for_another_that_is_there(self) -> None:
        self.nova.add_host('h2', 1)
        other = self.nova.add_server('o', 1, 'h2')
        self.serve(**{'for': other, 'terminate_at': 'x'})

    def test_for_one_whose_id_is_written_otherwise(self) -> None:
        other = self.nova.add_server('o', 99).upper()
        self.nova.add_host('h1', 8)
        self.nova.add_server('s', 8, 'h1', preemptible=True, metadata={
            'reaper:for': other, 'reaper:terminate_at': 'x'})
        self.engine.source.read_preemptible()
        self.assertEqual([], self.engine.source.under_notice())

    def test_one_that_waits_itself(self) -> None:
        self.conf.set_override('mode', 'fill', 'reaper')
        self.nova.add_host('h1', 8)
        self.turns(3)
        waiting = self.nova.add_server('w', 8)
        held = self.room.holds.take(waiting, {
            self.nova.hosts['h1']: {'VCPU': 8, 'MEMORY_MB': 8192}})
        self.nova.add_server('x', 1, preemptible=True, metadata={
            'reaper:for': waiting, 'reaper:terminate_at': 'x'})
        self.engine.source.read_preemptible()
        server, answer = self.engine._lists.read_one(waiting, {})
        assert server and answer
        self.engine.world.put_server(server, answer)
        found = self.engine._recovery.look(
            {waiting}, {waiting}, (), 0, model.Mode.FILL)
        self.assertEqual([waiting],
                         [current.id for current in found.attempts])
        self.assertEqual(held, self.room.holds.find(waiting))

    def test_an_answer_of_half_a_server(self) -> None:
        other = fakes.new_id()
        answer = self.nova._answer(server={'id': other, 'status': 'UNKNOWN'})
        self.nova.before += [('GET', other, lambda: answer)] * 9
        self.serve(**{'for': other, 'terminate_at': 'x'})


class NumbersTestCase(tests.TestCase):

    def test_digits_alone(self) -> None:
        flavor = nova.Flavor('f', 1, 1, 1)
        for value, expected in (
                ('-5', -5), (' +5 ', 5), ('2147483647', 2147483647),
                ('2147483648', 0), ('1_000', 0), ('\u0663', 0), ('', 0),
                ('9' * 5000, 0)):
            self.assertEqual(expected, shapes.priority(
                flavor, {'reaper:priority': value}), value)


class DevicesTestCase(tests.TestCase):
    """What a flavor says of PCI devices."""

    def test_aliases(self) -> None:
        for said, expected in (
                (None, {}), ('', {}), ('gpu:1', {'gpu': 1}),
                ('a1:2,a2:1', {'a1': 2, 'a2': 1}),
                (' a 1 : 2 , a2:1', {'a 1': 2, 'a2': 1}),
                ('gpu:1,gpu:2', {'gpu': 3}), ('gpu:0', {}),
                ('gpu', {}), ('gpu:', {}), ('gpu:x', {}), ('gpu:1.5', {}),
                ('gpu:-1', {}), (':1', {}), ('gpu:1:2', {}), (',:,', {}),
                ('gpu:1,fpga', {'gpu': 1}),
                (f'gpu:{1 << 40}', {'gpu': model.MAX_INT}),
                (f'gpu:{model.MAX_INT},gpu:1', {'gpu': model.MAX_INT})):
            specs = {} if said is None else {shapes.ALIAS: said}
            self.assertEqual(expected, shapes.devices(nova.Flavor(
                'm1', 1, 1024, 0, 0, 0, specs)))


class QueryTestCase(tests.TestCase):
    """What a flavor alone says that its servers ask Placement for."""

    def query(self, **specs: str) -> dict[str, str]:
        flavor = nova.Flavor('m1', 2, 1024, 0, extra_specs=specs)
        return dict(parse.parse_qsl(shapes.query(shapes.unsaved(
            flavor, 'p', 'image', timeutils.utcnow(True)))))

    def test_of_the_host(self) -> None:
        self.assertEqual(
            {'resources': 'CUSTOM_A:1,MEMORY_MB:1024,VCPU:2',
             'required': '!COMPUTE_STATUS_DISABLED,!CUSTOM_B,CUSTOM_C'},
            self.query(**{
                'resources:CUSTOM_A': '1', 'trait:CUSTOM_B': 'forbidden',
                'trait:CUSTOM_C': 'required', 'trait:CUSTOM_D': 'x',
                'group_policy': 'isolate'}))

    def test_groups(self) -> None:
        for policy in ('none', 'isolate'):
            query = self.query(**{
                'resources1:VGPU': '1', 'resources1:CUSTOM_A': '2',
                'resources_B:VGPU': '1', 'resources2:VGPU': '0',
                'trait1:CUSTOM_C': 'required',
                'trait1:CUSTOM_D': 'forbidden'} | (
                    {'group_policy': policy} if policy != 'none' else {}))
            self.assertEqual(
                {'resources': 'MEMORY_MB:1024,VCPU:2',
                 'required': '!COMPUTE_STATUS_DISABLED',
                 'resources1': 'CUSTOM_A:2,VGPU:1', 'resources_B': 'VGPU:1',
                 'required1': '!CUSTOM_D,CUSTOM_C', 'group_policy': policy},
                query)
