# SPDX-License-Identifier: Apache-2.0

"""Rebuilds of volume-backed servers that end outside of the re-image."""

import contextvars
from unittest import mock

import fixtures
from oslo_db import exception as db_exc
from oslo_db.sqlalchemy import enginefacade
import oslo_messaging as messaging

from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.main import api as main_db_api
from nova import exception
from nova import objects
from nova.objects import service as service_obj
from nova.scheduler.client import query
from nova.tests.functional.api import client as api_client
from nova.tests.functional import test_volume_reimage_exchange
from nova.tests.functional import test_volume_reimage_refused
from nova.tests.functional import volume_reimage_base

IMAGE = volume_reimage_base.IMAGE
OTHER_IMAGE = volume_reimage_base.OTHER_IMAGE


def without_tests(cls):
    """Return a class without its tests, for its helpers."""
    return type(cls.__name__, (cls,), {
        name: None for name in dir(cls) if name.startswith('test_')})


class BeforeTestCase(without_tests(
        test_volume_reimage_refused.RefusedTestCase)):
    """Nobody has touched the guest when it fails."""

    def test_preserve_ephemeral(self):
        rebuild = self.rebuild
        with mock.patch.object(self, 'rebuild', lambda **body: rebuild(
                preserve_ephemeral=True, **body)):
            self.as_before(lambda: None, 'preserving ephemeral')
        self.rebuild()
        self.assertRebuilt()

    def test_driver_with_a_way_of_its_own(self):
        with mock.patch.object(
                self.driver, 'rebuild', side_effect=exception.NovaException(
                    'no volume-backed servers here')):
            self.as_before(lambda: None, 'no volume-backed servers here')
        self.rebuild()
        self.assertRebuilt()

    # In the conductor.

    def test_image_cannot_be_read_by_the_conductor(self):
        image = dict(self.glance.show(None, OTHER_IMAGE))
        with mock.patch(
                'nova.conductor.manager.ComputeTaskManager.'
                '_validate_image_traits_for_rebuild',
                side_effect=exception.ImageNotFound(image_id=image['id'])):
            self.not_begun('Image')

    def test_scheduler_does_not_answer(self):
        with mock.patch.object(
                query.SchedulerQueryClient, 'select_destinations',
                side_effect=messaging.MessagingTimeout('no answer')):
            self.not_begun('MessagingTimeout')

    def not_begun(self, said):
        before = self.in_database()
        self.api.post_server_action(self.server['id'], {'rebuild': {
            'imageRef': OTHER_IMAGE, 'name': 'renamed'}})
        self._wait_for_assert(lambda: self.assertEqual(
            'None', self.in_database()['instance']['task_state']))
        after = self.assertUnchanged(before, 'display_name')
        self.assertIn(said, after['fault'].message)
        self.assertAttached()
        self.api.post_server_action(
            self.server['id'], {'reboot': {'type': 'HARD'}})
        self._wait_for_state_change(self.server, 'ACTIVE')

    def test_deleted_while_the_scheduler_does_not_answer(self):
        def deleted(*args, **kwargs):
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            raise messaging.MessagingTimeout('no answer')

        with mock.patch.object(query.SchedulerQueryClient,
                               'select_destinations', deleted):
            self.api.post_server_action(
                self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
            self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)


class SoftDeletedTestCase(volume_reimage_base.VolumeReimageBase):
    """It is deleted in a way that can be undone while Cinder works."""

    def soft_deleted(self, exc=None):
        self.flags(reclaim_instance_interval=3600)

        def delete():
            self.api.delete_server(self.server['id'])
            self._wait_for_state_change(self.server, 'SOFT_DELETED')
            if exc:
                raise exc

        self.cinder.failures['reimage_volume'] = [delete]
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_for_assert(self.has_ended)
        server = self.admin_api.get_server(self.server['id'])
        self.assertEqual(('SOFT_DELETED', None), (
            server['status'], server['OS-EXT-STS:task_state']))
        for volume in (self.root, self.data):
            self.assertEqual([self.server['id']], [
                each[0] for each in self.cinder.attached(volume)])
        self.api.post_server_action(self.server['id'], {'forceDelete': None})
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)

    def has_ended(self):
        events = [
            event for action in self.admin_api.get_instance_actions(
                self.server['id']) if action['action'] == 'rebuild'
            for event in self.admin_api.api_get(
                '/servers/%s/os-instance-actions/%s' % (
                    self.server['id'], action['request_id'])).body[
                        'instanceAction']['events']
            if event['event'] == 'compute_rebuild_instance']
        self.assertTrue(events and events[0]['finish_time'])

    def test_refused(self):
        self.soft_deleted(volume_reimage_base.REFUSALS['policy'])

    def test_done(self):
        self.soft_deleted()

    def test_in_error(self):
        self.cinder.outcome = 'error'
        self.soft_deleted()


class HostIsDownTestCase(without_tests(
        test_volume_reimage_exchange.KilledTestCase)):
    """nova-compute dies, and the server is deleted without its host."""

    def deleted_locally(self, when, call, number):
        getattr(self.cinder, when)[call] = [None] * number + [self.killed]
        self.ask_and_wait()
        service = self.admin_api.get_services(
            binary='nova-compute', host=self.host)[0]['id']
        self.admin_api.put_service_force_down(service, True)
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)
        for volume in (self.root, self.data):
            self.assertEqual('available', self.cinder.status(volume))

    def test_with_the_original_attachment(self):
        self.deleted_locally('failures', 'attachment_delete', 1)

    def test_with_the_attachment_in_its_place(self):
        self.deleted_locally('failures_after', 'attachment_create', 0)


class SecretTestCase(volume_reimage_base.VolumeReimageBase):
    """User data can hold a secret: what is replaced is kept nowhere."""

    def test_replaced(self):
        old, new = 'c2VjcmV0', 'bmV3'
        for outcome, refusals, status in (
                ('done', [], 'ACTIVE'),
                ('done', [volume_reimage_base.REFUSALS['policy']], 'ACTIVE'),
                ('error', [], 'ERROR')):
            self.cinder.outcome = 'done'
            self.rebuild(user_data=old)
            self.assertEqual(['instances'], self.tables_with(old))
            self.cinder.outcome = outcome
            self.cinder.failures['reimage_volume'] = refusals
            self.assertEqual(status, self.rebuild(user_data=new)['status'])
            self.assertEqual([], self.tables_with(old))
            self.assertEqual(['instances'], self.tables_with(new))

    def test_replaced_and_killed(self):
        """A nova-compute that dies in the middle keeps it nowhere, either."""
        old, new = 'c2VjcmV0', 'bmV3'
        self.rebuild(user_data=old)

        def killed():
            self.assertEqual([], self.tables_with(old))
            raise test_volume_reimage_exchange.Killed()

        self.cinder.failures['reimage_volume'] = [killed]
        self.api.post_server_action(self.server['id'], {'rebuild': {
            'imageRef': OTHER_IMAGE, 'user_data': new}})
        self._wait_for_assert(lambda: self.assertIsNotNone(
            self.event('compute_rebuild_instance')['finish_time']))
        self.assertEqual([], self.tables_with(old))
        self.assertEqual(['instances'], self.tables_with(new))


class CellConductorTestCase(volume_reimage_base.VolumeReimageBase):
    """nova-compute has a conductor of a cell, without [api_database]."""

    def setUp(self):
        super().setUp()
        in_compute = contextvars.ContextVar('in_compute', default=False)
        self.rebuilds = []
        rebuild = self.compute.manager.rebuild_instance
        factory = api_db_api.context_manager._factory
        create = enginefacade._TransactionFactory._create_session

        def rebuild_in_cell(*args, **kwargs):
            self.rebuilds.append(kwargs)
            token = in_compute.set(True)
            try:
                return rebuild(*args, **kwargs)
            finally:
                in_compute.reset(token)

        def create_session(this, *args, **kwargs):
            if this is factory and in_compute.get():
                raise db_exc.CantStartEngineError('no [api_database]')
            return create(this, *args, **kwargs)

        self.useFixture(fixtures.MockPatchObject(
            self.compute.manager, 'rebuild_instance', rebuild_in_cell))
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_db.sqlalchemy.enginefacade._TransactionFactory.'
            '_create_session', create_session))

    def test_done(self):
        self.rebuild()
        self.assertRebuilt()
        self.assertEqual(1, len(self.rebuilds))

    def test_refused(self):
        self.cinder.failures['reimage_volume'] = [
            volume_reimage_base.REFUSALS['policy']]
        before = self.in_database()
        self.assertEqual('ACTIVE', self.rebuild()['status'])
        self.assertUnchanged(before)
        self.assertAttached()

    def test_in_error(self):
        self.cinder.outcome = 'error'
        self.assertEqual('ERROR', self.rebuild()['status'])
        self.retried()
        self.assertEqual(2, len(self.rebuilds))


class OldHostTestCase(volume_reimage_base.VolumeReimageBase):
    """The service version of the host says that it would undo nothing."""

    def set_version(self, version):
        context = nova_context.get_admin_context()
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, self.server['id']).cell_mapping
        with nova_context.target_cell(context, cell) as cctxt:
            service = objects.Service.get_by_host_and_binary(
                cctxt, self.host, 'nova-compute')
            main_db_api.service_update(
                cctxt, service.id, {'version': version})

    def refused(self):
        before = self.in_database()
        self.cinder.calls.clear()
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {
                'imageRef': OTHER_IMAGE, 'name': 'renamed'}})
        self.assertEqual(409, exc.response.status_code)
        self.assertIn('too old', str(exc))
        self.assertNotIn(self.host, str(exc).replace('compute service', ''))
        self.assertUnchanged(before)
        self.assertEqual([], self.cinder.calls)
        self.assertAttached()

    def test_too_old(self):
        self.set_version(service_obj.UNDOES_REIMAGE - 1)
        for microversion in ('2.93', 'latest'):
            self.api.microversion = microversion
            self.refused()
        self.set_version(service_obj.UNDOES_REIMAGE)
        self.rebuild()
        self.assertRebuilt()

    def test_without_a_record(self):
        with mock.patch.object(objects.Service, 'get_by_host_and_binary',
                               return_value=None):
            self.refused()

    def test_after_a_failure(self):
        """The host was downgraded since: the owner can wait for it."""
        self.cinder.outcome = 'error'
        self.assertEqual('ERROR', self.rebuild()['status'])
        self.set_version(service_obj.UNDOES_REIMAGE - 1)
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self.assertEqual(409, exc.response.status_code)
        self.assertReserved(self.root, self.data)
        self.set_version(service_obj.UNDOES_REIMAGE)
        self.retried()

    def test_other_rebuilds(self):
        """What writes to no volume goes to any host."""
        self.set_version(service_obj.UNDOES_REIMAGE - 1)
        self.api.microversion = '2.92'
        self.rebuild(IMAGE)
        self.assertAttached()
        self.server = self.api.post_server({'server': {
            'name': 'server', 'imageRef': IMAGE, 'networks': 'none',
            'flavorRef': self._create_flavor(
                vcpu=1, memory_mb=128, disk=1)}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.api.microversion = 'latest'
        self.rebuild()
        self.assertEqual('ACTIVE', self.at_rest()['status'])
