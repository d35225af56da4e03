# SPDX-License-Identifier: Apache-2.0

from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


def _exact_instance_filter(query, filters, legal_keys):
    legal_keys = legal_keys + [pending.HIDDEN_COLUMN]
    return released._exact_instance_filter(query, filters, legal_keys)


def instance_get_all_by_filters_sort(context, filters, limit=None, marker=None,
                                     columns_to_join=None, sort_keys=None,
                                     sort_dirs=None):
    records = released.instance_get_all_by_filters_sort(
        context, filters, limit=limit, marker=marker,
        columns_to_join=columns_to_join, sort_keys=sort_keys,
        sort_dirs=sort_dirs)
    if pending.HIDDEN_COLUMN in (sort_keys or ()):
        # The lists of several cells are merged by the sort keys. A record is a
        # dict of stored columns, and lacks this column.
        for record in records:
            record[pending.HIDDEN_COLUMN] = pending.as_error(
                record['vm_state'])
    return records
