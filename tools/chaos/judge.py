# SPDX-License-Identifier: Apache-2.0

"""What must hold of what stands of a server."""

import dataclasses

#: What has become of a server. GIVEN_UP is a server in ERROR whose host, or
#: the conductor of the host, has failed during the build. The release treats
#: a new server in the same way.
BUILT = 'built'
WAITS = 'waits'
GIVEN_UP = 'given up by its host'
FAILED = 'in ERROR in its cell, on no host'
GONE = 'gone'
UNSETTLED = 'unsettled'

#: Kinds of preemptible servers, by how they are ended.
SHELVED = 'victim to shelve'
DELETED = 'victim to delete'


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a server was asked for.

    :ivar server: its ID
    :ivar kind: one of draw.KINDS
    :ivar port: the ID of its owner's port, or None
    :ivar volumes: the IDs of its owner's volumes
    :ivar before: how it was shown when it waited, None of a server that was
        created during the storm
    """

    server: str
    kind: str
    port: str
    volumes: tuple
    before: dict


@dataclasses.dataclass(frozen=True)
class Found:
    """What stands of a server.

    :ivar shown: how the API shows it, None if it does not
    :ivar cells: the names of the cells that it is mapped to; None of no cell
    :ivar records: triples of the cell, the task_state and the host of each
    :ivar build_requests: how many there are
    :ivar keeps_request: whether what its create asked for is stored
    :ivar allocations: the names of the hosts that it has room on
    :ivar held: whether that is room that is held for it
    :ivar ports: pairs of the ID and the host of each port that is its own
    :ivar attachments: pairs of the volume and the state of each
    :ivar builds: how often a host has built it
    :ivar is_stripped: whether a released nova-compute has built it and has
        deleted its allocations, because its conductor did not answer then
    """

    shown: dict
    cells: tuple = ()
    records: tuple = ()
    build_requests: int = 0
    keeps_request: bool = True
    allocations: tuple = ()
    held: bool = False
    ports: tuple = ()
    attachments: tuple = ()
    builds: int = 0
    is_stripped: bool = False


#: What must be as it was.
_KEPT = ('name', 'tags', 'metadata', 'key_name', 'image', 'flavor', 'created')


def outcome(found):
    """Return what has become of a server."""
    if found.shown is None:
        return GONE
    state = found.shown['status'], found.shown['OS-EXT-STS:task_state']
    if found.cells == ('cell0',):
        return WAITS if state in (
            ('PENDING', None), ('ERROR', None)) else UNSETTLED
    if state == ('ACTIVE', None):
        return BUILT
    on_host = any(host for _cell, _state, host in found.records)
    if state == ('ERROR', None):
        # A host whose last answer came too late gives a guest up that runs.
        return GIVEN_UP if on_host or found.shown.get(
            'OS-SRV-USG:launched_at') else FAILED
    # Such a server may be rebuilt in place. A nova-compute that starts ends
    # the interrupted rebuilds of servers that ran or were stopped, and leaves
    # those of servers in ERROR as they are.
    if (state in (('ERROR', 'rebuilding'),
                  ('ERROR', 'rebuild_block_device_mapping'),
                  ('ERROR', 'rebuild_spawning')) and
            on_host and found.shown.get('OS-SRV-USG:launched_at')):
        return GIVEN_UP
    # Recovery keeps the task state of a server that no host has begun.
    if state == ('ERROR', 'scheduling') and not on_host:
        return FAILED
    return UNSETTLED


def judge(asked, found):
    """Return what is wrong, as pairs of the kind and a sentence.

    :param asked: the Asked
    :param found: the Found
    """
    become = outcome(found)
    if become == GONE:
        return [('lost', 'it is not shown')]
    if become == UNSETTLED:
        return [('unsettled', '%s/%s, mapped to %s, records %s, %d build '
                 'requests' % (
                     found.shown['status'],
                     found.shown['OS-EXT-STS:task_state'], found.cells,
                     found.records, found.build_requests))]
    wrong = [('not kept', '%s was %r, and is %r' % (
        key, asked.before[key], found.shown[key]))
        for key in (_KEPT if asked.before else ())
        if asked.before[key] != found.shown[key]]

    def expect(kind, value, wanted):
        if value != wanted:
            wrong.append((kind, 'of a server that %s: %r instead of %r' % (
                'waits' if become == WAITS else 'is ' + become, value,
                wanted)))

    expect('place', tuple(cell for cell, _state, _host in found.records),
           found.cells)
    expect('build requests', found.build_requests, 0)
    expect('hold', found.held, found.held and become == WAITS)
    if become == WAITS:
        _judge_waiting(expect, asked, found)
    elif become == BUILT:
        _judge_built(expect, asked, found)
    return wrong


def _judge_waiting(expect, asked, found):
    if asked.before:
        expect('state', found.shown['status'], asked.before['status'])
    if not found.held:
        expect('allocations', found.allocations, ())
    expect('ports', found.ports, ())
    expect('volumes', sorted(found.attachments), sorted(
        (volume, 'reserved') for volume in asked.volumes))
    expect('request', found.keeps_request, True)


def _judge_built(expect, asked, found):
    host = found.records[0][2] if found.records else None
    if not found.is_stripped:
        expect('allocations', found.allocations, (host,))
    if asked.port:
        expect('ports', found.ports, ((asked.port, host),))
    else:
        expect('ports', [bound for _port, bound in found.ports], [host])
    states = [state for _volume, state in found.attachments]
    expect('volumes', states, ['attached'] * len(states))
    volumes = {volume for volume, _state in found.attachments}
    expect('volumes', volumes >= set(asked.volumes), True)
    expect('volumes', len(volumes), len(asked.volumes) + (
        asked.kind == 'image volume'))
    expect('builds', found.builds, 1)


def left(found):
    """Return what is left of a server that was deleted, as judge() does."""
    parts = {
        'it is shown': found.shown, 'records': found.records,
        'mapped to a cell': found.cells,
        'build requests': found.build_requests,
        'allocations': found.allocations, 'ports': found.ports,
        'attachments': found.attachments}
    return [('left behind', '%s: %s' % (what, value))
            for what, value in parts.items() if value]


def judge_victim(asked, found):
    """Return what is wrong with a server that may have been ended, as judge().

    :param asked: the Asked
    :param found: the Found
    """
    if found.shown is None:
        # Its flavor says how it is ended.
        return [('victim', 'it is gone, and was to be shelved')] if (
            asked.kind == SHELVED) else []
    status = found.shown['status']
    wrong = []
    if status not in ('ACTIVE', 'SHELVED_OFFLOADED') or (
            found.shown['OS-EXT-STS:task_state']):
        wrong.append(('victim', '%s/%s' % (
            status, found.shown['OS-EXT-STS:task_state'])))
    elif bool(found.allocations) != (status == 'ACTIVE'):
        wrong.append(('victim', '%s with allocations %r' % (
            status, found.allocations)))
    marks = [key for key in found.shown['metadata'] if status == 'ACTIVE' and
             key.startswith('reaper:')]
    if marks:
        wrong.append(('victim', 'it runs with a notice: %s' % marks))
    return wrong


def is_ended(found):
    """Return whether a server was ended for another."""
    return found.shown is None or found.shown['status'] != 'ACTIVE'
