# SPDX-License-Identifier: Apache-2.0

import socket
from unittest import mock

import testtools

from tools.cloud import errors
from tools.cloud import ports


class PortsTestCase(testtools.TestCase):

    def take(self, *names):
        taken = ports.Ports(names)
        self.addCleanup(taken.release_all)
        return taken

    def bind(self, number):
        with socket.socket() as other:
            other.bind((ports.HOST, number))

    def test_each_name_has_a_port_of_its_own(self):
        numbers = self.take('one', 'two', 'three').numbers
        self.assertEqual({'one', 'two', 'three'}, set(numbers))
        self.assertEqual(3, len(set(numbers.values())))

    def test_port_is_held_until_it_is_released(self):
        taken = self.take('one', 'two')
        self.assertRaises(OSError, self.bind, taken.numbers['one'])
        taken.release('one')
        self.bind(taken.numbers['one'])
        self.assertRaises(OSError, self.bind, taken.numbers['two'])
        taken.release_all()
        self.bind(taken.numbers['two'])

    def test_port_may_be_released_twice(self):
        taken = self.take('one')
        taken.release('one')
        taken.release('one')

    def test_two_clouds_share_no_port(self):
        names = [str(number) for number in range(50)]
        one, other = self.take(*names), self.take(*names)
        self.assertEqual(
            set(), set(one.numbers.values()) & set(other.numbers.values()))

    def test_no_port_is_one_of_outgoing_connections(self):
        # Linux takes those from 32768 on.
        for number in self.take('one', 'two').numbers.values():
            self.assertLess(number, 32768)

    def test_given_port_is_taken(self):
        number = self.take('any').numbers['any']
        error = self.assertRaises(
            errors.BadArgument, ports.Ports, ['one'], {'one': number})
        self.assertIn('Port %d, which one is to have' % number, str(error))

    def test_given_port_is_had(self):
        free = self.take('any')
        number = free.numbers['any']
        free.release_all()
        taken = ports.Ports(['one', 'two'], {'two': number})
        self.addCleanup(taken.release_all)
        self.assertEqual(number, taken.numbers['two'])
        self.assertEqual({'one', 'two'}, set(taken.numbers))

    def test_port_of_a_service_that_has_ended_can_be_had_again(self):
        server = socket.create_server((ports.HOST, 0))
        number = server.getsockname()[1]
        with socket.create_connection((ports.HOST, number)) as connection:
            peer, _ = server.accept()
            # Who closes first waits for what may still come.
            peer.close()
            connection.recv(1)
        server.close()
        ports.Ports((), {'again': number}).release_all()

    def test_without_a_free_port_nothing_stays_bound(self):
        held = mock.Mock()
        with mock.patch.object(ports, '_bind_any', side_effect=[
                held, errors.CloudError('none is free')]):
            self.assertRaises(errors.CloudError, ports.Ports, ['one', 'two'])
        held.close.assert_called_once_with()

    def test_when_all_are_taken_it_says_so(self):
        taken = self.take('one').numbers['one']
        with mock.patch.object(ports, '_RANGE', range(taken, taken + 1)), \
                mock.patch('random.sample', lambda numbers, count: numbers):
            error = self.assertRaises(
                errors.CloudError, ports.Ports, ['other'])
        self.assertIn(str(taken), str(error))
