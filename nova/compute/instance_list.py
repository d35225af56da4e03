# SPDX-License-Identifier: Apache-2.0

from nova.compute import pending
from nova import exception
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.InstanceLister)
class InstanceLister:

    def __init__(self, sort_keys, sort_dirs, cells=None, batch_size=None):
        released.InstanceLister.__init__(
            self, sort_keys, sort_dirs, cells=cells, batch_size=batch_size)
        # The last batch of each cell.
        self._batches = {}

    def get_by_filters(self, ctx, filters, limit, marker, **kwargs):
        # The base class asks for what follows the last record of the batch
        # before. A record can be archived meanwhile: a cell that lacks the
        # last record would count as down.
        before = self._batches.get(ctx.cell_uuid, ())
        while True:
            try:
                batch = released.InstanceLister.get_by_filters(
                    self, ctx, filters, limit, marker, **kwargs)
            except exception.MarkerNotFound:
                if not before or before[-1]['uuid'] != marker:
                    raise
                before = before[:-1]
                if not before:
                    # The list would be short, and nobody would know.
                    raise
                marker = before[-1]['uuid']
            else:
                self._batches[ctx.cell_uuid] = batch
                return batch


def get_instances_sorted(ctx, filters, limit, marker, columns_to_join,
                         sort_keys, sort_dirs, *args, **kwargs):
    # Other threads ask the cells, and do not know which request they serve.
    filters = {pending.column(key): value for key, value in filters.items()}
    sort_keys = [pending.column(key) for key in sort_keys or []]
    return released.get_instances_sorted(
        ctx, filters, limit, marker, columns_to_join, sort_keys, sort_dirs,
        *args, **kwargs)
