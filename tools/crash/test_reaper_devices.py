# SPDX-License-Identifier: Apache-2.0

"""nova-reaper ends those who have the PCI devices that others wait for."""

from tools.cloud import configuration
from tools.cloud import reaper
from tools.crash import base
from tools.crash import reaping


class NovaTestCase(reaping.ReaperTestCase):
    """Each host has three devices, and room for two servers."""

    pci = 'nova'

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        # No other test needs this cloud.
        base.take_down(cls.pci)

    def create_with(self, devices, **specs):
        """Return the ID of a new server that needs half of a host.

        :param devices: how many devices the server needs
        :param specs: more extra specs of its flavor
        """
        if devices:
            specs['pci_passthrough:alias'] = '%s:%d' % (
                configuration.DEVICE, devices)
        return self.create('with-%d' % devices, **{
            'resources:VCPU': '1', **specs})

    def fill(self, devices, **specs):
        """Return the IDs of such servers, one on each host."""
        servers = [self.create_with(devices, **specs)
                   for _host in self.cloud.settings.hosts]
        for server in servers:
            self.wait_status(server, 'ACTIVE')
        return servers

    def test_one_that_has_devices_is_ended(self):
        marks = {'reaper:preemptible': 'true', 'reaper:action': 'delete'}
        having, without = self.fill(3, **marks), self.fill(0, **marks)
        # No host has so many.
        greedy = self.create_with(4)
        waiting = self.create_with(1)
        for server in greedy, waiting:
            self.wait_status(server, 'PENDING')
        self.start_reaper()
        self.lands(waiting)
        self.one_is_ended(having + without)
        self.assertEqual([], self.ended(without))
        self.assertEqual(1, len(self.cloud.rows(
            'nova', 'SELECT address FROM pci_devices '
            'WHERE instance_uuid = :server', waiting)))
        self.assertEqual('PENDING', self.cloud.show(greedy)['status'])

    def test_nobody_is_ended_in_vain(self):
        # The servers with devices are not preemptible.
        self.fill(3)
        without = self.fill(0, **{'reaper:preemptible': 'true'})
        waiting = self.create_with(1)
        self.wait_status(waiting, 'PENDING')
        self.start_reaper()
        self.cloud.wait_for('nova-reaper', lambda: reaper.is_ready(
            self.cloud.settings))
        self.cloud.wait_for('a decision', lambda: self.waits(waiting))
        self.assertEqual([], self.ask(
            '/v1/notices?all_projects=true')['notices'])
        self.assertEqual([], self.ended(without))

    def waits(self, server):
        """Say whether nova-reaper has decided that a server waits on."""
        said = self.ask('/v1/pending/' + server)['pending']
        return (said['verdict'], said['reason']) == ('wait', 'no_room')


class PlacementTestCase(NovaTestCase):
    """The devices are providers below their hosts."""

    pci = 'placement'
