# SPDX-License-Identifier: Apache-2.0

import configparser
import dataclasses
import pathlib
import stat
from unittest import mock

from oslo_config import cfg
from oslo_serialization import jsonutils
import yaml

import nova.conf
from nova.tests.unit.cloud import base
from nova.virt import fake
from tools.cloud import configuration
from tools.cloud import settings

# Options of [DEFAULT] that oslo's libraries register when they are started.
LIBRARIES = {'graceful_shutdown_timeout', 'log_color', 'transport_url',
             'use_stderr'}


class ConfigurationTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        prefix = self.state / 'prefix'
        (prefix / 'etc/nova').mkdir(parents=True)
        (prefix / 'etc/nova/api-paste.ini').write_text('[pipeline:x]\n')
        self.patch = mock.patch.object(settings, 'PREFIX', prefix)
        self.patch.start()
        self.addCleanup(self.patch.stop)

    def read(self, path):
        """Return the sections of a written file, as oslo.config reads it."""
        sections = {}
        parser = cfg.ConfigParser(str(self.cloud.etc / path), sections)
        parser.parse()
        return {name: {option: values[-1]
                       for option, values in options.items()}
                for name, options in sections.items()}

    def test_values_come_back_as_they_were(self):
        path = self.state / 'test.conf'
        path.write_text(configuration.render({'DEFAULT': {
            'word': 'pa$$w$ord', 'url': 'a://b:c@d?e=f', 'yes': True,
            'no': False, 'number': 2, 'names': ('one', 'two')}}))
        conf = cfg.ConfigOpts()
        conf.register_opts([
            cfg.StrOpt('word'), cfg.StrOpt('url'), cfg.BoolOpt('yes'),
            cfg.BoolOpt('no'), cfg.IntOpt('number'), cfg.ListOpt('names')])
        conf(['--config-file', str(path)])
        self.assertEqual(
            ('pa$$w$ord', 'a://b:c@d?e=f', True, False, 2, ['one', 'two']),
            (conf.word, conf.url, conf.yes, conf.no, conf.number, conf.names))

    def test_pending_state_is_on_where_conductor_reads_it(self):
        configuration.write(self.cloud)
        self.assertEqual(
            'true', self.read('nova/nova.conf')['DEFAULT'][
                'use_pending_state'])

    def test_host_with_real_guests(self):
        configuration.write(self.cloud)
        self.assertFalse((self.cloud.etc / 'compute3').exists())
        self.add_libvirt()
        configuration.write(self.cloud)
        found = self.read('compute3/nova.conf')
        self.assertEqual('qemu+unix:///session?socket=/s',
                         found['libvirt']['connection_uri'])
        self.assertEqual('libvirt.LibvirtDriver',
                         found['DEFAULT']['compute_driver'])
        self.assertTrue(
            (self.cloud.var / 'nova/compute3/instances').is_dir())
        # Who asks for no real guest does not get there.
        self.assertEqual('true', self.read('nova/nova.conf')['scheduler'][
            'enable_isolated_aggregate_filtering'])
        said = yaml.safe_load(
            (self.cloud.etc / 'compute3/provider.yaml').read_text())
        self.assertEqual(['CUSTOM_REAL_GUEST'],
                         said['providers'][0]['traits']['additional'])
        self.assertEqual(
            'compute1,compute2',
            self.read('neutron/neutron.conf')['l2agent']['hosts'])

    def test_hosts_with_pci_devices(self):
        configuration.write(self.cloud)
        self.assertNotIn('pci', self.read('compute1/nova.conf'))
        for counts, in_placement in (('nova', 'false'), ('placement', 'true')):
            self.cloud = dataclasses.replace(self.cloud, pci=counts)
            configuration.write(self.cloud)
            host = self.read('compute1/nova.conf')
            self.assertEqual(in_placement, host['pci']['report_in_placement'])
            control = self.read('nova/nova.conf')
            self.assertEqual(
                {'name': configuration.DEVICE,
                 **jsonutils.loads(host['pci']['device_spec'])},
                jsonutils.loads(control['pci']['alias']))
            self.assertEqual(
                in_placement, control['filter_scheduler']['pci_in_placement'])

    def add_libvirt(self):
        self.cloud = dataclasses.replace(
            self.cloud, libvirt=True,
            hypervisor=mock.Mock(uri='qemu+unix:///session?socket=/s'))

    def test_every_option_of_nova_is_one_that_nova_has(self):
        self.add_libvirt()
        self.cloud = dataclasses.replace(self.cloud, pci='placement')
        configuration.write(self.cloud)
        for path in ('nova/nova.conf', 'compute1/nova.conf',
                     'compute3/nova.conf'):
            for section, options in self.read(path).items():
                if section in ('DEFAULT', 'api', 'conductor', 'scheduler',
                               'vnc', 'glance', 'api_database', 'database',
                               'compute', 'libvirt', 'pci',
                               'filter_scheduler'):
                    group = (nova.conf.CONF if section == 'DEFAULT'
                             else nova.conf.CONF[section])
                    for option in options.keys() - LIBRARIES:
                        self.assertIn(option, group, '[%s] %s in %s' % (
                            section, option, path))

    def test_compute_host_has_room_for_as_many_vcpus_as_the_settings_say(
            self):
        configuration.write(self.cloud)
        options = self.read('compute1/nova.conf')['DEFAULT']
        self.assertEqual('1.0', options['cpu_allocation_ratio'])
        self.assertEqual(
            self.cloud.host_vcpus,
            fake.FakeDriver.vcpus - int(options['reserved_host_cpus']))

    def test_compute_hosts_have_no_database_and_nothing_in_common(self):
        configuration.write(self.cloud)
        one, two = (self.read(host + '/nova.conf')
                    for host in self.cloud.hosts)
        for sections in (one, two):
            self.assertNotIn('database', sections)
            self.assertNotIn('api_database', sections)
        for option in ('host', 'state_path'):
            self.assertNotEqual(one['DEFAULT'][option],
                                two['DEFAULT'][option])

    def test_each_service_has_its_own_database(self):
        configuration.write(self.cloud)
        found = [
            self.read('keystone/keystone.conf')['database'],
            self.read('placement/placement.conf')['placement_database'],
            self.read('glance/glance-api.conf')['database'],
            self.read('neutron/neutron.conf')['database'],
            self.read('nova/nova.conf')['database'],
            self.read('nova/nova.conf')['api_database']]
        self.assertEqual(6, len({each['connection'] for each in found}))
        for each in found:
            self.assertIn('/cloud_1_', each['connection'])

    def test_state_paths_are_there_and_below_the_state_directory(self):
        configuration.write(self.cloud)
        for path, section, option in (
                ('nova/nova.conf', 'DEFAULT', 'state_path'),
                ('compute2/nova.conf', 'DEFAULT', 'state_path'),
                ('neutron/neutron.conf', 'DEFAULT', 'state_path'),
                ('neutron/neutron.conf', 'oslo_concurrency', 'lock_path'),
                ('glance/glance-api.conf', 'file', 'filesystem_store_datadir'),
                ('keystone/keystone.conf', 'fernet_tokens',
                 'key_repository')):
            found = self.read(path)[section][option]
            folder = self.state / found
            self.assertTrue(folder.is_dir(), found)
            self.assertEqual(0o700, stat.S_IMODE(folder.stat().st_mode))

    def test_keys_of_keystone_are_two_and_differ(self):
        configuration.write(self.cloud)
        folder = self.cloud.var / 'fernet'
        self.assertNotEqual((folder / '0').read_bytes(),
                            (folder / '1').read_bytes())

    def test_queues_go_away_by_themselves_only_where_they_must(self):
        self.cloud.bus.shared = False
        configuration.write(self.cloud)
        self.assertNotIn('amqp_auto_delete', self.read(
            'nova/nova.conf').get('oslo_messaging_rabbit', {}))
        self.cloud.bus.shared = True
        configuration.write(self.cloud)
        for path in ('nova/nova.conf', 'compute1/nova.conf',
                     'neutron/neutron.conf'):
            self.assertEqual('true', self.read(path)[
                'oslo_messaging_rabbit']['amqp_auto_delete'])

    def test_client_knows_the_owner_and_the_administrator(self):
        configuration.write(self.cloud)
        clouds = yaml.safe_load(
            (self.cloud.etc / 'clouds.yaml').read_text())['clouds']
        self.assertEqual({'owner', 'admin'}, set(clouds))
        for name, cloud in clouds.items():
            self.assertEqual(name, cloud['auth']['project_name'])
            self.assertEqual(self.cloud.url('keystone'),
                             cloud['auth']['auth_url'])

    def test_two_clouds_have_different_passwords(self):
        other = settings.Settings(
            state=self.state, databases=None, bus=None, ports={})
        self.assertNotEqual(self.cloud.password, other.password)


class ChoicesTestCase(base.CloudTestCase):

    def choose(self, **choices):
        return dataclasses.replace(self.cloud, **choices)

    def test_stock_cloud_has_no_option_of_the_layer(self):
        for stock in (True, False):
            cloud = self.choose(stock=stock)
            self.assertEqual(
                not stock, 'use_pending_state'
                in configuration.nova_control(cloud)['DEFAULT'])

    def test_one_cell_shares_the_bus_and_the_conductors(self):
        control = configuration.nova_control(self.cloud)
        compute = configuration.nova_compute(self.cloud, 'compute2')
        self.assertEqual(control['DEFAULT']['transport_url'],
                         compute['DEFAULT']['transport_url'])
        self.assertTrue(control['database']['connection'].startswith(
            'mysql+pymysql://root@127.0.0.1:3306/cloud_1_nova?'))

    def test_each_of_two_cells_has_a_bus_and_a_database(self):
        cloud = self.choose(cells=2)
        cloud.bus.url_of = lambda cell: 'rabbit://h/' + cell
        for host, cell, database in (('compute1', 'cell1', 'cloud_1_nova?'),
                                     ('compute2', 'cell2', 'nova_cell2?')):
            compute = configuration.nova_compute(cloud, host)
            conductor = configuration.nova_cell(cloud, cell)
            for section in (compute, conductor):
                self.assertEqual('rabbit://h/' + cell,
                                 section['DEFAULT']['transport_url'])
            self.assertNotIn('database', compute)
            self.assertNotIn('api_database', conductor)
            self.assertIn(database, conductor['database']['connection'])
        control = configuration.nova_control(cloud)
        self.assertEqual(cloud.bus.url, control['DEFAULT']['transport_url'])
        self.assertIn('nova_cell0?', control['database']['connection'])

    def test_each_conductor_has_a_file_and_a_name_of_its_own(self):
        cloud = self.choose(conductors=2, cells=2)
        cloud.bus.url_of = lambda cell: 'rabbit://h/' + cell
        prefix = self.state / 'prefix'
        (prefix / 'etc/nova').mkdir(parents=True)
        (prefix / 'etc/nova/api-paste.ini').touch()
        with mock.patch.object(settings, 'PREFIX', prefix):
            configuration.write(cloud)
        hosts = set()
        for host in (*cloud.conductor_hosts, *cloud.separate_cells):
            parser = configparser.ConfigParser(interpolation=None)
            parser.read(cloud.etc / cloud.nova_file(host))
            hosts.add(parser['DEFAULT']['host'])
            self.assertTrue(pathlib.Path(
                parser['DEFAULT']['state_path']).is_dir())
        self.assertEqual({'control', 'control2', 'cell1', 'cell2'}, hosts)
