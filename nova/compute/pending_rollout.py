# SPDX-License-Identifier: Apache-2.0

"""Which services know PENDING, by the service versions in their records."""

import sqlalchemy as sa

from nova.compute import vm_states
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova.i18n import _
from nova import objects
from nova.objects import service as service_obj

#: The services that show PENDING, set PENDING, and hold room for a server.
SERVICES = ('nova-osapi_compute', 'nova-conductor', 'nova-scheduler')


def _read(context: nova_context.RequestContext) -> tuple[list, int]:
    """Return the records of SERVICES, and how many servers wait, in a cell."""
    return ([service for binary in SERVICES
             for service in main_db_api.service_get_all_by_binary(
                 context, binary, include_disabled=True)],
            find_extent(context)[0])


@main_db_api.pick_context_manager_reader
def find_extent(
    context: nova_context.RequestContext,
) -> tuple[int, int | None]:
    """Return how many servers in a cell are in PENDING, and the highest id."""
    return main_db_api.model_query(context, models.Instance, (
        sa.func.count(), sa.func.max(models.Instance.id))).filter(
        models.Instance.vm_state == vm_states.PENDING).one()


def survey(
    context: nova_context.RequestContext,
) -> tuple[list[str], list[str], int]:
    """Ask all cells for the services that must know PENDING.

    :returns: sentences about services that are too old, sentences
        about cells and services of which nothing is known, and how many
        servers are in PENDING in cell0
    """
    names: set[str] = set()
    older, unknown, waiting = [], [], 0
    for cell_uuid, result in nova_context.scatter_gather_all_cells(
            context, _read).items():
        if nova_context.is_cell_failure_sentinel(result):
            unknown.append(_('cell %s could not be read') % cell_uuid)
            continue
        services, count = result
        # Only what is in cell0 can be PENDING.
        if cell_uuid == objects.CellMapping.CELL0_UUID:
            waiting = count
        names.update(service.binary for service in services)
        older += [_('%(binary)s on %(host)s (record %(uuid)s) has service '
                    'version %(its)s, which is less than %(ours)d') % {
                        'binary': service.binary, 'host': service.host,
                        'uuid': service.uuid, 'its': service.version,
                        'ours': service_obj.KNOWS_PENDING}
                  for service in services
                  if (service.version or 0) < service_obj.KNOWS_PENDING]
    unknown += [_('%s is recorded in no cell') % binary
                for binary in SERVICES if binary not in names]
    return sorted(older), unknown, waiting


@main_db_api.pick_context_manager_writer
def lower_service_versions(context: nova_context.RequestContext) -> None:
    """Give the services of a cell the last version before UNDOES_REIMAGE.

    A service does not start if all records of its kind have a higher version
    than its own: without this, no service would start after a downgrade.
    """
    context.session.query(models.Service).filter(
        models.Service.version.between(
            service_obj.UNDOES_REIMAGE, service_obj.KNOWS_PENDING)).update(
        {'version': service_obj.UNDOES_REIMAGE - 1})
