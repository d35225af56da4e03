# SPDX-License-Identifier: Apache-2.0

from oslo_utils.fixture import uuidsentinel as uuids
from oslo_utils import timeutils

from nova.compute import action_history
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import objects
from nova import test


class ActionHistoryTestCase(test.TestCase):

    def test_actions_of_one_second_keep_their_order(self):
        context = nova_context.get_admin_context()
        now = timeutils.utcnow().replace(microsecond=0)
        for name in ('create', 'rebuild', 'lock'):
            action = objects.InstanceAction.action_start(
                nova_context.get_admin_context(), uuids.server, name)
            self._set(context, action, created_at=now)
        packed = action_history.pack(context, uuids.server)
        with main_db_api.get_context_manager(context).writer.using(context):
            context.session.query(models.InstanceAction).delete()

        action_history.unpack(context, uuids.server, packed)

        self.assertEqual(
            ['lock', 'rebuild', 'create'],
            [action.action for action in
             objects.InstanceActionList.get_by_instance_uuid(
                 context, uuids.server)])

    def _set(self, context, action, **values):
        with main_db_api.get_context_manager(context).writer.using(context):
            context.session.query(models.InstanceAction).filter_by(
                id=action.id).update(values)
