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
        """nova-compute reads the compute RPC version off it."""
        history = service_obj.SERVICE_VERSION_HISTORY
        self.assertEqual(service_obj.KNOWS_PENDING,
                         service_obj.SERVICE_VERSION)
        self.assertEqual(service_obj.SERVICE_VERSION + 1, len(history))
        self.assertEqual(*history[-2:])

    def test_an_older_service_starts_after_it(self):
        older = service_obj.UNDOES_REIMAGE - 1
        self.start('one', service_obj.SERVICE_VERSION)
        self.start('two', service_obj.SERVICE_VERSION)
        self.assertRaises(exception.ServiceTooOld, self.start, 'one', older)
        pending_rollout.lower_service_versions(self.context)
        self.assertEqual({'one': older, 'two': older}, self.versions())
        self.start('one', older)
        # Beside one that is not downgraded yet.
        self.start('two', service_obj.SERVICE_VERSION)
        self.start('three', older)

    def test_heartbeats_after_it(self):
        """A process keeps the minimum version that it has read."""
        self.start('one', service_obj.SERVICE_VERSION)
        self.addCleanup(setattr, service_obj.Service,
                        '_SERVICE_VERSION_CACHING', False)
        self.addCleanup(service_obj.Service.clear_min_version_cache)
        service_obj.Service.enable_min_version_cache()
        self.assertEqual(
            service_obj.SERVICE_VERSION, objects.Service.get_minimum_version(
                self.context, 'nova-conductor'))
        pending_rollout.lower_service_versions(self.context)
        found = objects.Service.get_by_host_and_binary(
            self.context, 'one', 'nova-conductor')
        self.assertEqual(service_obj.UNDOES_REIMAGE - 1, found.version)
        for _heartbeat in range(2):
            found.report_count += 1
            found.save()
        self.start('one', service_obj.SERVICE_VERSION)
        service_obj.Service.clear_min_version_cache()
        self.assertRaises(exception.ServiceTooOld, self.start, 'one',
                          service_obj.UNDOES_REIMAGE - 1)

    def test_every_version_of_ours(self):
        for version in service_obj.UNDOES_REIMAGE, service_obj.KNOWS_PENDING:
            self.start('host%d' % version, version)
        pending_rollout.lower_service_versions(self.context)
        self.assertEqual({service_obj.UNDOES_REIMAGE - 1},
                         set(self.versions().values()))

    def test_other_versions_stay(self):
        self.start('older', service_obj.UNDOES_REIMAGE - 2)
        self.start('newer', service_obj.SERVICE_VERSION + 1)
        before = self.versions()
        pending_rollout.lower_service_versions(self.context)
        self.assertEqual(before, self.versions())
