# SPDX-License-Identifier: Apache-2.0

"""What a host leaves of a server that it has built, as it loses its peers."""

import functools
from unittest import mock

import fixtures
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids
from oslo_utils import timeutils

from nova.compute import manager
from nova.compute import vm_states
from nova import context as nova_context
from nova import exception
from nova import objects
from nova import test
from nova.tests import fixtures as nova_fixtures
from nova.tests.unit import fake_instance


class BuiltServerTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(nova_fixtures.SpawnIsSynchronousFixture())
        self.context = nova_context.get_admin_context()
        self.instance = fake_instance.fake_instance_obj(
            self.context, uuid=uuids.server, vm_state=vm_states.BUILDING,
            created_at=timeutils.utcnow(), expected_attrs=[
                'metadata', 'system_metadata', 'info_cache'])
        # The record of the server, as the cell has it.
        self.now = fake_instance.fake_instance_obj(
            self.context, uuid=uuids.server, vm_state=vm_states.BUILDING)
        self.get = self.patch(
            objects.Instance, 'get_by_uuid', return_value=self.now)
        self.patch(objects.Instance, 'save')
        self.fault = self.patch(
            manager.compute_utils, 'add_instance_fault_from_exc')
        self.patch(objects.InstanceActionEvent, 'event_start')
        self.finish = self.patch(
            objects.InstanceActionEvent, 'event_finish_with_failure')
        self.compute = manager.ComputeManager()
        self.build = self.patch(self.compute, '_build_and_run_instance')
        self.compute.network_api = mock.Mock()
        self.networks = self.compute.network_api.deallocate_for_instance
        self.delete = self.patch(
            self.compute.reportclient, 'delete_allocation_for_instance')

    def patch(self, target, name, **kwargs):
        return self.useFixture(
            fixtures.MockPatchObject(target, name, **kwargs)).mock

    def test_the_state_is_saved_and_the_rest_fails(self):
        """The released clean-up would set the server to ERROR, on no host."""
        self.build.side_effect = functools.partial(
            manager.ComputeManager._build_and_run_instance, self.compute)
        notify = self.patch(
            self.compute, '_notify_about_instance_usage',
            side_effect=messaging.MessagingTimeout())
        self.instance.host = 'host'
        self.now.vm_state = vm_states.ACTIVE
        self.built()
        notify.assert_called_once()
        self.assertEqual(('host', vm_states.BUILDING),
                         (self.instance.host, self.instance.vm_state))
        self.networks.assert_not_called()
        self.delete.assert_not_called()

    def built(self):
        self.compute.build_and_run_instance(
            self.context, self.instance, {}, None, {}, [],
            requested_networks=[], security_groups=[],
            block_device_mapping=[], node='node', limits={})

    def assertDeleted(self):
        self.delete.assert_called_once_with(
            mock.ANY, uuids.server, force=True)

    def test_the_end_cannot_be_recorded(self):
        self.now.vm_state = vm_states.ACTIVE
        self.finish.side_effect = messaging.MessagingTimeout()
        self.built()
        self.build.assert_called_once()
        self.delete.assert_not_called()

    def test_the_state_cannot_be_saved(self):
        """The cell has the state, and its answer was lost."""
        self.now.vm_state = vm_states.ACTIVE
        self.build.side_effect = messaging.MessagingTimeout()
        self.fault.side_effect = messaging.MessagingTimeout()
        self.finish.side_effect = messaging.MessagingTimeout()
        self.built()
        self.networks.assert_not_called()
        self.delete.assert_not_called()

    def test_it_is_not_known_whether_the_server_was_built(self):
        self.get.side_effect = messaging.MessagingTimeout()
        self.finish.side_effect = messaging.MessagingTimeout()
        self.built()
        self.delete.assert_not_called()

    def test_build_that_fails(self):
        self.build.side_effect = exception.BuildAbortException(
            instance_uuid=uuids.server, reason='a fault of the host')
        self.built()
        self.networks.assert_called_once()
        self.assertEqual(vm_states.ERROR, self.instance.vm_state)
        self.assertDeleted()

    def test_server_that_was_not_built_and_the_end_cannot_be_recorded(self):
        self.finish.side_effect = messaging.MessagingTimeout()
        self.built()
        self.assertDeleted()

    def test_cell_that_fails_otherwise(self):
        self.get.side_effect = exception.CellTimeout()
        self.finish.side_effect = messaging.MessagingTimeout()
        self.built()
        self.assertDeleted()
