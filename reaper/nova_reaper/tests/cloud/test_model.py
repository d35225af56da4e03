#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

from nova_reaper.cloud import model
from nova_reaper import tests


class InventoryTestCase(tests.TestCase):
    """Capacity is Placement's."""

    def test_capacity(self) -> None:
        self.assertEqual(
            24, model.Inventory(8, reserved=2, allocation_ratio=4.0).capacity)

    def test_capacity_is_rounded_down(self) -> None:
        self.assertEqual(
            1, model.Inventory(1, allocation_ratio=1.9).capacity)


class ShapeTestCase(tests.TestCase):
    """Shapes are equal if their requests are."""

    def test_order_and_zeros_do_not_matter(self) -> None:
        self.assertEqual(model.Shape.of({'VCPU': 1, 'MEMORY_MB': 2}),
                         model.Shape.of({'MEMORY_MB': 2, 'DISK_GB': 0,
                                         'VCPU': 1}))


class DecisionTestCase(tests.TestCase):
    """The one structure that all of what is said is made of."""

    def test_to_dict(self) -> None:
        decision = model.Decision('w1', model.Verdict.PREEMPT, 'h1', ('s1',),
                                  model.Reason.NO_ROOM, 'Because.')
        self.assertEqual(
            {'server': 'w1', 'verdict': 'preempt', 'host': 'h1',
             'victims': ['s1'], 'reason': 'no_room', 'hindrance': None,
             'detail': 'Because.'},
            decision.to_dict())
