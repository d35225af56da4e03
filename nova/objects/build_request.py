# SPDX-License-Identifier: Apache-2.0

import datetime
import typing as ty

from oslo_db import api as oslo_db_api
from oslo_log import log as logging
from oslo_serialization import jsonutils
from oslo_utils import timeutils
from oslo_utils import uuidutils
import sqlalchemy as sa

from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import fields
from nova.objects import unbuilt_instance
import nova_pending

LOG = logging.getLogger(__name__)

released = nova_pending.released(__name__)

# The lease is in the column of the TagList, before the list: no update by a
# user writes that column, and a Nova without leases still loads the TagList.
_LEASE = '{"nova_pending": '

# BuildRequest.before of a create, whose server had no record before.
_NOTHING_BEFORE = {'vm_state': None, 'actions': [], 'reserve': False}

# BuildRequest sets these attributes of its Instance at each load, so that they
# never show a change.
_NOT_COMPARED = ('created_at', 'updated_at', 'tags')


class LeaseLost(exception.NovaException):
    msg_fmt = _("Server %(instance_uuid)s was deleted while it was built, or "
                "its build was taken over.")


class Place(ty.NamedTuple):
    """Where a server is: in a cell, or in none with a build request.

    A server in no cell that has no build request either is deleted.
    """

    cell_uuid: str | None
    has_build_request: bool


#: What place_of() returns of a server that is deleted.
GONE = (None, Place(None, False))


def place_of(
    context: nova_context.RequestContext, instance_uuid: str,
) -> Place | None:
    """Return where a server is, None if the server has no mapping.

    It is one statement, because a server can move between two statements.
    """
    mapping, cell, build_request = (
        api_models.InstanceMapping, api_models.CellMapping,
        api_models.BuildRequest)
    with api_db_api.context_manager.reader.using(context) as session:
        found = session.query(cell.uuid, build_request.id).select_from(
            mapping).outerjoin(cell, cell.id == mapping.cell_id).outerjoin(
                build_request,
                build_request.instance_uuid == mapping.instance_uuid).filter(
                    mapping.instance_uuid == instance_uuid).first()
    return found and Place(found[0], found[1] is not None)


def _has_lease(row):
    """Return the condition that a row has a lease."""
    return sa.func.coalesce(
        row.tags.startswith(_LEASE, autoescape=True), sa.false())


def _was_create(row):
    """Return the condition that a row with a lease was that of a create."""
    return ~sa.func.coalesce(
        row.block_device_mappings.startswith(_LEASE, autoescape=True),
        sa.false())


def interrupted(
    context: nova_context.RequestContext,
    rebuilds_before: datetime.datetime | None,
    creates_before: datetime.datetime | None,
    limit: int,
) -> list[str]:
    """Return the servers whose build request is old, the oldest first.

    :param context: the request context
    :param rebuilds_before: when the lease of a rebuild must have been renewed
        last, None for no rebuilds
    :param creates_before: when a create must have been asked for, or the lease
        of a create that recovery has taken must have been renewed last, None
        for no creates
    :param limit: how many are returned at most
    """
    row = api_models.BuildRequest
    found = sa.false()
    if rebuilds_before is not None:
        found |= _has_lease(row) & (row.updated_at < rebuilds_before)
    if creates_before is not None:
        found |= ~_has_lease(row) & (row.created_at < creates_before)
        found |= _has_lease(row) & _was_create(row) & (
            row.updated_at < creates_before)
    with api_db_api.context_manager.reader.using(context) as session:
        return [uuid for uuid, in session.query(row.instance_uuid).filter(
            found).order_by(row.id).limit(limit)]


def _instance_diff(before, after):
    """Return a dict of the attributes of an Instance that have changed."""
    return {
        name: getattr(after, name)
        for name, field in objects.Instance.fields.items()
        if not isinstance(field, fields.ObjectField) and
        name not in _NOT_COMPARED and name in before and name in after and
        getattr(before, name) != getattr(after, name)}


@nova_pending.over(released.BuildRequest)
class BuildRequest:

    #: For a rebuild a dict: which process has the server (holder, None until a
    #: conductor has the server), and the UUID of the cell that may have a
    #: record of the server (cell). None for a create.
    lease = nova_pending.new(None)

    #: For a rebuild a dict: the vm_state and the packed actions that the
    #: server had in its cell, whether its volumes are to be reserved anew
    #: (reserve), and the secret of its TPM that a failed build has made and
    #: that nova-api has not deleted yet (vtpm_secret_uuid).
    before = nova_pending.new(None)

    #: The column of the tags as it is in the row.
    stored_tags = nova_pending.new(None)

    #: The CellMapping that convert_to_mapping() has mapped the server to.
    cell = nova_pending.new(None)

    #: For a create the CellMapping of the cell in which the conductor has
    #: created the record: destroy() maps the server to that cell, or raises
    #: LeaseLost if recovery has taken the server.
    record_cell = nova_pending.new(None)

    def destroy(self):
        if self.lease is not None:
            self._destroy_rebuild()
        elif self.record_cell is None:
            released.BuildRequest.destroy(self)
        else:
            try:
                self._convert(self.record_cell)
            except LeaseLost:
                if place_of(self._context, self.instance_uuid) in GONE:
                    raise exception.BuildRequestNotFound(
                        uuid=self.instance_uuid)
                raise

    @staticmethod
    @nova_pending.replaces('6e8e507e30d29817')
    @api_db_api.context_manager.writer
    def _destroy_in_db(context, instance_uuid):
        row = api_models.BuildRequest
        # The holder of the lease has the server: no other process deletes the
        # row.
        if not context.session.query(row).filter(
                row.instance_uuid == instance_uuid, ~_has_lease(row)).delete(
                    synchronize_session=False):
            raise exception.BuildRequestNotFound(uuid=instance_uuid)

    def _get_update_primitives(self):
        updates = released.BuildRequest._get_update_primitives(self)
        if 'tags' in updates and self.lease is not None:
            updates['tags'] = self._join(updates['tags'], self.lease)
            updates['block_device_mappings'] = self._join(
                updates['block_device_mappings'], self.before)
        # The times of the lease have a zone, and columns have none.
        return {name: value.replace(tzinfo=None)
                if isinstance(value, datetime.datetime) else value
                for name, value in updates.items()}

    @staticmethod
    def _from_db_object(context, req, db_req):
        req = released.BuildRequest._from_db_object(context, req, db_req)
        req.stored_tags = db_req['tags']
        if (req.stored_tags or '').startswith(_LEASE):
            req.lease = jsonutils.loads(req.stored_tags)['nova_pending']
            req.before = jsonutils.loads(
                db_req['block_device_mappings']).get(
                    'nova_pending', dict(_NOTHING_BEFORE))
        return req

    @staticmethod
    def _get_by_instance_uuid_from_db(context, instance_uuid):
        # A conductor that builds the server looks for the build request. A
        # conductor that finds none destroys the mapping and the allocations
        # of the server. But the server may be in cell0, or run.
        mine = next((build_request for build_request in context.builds
                     if build_request.instance_uuid == instance_uuid), None)
        try:
            row = released.BuildRequest._get_by_instance_uuid_from_db(
                context, instance_uuid)
        except exception.BuildRequestNotFound:
            if mine is not None and (
                    place_of(context, instance_uuid) not in GONE):
                raise LeaseLost(instance_uuid=instance_uuid)
            raise
        if mine is not None and (
                row.id != mine.id or
                (row.tags or '').startswith(_LEASE) and
                row.tags != mine.stored_tags):
            raise LeaseLost(instance_uuid=instance_uuid)
        return row

    @nova_pending.new
    @staticmethod
    def _join(serialized, more):
        primitive = jsonutils.loads(serialized)
        primitive.pop('nova_pending', None)
        return jsonutils.dumps({'nova_pending': more, **primitive})

    @nova_pending.new
    def _row(self, session):
        """Return the query of the row that has the lease of this object."""
        row = api_models.BuildRequest
        if self.lease is None and self.stored_tags is None:
            # The tags of a build request that has come over the bus.
            is_mine = ~_has_lease(row)
        else:
            is_mine = row.tags == self.stored_tags
        return session.query(row).filter(row.id == self.id, is_mine)

    @nova_pending.new
    @oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
    def _save_lease(self, lease, stale_before=None):
        """Replace the lease, if the row has the one that this object has.

        :returns: whether it was replaced
        """
        tags = self._join(self.stored_tags or '{}', lease)
        row = api_models.BuildRequest
        with api_db_api.context_manager.writer.using(
                self._context) as session:
            query = self._row(session)
            if stale_before is not None:
                query = query.filter(
                    sa.func.coalesce(row.updated_at, row.created_at) <
                    stale_before)
            if not query.update(
                    {'tags': tags, 'updated_at': timeutils.utcnow()},
                    synchronize_session=False):
                return False
        self.lease, self.stored_tags = lease, tags
        if self.before is None:
            self.before = dict(_NOTHING_BEFORE)
        return True

    @nova_pending.new
    def take(self, stale_before=None):
        """Take the lease, which gives one caller the server.

        Nobody else builds the server or returns it to cell0 until another
        caller takes the lease.

        :param stale_before: a datetime; a lease that was last renewed before
            is taken from its holder. A create is taken in the same way.
            By default the lease of a rebuild must have no holder.
        :returns: whether it was taken
        """
        lease = self.lease or {'cell': None}
        if stale_before is None and (
                self.lease is None or lease['holder'] is not None):
            return False
        return self._save_lease(
            dict(lease, holder=uuidutils.generate_uuid()), stale_before)

    @nova_pending.new
    def renew(self, **changes):
        """Keep the lease for another [conductor] rebuild_in_cell0_timeout.

        :param changes: the keys of the lease to change, with their values
        :raises: LeaseLost if the server was deleted, or its build was taken
            over
        """
        if not self._save_lease(dict(self.lease, **changes)):
            raise LeaseLost(instance_uuid=self.instance_uuid)

    @nova_pending.new
    @oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
    def save_devices(self, bdms):
        """Save other block device mappings, and the attribute before.

        Nothing is saved if another process has taken the lease, or the server
        was deleted.

        :param bdms: the BlockDeviceMappingList
        """
        self.block_device_mappings = bdms
        self.obj_reset_changes(['block_device_mappings'])
        devices = jsonutils.dumps(bdms.obj_to_primitive())
        with api_db_api.context_manager.writer.using(
                self._context) as session:
            self._row(session).update(
                {'block_device_mappings': self._join(devices, self.before)},
                synchronize_session=False)

    @nova_pending.new
    def create_in_place_of_mapping(self, context, cell, request_spec):
        """Map a server from a cell to this build request, in one transaction.

        Of several callers exactly one succeeds.

        :param context: the request context
        :param cell: the CellMapping that the server must be mapped to
        :param request_spec: the RequestSpec to save with it
        :raises: InstanceMappingNotFound if the server is not mapped to the
            cell, or is being deleted; ChangedMeanwhile if another request has
            changed the stored request spec
        """
        self.lease = {'holder': None, 'cell': cell.uuid}
        self._create_in_place_of_mapping(
            context, cell, request_spec, request_spec.stored,
            self._get_update_primitives())

    @nova_pending.new
    @oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
    @api_db_api.context_manager.writer
    def _create_in_place_of_mapping(self, context, cell, request_spec, stored,
                                    values):
        row = api_models.InstanceMapping
        # InstanceMapping has no way to map a server to no cell.
        if not context.session.query(row).filter(
                row.instance_uuid == self.instance_uuid,
                row.cell_id == cell.id,
                sa.func.coalesce(row.queued_for_delete, sa.false()) ==
                sa.false()).update(
                    {'cell_id': None}, synchronize_session=False):
            raise exception.InstanceMappingNotFound(uuid=self.instance_uuid)
        # A request that changes the zone of the server saves the request spec.
        row = api_models.RequestSpec
        if context.session.query(row.spec).filter_by(
                instance_uuid=self.instance_uuid).with_for_update().scalar(
                    ) != stored:
            raise unbuilt_instance.ChangedMeanwhile(
                instance_uuid=self.instance_uuid)
        # create() refuses to try again after a deadlock.
        self._from_db_object(
            context, self, self._create_in_db(context, values))
        request_spec.save_all()

    @nova_pending.new
    def convert_to_mapping(self, cell, update):
        """Map the server to a cell in place of this build request.

        Both change in one transaction. The process that deletes the row of the
        build request has the server.

        :param cell: the CellMapping of the cell that has a record of it
        :param update: a function that brings the record up to date if a user
            has changed the server meanwhile, called with a dict of the changed
            attributes
        :raises: LeaseLost if the server was deleted, or its build was taken
            over
        """
        while (now := self._convert(cell)) is not None:
            update(_instance_diff(self.instance, now.instance))
            self.instance = now.instance
            self.obj_reset_changes(['instance'])
        self.cell = cell

    @nova_pending.new
    @oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
    def _convert(self, cell):
        """Do what convert_to_mapping() does, if no user has changed anything.

        What a user changes during a create is not kept.

        :returns: the BuildRequest as it is now if a user has, else None
        """
        with api_db_api.context_manager.writer.using(
                self._context) as session:
            query = self._row(session)
            # The lock keeps updates out that would be lost with the row.
            row = query.with_for_update().one_or_none()
            if row is None:
                raise LeaseLost(instance_uuid=self.instance_uuid)
            if self.lease is not None:
                now = objects.BuildRequest._from_db_object(
                    self._context, objects.BuildRequest(), row)
                if _instance_diff(self.instance, now.instance):
                    return now
            session.delete(row)
            session.query(api_models.InstanceMapping).filter_by(
                instance_uuid=self.instance_uuid).update(
                    {'cell_id': cell.id}, synchronize_session=False)

    @nova_pending.new
    def _destroy_rebuild(self):
        """Delete the server, whoever builds it.

        The lease is taken first, so that the conductor that held the lease
        stops. If this process dies before the end, recovery returns the server
        to cell0, and the user deletes the server again.

        :raises: BuildRequestNotFound if the server has a record by now, or
            another process has taken the server
        """
        while not self._save_lease(
                dict(self.lease, holder=uuidutils.generate_uuid())):
            now = objects.BuildRequest.get_by_instance_uuid(
                self._context, self.instance_uuid)
            self.id, self.lease, self.stored_tags = (
                now.id, now.lease, now.stored_tags)
            if self.lease is None:
                # A row without a lease is that of a create, with a record.
                raise exception.BuildRequestNotFound(uuid=self.instance_uuid)
        if self.lease['cell']:
            cell = objects.CellMapping.get_by_uuid(
                self._context, self.lease['cell'])
            if not unbuilt_instance.purge(
                    self._context, cell, self.instance_uuid):
                # A host builds the server: the record is to be deleted there.
                try:
                    self.convert_to_mapping(cell, lambda changes: None)
                except LeaseLost:
                    LOG.debug('Somebody else has the server.',
                              instance_uuid=self.instance_uuid)
                raise exception.BuildRequestNotFound(uuid=self.instance_uuid)
        if not self._delete_all_rows():
            raise exception.BuildRequestNotFound(uuid=self.instance_uuid)

    @nova_pending.new
    @oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
    def _delete_all_rows(self):
        """Delete the rows of a server that is in no cell.

        The server has no record, so no archive of deleted servers would find
        its mapping and its request spec.
        """
        with api_db_api.context_manager.writer.using(
                self._context) as session:
            if not self._row(session).delete(synchronize_session=False):
                return False
            session.query(api_models.InstanceMapping).filter_by(
                instance_uuid=self.instance_uuid, cell_id=None).delete(
                    synchronize_session=False)
            session.query(api_models.RequestSpec).filter_by(
                instance_uuid=self.instance_uuid).delete(
                    synchronize_session=False)
            return True
