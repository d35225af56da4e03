# SPDX-License-Identifier: Apache-2.0

"""What happens in a round, drawn from a seed."""

import dataclasses
import random

#: What servers are made with: a port that Neutron makes, a port of their
#: owner, a volume; a root volume of their owner, or a root volume that is made
#: of the image when they are built.
KINDS = ('network', 'port', 'volume', 'root volume', 'image volume')

#: What servers are created with during the storm. nova-api that is killed
#: while it creates a server with a volume leaves the volume reserved, as in
#: the release.
CREATED = KINDS[:2]

# How often a service hangs, where it does not die.
_HANGS = 0.4
_SHORTEST_HANG = 0.5


@dataclasses.dataclass(frozen=True)
class Fault:
    """A service that fails.

    :ivar at: when, in seconds from the begin of the storm
    :ivar service: which
    :ivar hangs: for how many seconds it is stopped; 0 if it is killed
    """

    at: float
    service: str
    hangs: float

    def __str__(self):
        return '%.1f s: %s %s' % (
            self.at, self.service,
            'hangs for %.1f s' % self.hangs if self.hangs else 'is killed')


@dataclasses.dataclass(frozen=True)
class Round:
    """What happens in a round.

    :ivar kinds: of each server, one of KINDS
    :ivar asked_at: when the rebuild of each is asked for
    :ivar faults: the Faults, in their order
    :ivar creates: pairs of the moment at which another server is created, and
        one of CREATED
    """

    kinds: tuple
    asked_at: tuple
    faults: tuple
    creates: tuple = ()


def draw(seed, number, servers, services, faults, span, longest,
         kinds=KINDS, survives=(), creates=0):
    """Return the Round of a seed and a number.

    Each round can be had again without those before it.

    :param seed: the seed of the campaign
    :param number: of the round
    :param servers: how many servers there are
    :param services: the names of the services that fail
    :param faults: how often a service fails
    :param span: how many seconds the storm lasts
    :param longest: how many seconds a service hangs at most
    :param kinds: of servers
    :param survives: names of services that are never killed, and only hang
    :param creates: how many other servers are created during the storm
    """
    moments = random.Random('%s/%s' % (seed, number))
    kinds = tuple(kinds[(number + each) % len(kinds)]
                  for each in range(servers))
    asked_at = tuple(moments.uniform(0, span) for _ in range(servers))
    faults = tuple(sorted(
        (_fault(moments, services, span, longest, survives)
         for _ in range(faults)),
        key=lambda fault: fault.at))
    return Round(kinds, asked_at, faults, tuple(
        (moments.uniform(0, span), CREATED[each % len(CREATED)])
        for each in range(creates)))


def _fault(moments, services, span, longest, survives):
    at, service = moments.uniform(0, span), moments.choice(services)
    hangs = moments.random() < _HANGS or (
        service.partition('@')[0] in survives)
    return Fault(at, service, hangs and moments.uniform(
        _SHORTEST_HANG, longest))


def chosen(wanted, running):
    """Return the names of the services that fail.

    :param wanted: names, with or without the host
    :param running: the names of all services
    :raises: ValueError for a name that no service has
    """
    found = []
    for name in wanted:
        matching = [service for service in running
                    if name in (service, service.partition('@')[0])]
        if not matching:
            raise ValueError('There is no service %s, but: %s.' % (
                name, ', '.join(sorted(running))))
        found += matching
    return sorted(set(found))
