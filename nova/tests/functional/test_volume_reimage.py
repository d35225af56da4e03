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

"""Rebuilds of volume-backed servers that Cinder refuses or fails."""

import copy
import time
from unittest import mock

from cinderclient import exceptions as cinder_exception
import fixtures
from keystoneauth1 import exceptions as keystone_exception
from oslo_serialization import base64
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import cinder_reimage
from nova.compute import manager
from nova.compute import power_state
from nova.compute import reimage_state
from nova.compute import resource_tracker
from nova.compute import rpcapi
from nova.compute import volume_reimage
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional.api import client as api_client
from nova.tests.functional import cinder_with_states
from nova.tests.functional import integrated_helpers

IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'
OTHER_IMAGE = 'a2459075-d96c-40d5-893e-577ff92e721c'


class _Refusals(dict):
    """Exceptions, each time a new one.

    One that was raised remembers what it was raised from, in all tests.
    """

    def __getitem__(self, kind):
        return copy.copy(super().__getitem__(kind))


REFUSALS = _Refusals({
    'bad state': cinder_exception.BadRequest(
        400, 'Invalid volume: its status is wrong'),
    'policy': cinder_exception.Forbidden(
        403, "Policy doesn't allow volume:reimage_reserved"),
    'conflict': cinder_exception.ClientException(
        409, 'Cannot re-image a volume which is attached'),
    'over its limits': cinder_exception.OverLimit(
        413, 'This request was rate-limited.'),
    'broken': cinder_exception.ClientException(
        500, 'The server could not comply.'),
    'unreachable': keystone_exception.ConnectFailure(
        'Unable to establish connection to cinder'),
    'gateway': cinder_exception.ClientException(504, 'Gateway Timeout'),
})


def without_changes(primitive):
    """Leave out of a stored object what of it had changed when stored."""
    if isinstance(primitive, dict):
        return {key: without_changes(value)
                for key, value in primitive.items()
                if key not in ('nova_object.changes',
                               'nova_pending_before_rebuild')}
    if isinstance(primitive, list):
        return [without_changes(value) for value in primitive]
    return primitive


class VolumeReimageBase(integrated_helpers._IntegratedTestBase):

    # A cast that fails must fail as it does on a real bus: unseen.
    CAST_AS_CALL = False
    microversion = 'latest'
    # The host of the root volume's attachment.
    host = 'compute'

    def setUp(self):
        with mock.patch.object(nova_fixtures, 'CinderFixture',
                               cinder_with_states.CinderWithStates):
            super().setUp()
        self.flags(reimage_timeout_per_gb=1, reimage_timeout_extensions=0)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.cinder_reimage._TRY_AGAIN_AFTER', (0, 0)))
        self.driver = self.compute.manager.driver
        self.root = self.cinder.add_volume(IMAGE)
        self.data = self.cinder.add_volume()
        self.server = self.create()

    def create(self, root=None, **server):
        server = self.api.post_server({'server': {
            'name': 'server', 'imageRef': '', 'networks': 'none',
            'flavorRef': self._create_flavor(
                vcpu=1, memory_mb=128, disk=1, ephemeral=1, swap=1),
            'block_device_mapping_v2': [
                {'boot_index': 0, 'uuid': root or self.root,
                 'source_type': 'volume', 'destination_type': 'volume'},
                {'boot_index': -1, 'uuid': self.data,
                 'source_type': 'volume', 'destination_type': 'volume'},
                {'boot_index': -1, 'source_type': 'blank',
                 'destination_type': 'local', 'volume_size': 1}],
            **server}})
        return self._wait_for_state_change(server, 'ACTIVE')

    def rebuild(self, image=OTHER_IMAGE, **body):
        """Ask for a rebuild and wait until the server is at rest again."""
        self.api.post_server_action(
            self.server['id'], {'rebuild': dict(body, imageRef=image)},
            check_response_status=[202])
        return self.at_rest()

    def at_rest(self):
        for _try in range(600):
            server = self.admin_api.get_server(self.server['id'])
            if server['OS-EXT-STS:task_state'] is None and (
                    self.event('compute_rebuild_instance')['finish_time']):
                # The fault comes between the two.
                return self.admin_api.get_server(self.server['id'])
            time.sleep(0.05)
        self.fail(server)

    def event(self, name):
        """Return an event of the newest action of the server."""
        actions = self.admin_api.get_instance_actions(self.server['id'])
        events = self.admin_api.api_get(
            '/servers/%s/os-instance-actions/%s' % (
                self.server['id'], actions[0]['request_id'])).body[
                    'instanceAction']['events']
        for event in events:
            if event['event'] == name:
                return event
        return {'finish_time': None}

    def in_database(self):
        """Return what a rebuild changes about the server."""
        context = nova_context.get_admin_context()
        with api_db_api.context_manager.reader.using(context):
            spec = context.session.query(api_models.RequestSpec).filter_by(
                instance_uuid=self.server['id']).one().spec
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, self.server['id']).cell_mapping
        with nova_context.target_cell(context, cell) as cctxt:
            instance = objects.Instance.get_by_uuid(
                cctxt, self.server['id'],
                expected_attrs=['system_metadata', 'metadata', 'keypairs'])
            bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
                cctxt, self.server['id'])
            fault = objects.InstanceFault.get_latest_for_instance(
                cctxt, self.server['id'])
        spec = without_changes(jsonutils.loads(spec))
        # What the second save of any spec changes.
        spec['nova_object.data'].pop('id', None)
        for name in ('requested_resources', 'requested_destination'):
            spec['nova_object.data'].pop(name, None)
        return {
            'spec': spec,
            'instance': {name: str(getattr(instance, name)) for name in (
                'vm_state', 'task_state', 'power_state', 'image_ref',
                'os_type', 'architecture', 'vm_mode', 'kernel_id',
                'ramdisk_id', 'auto_disk_config', 'display_name', 'metadata',
                'key_name', 'key_data', 'user_data', 'hostname',
                'access_ip_v4', 'launched_at')},
            'system_metadata': dict(instance.system_metadata),
            'bdms': bdms, 'fault': fault}

    def tables_with(self, text):
        """Return the tables of all databases in which a text is found."""
        context = nova_context.get_admin_context()
        engines = [(api_models, api_db_api.get_engine())]
        for cell in objects.CellMappingList.get_all(context):
            with nova_context.target_cell(context, cell) as cctxt:
                engines.append((main_models, main_db_api.get_engine(
                    context=cctxt)))
        found = []
        for models, engine in engines:
            with engine.connect() as connection:
                found += [
                    table.name for table in models.BASE.metadata.sorted_tables
                    # A row as text is shortened where it is long.
                    if any(text in str(tuple(row))
                           for row in connection.execute(table.select()))]
        return found

    def guest_state(self):
        guest = self.driver.instances.get(self.server['id'])
        return guest and guest.state

    def allocations(self):
        return self._get_allocations_by_server_uuid(self.server['id'])

    def assertAttached(self):
        """Both volumes are connected, and the mappings know how."""
        for bdm in self.in_database()['bdms']:
            if not bdm.is_volume:
                continue
            self.assertEqual('in-use', self.cinder.status(bdm.volume_id))
            self.assertEqual([(self.server['id'], 'attached', self.host)],
                             self.cinder.attached(bdm.volume_id))
            self.assertEqual(
                bdm.attachment_id, jsonutils.loads(bdm.connection_info)[
                    'data']['attachment_id'])
            self.assertIn(bdm.attachment_id, self.cinder.attachments)

    def assertReserved(self, *volume_ids):
        """Volumes have one attachment, without a host, that Nova knows."""
        attachments = {bdm.volume_id: bdm.attachment_id
                       for bdm in self.in_database()['bdms']
                       if bdm.is_volume}
        for volume_id in volume_ids:
            self.assertEqual([(self.server['id'], 'reserved', None)],
                             self.cinder.attached(volume_id))
            self.assertIn(attachments[volume_id], self.cinder.attachments)

    def assertRebuilt(self, status='ACTIVE'):
        self.assertAttached()
        now = self.in_database()
        self.assertEqual(
            OTHER_IMAGE, self.cinder.known[self.root][
                'volume_image_metadata']['image_id'])
        self.assertEqual(
            OTHER_IMAGE, now['system_metadata']['image_base_image_ref'])
        self.assertNotIn(reimage_state.UNFINISHED, now['system_metadata'])
        self.assertIsNotNone(self.guest_state())
        self.assertEqual(
            status, self.admin_api.get_server(self.server['id'])['status'])

    def retried(self):
        """Rebuild again, with a Cinder that is mended."""
        self.cinder.failures.clear()
        self.cinder.outcome = 'done'
        self.rebuild()
        self.assertRebuilt()


class GoodPathTestCase(VolumeReimageBase):

    def test_rebuild(self):
        self.cinder.calls.clear()
        with mock.patch.object(self.driver, 'destroy',
                               wraps=self.driver.destroy) as destroy:
            self.rebuild()
        self.assertRebuilt()
        self.assertEqual(
            [{'destroy_disks': False}, {}],
            [{name: value for name, value in call.kwargs.items()
              if name == 'destroy_disks'} for call in destroy.mock_calls])
        self.assertEqual(
            'Success', self.event('compute_rebuild_instance')['result'])

    def test_what_it_was_before_is_not_kept(self):
        """User data that are replaced can hold a secret."""
        old, new = (base64.encode_as_text(name) for name in ('old', 'new'))
        self.rebuild(user_data=old)
        self.assertEqual(['instances'], self.tables_with(old))
        self.rebuild(user_data=new)
        self.assertEqual(['instances'], self.tables_with(new))
        self.assertEqual([], self.tables_with(old))

    def test_stopped(self):
        self._stop_server(self.server)
        self.rebuild()
        self.assertRebuilt('SHUTOFF')
        self.assertEqual(power_state.SHUTDOWN, self.guest_state())

    def test_below_2_93(self):
        self.api.microversion = '2.92'
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self.assertEqual(400, exc.response.status_code)
        self.assertAttached()

    def test_old_compute(self):
        """The conductor sends nothing to a host that does not know of it."""
        before = self.in_database()
        self.flags(compute='6.0', group='upgrade_levels')
        rpcapi.reset_globals()
        self.conductor.manager.compute_task_mgr.compute_rpcapi = (
            rpcapi.ComputeAPI())
        self.cinder.calls.clear()
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_for_assert(lambda: self.assertIn(
            'reimage_boot_volume',
            str(self.event('rebuild_server').get('details'))))
        self.assertEqual({'get'}, set(self.cinder.calls))
        self.assertAttached()
        after = self.in_database()
        for part in ('spec', 'instance', 'system_metadata'):
            self.assertEqual(before[part], after[part])

    def test_image_backed(self):
        """A server with its root on the host is rebuilt as released."""
        self.server = self.api.post_server({'server': {
            'name': 'server', 'imageRef': IMAGE, 'networks': 'none',
            'flavorRef': self._create_flavor(
                vcpu=1, memory_mb=128, disk=1)}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        with mock.patch.object(volume_reimage, 'under_way') as under_way:
            self.rebuild()
        under_way.assert_not_called()
        self.assertEqual('ACTIVE', self.at_rest()['status'])

    def test_leftover_attachment(self):
        """What a nova-compute has left that died is deleted."""
        self.cinder.fake_attachment_create(
            nova_context.get_admin_context(), self.root, self.server['id'])
        self.assertEqual(2, len(self.cinder.attached(self.root)))
        self.rebuild()
        self.assertRebuilt()


class RefusedTestCase(VolumeReimageBase):
    """Point 1: nothing has changed on the volume."""

    def as_before(self, refuse, said, status='ACTIVE', state=None):
        """Check that a rebuild that fails has changed nothing."""
        state = state or (power_state.RUNNING if status == 'ACTIVE'
                          else power_state.SHUTDOWN)
        before = self.in_database()
        allocations = self.allocations()
        refuse()
        key = self.api.post_keypair({'keypair': {
            'name': 'another', 'type': 'ssh', 'public_key': (
                'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDx8nkQv/zgGgB4rMYmIf'
                '+6A4l6Rr+o/6lHBQdW5aYd44bd8JttDCE/F/pNRr0lRE+PiqSPO8nDPHw0'
                '010JeMH9gYgnnFlyY3/OcJ02RhIPyyxYpv9FhY+2YiUkpwFOcLImyrxEsY'
                'XpD/0d3ac30bNH6Sw9JD9UZHYcpSxsIbECHw== fake@example')}})
        server = self.rebuild(
            name='renamed', metadata={'a': 'b'}, user_data='aGVsbG8=',
            key_name=key['name'], accessIPv4='192.0.2.1')
        after = self.in_database()
        self.assertEqual(status, server['status'])
        for part in ('spec', 'instance', 'system_metadata'):
            self.assertEqual(before[part], after[part])
        self.assertAttached()
        self.assertEqual(state, self.guest_state())
        self.assertEqual(allocations, self.allocations())
        self.assertEqual(IMAGE, self.cinder.known[self.root][
            'volume_image_metadata']['image_id'])
        self.assertIn(said, after['fault'].message)
        event = self.event('compute_rebuild_instance')
        self.assertEqual('Error', event['result'])
        self.assertIn(said, event['details'])

    def refuse(self, exc, call='reimage_volume', times=1):
        def refuse():
            self.cinder.failures[call] = [exc] * times
        return refuse

    def _test_refused(self, kind):
        exc = REFUSALS[kind]
        self.as_before(self.refuse(exc), getattr(exc, 'message', 'Unable to'))
        self.assertIn('reimage_volume', self.cinder.calls)
        self.retried()

    def test_bad_state(self):
        self._test_refused('bad state')

    def test_policy(self):
        self._test_refused('policy')

    def test_no_such_image(self):
        """Cinder leaves a volume that it does not write to downloading."""
        def refuse():
            self.cinder.outcome = 'no image'
        self.as_before(refuse, 'Image could not be found')
        self.retried()

    def test_conflict(self):
        self._test_refused('conflict')

    def test_over_its_limits(self):
        self._test_refused('over its limits')

    def test_broken(self):
        self._test_refused('broken')

    def test_unreachable(self):
        self._test_refused('unreachable')

    def test_gateway(self):
        self._test_refused('gateway')

    def test_stopped(self):
        self._stop_server(self.server)
        self.as_before(self.refuse(REFUSALS['policy']), 'Policy', 'SHUTOFF')

    def test_image_deleted(self):
        def refuse():
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.is_microversion_supported',
                lambda *args: self.useFixture(fixtures.MonkeyPatch(
                    'nova.image.glance.API.get', mock.Mock(
                        side_effect=exception.ImageNotFound(
                            image_id=OTHER_IMAGE))))))
        with mock.patch.object(self.driver, 'power_off') as power_off:
            self.as_before(refuse, OTHER_IMAGE)
        power_off.assert_not_called()

    def test_no_host_for_the_image(self):
        """The server is in ERROR, as released, and nothing else changes."""
        image = dict(self.glance.show(None, OTHER_IMAGE), id=uuids.image)
        image['properties'] = {'trait:HW_CPU_X86_SGX': 'required'}
        self.glance.create(None, image)
        before = self.in_database()
        self.api.post_server_action(self.server['id'], {
            'rebuild': {'imageRef': uuids.image, 'name': 'renamed'}})
        server = self._wait_for_state_change(self.server, 'ERROR')
        self._wait_for_assert(lambda: self.assertEqual(
            before['system_metadata'], self.in_database()['system_metadata']))
        after = self.in_database()
        self.assertEqual(before['spec'], after['spec'])
        self.assertEqual(dict(before['instance'], vm_state='error'),
                         after['instance'])
        self.assertIn('traits', server['fault']['message'])
        self.assertAttached()
        self.assertEqual(power_state.RUNNING, self.guest_state())
        self.retried()

    def test_asked_for_twice(self):
        """A request that is refused does not touch what the first needs."""
        def second():
            exc = self.assertRaises(
                api_client.OpenStackApiException, self.api.post_server_action,
                self.server['id'], {'rebuild': {
                    'imageRef': IMAGE, 'name': 'other', 'metadata': {}}})
            self.assertEqual(409, exc.response.status_code)
            raise REFUSALS['policy']
        self.as_before(self.refuse(second), 'Policy')

    def test_asked_for_again(self):
        """What the last rebuild has changed is brought back, no more."""
        self.rebuild(IMAGE, name='renamed')
        self.as_before(self.refuse(REFUSALS['policy']), 'Policy')

    def test_stopped_before_cinder_is_asked(self):
        """Who is being stopped waits for no event."""
        def refuse():
            # The first is of the other volume.
            self.cinder.failures_after['attachment_delete'] = [
                None, self.compute.manager.instance_events.cancel_all_events]
        self.as_before(refuse, 'In shutdown')
        self.assertNotIn('reimage_volume', self.cinder.calls)
        self.compute.manager.instance_events._events = {}
        self.retried()

    def test_without_a_guest(self):
        """A guest that was not there is not started."""
        del self.driver.instances[self.server['id']]
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        self.assertEqual('ACTIVE', self.rebuild()['status'])
        self.assertAttached()
        self.assertIsNone(self.guest_state())
        self.retried()

    def test_old_cinder(self):
        def refuse():
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.is_microversion_supported',
                mock.Mock(side_effect=exception.CinderAPIVersionNotAvailable(
                    version='3.68'))))
        self.as_before(refuse, '3.68')
        self.assertNotIn('reimage_volume', self.cinder.calls)

    def test_attached_to_another_server(self):
        def refuse():
            self.cinder.attachments['other'] = {
                'id': 'other', 'volume_id': self.root, 'instance': 'other',
                'status': 'attached', 'connector': {'host': 'other'}}
            self.addCleanup(self.cinder.attachments.pop, 'other', None)
        with mock.patch.object(self, 'assertAttached'):
            self.as_before(refuse, 'other servers')
        del self.cinder.attachments['other']
        self.assertAttached()
        self.retried()

    def test_guest_was_not_touched(self):
        with mock.patch.object(self.driver, 'power_off') as power_off:
            self.as_before(
                self.refuse(REFUSALS['policy'], 'attachment_create'),
                'Policy')
        power_off.assert_not_called()

    def test_migration_record(self):
        context = nova_context.get_admin_context()
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, self.server['id']).cell_mapping
        with nova_context.target_cell(context, cell) as cctxt:
            migration = objects.Migration(
                cctxt, instance_uuid=self.server['id'], status='accepted',
                migration_type='evacuation', source_compute=self.host)
            migration.create()
        self.as_before(self.refuse(REFUSALS['policy']), 'Policy')
        with nova_context.target_cell(context, cell) as cctxt:
            self.assertEqual('failed', objects.Migration.get_by_id(
                cctxt, migration.id).status)

    def test_unreachable_for_long(self):
        """The way back needs Cinder, too, and tries again."""
        def refuse():
            self.cinder.failures.update(
                reimage_volume=[REFUSALS['unreachable']],
                attachment_update=[REFUSALS['unreachable']])
        self.as_before(refuse, 'Unable to')

    def test_unreachable_for_too_long(self):
        self.cinder.failures.update(
            reimage_volume=[REFUSALS['unreachable']],
            attachment_update=[REFUSALS['unreachable']] * 10)
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn(self.root, server['fault']['message'])
        self.assertReserved(self.root)
        self.retried()

    def test_completing_fails_once(self):
        """The released code deletes the attachment that it cannot complete."""
        def refuse():
            self.cinder.failures.update(
                reimage_volume=[REFUSALS['policy']],
                attachment_complete=[REFUSALS['broken']])
        self.as_before(refuse, 'Policy')

    def test_guest_does_not_start_again(self):
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        with mock.patch.object(
                self.driver, 'spawn',
                side_effect=exception.VirtualInterfaceCreateException):
            server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertAttached()
        self.retried()

    def test_conductor_without_the_api_database(self):
        """The server is as before but for what only that database holds."""
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        before = self.in_database()
        with mock.patch('nova.objects.RequestSpec.undo_rebuild',
                        side_effect=exception.NovaException):
            self.assertEqual('ACTIVE', self.rebuild()['status'])
        after = self.in_database()
        self.assertEqual(before['system_metadata'], after['system_metadata'])
        self.assertNotEqual(before['spec'], after['spec'])
        self.assertAttached()

    def test_accepted_and_the_answer_was_lost(self):
        """What was refused in appearance only is not undone."""
        for outcome in ('downloading', 'lost'):
            self.cinder.outcome = outcome
            self._lose_answer([])
            server = self.rebuild()
            if outcome == 'downloading':
                self.assertEqual('ERROR', server['status'])
                self.cinder.finish_reimage(self.root, IMAGE)
            else:
                self.assertRebuilt()

    def test_accepted_and_cinder_is_gone(self):
        """As long as it is not known what Cinder does, nothing is started."""
        self.cinder.outcome = 'downloading'
        self._lose_answer([REFUSALS['unreachable']] * 3)
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn('not known', server['fault']['message'])
        self.assertReserved(self.root, self.data)
        self.assertIsNone(self.guest_state())
        self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.retried()

    def test_accepted_and_cinder_is_gone_for_a_while(self):
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'

        def back():
            self.cinder.finish_reimage(self.root, OTHER_IMAGE)
            self.cinder.tell_nova(self.root)
        self._lose_answer([REFUSALS['unreachable'], None, back])
        self.rebuild()
        self.assertRebuilt()

    def test_accepted_and_asked_again(self):
        """What stands between may repeat a request that Cinder has."""
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'

        def refuse():
            self.cinder.failures['get'] = [
                None, lambda: self.cinder.finish_reimage(
                    self.root, OTHER_IMAGE)]
            raise REFUSALS['bad state']
        self.cinder.failures_after['reimage_volume'] = [refuse]
        self.rebuild()
        self.assertRebuilt()

    def test_only_the_other_volume_is_not_attached_again(self):
        """The root volume stays connected as it is recorded."""
        self.cinder.failures.update(
            reimage_volume=[REFUSALS['policy']],
            attachment_update=[None] + [REFUSALS['unreachable']] * 10)
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertEqual('in-use', self.cinder.status(self.root))
        root = self.in_database()['bdms'].root_bdm()
        self.assertEqual(root.attachment_id, jsonutils.loads(
            root.connection_info)['data']['attachment_id'])
        self.assertReserved(self.data)
        self.retried()

    def _lose_answer(self, failures):
        """Let Cinder do a re-image and fail to say so."""
        def lose():
            self.cinder.failures['get'] = failures
            raise REFUSALS['unreachable']
        self.cinder.failures_after['reimage_volume'] = [lose]


class FailedTestCase(VolumeReimageBase):
    """Point 2: the volume is not what it was."""

    def failed(self):
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn(self.root, server['fault']['message'])
        self.assertReserved(self.root, self.data)
        self.assertIsNone(self.guest_state())
        self.assertTrue(self.allocations())
        self.assertEqual(
            'Error', self.event('compute_rebuild_instance')['result'])
        return server

    def test_volume_in_error(self):
        self.cinder.outcome = 'error'
        calls = len(self.cinder.calls)
        server = self.failed()
        self.assertIn('error', server['fault']['message'])
        self.assertEqual('error', self.cinder.status(self.root))
        self.assertNotIn('attachment_update', self.cinder.calls[calls:])
        self.retried()

    def test_event_failed(self):
        """Should Cinder come to say that a re-image has failed."""
        self.cinder.outcome = 'error'
        reimage = self.cinder.fake_reimage_volume

        def fail(*args, **kwargs):
            reimage(*args, **kwargs)
            self.cinder.tell_nova(self.root, 'failed')
        self.flags(reimage_timeout_per_gb=600)
        with mock.patch('nova.volume.cinder.API.reimage_volume',
                        autospec=False, side_effect=fail):
            self.failed()
        self.retried()

    def test_fails_again_and_is_refused_then(self):
        self.cinder.outcome = 'error'
        self.failed()
        self.failed()
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn('Policy', server['fault']['message'])
        self.assertReserved(self.root, self.data)
        self.retried()

    def test_taken_by_another_before_the_retry(self):
        self.cinder.outcome = 'error'
        self.failed()
        delete = self.cinder.fake_attachment_delete

        def take(context, attachment_id):
            delete(context, attachment_id)
            self.cinder.fake_attachment_create(
                context, self.root, 'another server')
        with mock.patch('nova.volume.cinder.API.attachment_delete',
                        autospec=False, side_effect=take):
            server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertEqual([('another server', 'reserved', None)],
                         self.cinder.attached(self.root))
        self.refused('another')

    def refused(self, why):
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self.assertEqual(400, exc.response.status_code, why)
        self.assertIn('in-use', str(exc))

    def test_no_retry_while_cinder_is_writing(self):
        self.cinder.outcome = 'downloading'
        self.failed()
        self.refused('downloading')
        self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.retried()

    def test_volume_in_error_for_another_reason(self):
        """The check of the API is no weaker for other servers."""
        for status in ('error', 'reserved', 'available'):
            self.cinder.known[self.root]['status'] = status
            self.refused(status)
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'error'}})
            self.refused(status)
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'active'}})

    def test_deleted_after_failure(self):
        self.cinder.outcome = 'error'
        self.failed()
        self.api.delete_server(self.server['id'])
        for _try in range(200):
            if not self.api.get_servers():
                break
            time.sleep(0.05)
        self.assertEqual([], self.api.get_servers())
        self.assertEqual({}, self.cinder.attachments)

    def test_not_attached_afterwards(self):
        """Nobody else can have a volume that could not be connected."""
        for calls in ('attachment_update', 'attachment_complete'):
            for failures in ([REFUSALS['bad state']],
                             [None, REFUSALS['bad state']]):
                self.cinder.failures[calls] = failures
                server = self.rebuild()
                self.assertEqual('ERROR', server['status'])
                self.assertIn('status is wrong', server['fault']['message'])
                for volume in (self.root, self.data):
                    self.assertEqual(
                        [self.server['id']],
                        [each[0] for each in self.cinder.attached(volume)])
                self.retried()

    def test_compute_stopped_in_the_middle(self):
        """The server is in ERROR after the restart, and can be rebuilt."""
        self.cinder.outcome = 'downloading'
        self.flags(reimage_timeout_per_gb=600)
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        for _try in range(200):
            if self.cinder.status(self.root) == 'downloading':
                break
            time.sleep(0.05)
        self.compute.manager.instance_events.cancel_all_events()
        self.assertEqual('ERROR', self.at_rest()['status'])
        self.compute.manager.instance_events._events = {}
        self.cinder.finish_reimage(self.root, IMAGE)
        self.retried()


class WaitTestCase(VolumeReimageBase):
    """Point 3: the state of the volume decides."""

    def test_event_lost(self):
        self.cinder.outcome = 'lost'
        self.rebuild()
        self.assertRebuilt()

    def test_failure_is_noticed_before_the_time_is_over(self):
        self.flags(reimage_timeout_per_gb=600)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.cinder_reimage._ASK_EVERY', 0.2))
        self.cinder.outcome = 'error'
        self.assertEqual('ERROR', self.rebuild()['status'])

    def test_still_working(self):
        """It is waited for longer, and it is done in the end."""
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'
        asked = []

        def get(*args, **kwargs):
            asked.append(self.cinder.status(self.root))
            if asked[-1] == 'downloading' and asked.count(asked[-1]) == 2:
                self.cinder.finish_reimage(self.root, OTHER_IMAGE)
                self.cinder.tell_nova(self.root)
            return self.cinder.fake_get(*args, **kwargs)
        with mock.patch('nova.volume.cinder.API.get', autospec=False,
                        side_effect=get):
            self.rebuild()
        self.assertRebuilt()

    def test_event_while_cinder_is_asked(self):
        """An event that comes between two waits ends the rebuild."""
        self.cinder.outcome = 'downloading'
        events = self.compute.manager.instance_events

        def get(context, volume_id, **kwargs):
            volume = self.cinder.fake_get(context, volume_id, **kwargs)
            if volume['status'] == 'downloading':
                self.cinder.finish_reimage(self.root, OTHER_IMAGE)
                self.cinder.tell_nova(self.root)
                self._wait_for_assert(lambda: self.assertNotIn(
                    self.server['id'], events._events))
            return volume
        with mock.patch('nova.volume.cinder.API.get', autospec=False,
                        side_effect=get), mock.patch.object(
                            cinder_reimage.LOG, 'warning') as warning:
            self.rebuild()
        self.assertRebuilt()
        warning.assert_not_called()

    def test_cinder_cannot_be_asked_for_a_while(self):
        self.flags(reimage_timeout_extensions=600)
        self.cinder.outcome = 'downloading'

        def done():
            self.cinder.finish_reimage(self.root, OTHER_IMAGE)
        self.cinder.failures['reimage_volume'] = [
            lambda: self.cinder.failures.update(
                get=[REFUSALS['unreachable'], done])]
        self.rebuild()
        self.assertRebuilt()

    def test_volume_deleted(self):
        self.cinder.outcome = 'downloading'
        self.cinder.failures['reimage_volume'] = [
            lambda: self.cinder.failures.update(get=[
                cinder_exception.NotFound(404, 'gone')] * 3)]
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertIn('deleted', server['fault']['message'])

    def _timeout(self, **image):
        wait = self.compute.manager.virtapi.wait_for_instance_event
        self.flags(reimage_timeout_per_gb=10)
        with mock.patch.object(
                self.compute.manager.virtapi, 'wait_for_instance_event',
                side_effect=wait) as waited, mock.patch.object(
                    self.compute.manager.image_api, 'get',
                    side_effect=lambda *args, **kwargs: dict(
                        self.glance.show(None, OTHER_IMAGE), **image)):
            self.rebuild()
        self.assertRebuilt()
        return waited.mock_calls[0].kwargs['timeout']

    def test_timeout_of_small_image(self):
        self.assertEqual(10, self._timeout(size=1))

    def test_timeout_of_image(self):
        self.assertEqual(20, self._timeout(size=1 + 2 ** 30))

    def test_timeout_of_compressed_image(self):
        self.assertEqual(
            30, self._timeout(size=2 ** 20, virtual_size=3 * 2 ** 30))

    def test_timeout_of_snapshot(self):
        self.cinder.known[self.root]['size'] = 5
        self.assertEqual(50, self._timeout(size=0))

    def test_timeout_of_unknown_size(self):
        self.cinder.known[self.root]['size'] = 7
        self.assertEqual(cinder_reimage._ASK_EVERY, self._timeout(size=None))


class ExchangeTestCase(RefusedTestCase):
    """Point 4: a failure between the attachments leaves no wreck."""

    # Those of the base run there.
    locals().update({name: None for name in dir(RefusedTestCase)
                     if name.startswith('test_')})

    def test_create_fails(self):
        for kind in ('bad state', 'policy', 'unreachable', 'broken'):
            exc = REFUSALS[kind]
            with self.subTest(kind):
                self.cinder.failures['attachment_create'] = [exc]
                self.assertEqual('ACTIVE', self.rebuild()['status'])
                self.assertAttached()

    def test_create_of_other_volume_fails(self):
        # The first is of the root.
        self.cinder.failures['attachment_create'] = [
            None, REFUSALS['broken']]
        self.as_before(lambda: None, 'could not comply')
        self.retried()

    def _detach_fails(self, exc, volume_id):
        detach = self.driver.detach_volume

        def fail(context, connection_info, *args, **kwargs):
            if connection_info['data']['volume_id'] == volume_id:
                raise exc
            return detach(context, connection_info, *args, **kwargs)
        with mock.patch.object(self.driver, 'detach_volume', fail):
            self.as_before(lambda: None, exc.format_message())
        self.retried()

    def test_detach_fails(self):
        self._detach_fails(exception.DeviceDetachFailed(
            device='vda', reason='busy'), self.root)

    def test_detach_of_other_volume_fails(self):
        self._detach_fails(exception.DeviceDetachFailed(
            device='vdb', reason='busy'), self.data)

    def test_delete_fails(self):
        # The first is of the other volume.
        self.cinder.failures['attachment_delete'] = [
            None, REFUSALS['broken']]
        self.as_before(lambda: None, 'could not comply')
        self.retried()

    def test_delete_fails_in_appearance(self):
        delete = self.cinder.fake_attachment_delete

        def lost(context, attachment_id):
            delete(context, attachment_id)
            if self.cinder.status(self.root) == 'reserved':
                lost_once.side_effect = delete
                raise exception.CinderConnectionFailed(reason='reset')
        with mock.patch('nova.volume.cinder.API.attachment_delete',
                        autospec=False, side_effect=lost) as lost_once:
            self.as_before(lambda: None, 'reset')
        self.retried()

    def test_destroy_fails(self):
        with mock.patch.object(
                self.driver, 'destroy',
                side_effect=exception.InstancePowerOffFailure(
                    reason='stuck')):
            self.as_before(lambda: None, 'stuck')

    def test_power_off_fails(self):
        with mock.patch.object(
                self.driver, 'power_off',
                side_effect=exception.InstancePowerOffFailure(
                    reason='stuck')):
            self.as_before(lambda: None, 'stuck')

    def test_create_is_done_and_the_answer_lost(self):
        # The first is of the root.
        for failures in ([REFUSALS['gateway']], [None, REFUSALS['broken']]):
            self.cinder.failures_after['attachment_create'] = failures
            self.assertEqual('ACTIVE', self.rebuild()['status'])
            self.assertAttached()

    def test_create_is_done_and_cinder_is_gone(self):
        """What could not be deleted then is deleted with the server."""
        def gone():
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.API.attachment_get_all',
                mock.Mock(side_effect=(
                    [REFUSALS['unreachable']] * 3 + [
                        [{'id': key, **attachment} for key, attachment in
                         self.cinder.attachments.items()]] * 9))))
            raise REFUSALS['unreachable']
        self.cinder.failures_after['attachment_create'] = [None, gone]
        self.assertEqual('ACTIVE', self.rebuild()['status'])
        self.assertEqual(2, len(self.cinder.attached(self.data)))
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)

    def _deleted(self, call, exc=None):
        """Delete the server while a call to Cinder is under way."""
        def delete():
            self.cinder.failures.pop(call)
            self.admin_api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            if exc:
                raise exc
        self.cinder.failures[call] = [delete]
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_until_deleted(self.server)
        for _try in range(200):
            if not self.compute.manager.driver.instances and (
                    not self.cinder.attachments):
                break
            time.sleep(0.05)
        self.assertEqual({}, self.cinder.attachments)
        self.assertEqual('available', self.cinder.status(self.root))
        self.assertEqual('available', self.cinder.status(self.data))

    def test_deleted_during_the_reimage(self):
        self._deleted('reimage_volume')

    def test_deleted_during_the_first_create(self):
        self._deleted('attachment_create')

    def test_deleted_during_the_first_delete(self):
        self._deleted('attachment_delete')

    def test_deleted_and_refused(self):
        for call in ('reimage_volume', 'attachment_create'):
            self._deleted(call, REFUSALS['policy'])
            self.server = self.create()

    def _being_deleted(self, call):
        """Nothing is set on a server that is being deleted."""
        def delete():
            self.set_task_state('deleting')
            raise REFUSALS['policy']
        self.cinder.failures[call] = [delete]
        self.ask_and_wait()
        instance = self.in_database()['instance']
        self.assertEqual(('deleting', 'active'), (
            instance['task_state'], instance['vm_state']))

    def test_being_deleted_and_refused(self):
        self._being_deleted('reimage_volume')
        self.assertEqual({}, self.cinder.attachments)

    def test_being_deleted_and_refused_at_once(self):
        self._being_deleted('attachment_create')

    def ask_and_wait(self):
        """Ask for a rebuild and wait until nova-compute is done with it."""
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_for_assert(lambda: self.assertIsNotNone(
            self.event('compute_rebuild_instance')['finish_time']))

    def instance(self, context=None):
        context = context or nova_context.get_admin_context()
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, self.server['id']).cell_mapping
        nova_context.set_target_cell(context, cell)
        return objects.Instance.get_by_uuid(context, self.server['id'])

    def set_task_state(self, task_state):
        instance = self.instance()
        instance.task_state = task_state
        instance.save()


class Killed(BaseException):
    """What nothing catches, as nothing catches SIGKILL."""


class KilledTestCase(ExchangeTestCase):
    """A nova-compute that dies leaves nothing that its owner cannot mend."""

    locals().update({name: None for name in dir(ExchangeTestCase)
                     if name.startswith('test_')})

    def killed(self):
        raise Killed()

    def _test_killed(self):
        self.ask_and_wait()
        self.assertIn(self.in_database()['instance']['task_state'], (
            'rebuilding', 'rebuild_block_device_mapping'))
        self.compute.manager._init_instance(
            nova_context.get_admin_context(), self.instance())
        server = self.admin_api.get_server(self.server['id'])
        self.assertEqual('ERROR', server['status'])
        # At most one, and no other server's.
        for volume in (self.root, self.data):
            self.assertIn(
                [each[0] for each in self.cinder.attached(volume)],
                ([self.server['id']], []))
        self.retried()

    def _test_call(self, when, call, times):
        for number in range(times):
            with self.subTest('%s %d' % (call, number)):
                getattr(self.cinder, when)[call] = (
                    [None] * number + [self.killed])
                self._test_killed()

    def test_before_create(self):
        self._test_call('failures', 'attachment_create', 2)

    def test_after_create(self):
        self._test_call('failures_after', 'attachment_create', 2)

    def test_before_delete(self):
        self._test_call('failures', 'attachment_delete', 2)

    def test_after_delete(self):
        self._test_call('failures_after', 'attachment_delete', 2)

    def test_before_reimage(self):
        self._test_call('failures', 'reimage_volume', 1)

    def test_after_reimage(self):
        self._test_call('failures_after', 'reimage_volume', 1)

    def test_after_update(self):
        self._test_call('failures_after', 'attachment_update', 2)

    def test_after_complete(self):
        self._test_call('failures_after', 'attachment_complete', 2)

    def test_in_the_retry(self):
        """Killed as it makes the attachment of a volume in error anew."""
        for when, call in (('failures_after', 'attachment_delete'),
                           ('failures_after', 'attachment_create')):
            self.cinder.outcome = 'error'
            self.assertEqual('ERROR', self.rebuild()['status'])
            getattr(self.cinder, when)[call] = [self.killed]
            self.ask_and_wait()
            self.set_task_state(None)
            self.retried()

    def test_deleted_afterwards(self):
        """The server is not started again, nor rebuilt, but deleted."""
        for number in range(2):
            self.cinder.failures_after['attachment_create'] = (
                [None] * number + [self.killed])
            self.ask_and_wait()
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            self.assertEqual({}, self.cinder.attachments)
            self.server = self.create()

    def test_by_the_drivers(self):
        for call in ('power_off', 'detach_volume', 'destroy', 'spawn'):
            with mock.patch.object(self.driver, call, side_effect=Killed), (
                    self.subTest(call)):
                self.ask_and_wait()
            self.compute.manager._init_instance(
                nova_context.get_admin_context(), self.instance())
            self.retried()


class StockComputeTestCase(VolumeReimageBase):
    """A stock nova-compute keeps what it does under a patched control plane.

    This is what the other tests would see without the layer.
    """

    def setUp(self):
        super().setUp()
        for module, cls, names in (
                (manager, 'ComputeManager', (
                    'rebuild_instance', '_do_rebuild_instance',
                    '_rebuild_default_impl',
                    '_rebuild_volume_backed_instance')),
                (resource_tracker, 'ResourceTracker', (
                    'delete_allocation_for_evacuated_instance',))):
            for name in names:
                self.useFixture(fixtures.MockPatchObject(
                    getattr(module, cls), name,
                    getattr(getattr(module.released, cls), name)))

    def test_good_path(self):
        self.rebuild()
        self.assertRebuilt()

    def test_refused(self):
        self.cinder.failures['reimage_volume'] = [REFUSALS['policy']]
        self.assertTrue(self.allocations())
        server = self.rebuild()
        self.assertEqual('ERROR', server['status'])
        self.assertNotIn('Policy', server['fault']['message'])
        self.assertIsNone(self.guest_state())
        self.assertEqual({}, self.allocations())
        self.assertReserved(self.root, self.data)
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self.assertEqual(400, exc.response.status_code)

    def test_detach_fails(self):
        with mock.patch.object(
                self.driver, 'detach_volume',
                side_effect=[None, exception.DeviceDetachFailed(
                    device='vda', reason='busy')]):
            self.assertEqual('ERROR', self.rebuild()['status'])
        self.assertEqual(2, len(self.cinder.attached(self.root)))
