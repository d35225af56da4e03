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

"""What the tests of builds that fail on a host share."""

import contextlib
import time
from unittest import mock

from nova.compute import rebuild_in_cell0
from nova.compute import task_states
from nova.compute import vm_states
from nova.conductor.tasks import recover_rebuilds
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import exception
from nova import objects
from nova.objects import persisted_request
from nova.objects import rebuilt_instance
from nova.scheduler.client import report
from nova.tests.functional.api import client as api_client
from nova.tests.functional import held_room_base
from nova.virt import fake

SPAWN = 'nova.virt.fake.FakeDriver.spawn'


class FailedBuildsBase(held_room_base.HeldRoomBase):

    GIVEN_UP = ('BUILD', 'rebuild_block_device_mapping')

    def make_host(self, name='bad'):
        self.flags(compute_driver='fake.FakeDriver')
        self._start_compute(name)

    def abort(self, hosts=('bad',)):
        """Let some hosts give up what they build."""
        return self.spawn_fails(hosts, lambda instance: (
            exception.BuildAbortException(
                instance_uuid=instance.uuid, reason='no such disk')))

    def reschedule(self, hosts=('bad',)):
        """Let the build fail on some hosts in a way that is tried again."""
        return self.spawn_fails(hosts, lambda instance: (
            exception.InternalError(err='no such bridge')))

    def spawn_fails(self, hosts, make_exc):
        spawn = fake.FakeDriver.spawn

        def failing(driver, context, instance, *args, **kwargs):
            if instance.host in hosts:
                raise make_exc(instance)
            return spawn(driver, context, instance, *args, **kwargs)

        return mock.patch(SPAWN, failing)

    def goes_back(self, why):
        """Wait until the server waits again; nothing is left of the build."""
        seen = set()
        for _try in range(200):
            try:
                server = self.admin_api.get_server(self.server['id'])
            except api_client.OpenStackApiNotFoundException:
                # A look that began in the cell ends in cell0.
                continue
            seen.add(server['status'])
            if server['status'] == 'PENDING' and 'fault' in server and (
                    server['OS-EXT-STS:task_state'] is None):
                break
            time.sleep(0.05)
        self.assertNotIn('ERROR', seen)
        self.assertEqual('PENDING', server['status'], seen)
        self.assertIn('could not be built on a host', server['fault'][
            'message'])
        self.assertIn(why, server['fault']['message'])
        self.assertEqual('', server['OS-EXT-AZ:availability_zone'])
        self.assertIsNone(server['OS-EXT-SRV-ATTR:host'])
        for key in ('name', 'tags', 'metadata', 'created', 'image', 'flavor'):
            self.assertEqual(self.server[key], server[key], key)
        self._wait_for_assert(lambda: self.assertEqual(
            {}, self.held()['allocations']))
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        actions = self.api.get_instance_actions(self.server['id'])
        self.assertEqual(['rebuild', 'create'],
                         [action['action'] for action in actions])
        self.assertIn('"requested_networks"', self.stored(
            self.server)['request_specs'][0]['spec'])
        self.assertNotIn('nova_pending_rebuild', [
            row['key'] for row in
            self.stored(self.server)['instance_system_metadata']])

    def can_be_rebuilt(self):
        self.rebuild(self.server)
        server = self.wait_for(self.server, 'ACTIVE')
        self._wait_for_assert(lambda: self.assertEqual(
            {}, persisted_request.load(
                nova_context.get_admin_context(), self.server['id'])))
        return server

    def recover(self, age=-1):
        return recover_rebuilds.recover(
            nova_context.get_admin_context(), report.SchedulerReportClient(),
            age)

    def recover_until_returned(self):
        """Recover, however short ago the rebuild was asked for."""
        self._wait_for_assert(lambda: self.assertEqual(
            (1, 0), self.recover(age=600)))

    @contextlib.contextmanager
    def log_of_rebuilds(self):
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, rebuild_in_cell0.cell0(context)) as cctxt:
            with main_db_api.get_context_manager(cctxt).writer.using(
                    cctxt) as session:
                yield session.query(models.TaskLog).filter_by(
                    host=self.server['id'])

    def state(self):
        server = self.admin_api.get_server(self.server['id'])
        return server['status'], server['OS-EXT-STS:task_state']

    def left_by_the_conductor(self):
        """Let a host give up, and the conductor die before it looks."""
        self.make_host()
        with self.abort(), mock.patch.object(rebuilt_instance, 'on_given_up',
                                             None):
            self.rebuild(self.server)
            self._wait_for_assert(lambda: self.assertEqual(
                self.GIVEN_UP, self.state()))
            self._wait_for_assert(lambda: self.assertEqual(
                {}, self.held()['allocations']))

    def host_dies(self, name='bad'):
        """Let nova-compute die as the guest runs, and begin its service again.
        """
        self.host_builds()
        return self.host_begins_again(name)

    def host_builds(self):
        """Let a host be about to save that the server is launched."""
        with mock.patch.object(rebuilt_instance, 'on_launched', None):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            instance = objects.Instance.get_by_uuid(
                cctxt, self.server['id'], expected_attrs=['system_metadata'])
            rebuilt_instance.mark(instance)
            instance.vm_state = vm_states.BUILDING
            instance.task_state = task_states.SPAWNING
            instance.launched_at = None
            instance.save()

    def host_begins_again(self, name='bad'):
        """Begin the service of a nova-compute; return what guests it has."""
        compute = self.computes[name].manager
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            for instance in objects.InstanceList.get_by_host(
                    cctxt, name, expected_attrs=[
                        'info_cache', 'metadata', 'numa_topology']):
                compute._init_instance(cctxt, instance)
        return compute.driver.list_instance_uuids()
