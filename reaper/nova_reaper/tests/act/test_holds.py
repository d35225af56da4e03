# SPDX-License-Identifier: Apache-2.0

"""Holds, on a real Placement."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any
from unittest import mock

from placement.objects import allocation
from placement.objects import consumer

from nova_reaper.act import holds
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper import tests
from nova_reaper.tests import fakes


class HoldsTestCase(tests.TestCase):
    """Room changes hands in one transaction, or not at all."""

    def setUp(self) -> None:
        super().setUp()
        self.room: fakes.PlacementFixture = self.useFixture(
            fakes.PlacementFixture())
        self.holds = self.room.holds
        self.host = self.room.add_host('h1', VCPU=8)
        self.waiting = fakes.new_id()

    def victim(self, vcpus: int) -> placement.Consumer:
        server = fakes.new_id()
        self.room.allocate(server, self.host, 'owner', VCPU=vcpus)
        return self.room.placement.consumer(server)

    def amounts(self, vcpus: int) -> placement.Amounts:
        return {self.host: {'VCPU': vcpus}}

    def test_a_hold_is_in_the_reapers_project(self) -> None:
        held = self.holds.take(self.waiting, self.amounts(6))
        self.assertEqual(fakes.SERVICE, held.project)
        self.assertEqual(placement.HOLD, held.type)
        self.assertEqual(
            1, self.room.placement.count_holds(fakes.SERVICE))

    def test_there_is_no_room_for_two(self) -> None:
        self.holds.take(self.waiting, self.amounts(6))
        self.assertRaises(rest.Conflict, self.holds.take, fakes.new_id(),
                          self.amounts(4))

    def test_another_reaper_holds_already(self) -> None:
        self.holds.take(self.waiting, self.amounts(2))
        other = holds.Holds(self.room.placement, fakes.SERVICE, 'other')
        self.assertRaises(rest.Conflict, other.take, self.waiting,
                          self.amounts(2))
        self.assertEqual({'VCPU': 2}, self.room.has(self.waiting))

    def test_a_hold_grows(self) -> None:
        held = self.holds.take(self.waiting, self.amounts(2))
        self.holds.take(self.waiting, self.amounts(6), held)
        self.assertEqual({'VCPU': 6}, self.room.has(self.waiting))

    @contextlib.contextmanager
    def deleted_at_once(self) -> Iterator[None]:
        """What Placement on MariaDB leaves of a change and a delete.

        The consumer is gone, and its allocations count and are not shown.
        """
        replace_all = allocation.replace_all

        def replace(context: Any, allocations: Any) -> None:
            replace_all(context, allocations)
            consumers = consumer.CONSUMER_TBL
            context.session.execute(consumers.delete().where(
                consumers.c.uuid == self.waiting))

        with mock.patch.object(allocation, 'replace_all', replace):
            yield
        self.assertEqual({}, self.room.has(self.waiting))

    def used(self) -> int:
        usages = self.room.client.request(
            'GET', f'/resource_providers/{self.host}/usages')['usages']
        return int(usages['VCPU'])

    def test_a_hold_grows_as_its_server_is_deleted(self) -> None:
        held = self.holds.take(self.waiting, self.amounts(2))
        with self.deleted_at_once():
            self.assertRaises(rest.Conflict, self.holds.take, self.waiting,
                              self.amounts(6), held)
        self.assertEqual(0, self.used())

    def test_swap_as_the_server_is_deleted(self) -> None:
        held = self.holds.take(self.waiting, self.amounts(2))
        victim = self.victim(6)
        with self.deleted_at_once():
            self.assertEqual({}, self.holds.swap(
                self.waiting, self.amounts(8), held, [victim]).amounts)
        self.assertEqual(0, self.used())

    def test_somebody_holds_room_right_after_the_delete(self) -> None:
        held = self.holds.take(self.waiting, self.amounts(2))
        look = self.room.placement.consumer

        def late(server: str) -> placement.Consumer:
            self.room.client.request('DELETE', f'/allocations/{server}')
            found = look(server)
            self.room.placement.write([dataclasses.replace(
                held, amounts=self.amounts(5), generation=None)])
            return found

        with mock.patch.object(self.room.placement, 'consumer', late):
            self.assertRaises(rest.Conflict, self.holds.take, self.waiting,
                              self.amounts(6), held)
        self.assertEqual({'VCPU': 5}, self.room.has(self.waiting))

    def test_swap(self) -> None:
        victims = [self.victim(4), self.victim(4)]
        self.holds.swap(self.waiting, self.amounts(6), None, victims)
        self.assertEqual({'VCPU': 6}, self.room.has(self.waiting))
        for victim in victims:
            self.assertEqual({}, self.room.has(victim.id))

    def test_a_victim_has_changed(self) -> None:
        victims = [self.victim(4), self.victim(4)]
        self.room.placement.write([
            victims[0].with_amounts(self.amounts(3))])
        self.assertRaises(rest.Conflict, self.holds.swap, self.waiting,
                          self.amounts(6), None, victims)
        self.assertEqual({}, self.room.has(self.waiting))
        self.assertEqual({'VCPU': 4}, self.room.has(victims[1].id))

    def test_a_victim_is_not_enough(self) -> None:
        victims = [self.victim(4), self.victim(4)]
        self.assertRaises(rest.Conflict, self.holds.swap, self.waiting,
                          self.amounts(6), None, victims[:1])
        self.assertEqual({'VCPU': 4}, self.room.has(victims[0].id))

    def test_two_reapers_swap_the_same_victim(self) -> None:
        victims = [self.victim(8)]
        other = fakes.new_id()
        self.holds.swap(self.waiting, self.amounts(8), None, victims)
        self.assertRaises(rest.Conflict, self.holds.swap, other,
                          self.amounts(8), None, victims)
        self.assertEqual({'VCPU': 8}, self.room.has(self.waiting))
        self.assertEqual({}, self.room.has(other))

    def give_back(self, victims: Sequence[placement.Consumer],
                  *left: bool) -> list[int]:
        """Give it back to victims that have left, as each look says.

        :returns: the places in the list of victims of those that live on with
            less than they had
        """
        looks = iter(left)
        short = self.holds.give_back(
            self.waiting, victims, lambda _: next(looks, False))
        return [place for place, victim in enumerate(victims)
                if victim.id in short]

    def test_nothing_is_given_back_to_one_that_has_left(self) -> None:
        victims = [self.victim(8)]
        for left in (True,), (False, True):
            # Before it is written, and in the moment in which it is.
            self.holds.swap(self.waiting, self.amounts(8), None, victims)
            self.assertEqual([], self.give_back(victims, *left))
            self.assertEqual({}, self.room.has(victims[0].id))
            self.assertEqual({}, self.room.has(self.waiting))
            victims = [self.victim(8)]

    def test_the_reverse_swap(self) -> None:
        victims = [self.victim(4), self.victim(4)]
        self.holds.swap(self.waiting, self.amounts(6), None, victims)
        self.assertEqual([], self.give_back(victims[:1]))
        self.assertEqual({'VCPU': 4}, self.room.has(victims[0].id))
        self.assertEqual({}, self.room.has(victims[1].id))
        self.assertEqual({}, self.room.has(self.waiting))
        # Again changes nothing.
        self.assertEqual([], self.give_back(victims[:1]))

    def test_the_reverse_swap_where_the_room_is_taken(self) -> None:
        victims = [self.victim(8)]
        self.holds.swap(self.waiting, self.amounts(8), None, victims)
        self.holds.release(self.waiting)
        third = fakes.new_id()
        self.room.allocate(third, self.host, 'third', VCPU=8)
        self.assertEqual([0], self.give_back(victims))
        self.assertEqual({}, self.room.has(victims[0].id))
        self.room.client.request('DELETE', f'/allocations/{third}')
        self.assertEqual([], self.give_back(victims))
        self.assertEqual({'VCPU': 8}, self.room.has(victims[0].id))

    def test_the_reverse_swap_where_a_part_of_the_room_is_taken(self) -> None:
        victims = [self.victim(3), self.victim(5)]
        self.holds.swap(self.waiting, self.amounts(6), None, victims)
        self.room.allocate(fakes.new_id(), self.host, 'third', VCPU=1)
        self.assertEqual([1], self.give_back(victims))
        self.assertEqual({'VCPU': 3}, self.room.has(victims[0].id))
        self.assertEqual({'VCPU': 4}, self.room.has(victims[1].id))
        self.assertEqual({}, self.room.has(self.waiting))

    def test_the_reverse_swap_on_a_host_that_has_shrunk(self) -> None:
        victims = [self.victim(4), self.victim(4)]
        self.holds.swap(self.waiting, self.amounts(6), None, victims)
        self.room.set_inventory(self.host, VCPU=5)
        self.assertEqual([1], self.give_back(victims))
        self.assertEqual({'VCPU': 4}, self.room.has(victims[0].id))
        self.assertEqual({'VCPU': 2}, self.room.has(victims[1].id))
        self.assertEqual({}, self.room.has(self.waiting))

    def test_the_reverse_swap_where_all_writes_are_refused(self) -> None:
        victims = [self.victim(8)]
        self.holds.swap(self.waiting, self.amounts(8), None, victims)
        with mock.patch.object(
                self.room.placement, 'write', side_effect=rest.Conflict(
                    'placement', 'allocations', 'changed', 409)):
            self.assertEqual([0], self.give_back(victims))
        # A sweep does it.
        self.assertEqual({'VCPU': 8}, self.room.has(self.waiting))
        self.assertEqual([], self.give_back(victims))

    def test_release(self) -> None:
        self.assertFalse(self.holds.release(self.waiting))
        self.holds.take(self.waiting, self.amounts(6))
        self.assertTrue(self.holds.release(self.waiting))
        self.assertEqual({}, self.room.has(self.waiting))

    def test_a_claim_is_not_released(self) -> None:
        server = self.victim(2)
        self.assertFalse(self.holds.release(server.id))
        self.assertEqual({'VCPU': 2}, self.room.has(server.id))

    def test_a_claim_whose_type_was_left_is_not_released(self) -> None:
        held = self.holds.take(self.waiting, self.amounts(6))
        self.room.placement.write([
            dataclasses.replace(held, project='owner')])
        self.assertIsNone(self.holds.find(self.waiting))
        self.assertFalse(self.holds.release(self.waiting))
        self.assertEqual({'VCPU': 6}, self.room.has(self.waiting))

    def test_a_claim_between_the_look_and_the_release(self) -> None:
        held = self.holds.take(self.waiting, self.amounts(6))
        claims = [dataclasses.replace(held, project='owner')]
        write = self.room.placement.write

        def claim(consumers: Any) -> None:
            if claims:
                write([claims.pop()])
            write(consumers)

        with mock.patch.object(self.room.placement, 'write', claim):
            self.assertFalse(self.holds.release(self.waiting))
        self.assertEqual({'VCPU': 6}, self.room.has(self.waiting))
