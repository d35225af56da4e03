# SPDX-License-Identifier: Apache-2.0

"""A volume-backed server on a Cinder that has states and can refuse."""

import contextlib
import copy
import time
from unittest import mock

from cinderclient import exceptions as cinder_exception
import fixtures
from keystoneauth1 import exceptions as keystone_exception
from oslo_serialization import jsonutils

from nova.compute import volume_reimage
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import cinder_with_states
from nova.tests.functional import integrated_helpers
from nova.tests.functional import shared_work

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


class VolumeReimageBase(integrated_helpers._IntegratedTestBase):

    # A cast that fails must fail as it does on a real bus: unseen.
    CAST_AS_CALL = False
    microversion = 'latest'
    # The host of the root volume's attachment.
    host = 'compute'

    def setUp(self):
        self.useFixture(shared_work.SharedWork())
        # Both as in full_cloud: no service reports in the database that
        # another thread has targeted, and no thread waits longer for a service
        # that has ended.
        self.flags(report_interval=3600, service_down_time=7200)
        self.flags(long_rpc_timeout=60)
        with mock.patch.object(nova_fixtures, 'CinderFixture',
                               cinder_with_states.CinderWithStates):
            super().setUp()
        self.flags(reimage_timeout_per_gb=1, reimage_timeout_extensions=0)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.volume_reimage._TRY_AGAIN_AFTER', (0, 0)))
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
        for _try in range(200):
            server = self.admin_api.get_server(self.server['id'])
            if server['OS-EXT-STS:task_state'] is None and (
                    self.event('compute_rebuild_instance')['finish_time']):
                # The fault comes between the two.
                return self.admin_api.get_server(self.server['id'])
            time.sleep(0.2)
        self.fail((server, list(self.actions()), self.in_database()))

    def actions(self):
        """Yield the actions of the server with their events, newest first."""
        for action in self.admin_api.get_instance_actions(self.server['id']):
            yield self.admin_api.api_get(
                '/servers/%s/os-instance-actions/%s' % (
                    self.server['id'], action['request_id'])).body[
                        'instanceAction']

    def event(self, name):
        """Return an event of the newest action of the server."""
        for event in next(self.actions())['events']:
            if event['event'] == name:
                return event
        return {'finish_time': None}

    @contextlib.contextmanager
    def in_cell(self):
        """Target the cell of the server; yields the context."""
        context = nova_context.get_admin_context()
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, self.server['id']).cell_mapping
        with nova_context.target_cell(context, cell) as cctxt:
            yield cctxt

    def in_database(self):
        """Return what a rebuild changes about the record of the server."""
        with self.in_cell() as cctxt:
            instance = objects.Instance.get_by_uuid(
                cctxt, self.server['id'],
                expected_attrs=['system_metadata', 'metadata', 'keypairs'])
            bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
                cctxt, self.server['id'])
            fault = objects.InstanceFault.get_latest_for_instance(
                cctxt, self.server['id'])
        return {
            'instance': {name: str(getattr(instance, name)) for name in (
                'vm_state', 'task_state', 'power_state', 'image_ref',
                'os_type', 'architecture', 'vm_mode', 'kernel_id',
                'ramdisk_id', 'auto_disk_config', 'display_name', 'metadata',
                'key_name', 'key_data', 'user_data', 'hostname',
                'access_ip_v4', 'launched_at')},
            'system_metadata': dict(instance.system_metadata),
            'bdms': bdms, 'fault': fault}

    def assertUnchanged(self, before, *changed):
        """The record is what it was, but for some attributes."""
        after = self.in_database()
        for part in (before, after):
            for name in changed:
                part['instance'].pop(name)
        for part in ('instance', 'system_metadata'):
            self.assertEqual(before[part], after[part])
        return after

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
        self.assertNotIn(volume_reimage.UNFINISHED, now['system_metadata'])
        self.assertIsNotNone(self.guest_state())
        self.assertEqual(
            status, self.admin_api.get_server(self.server['id'])['status'])

    def retried(self):
        """Rebuild again, with a Cinder that is mended."""
        self.cinder.failures.clear()
        self.cinder.outcome = 'done'
        self.rebuild()
        self.assertRebuilt()
