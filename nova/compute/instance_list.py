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

import datetime

from oslo_utils import timeutils

from nova.compute import pending
from nova import exception
from nova import objects
import nova_pending

released = nova_pending.released(__name__)

# More than any row of a cell has.
_LAST_ID = 2 ** 31 - 1

# What a rebuild has changed of the server that a page has ended with.
_CHANGED = frozenset(('vm_state', 'task_state', 'updated_at'))


@nova_pending.over(released.InstanceLister)
class InstanceLister:
    """Goes on when the last server of a batch is taken out of cell0.

    The release looks the next batch up by that server, and takes the cell for
    one that does not answer when its record is deleted for good meanwhile.
    """

    def __init__(self, *args, **kwargs):
        released.InstanceLister.__init__(self, *args, **kwargs)
        # Where the list begins in each cell, as values of the sort keys.
        self._positions = {}
        # The last batch of each cell.
        self._batches = {}

    def get_marker_record(self, ctx, marker):
        try:
            cell_uuid, record = released.InstanceLister.get_marker_record(
                self, ctx, marker)
        except (exception.MarkerNotFound, AttributeError):
            # Without a cell it may have looked into cell0, and found it.
            cell_uuid, record = None, self._values_of_request(ctx, marker)
        self._positions[cell_uuid] = self._values(record)
        return cell_uuid, record

    def get_marker_by_values(self, ctx, values):
        self._positions[ctx.cell_uuid] = values
        return released.InstanceLister.get_marker_by_values(self, ctx, values)

    def get_by_filters(self, ctx, filters, limit, marker, **kwargs):
        try:
            records = released.InstanceLister.get_by_filters(
                self, ctx, filters, limit, marker, **kwargs)
        except exception.MarkerNotFound:
            records = self._get_next(ctx, filters, limit, **kwargs)
        if records:
            self._batches[ctx.cell_uuid] = records
        return records

    @nova_pending.new
    def _values_of_request(self, ctx, marker):
        """Return where the last server of a page was that is in no cell now.

        It is given again what it cannot be told from, rather than nothing.
        """
        try:
            instance = objects.BuildRequest.get_by_instance_uuid(
                ctx, marker).instance
        except exception.BuildRequestNotFound:
            raise exception.MarkerNotFound(marker=marker)
        values = {}
        for key, direction in zip(
                self.sort_ctx.sort_keys, self.sort_ctx.sort_dirs):
            if key == 'id':
                value = 0 if direction == 'asc' else _LAST_ID
            elif key in instance and key not in _CHANGED:
                value = getattr(instance, key)
            else:
                value = None
            if value is None:
                raise exception.MarkerNotFound(marker=marker)
            values[key] = (timeutils.normalize_time(value) if isinstance(
                value, datetime.datetime) else value)
        return values

    @nova_pending.new
    def _values(self, record):
        return [record[key] for key in self.sort_ctx.sort_keys]

    @nova_pending.new
    def _get_next(self, ctx, filters, limit, **kwargs):
        """Return what follows where the list is, without a marker."""
        batch = self._batches.get(ctx.cell_uuid)
        values = (self._values(batch[-1]) if batch
                  else self._positions[ctx.cell_uuid])
        if None in values:
            # What follows a server without a value cannot be asked for.
            raise exception.MarkerNotFound(marker=values[-1])
        uuid = self.get_marker_by_values(ctx, values)
        if uuid is None:
            return []
        # It can be one that the filters exclude.
        first = []
        if uuid in filters.get('uuid', uuid):
            first = released.InstanceLister.get_by_filters(
                self, ctx, {**filters, 'uuid': [uuid]}, 1, None, **kwargs)
        return first + self.get_by_filters(
            ctx, filters, limit and limit - len(first), uuid, **kwargs)


def get_instances_sorted(ctx, filters, limit, marker, columns_to_join,
                         sort_keys, sort_dirs, *args, **kwargs):
    # The cells are asked by other threads, which do not know whom they serve.
    return released.get_instances_sorted(
        ctx,
        {pending.column(key): value for key, value in filters.items()},
        limit, marker, columns_to_join,
        [pending.column(key) for key in sort_keys or []], sort_dirs,
        *args, **kwargs)
