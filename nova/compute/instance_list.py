# SPDX-License-Identifier: Apache-2.0

from nova.compute import pending
from nova import exception
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.InstanceLister)
class InstanceLister:

    def get_by_filters(self, ctx, filters, limit, marker, **kwargs):
        # The base class asks for what follows the last record of the batch
        # before. A rebuild deletes records for good: a cell that lacks the
        # last record would count as down.
        batches = vars(self).setdefault('_batches', {})
        before = batches.get(ctx.cell_uuid, ())
        while True:
            try:
                batch = released.InstanceLister.get_by_filters(
                    self, ctx, filters, limit, marker, **kwargs)
            except exception.MarkerNotFound:
                if not before or before[-1]['uuid'] != marker:
                    raise
                before = before[:-1]
                if not before:
                    return []
                marker = before[-1]['uuid']
            else:
                batches[ctx.cell_uuid] = batch
                return batch


def get_instances_sorted(ctx, filters, limit, marker, columns_to_join,
                         sort_keys, sort_dirs, *args, **kwargs):
    # Other threads ask the cells, and do not know which request they serve.
    filters = {pending.column(key): value for key, value in filters.items()}
    sort_keys = [pending.column(key) for key in sort_keys or []]
    return released.get_instances_sorted(
        ctx, filters, limit, marker, columns_to_join, sort_keys, sort_dirs,
        *args, **kwargs)
