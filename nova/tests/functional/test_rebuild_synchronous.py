# SPDX-License-Identifier: Apache-2.0

"""The rebuild on a harness on which a cast waits until all of it is done.

That is what most functional tests of Nova run on. A lock that is held
while something is cast is found there, since who is cast to wants it too.
"""

from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.functional import rebuild_base


class SynchronousTestCase(rebuild_base.RebuildInCell0Base):

    CAST_AS_CALL = True

    def test_in_cell0_again_and_built(self):
        server = self.create_waiting(networks='auto', tags=['blue'])
        # The answer shows it as it was handed over, not what became of it.
        self.assertEqual('BUILD', self.rebuild(server)['status'])
        self.assertEqual('PENDING',
                         self.api.get_server(server['id'])['status'])
        self.make_room()
        self.assertEqual('BUILD', self.rebuild(server)['status'])
        self.wait_for(server, 'ACTIVE')
        self.assertEqual(
            ['rebuild', 'rebuild', 'create'],
            [action['action'] for action in
             self.api.get_instance_actions(server['id'])])
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)

    def test_boot_from_volume_in_a_server_group(self):
        group = self.api.post_server_groups(
            {'name': 'apart', 'policy': 'anti-affinity'})
        request = self._build_server(flavor_id=self.large, networks='none')
        request.update(imageRef='', block_device_mapping_v2=[{
            'source_type': 'volume', 'destination_type': 'volume',
            'boot_index': 0,
            'uuid': cinder_fixture.CinderFixture.IMAGE_BACKED_VOL}])
        server = self.wait_for(self.api.post_server(
            {'server': request,
             'os:scheduler_hints': {'group': group['id']}}), 'PENDING')
        self.make_room()
        self.assertEqual([group['id']], self.rebuild(server)['server_groups'])
        self.wait_for(server, 'ACTIVE')
