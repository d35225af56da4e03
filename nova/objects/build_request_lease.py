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

"""The lease of a rebuild, and what is done to a build request by it.

It stands in the row of the build request, beside the tags, and tells who has
the server. Each function here finds the row by it, so that whoever has lost
it changes nothing.
"""

from oslo_db import api as oslo_db_api
from oslo_serialization import jsonutils
from oslo_utils import timeutils

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import fields

# Before the TagList in its column: the one that no update of a build request
# writes, and that stock Nova loads with it.
_LEASE = '{"nova_pending": '

# What of a server a build request does not store but makes up, and what is an
# object: no user can change that while there is a build request.
_NOT_COMPARED = ('created_at', 'updated_at', 'tags')


class LeaseLost(exception.NovaException):
    msg_fmt = _("Server %(instance_uuid)s was deleted while it was rebuilt, "
                "or its rebuild was taken over.")


def of_rebuilds(including_pinned):
    """Return the condition of a query for build requests of rebuilds.

    :param including_pinned: whether those count that any conductor may have
        been asked to build, and that none has taken
    """
    tags = api_models.BuildRequest.tags
    condition = tags.startswith(_LEASE, autoescape=True)
    if not including_pinned:
        condition &= ~tags.startswith(
            join({'owner': None, 'pinned': True}, '{}')[:-1],
            autoescape=True)
    return condition


def is_in(tags):
    """Whether a build request is one of a rebuild.

    :param tags: the column of its row
    """
    return (tags or '').startswith(_LEASE)


def load(tags):
    """Return the lease of a build request of a rebuild, a dict.

    :param tags: the column of its row
    """
    return jsonutils.loads(tags)['nova_pending']


def join(lease, tags):
    """Return what is stored in the column.

    :param lease: the lease, a dict
    :param tags: the column as it is, or the TagList as it is serialized
    """
    primitive = jsonutils.loads(tags)
    primitive.pop('nova_pending', None)
    return jsonutils.dumps({'nova_pending': lease, **primitive})


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def save(build_request, lease, stale_before=None):
    """Replace the lease, if the row has the one that the build request has.

    :param build_request: the BuildRequest
    :param lease: the new one, a dict
    :param stale_before: when it must have been saved last, a datetime. By
        default that does not matter.
    :returns: whether it was replaced
    """
    tags = join(lease, build_request.stored_tags)
    with api_db_api.context_manager.writer.using(
            build_request._context) as session:
        query = _query(build_request, session)
        if stale_before is not None:
            query = query.filter(
                api_models.BuildRequest.updated_at < stale_before)
        if not query.update(
                {'tags': tags, 'updated_at': timeutils.utcnow()},
                synchronize_session=False):
            return False
    build_request.lease, build_request.stored_tags = lease, tags
    return True


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def replace(build_request, cell, save_spec):
    """Replace a build request by a mapping, in one transaction.

    The parameters are those of BuildRequest.convert_to_mapping().

    :returns: the BuildRequest as it is now if a user has changed the server,
        and nothing was replaced
    :raises: BuildRequestNotFound if it is gone, or somebody has taken it
    """
    context = build_request._context
    with api_db_api.context_manager.writer.using(context) as session:
        query = _query(build_request, session)
        # The lock keeps an update out that would be lost with the row.
        row = query.with_for_update().one_or_none()
        if row is not None:
            now = objects.BuildRequest._from_db_object(
                context, objects.BuildRequest(), row)
            if instance_diff(build_request.instance, now.instance):
                return now
        if not query.delete():
            raise exception.BuildRequestNotFound(
                uuid=build_request.instance_uuid)
        session.query(api_models.InstanceMapping).filter_by(
            instance_uuid=build_request.instance_uuid).update(
                {'cell_id': cell.id})
        if save_spec is not None:
            save_spec()


def _query(build_request, session):
    return session.query(api_models.BuildRequest).filter_by(
        id=build_request.id, tags=build_request.stored_tags)


def instance_diff(before, after):
    """Return a dict of what of an Instance is other than before."""
    return {
        name: getattr(after, name)
        for name, field in objects.Instance.fields.items()
        if not isinstance(field, fields.ObjectField) and
        name not in _NOT_COMPARED and name in before and name in after and
        getattr(before, name) != getattr(after, name)}
