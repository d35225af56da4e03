# SPDX-License-Identifier: Apache-2.0

"""Deletes of a server that a rebuild moves meanwhile."""

from unittest import mock

from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import moved_server
from nova import context as nova_context
from nova import objects
from nova import test


class DeleteTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.RequestContext()
        self.instance = objects.Instance(
            self.context, id=1, uuid=uuids.server, host=None,
            launched_at=None)
        self.api = mock.Mock()
        self.api.get.return_value = self.instance

    def delete(self, *outcomes):
        """Delete the server; return how often that was tried."""
        outcomes = list(outcomes)

        def do(context, instance):
            outcome = outcomes.pop(0)
            if outcome:
                raise outcome
            delattr(instance, objects.base.get_attrname('id'))

        instances = mock.Mock(side_effect=do)
        try:
            moved_server.delete(
                self.api, self.context, self.instance, instances)
        finally:
            self.assertEqual([], outcomes)
        return instances.call_count

    def test_server_that_is_back(self):
        """The delete has met the server between two cells."""
        self.assertEqual(2, self.delete(AttributeError(), None))

    def test_failure_that_stays(self):
        self.assertRaises(
            ValueError, self.delete, AttributeError(), ValueError())
