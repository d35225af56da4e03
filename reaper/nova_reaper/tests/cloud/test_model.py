# SPDX-License-Identifier: Apache-2.0

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
    """The structure that every answer of the reaper is made of."""

    def test_to_dict(self) -> None:
        decision = model.Decision('w1', model.Verdict.PREEMPT, 'h1', ('s1',),
                                  model.Reason.NO_ROOM, 'Because.')
        self.assertEqual(
            {'server': 'w1', 'verdict': 'preempt', 'host': 'h1',
             'victims': ['s1'], 'reason': 'no_room', 'hindrance': None,
             'detail': 'Because.'},
            decision.to_dict())
