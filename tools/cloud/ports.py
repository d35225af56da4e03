# SPDX-License-Identifier: Apache-2.0

"""Free TCP ports that two clouds at a time do not both take."""

import random
import socket

from tools.cloud import errors

HOST = '127.0.0.1'

# Below the range from which Linux takes the local ports of connections.
_RANGE = range(20000, 32000)


def answers(number):
    """Return whether somebody takes connections on a port."""
    try:
        socket.create_connection((HOST, number), timeout=5).close()
    except OSError:
        return False
    return True


class Ports:
    """Ports that stay bound until the service that is to listen is started.

    :param names: what the ports are for
    :param given: numbers, by name, in place of any free ports
    :raises: BadArgument if a given port is taken
    """

    def __init__(self, names, given=None):
        self._sockets = {}
        try:
            for name, number in (given or {}).items():
                self._sockets[name] = _bind_given(name, number)
            for name in names:
                if name not in self._sockets:
                    self._sockets[name] = _bind_any()
        except BaseException:
            self.release_all()
            raise
        self.numbers = {name: held.getsockname()[1]
                        for name, held in self._sockets.items()}

    def release(self, name):
        """Let go of a port, right before its service is started."""
        held = self._sockets.pop(name, None)
        if held:
            held.close()

    def release_all(self):
        """Let go of all ports."""
        for name in list(self._sockets):
            self.release(name)


def _bind(number):
    """Return a socket that has a port.

    :raises: OSError
    """
    held = socket.socket()
    try:
        # Connections of our own service that has ended may linger. With
        # that allowed, only who listens has a port for himself.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, number))
        held.listen()
    except OSError:
        held.close()
        raise
    return held


def _bind_given(name, number):
    try:
        return _bind(number)
    except OSError as error:
        raise errors.BadArgument(
            'Port %d, which %s is to have, cannot be had on %s: %s.'
            % (number, name, HOST, error.strerror))


def _bind_any():
    for number in random.sample(_RANGE, 200):
        try:
            return _bind(number)
        except OSError:
            continue
    raise errors.CloudError(
        'No port between %d and %d is free on %s.'
        % (_RANGE[0], _RANGE[-1], HOST))
