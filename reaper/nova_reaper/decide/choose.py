# SPDX-License-Identifier: Apache-2.0

"""Where a waiting server goes, and who is ended for it.

Pure functions over the index. The order of preference is lexicographic: a
host with room before any with victims, then what the scorers say, one after
another, then the host that was listed first.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime

import numpy as np

from nova_reaper.cloud import arrays
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import victims


def decide(index: index_module.Index, waiting: model.Waiting,
           options: model.Options, now: datetime.datetime, *,
           ends_left: Mapping[str, int] | None = None,
           reserved: str | None = None,
           among: Sequence[int] | None = None) -> model.Decision:
    """Decide what becomes of a waiting server.

    In mode ``observe`` it is what would be decided in mode ``preempt``.

    :param now: the time by which servers are still protected or not
    :param ends_left: how many servers may still be ended, of the projects for
        which that is limited
    :param reserved: the name of a host that is kept for another
    :param among: the rows of the hosts to look at, None: all
    """
    shape = waiting.shape
    if shape.host is not None and shape.host not in index.rows:
        return _wait(waiting, model.Reason.NO_SUCH_HOST,
                     'The host that it was created for is not there.')
    fits = index.fits(shape)
    if among is not None:
        only = np.zeros(len(fits), np.bool_)
        only[among] = True
        fits = fits & only
    if not fits.any():
        return _wait(waiting, model.Reason.NOTHING_FITS,
                     _why_nothing_fits(index, shape))
    enabled = fits & index.enabled
    seems = room = enabled & index.has_room(shape, fits)
    not_offered = index.exclusions.not_offered(shape)
    if not_offered is not None:
        room = room & ~not_offered
    refused = index.exclusions.refused(shape)
    eligible = enabled if refused is None else enabled & ~refused
    allowed = eligible.copy()
    if reserved in index.rows:
        allowed[index.rows[reserved]] = False
    withheld = index.exclusions.withheld(shape)
    nobody = np.flatnonzero(room & allowed if withheld is None
                            else room & allowed & ~withheld)
    if waiting.avoid in index.rows and len(nobody) > 1:
        nobody = nobody[nobody != index.rows[waiting.avoid]]
    scorers = victims.Scorers(index, shape, options, arrays.to_micros(now))
    if len(nobody):
        chosen = scorers.best(victims.Sets(
            nobody, np.zeros((len(nobody), 0), np.int64)))
        host = _name(index, int(chosen.rows.min()))
        return model.Decision(waiting.id, model.Verdict.ROOM, host,
                              detail=_where_room_is(index, shape, host))
    if withheld is not None and (room & allowed).any():
        # Nobody is ended while it is not known whether there is room.
        return _wait(waiting, model.Reason.NO_ROOM, 'The hosts that seem to '
                     'have room are looked at again.')
    return _without_room(scorers, waiting, ends_left or {}, fits, room,
                         eligible, allowed, ~seems)


def _without_room(scorers: victims.Scorers, waiting: model.Waiting,
                  ends_left: Mapping[str, int], fits: arrays.Bools,
                  room: arrays.Bools, eligible: arrays.Bools,
                  allowed: arrays.Bools, short: arrays.Bools
                  ) -> model.Decision:
    index, shape, demand = scorers.index, waiting.shape, waiting.demand
    kept = bool((room & eligible & ~allowed).any())
    reason, detail = _why_no_room(index, shape, fits, room, eligible, kept)
    if kept:
        return _wait(waiting, reason, detail, model.Hindrance.RESERVED)
    if waiting.spared:
        return _wait(waiting, reason, f'{detail} {waiting.spared}')
    if shape.fill_only:
        kind = ('was shelved for another' if waiting.shelved else
                'is in ERROR since its build failed' if waiting.failed else
                'needs more than the host\'s own provider')
        return _wait(waiting, reason, f'{detail} Nobody is ended for a server '
                     f'that {kind}.')
    result = victims.find(scorers, demand, allowed & short, ends_left)
    if result.sets is not None:
        row = int(result.sets.rows.min())
        slot = result.sets.members[result.sets.rows == row][0]
        host = _name(index, row)
        ids = tuple(server.id for server in (index.slots.servers[at]
                                             for at in slot) if server)
        would = (f'{len(ids)} preemptible server{"s"[:len(ids) > 1]} on one '
                 'host would have to go.')
        if not result.exact:
            would += ' Others might do: there were too many sets to try all.'
        if scorers.options.mode is model.Mode.FILL:
            return _wait(waiting, reason, f'{detail} {would} The mode is '
                         'fill: nobody is ended.', model.Hindrance.MODE)
        return model.Decision(waiting.id, model.Verdict.PREEMPT, host, ids,
                              reason, would)
    if not result.exact:
        return _wait(waiting, reason, f'{detail} There were too many sets of '
                     'preemptible servers to try them all.')
    protected = _would_help(index, demand, eligible)
    if protected.any():
        return _wait(waiting, reason, f'{detail} Preemptible servers on '
                     f'{int(protected.sum())} of the hosts would free enough '
                     'and are protected for now.', model.Hindrance.PROTECTED)
    return _wait(waiting, reason, f'{detail} No preemptible servers on one '
                 'host would free enough.')


def is_better(index: index_module.Index, waiting: model.Waiting,
              options: model.Options, now: datetime.datetime,
              found: model.Decision, before: model.Decision) -> bool:
    """Whether less is lost with the victims of a decision than of another.

    Of the latter those count that are still there.
    """
    options = dataclasses.replace(options, scorers=tuple(
        name for name in options.scorers if name not in victims.SLIGHT))
    new, old = _costs(index, waiting, options, now, found, before)
    return bool(new and old and new < old)


def decided_by(index: index_module.Index, waiting: model.Waiting,
               options: model.Options, now: datetime.datetime,
               one: model.Decision, other: model.Decision) -> str:
    """The first scorer that tells the victims of two decisions apart."""
    costs = _costs(index, waiting, options, now, one, other)
    return next((name for name, mine, others in zip(options.scorers, *costs)
                 if mine != others), 'order of hosts')


def _costs(index: index_module.Index, waiting: model.Waiting,
           options: model.Options, now: datetime.datetime,
           *decisions: model.Decision) -> list[list[list[int]]]:
    """What scorers say of the victims that are still there, [] where none is.
    """
    scorers = victims.Scorers(index, waiting.shape, options,
                              arrays.to_micros(now))
    costs = []
    for decision in decisions:
        row = index.rows.get(decision.host or '', 0)
        where = index.slots.segment(row)
        slots = [where.start + at for at, server
                 in enumerate(index.slots.servers[where])
                 if server is not None and server.id in decision.victims]
        costs.append(scorers.cost(victims.Sets(
            np.array([row]), np.array([slots]))) if slots else [])
    return costs


def could_help(index: index_module.Index, demand: model.Demand,
               row: int) -> bool:
    """Whether there was room on a host without any preemptible server."""
    table, where = index.slots, index.slots.segment(row)
    mine = table.preemptible[where]
    if demand.below is not None:
        mine = mine & (table.priority[where] < demand.below)
    return index.could_take(demand.shape, row) and all(
        index.free[column][row] +
        table.amounts[column][where][mine].sum(dtype=np.int64) >= amount
        for column, amount in ((index.classes[name], amount) for name, amount
                               in demand.shape.by_host))


def protected_until(index: index_module.Index, waiting: model.Waiting,
                    now: datetime.datetime) -> datetime.datetime | None:
    """When the first server is safe no longer whose end could help.

    :returns: None if time alone changes nothing
    """
    demand, table = waiting.demand, index.slots
    hosts = _would_help(index, demand,
                        index.fits(demand.shape) & index.enabled)
    safe = table.endable & hosts[table.host_of] & (
        table.safe_until > arrays.to_micros(now))
    if demand.below is not None:
        safe &= table.priority < demand.below
    if demand.shape.fill_only or not safe.any():
        return None
    return arrays.from_micros(int(table.safe_until[safe].min()))


def worth_reserving(index: index_module.Index, waiting: model.Waiting
                    ) -> str | None:
    """The host that comes nearest to room for a server that cannot be placed.

    :returns: the name of the host of those that could take it that lacks the
        least, as a share of what is asked for; None if there is none
    """
    shape = waiting.shape
    eligible = index.fits(shape) & index.enabled
    refused = index.exclusions.refused(shape)
    if refused is not None:
        eligible &= ~refused
    rows = np.flatnonzero(eligible)
    if not len(rows) or not shape.resources:
        return None
    lacking = np.stack([
        np.maximum(amount - index.free[index.classes[name]][rows], 0)
        for name, amount in shape.resources])
    asked = [amount for _name, amount in shape.resources]
    shares = (lacking.T / asked).sum(axis=1)
    # Sums of floats are not exact: what is as good as equal is equal.
    return _name(index, int(rows[shares.round(9).argmin()]))


def _wait(waiting: model.Waiting, reason: model.Reason, detail: str,
          hindrance: model.Hindrance | None = None) -> model.Decision:
    return model.Decision(waiting.id, model.Verdict.WAIT, reason=reason,
                          detail=detail, hindrance=hindrance)


def _name(index: index_module.Index, row: int) -> str:
    host = index.hosts[row]
    assert host is not None
    return host.name


def _would_help(index: index_module.Index, demand: model.Demand,
                rows: arrays.Bools) -> arrays.Bools:
    """The hosts on which there was room without any preemptible server."""
    mine = index.slots.preemptible
    if demand.below is not None:
        mine = mine & (index.slots.priority < demand.below)
    return rows & victims.room_without(index, demand.shape, mine)


def _where_room_is(index: index_module.Index, shape: model.Shape,
                   name: str) -> str:
    host = index.hosts[index.rows[name]]
    assert host is not None
    others = sorted(shape.elsewhere - host.inventory.keys())
    if not others:
        return 'A host has room.'
    return (f'A host has room, as far as it is its own; {", ".join(others)} '
            'would come from other providers, of which Placement knows.')


def _why_nothing_fits(index: index_module.Index, shape: model.Shape) -> str:
    if not index.rows:
        return 'There is no host at all.'
    for name, amount in shape.resources:
        if name in shape.elsewhere:
            continue
        column = index.classes.get(name)
        most = -1 if column is None else int(index.capacity[column].max())
        if most < 0:
            return f'No host has {name}.'
        if most < amount:
            return (f'It asks for {amount} of {name}, and the largest host '
                    f'has {most}.')
    if shape.host is not None:
        return ('The host that it was created for could not take it, were it '
                'empty.')
    return ('No host has all that it asks for at once: resources, traits and '
            'aggregates.')


def _why_no_room(index: index_module.Index, shape: model.Shape,
                 fits: arrays.Bools, room: arrays.Bools,
                 eligible: arrays.Bools, kept: bool
                 ) -> tuple[model.Reason, str]:
    could = f'{int(fits.sum())} of {len(index.rows)} hosts could take it;'
    refused = room & ~eligible
    others = (', but for one that is kept for a server that waits before it'
              if kept else '')
    if refused.any():
        filters = index.exclusions.refusals(shape)
        names = sorted({filters[_name(index, int(row))]
                        for row in np.flatnonzero(refused)})
        return (model.Reason.NO_ROOM if kept else model.Reason.REFUSED,
                f'{could} those with room are refused by {", ".join(names)}'
                f'{others}.')
    off = index.has_room(shape, fits) & ~index.enabled
    if not (fits & index.enabled).any():
        if off.any():
            return (model.Reason.REFUSED,
                    f'{could} all of them are disabled or down.')
        return (model.Reason.NO_ROOM,
                f'{could} none has room, and all are disabled or down.')
    none = 'none that is enabled and up' if off.any() else 'none'
    return model.Reason.NO_ROOM, f'{could} {none} has room{others}.'
