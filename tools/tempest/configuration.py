# SPDX-License-Identifier: Apache-2.0

"""What Tempest has to know of a cloud, and what has to be there for it."""

import pathlib

import openstack
import yaml

from tools.cloud import configuration

_HERE = pathlib.Path(__file__).resolve().parent
_IMAGE_BYTES = 1024 * 1024


class Unsupported:
    """What the cloud cannot do, as unsupported.yaml lists it.

    :ivar options: the options of tempest.conf by which Tempest leaves tests
        out itself: their values by section and name
    :ivar tests: the IDs of tests that have no such option
    :raises: ValueError for an entry without a reason, and for a test that is
        listed twice
    """

    def __init__(self, document):
        self.options = {}
        self.tests = set()
        for entry in (*document['options'], *document['tests']):
            if not entry['reason'].strip():
                raise ValueError('No reason is given for %s.' % entry)
        for entry in document['options']:
            for section, options in entry['options'].items():
                self.options.setdefault(section, {}).update(options)
        for entry in document['tests']:
            for test in entry['tests']:
                if test in self.tests:
                    raise ValueError('%s is listed twice.' % test)
                self.tests.add(test)

    @classmethod
    def read(cls):
        """Return what the file says."""
        return cls(yaml.safe_load((_HERE / 'unsupported.yaml').read_text()))


def prepare(cloud):
    """Make what Tempest takes from a cloud.

    These are images, flavors, a network and a type of volumes.

    :param cloud: the settings.Settings of a cloud that is up
    :returns: the options of tempest.conf that name it, by section
    """
    admin = openstack.connection.Connection(
        **configuration.clouds(cloud)['clouds'][configuration.ADMIN])
    with admin:
        images = [admin.image.create_image(
            name='tempest-%d' % number, visibility='public',
            disk_format='raw', container_format='bare',
            data=bytes(_IMAGE_BYTES), validate_checksum=False).id
            for number in (1, 2)]
        flavors = [admin.compute.create_flavor(
            name='tempest-%d' % number, vcpus=1, ram=64 * number,
            disk=number).id for number in (1, 2)]
        public = admin.network.create_network(
            name='public', is_router_external=True)
        admin.network.create_subnet(
            network_id=public.id, ip_version=4, cidr='172.24.4.0/24',
            enable_dhcp=False)
        shared = admin.block_storage.create_type(
            name='multiattach', extra_specs={'multiattach': '<is> True'}).name
    return {
        'compute': {
            'image_ref': images[0], 'image_ref_alt': images[1],
            'flavor_ref': flavors[0], 'flavor_ref_alt': flavors[1]},
        'network': {
            'public_network_id': public.id,
            'floating_network_name': public.name},
        'volume': {'volume_type_multiattach': shared},
    }


def render(cloud, prepared, unsupported, folder, reaper_mode='none'):
    """Return the text of tempest.conf.

    :param cloud: the settings.Settings
    :param prepared: what ``prepare()`` returned
    :param unsupported: the Unsupported
    :param folder: where Tempest may write
    :param reaper_mode: how far the reaper of the cloud may go
    """
    sections = {
        'DEFAULT': {'log_file': folder / 'tempest.log'},
        'oslo_concurrency': {'lock_path': folder},
        'auth': {
            'admin_username': configuration.ADMIN,
            'admin_project_name': configuration.ADMIN,
            'admin_domain_name': 'Default',
            'admin_password': cloud.password},
        'identity': {'uri_v3': cloud.url('keystone')},
        'enforce_scope': {'nova': True},
        'service_available': {
            'cinder': cloud.cinder, 'glance': True, 'neutron': True,
            'nova_pending': not cloud.stock, 'swift': False},
        'compute': {
            'max_microversion': 'latest',
            'min_compute_nodes': len(cloud.hosts)},
        'compute-feature-enabled': {
            'block_migration_for_live_migration': True,
            'change_password': True, 'personality': True,
            **({} if cloud.stock else {'reaper_mode': reaper_mode}),
            'resize': True,
            'scheduler_enabled_filters': 'all', 'shelve_migrate': True,
            'swap_volume': True, 'volume_backed_live_migration': True,
            'volume_multiattach': True},
        'placement': {'max_microversion': 'latest'},
        'volume': {'max_microversion': 'latest', 'volume_size': 1},
    }
    for more in (prepared, unsupported.options):
        for section, options in more.items():
            sections.setdefault(section, {}).update(options)
    return configuration.render(sections)
