# SPDX-License-Identifier: Apache-2.0

"""What the tests of the rebuild in cell0 share."""

import datetime

from oslo_serialization import jsonutils

from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import exception
from nova import objects
from nova.tests.functional.api import client as api_client
from nova.tests.functional import full_cloud


class RebuildInCell0Base(full_cloud.FullCloudTestCase):

    def make_room(self):
        """Start a host that has room for the server that waits."""
        self.flags(compute_driver='fake.FakeDriver')
        self._start_compute('roomy')

    def rebuild(self, server, **body):
        return self.api.post_server_action(
            server['id'], {'rebuild': body},
            check_response_status=[202])['server']

    def refused(self, code, server, api=None, **body):
        exc = self.assertRaises(
            api_client.OpenStackApiException,
            (api or self.api).post_server_action, server['id'],
            {'rebuild': body})
        self.assertEqual(code, exc.response.status_code, exc)
        return str(exc)

    def stored(self, server):
        """Return what the databases hold of a server in cell0."""
        context = nova_context.get_admin_context()
        rows = {}
        with api_db_api.context_manager.reader.using(context):
            for model in (api_models.RequestSpec, api_models.InstanceMapping,
                          api_models.BuildRequest):
                rows[model.__tablename__] = [
                    dict(row) for row in context.session.query(model)
                    .filter_by(instance_uuid=server['id'])]
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt:
            with main_db_api.get_context_manager(cctxt).reader.using(cctxt):
                for model, column in (
                        (models.Instance, 'uuid'),
                        (models.InstanceExtra, 'instance_uuid'),
                        (models.InstanceSystemMetadata, 'instance_uuid'),
                        (models.InstanceMetadata, 'instance_uuid'),
                        (models.InstanceFault, 'instance_uuid'),
                        (models.InstanceAction, 'instance_uuid'),
                        (models.BlockDeviceMapping, 'instance_uuid'),
                        (models.Tag, 'resource_id')):
                    rows[model.__tablename__] = [
                        {c.name: getattr(row, c.name)
                         for c in model.__table__.columns}
                        for row in cctxt.session.query(model)
                        .filter_by(**{column: server['id']})]
        return jsonutils.to_primitive(rows)

    def forget_request(self, server):
        """Let a request spec be one without what a rebuild needs."""
        context = nova_context.get_admin_context()
        spec = objects.RequestSpec.get_by_instance_uuid(context, server['id'])
        spec.rebuild_data = None
        spec.save_all()

    def created_long_ago(self, server):
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt:
            with main_db_api.get_context_manager(cctxt).writer.using(cctxt):
                cctxt.session.query(models.Instance).filter_by(
                    uuid=server['id']).update(
                        {'created_at': datetime.datetime(2020, 1, 2)})
        return self.admin_api.get_server(server['id'])

    def in_cell(self, cell_uuid, server):
        """Whether a cell's database has a row of a server, deleted or not."""
        context = nova_context.get_admin_context(read_deleted='yes')
        cell = objects.CellMapping.get_by_uuid(context, cell_uuid)
        with nova_context.target_cell(context, cell) as cctxt:
            try:
                objects.Instance.get_by_uuid(cctxt, server['id'])
            except exception.InstanceNotFound:
                return False
            return True
