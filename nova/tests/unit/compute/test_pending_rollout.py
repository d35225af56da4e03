# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from nova.compute import pending_rollout
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import service as service_obj
from nova import service
from nova import test


class ServiceVersionTestCase(test.TestCase):

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()

    def start(self, host, version):
        """Let a service write its record, as when it starts."""
        with mock.patch.object(service_obj, 'SERVICE_VERSION', version):
            found = objects.Service.get_by_host_and_binary(
                self.context, host, 'nova-conductor')
            if found:
                service._update_service_ref(found)
                return
            objects.Service(
                self.context, host=host, binary='nova-conductor',
                topic='conductor', report_count=0).create()

    def versions(self):
        return {found.host: found.version for found in
                objects.ServiceList.get_by_binary(
                    self.context, 'nova-conductor')}

    def test_history(self):
        """The release reads the compute RPC version off it."""
        history = service_obj.SERVICE_VERSION_HISTORY
        self.assertEqual(service_obj.KNOWS_PENDING,
                         service_obj.SERVICE_VERSION)
        self.assertEqual(service_obj.SERVICE_VERSION + 1, len(history))
        self.assertEqual(*history[-2:])

    def test_the_release_starts_after_it(self):
        stock = service_obj.KNOWS_PENDING - 1
        self.start('one', service_obj.SERVICE_VERSION)
        self.start('two', service_obj.SERVICE_VERSION)
        self.assertRaises(exception.ServiceTooOld, self.start, 'one', stock)
        pending_rollout.lower_service_versions(self.context)
        self.assertEqual({'one': stock, 'two': stock}, self.versions())
        self.start('one', stock)
        # Beside one that is not downgraded yet.
        self.start('two', service_obj.SERVICE_VERSION)
        self.start('three', stock)

    def test_other_versions_stay(self):
        self.start('older', service_obj.KNOWS_PENDING - 2)
        self.start('newer', service_obj.SERVICE_VERSION + 1)
        before = self.versions()
        pending_rollout.lower_service_versions(self.context)
        self.assertEqual(before, self.versions())
