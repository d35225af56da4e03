# SPDX-License-Identifier: Apache-2.0

"""Whose rebuild of a server that waits says that its owner knows of that."""

from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import rebuild_in_cell0
from nova import context as nova_context
from nova import objects
from nova import test


class OwnerTestCase(test.NoDBTestCase):

    def test_who_is_the_owner(self):
        record = objects.Instance(project_id=uuids.project)
        for project, roles, service_roles, expected in (
                (uuids.project, ['member'], [], True),
                (uuids.other, ['member'], [], False),
                (uuids.project, ['admin'], [], False),
                (uuids.project, ['service'], [], False),
                (uuids.project, ['member'], ['service'], False),
                (uuids.project, ['member'], ['other'], True)):
            context = nova_context.RequestContext(
                uuids.user, project, roles=roles,
                is_admin='admin' in roles, service_roles=service_roles)
            self.assertIs(expected, rebuild_in_cell0._is_asked_by_owner(
                context, record))
