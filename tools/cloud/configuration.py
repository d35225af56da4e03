# SPDX-License-Identifier: Apache-2.0

"""The configuration files of the services."""

import json
import os
import shutil

from cryptography import fernet
import yaml

from tools.cloud import ports
from tools.cloud import reaper
from tools.cloud import settings

SERVICE_PROJECT = 'service'
OWNER = 'owner'
ADMIN = 'admin'

#: What nova's fake driver says that a host has. How much of it there is room
#: for is a matter of what the host reserves.
_FAKE_VCPUS = 1000

#: The alias of the PCI devices that hosts have with ``Settings.pci``, and the
#: devices: those of device_compute.
DEVICE = 'device'
_DEVICE = {'vendor_id': '8086', 'product_id': '0442'}

#: The trait of a host with real guests. It keeps servers away that did not
#: ask for it: the host has no network for them.
REAL_GUEST = 'CUSTOM_REAL_GUEST'

_KEYS = ('fernet', 'credential')

# Nothing stays behind for long in a virtual host that is not ours.
_RABBIT_SHARED = {
    'amqp_auto_delete': True,
    'rabbit_transient_queues_ttl': 60,
}


def render(sections):
    """Return the text of a file for oslo.config.

    :param sections: options and their values by section; a value is a
        string, a number, a boolean or a list of strings
    """
    lines = []
    for name, options in sections.items():
        lines.append('[%s]' % name)
        lines.extend('%s = %s' % (option, _value(value))
                     for option, value in options.items())
        lines.append('')
    return '\n'.join(lines)


def _value(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ','.join(value)
    # oslo.config puts values of options in place of $name.
    return str(value).replace('$', '$$')


def write(cloud):
    """Write the files of all services and of the client.

    :param cloud: the settings.Settings
    """
    files = {
        'keystone/keystone.conf': keystone(cloud),
        'placement/placement.conf': placement(cloud),
        'glance/glance-api.conf': glance(cloud),
        'neutron/neutron.conf': neutron(cloud),
        'neutron/plugins/ml2/ml2_conf.ini': ml2(),
        **{cloud.nova_file(host): nova_control(cloud, host)
           for host in cloud.conductor_hosts},
        **{cloud.nova_file(cell): nova_cell(cloud, cell)
           for cell in cloud.separate_cells},
        'cinder/cinder.conf': cinder(cloud),
    }
    for host in cloud.hosts:
        files[cloud.nova_file(host)] = nova_compute(cloud, host)
    if cloud.libvirt:
        files[cloud.nova_file(cloud.libvirt_host)] = nova_libvirt(cloud)
    if cloud.reaper:
        files['%s/nova-reaper.conf' % reaper.NAME] = reaper.configuration(
            cloud, _auth(cloud, reaper.NAME), _authtoken(cloud, reaper.NAME))
    for path, sections in files.items():
        target = cloud.etc / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render(sections))
    shutil.copy(settings.PREFIX / 'etc/nova/api-paste.ini',
                cloud.etc / 'nova')
    (cloud.etc / 'clouds.yaml').write_text(yaml.safe_dump(clouds(cloud)))
    if cloud.libvirt:
        (cloud.etc / cloud.libvirt_host / 'provider.yaml').write_text(
            yaml.safe_dump(_provider()))
    for path in (*_KEYS, 'lock', 'glance/images',
                 'glance/staging', 'glance/tasks', 'neutron',
                 'cinder/volumes', 'cinder/coordination',
                 *('nova/' + host for host in (
                     *cloud.conductor_hosts, *cloud.separate_cells,
                     *cloud.all_hosts)),
                 *('nova/%s/instances' % host for host in filter(
                     None, [cloud.libvirt_host]))):
        (cloud.var / path).mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in _KEYS:
        # The staged key and the primary one, as keystone-manage makes them.
        for name in ('0', '1'):
            (cloud.var / path / name).write_bytes(
                fernet.Fernet.generate_key())


def clouds(cloud):
    """Return what clouds.yaml says about the two users of the demonstration.

    The owner has a project of her own, the administrator has the cloud.
    """
    return {'clouds': {
        user: {
            'auth': {
                'auth_url': cloud.url('keystone'),
                'username': user,
                'password': cloud.password,
                'project_name': user,
                'user_domain_id': 'default',
                'project_domain_id': 'default'},
            'region_name': settings.REGION,
            'identity_api_version': '3'}
        for user in (ADMIN, OWNER)}}


def keystone(cloud):
    keys = cloud.var / 'fernet'
    return {
        'DEFAULT': _common(),
        'database': _database(cloud, 'keystone'),
        'fernet_tokens': {'key_repository': keys},
        'fernet_receipts': {'key_repository': keys},
        'credential': {'key_repository': cloud.var / 'credential'},
        'cache': {'enabled': True, 'backend': 'dogpile.cache.memory'},
        # Passwords are as short-lived as the cloud, and every call of the
        # client asks for a token.
        'identity': {'password_hash_rounds': 4},
    }


def placement(cloud):
    return {
        'DEFAULT': _common(),
        'api': {'auth_strategy': 'keystone'},
        'placement_database': _database(cloud, 'placement'),
        'keystone_authtoken': _authtoken(cloud, 'placement'),
    }


def glance(cloud):
    data = cloud.var / 'glance'
    return {
        'DEFAULT': {
            **_common(),
            'enabled_backends': 'file:file',
            'enabled_import_methods': '[]',
            'worker_self_reference_url': cloud.url('glance')},
        'database': _database(cloud, 'glance'),
        'keystone_authtoken': _authtoken(cloud, 'glance'),
        'glance_store': {'default_backend': 'file'},
        'file': {'filesystem_store_datadir': data / 'images'},
        'os_glance_staging_store': {
            'filesystem_store_datadir': data / 'staging'},
        'os_glance_tasks_store': {'filesystem_store_datadir': data / 'tasks'},
        'paste_deploy': {
            'flavor': 'keystone',
            'config_file':
                settings.PREFIX / 'etc/glance/glance-api-paste.ini'},
        **_lock_path(cloud),
    }


def neutron(cloud):
    return {
        'DEFAULT': {
            **_common(),
            'transport_url': cloud.bus.url,
            'auth_strategy': 'keystone',
            'core_plugin': 'ml2',
            'service_plugins': '',
            'api_paste_config': settings.PREFIX / 'etc/neutron/api-paste.ini',
            'state_path': cloud.var / 'neutron',
            'rpc_workers': 1,
            'rpc_state_report_workers': 0,
            'dhcp_agent_notification': False,
            'send_events_interval': 1},
        'database': _database(cloud, 'neutron'),
        'keystone_authtoken': _authtoken(cloud, 'neutron'),
        'nova': _auth(cloud, 'nova'),
        'placement': _auth(cloud, 'placement'),
        'l2agent': {'hosts': cloud.hosts},
        **_messaging(cloud),
    }


def ml2():
    return {
        'ml2': {
            'type_drivers': 'vxlan',
            'project_network_types': 'vxlan',
            'mechanism_drivers': 'openvswitch',
            'extension_drivers': 'port_security'},
        'ml2_type_vxlan': {'vni_ranges': '1:1000'},
    }


def cinder(cloud):
    etc, state = settings.PREFIX / 'etc/cinder', cloud.var / 'cinder'
    return {
        'DEFAULT': {
            **_common(),
            'transport_url': cloud.bus.url,
            'auth_strategy': 'keystone',
            'api_paste_config': etc / 'api-paste.ini',
            'resource_query_filters_file': etc / 'resource_filters.json',
            'rootwrap_config': etc / 'rootwrap.conf',
            'state_path': state,
            'host': 'storage',
            'my_ip': ports.HOST,
            'report_interval': 5,
            'enabled_backends': 'file',
            'glance_api_servers': cloud.url('glance')},
        'file': {
            'volume_driver': 'file_volumes.FileDriver',
            'volume_backend_name': 'file',
            'volumes_dir': state / 'volumes'},
        'coordination': {
            'backend_url': 'file://%s' % (state / 'coordination')},
        'database': _database(cloud, 'cinder'),
        'keystone_authtoken': _authtoken(cloud, 'cinder'),
        'nova': _auth(cloud, 'cinder'),
        'service_user': {
            **_auth(cloud, 'cinder'), 'send_service_user_token': True},
        **_messaging(cloud),
    }


def nova_control(cloud, host=settings.CONTROL):
    """Return the configuration of nova-api, nova-conductor, nova-scheduler."""
    return {
        **_nova_conductor(cloud, host, cloud.bus.url),
        'api_database': _database(cloud, 'nova_api'),
        'database': _database(
            cloud, 'nova_cell0' if cloud.separate_cells else 'nova'),
        'scheduler': {
            'workers': 1,
            # No host is lost between its start and an operator's command.
            'discover_hosts_in_cells_interval': 2,
            'enable_isolated_aggregate_filtering': cloud.libvirt},
        **({'filter_scheduler': {
            'enabled_filters': ['ComputeFilter', 'ImagePropertiesFilter',
                                'PciPassthroughFilter'],
            'pci_in_placement': cloud.pci == 'placement'}}
           if cloud.pci else {}),
    }


def nova_cell(cloud, cell):
    """Return the configuration of the nova-conductor of a separate cell.

    It does not know of the world outside its cell.
    """
    return {
        **_nova_conductor(cloud, cell, cloud.bus_url(cell)),
        'database': _database(cloud, cloud.cell_database(cell)),
    }


def _nova_conductor(cloud, host, bus_url):
    sections = _nova(cloud, host, bus_url)
    if not cloud.stock:
        sections['DEFAULT']['use_pending_state'] = True
    return {**sections, 'conductor': {'workers': cloud.workers}}


def nova_compute(cloud, host):
    """Return the configuration of nova-compute on one host.

    It has no database, and the fake driver: everything is real but the guest.
    """
    sections = _nova(cloud, host, cloud.bus_url(cloud.cell_of(host)))
    sections['DEFAULT'].update({
        'compute_driver': 'fake.FakeDriverWithoutFakeNodes',
        'reserved_host_cpus': _FAKE_VCPUS - cloud.host_vcpus,
        'cpu_allocation_ratio': 1.0,
        # The fake driver plugs nothing that it could wait for.
        'vif_plugging_is_fatal': False,
        'vif_plugging_timeout': 0})
    if cloud.pci:
        sections['DEFAULT']['compute_driver'] = 'fake.FakeDriverWithDevices'
        sections['pci'].update({
            'device_spec': json.dumps(_DEVICE),
            'report_in_placement': cloud.pci == 'placement'})
    return sections


def nova_libvirt(cloud):
    """Return the configuration of nova-compute on the host with real guests.

    It has room for one of them, and says that it has by a trait.
    """
    host = cloud.libvirt_host
    sections = _nova(cloud, host, cloud.bus_url(cloud.cell_of(host)))
    sections['DEFAULT'].update({
        'compute_driver': 'libvirt.LibvirtDriver',
        'reserved_host_cpus': os.cpu_count() - 1,
        'cpu_allocation_ratio': 1.0,
        # A guest that sleeps does not shut down when it is asked to.
        'shutdown_timeout': 1,
        'resume_guests_state_on_host_boot': True})
    return {
        **sections,
        'compute': {'provider_config_location': cloud.etc / host},
        'libvirt': {
            'connection_uri': cloud.hypervisor.uri,
            'virt_type': 'qemu',
            'images_type': 'raw',
            'hw_machine_type': 'x86_64=pc'},
    }


def _provider():
    """Return what is said of the host in Placement beside what Nova says."""
    return {
        'meta': {'schema_version': '1.0'},
        'providers': [{
            'identification': {'uuid': '$COMPUTE_NODE'},
            'traits': {'additional': [REAL_GUEST]}}]}


def _nova(cloud, host, bus_url):
    return {
        'DEFAULT': {
            **_common(),
            'transport_url': bus_url,
            'host': host,
            'my_ip': '127.0.0.1',
            'state_path': cloud.var / 'nova' / host,
            'rootwrap_config': settings.PREFIX / 'etc/nova/rootwrap.conf',
            'report_interval': 5,
            # Periodic tasks start at once, not at some time of a minute.
            'periodic_fuzzy_delay': 0,
            'service_down_time': 60,
            'graceful_shutdown_timeout': 5,
            'manager_shutdown_timeout': 2},
        'vnc': {'enabled': False},
        'glance': {'api_servers': cloud.url('glance')},
        'keystone_authtoken': _authtoken(cloud, 'nova'),
        'placement': _auth(cloud, 'placement'),
        'neutron': _auth(cloud, 'neutron'),
        'cinder': {**_auth(cloud, 'nova'),
                   'catalog_info': 'block-storage::publicURL'},
        'service_user': {
            **_auth(cloud, 'nova'), 'send_service_user_token': True},
        **({'pci': {'alias': json.dumps({'name': DEVICE, **_DEVICE})}}
           if cloud.pci else {}),
        **_messaging(cloud),
        **reaper.notifications(cloud),
    }


def _common():
    return {'use_stderr': True, 'log_color': False}


def _database(cloud, name):
    return {'connection': cloud.databases.url(name),
            **cloud.databases.options}


def _auth(cloud, user):
    return {
        'auth_type': 'password',
        'auth_url': cloud.url('keystone'),
        'username': user,
        'password': cloud.password,
        'project_name': SERVICE_PROJECT,
        'user_domain_id': 'default',
        'project_domain_id': 'default',
        'region_name': settings.REGION,
    }


def _authtoken(cloud, user):
    return {
        **_auth(cloud, user),
        'www_authenticate_uri': cloud.url('keystone'),
        'service_token_roles': 'service',
        'service_token_roles_required': True,
    }


def _messaging(cloud):
    return {
        'oslo_messaging_rabbit': _RABBIT_SHARED if cloud.bus.shared else {},
        'oslo_messaging_notifications': {'driver': 'noop'},
        **_lock_path(cloud),
    }


def _lock_path(cloud):
    return {'oslo_concurrency': {'lock_path': cloud.var / 'lock'}}
