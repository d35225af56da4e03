# SPDX-License-Identifier: Apache-2.0

"""Servers that wait, in any cloud.

An administrator makes a flavor that requires a trait which no host has, so
that a server of it waits; the trait is given to a host in placement to make
room.
"""

import contextlib

from oslo_serialization import jsonutils
from oslo_utils import uuidutils
from tempest.api.compute import base
from tempest.common import waiters
from tempest import config
from tempest.lib.common import api_version_utils
from tempest.lib.common.utils import data_utils
from tempest.lib.common.utils import test_utils
from tempest.lib import exceptions
from tempest.lib.services.compute import base_compute_client

from nova_pending_tempest_plugin import schemas

CONF = config.CONF


@contextlib.contextmanager
def microversion(version):
    """Send another microversion of the compute API in a ``with`` block."""
    before = base_compute_client.COMPUTE_MICROVERSION
    base_compute_client.COMPUTE_MICROVERSION = version
    try:
        yield
    finally:
        base_compute_client.COMPUTE_MICROVERSION = before


class BasePendingTest(base.BaseV2ComputeTest):
    """Tests with servers of a flavor that no host has room for."""

    credentials = ['primary', 'project_reader', 'alt', 'admin']
    #: What the tests are about, as Nova calls it: its microversion is used.
    feature = 'pending'
    # No release has any of it at an earlier one.
    min_microversion = '2.104'
    # Traits.
    placement_min_microversion = '1.6'

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.service_available.nova_pending:
            raise cls.skipException('nova-pending is not in this cloud')
        if not CONF.compute_feature_enabled.pending_state:
            raise cls.skipException('Servers do not wait in this cloud')

    @classmethod
    def setup_credentials(cls):
        # No traffic leaves it, so it needs no router.
        cls.set_network_resources(network=True, subnet=True)
        super().setup_credentials()

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls._find_microversions()
        cls.reader = cls.os_project_reader.servers_client
        cls.other = cls.os_alt.servers_client
        cls.admin = cls.os_admin.servers_client
        for client in (
                cls.servers_client, cls.reader, cls.other, cls.admin):
            client.schema_versions_info = schemas.servers(cls.microversions)
        cls._providers = cls.os_admin.resource_providers_client

    @classmethod
    def _find_microversions(cls):
        """Ask Nova which microversion has what, and use that of the tests.

        The same number has another meaning in another release.
        """
        with microversion('latest'):
            response, body = cls.servers_client.get('pending')
        cls.servers_client.expected_success(200, response.status)
        #: the microversion of each feature
        cls.microversions = jsonutils.loads(body)['pending']['microversions']
        cls.pending = cls.microversions['pending']
        #: the last one of the release, on which the others follow
        cls.released = '2.%d' % (int(cls.pending.partition('.')[2]) - 1)
        cls.min_microversion = cls.microversions[cls.feature]
        api_version_utils.check_skip_with_microversion(
            cls.min_microversion, cls.max_microversion,
            CONF.compute.min_microversion, CONF.compute.max_microversion)

    @classmethod
    def resource_setup(cls):
        super().resource_setup()
        placement = cls.os_admin.placement_client
        cls.trait = 'CUSTOM_PENDING_%s' % uuidutils.generate_uuid(
            dashed=False).upper()
        placement.create_trait(cls.trait)
        cls.addClassResourceCleanup(placement.delete_trait, cls.trait)
        cls.flavor = cls._create_flavor()

    @classmethod
    def _create_flavor(cls, disk=None, **extra_specs):
        """Create a flavor that requires the trait.

        :param disk: GiB, those of the usual flavor if not given
        :param extra_specs: what else it has
        :returns: its ID
        """
        flavors = cls.os_admin.flavors_client
        like = flavors.show_flavor(cls.flavor_ref)['flavor']
        flavor = flavors.create_flavor(
            name=data_utils.rand_name(cls.trait), vcpus=like['vcpus'],
            ram=like['ram'], disk=disk or like['disk'])['flavor']['id']
        cls.addClassResourceCleanup(flavors.delete_flavor, flavor)
        flavors.set_flavor_extra_spec(
            flavor, **{'trait:' + cls.trait: 'required', **extra_specs})
        return flavor

    @classmethod
    def create_waiting_server(cls, **kwargs):
        """Create a server, wait until it is in PENDING, and return it."""
        server = cls.create_test_server(
            flavor=kwargs.pop('flavor', cls.flavor), **kwargs)
        return cls.wait_until(server['id'], 'PENDING')

    @classmethod
    def wait_until(cls, server_id, status):
        """Wait until a server is in a status, and return it."""
        waiters.wait_for_server_status(cls.servers_client, server_id, status)
        return cls.servers_client.show_server(server_id)['server']

    def rebuild(self, server_id, client=None, **body):
        """Ask for a rebuild, and return the server as the answer has it.

        :param client: the servers client of somebody else than the owner
        :param body: what the request has
        """
        client = client or self.servers_client
        schema = client.get_schema(client.schema_versions_info)
        return client.action(
            server_id, 'rebuild',
            schema.rebuild_server_with_admin_pass
            if CONF.compute_feature_enabled.enable_instance_password
            else schema.rebuild_server, **body)['server']

    def host(self):
        """Return the UUID of the resource provider of a host that is up."""
        hypervisors = self.os_admin.hypervisor_client
        with microversion('2.1'):
            host = next(
                each['hypervisor_hostname'] for each
                in hypervisors.list_hypervisors(detail=True)['hypervisors']
                if (each['state'], each['status']) == ('up', 'enabled'))
        provider, = self._providers.list_resource_providers(
            name=host)['resource_providers']
        return provider['uuid']

    def most_disk(self, provider):
        """Return GiB of disk that a provider has room for once, not twice."""
        inventory = self._providers.list_resource_provider_inventories(
            provider)['inventories'].get('DISK_GB')
        if not inventory:
            raise self.skipException('The host has no disk of its own')
        usages = self._providers.list_resource_provider_usages(
            provider)['usages']
        free = (int((inventory['total'] - inventory['reserved']) *
                    inventory['allocation_ratio']) - usages['DISK_GB'])
        # More than a half: others come and go meanwhile.
        amount = free * 2 // 3 + 1
        if amount > inventory['max_unit']:
            raise self.skipException('One server cannot have most of the '
                                     'room of the host')
        return amount

    def give_room(self):
        """Let one host have room for waiting servers until the test ends.

        :returns: the UUID of its resource provider
        """
        provider = self.host()
        self.addCleanup(self._change_traits, provider,
                        lambda traits: traits - {self.trait})
        self._change_traits(provider, lambda traits: traits | {self.trait})
        return provider

    def _change_traits(self, provider, change):
        def changed():
            now = self._providers.list_resource_provider_traits(provider)
            try:
                self._providers.update_resource_provider_traits(
                    provider, resource_provider_generation=now[
                        'resource_provider_generation'],
                    traits=sorted(change(set(now['traits']))))
            except exceptions.Conflict:
                # Somebody else has changed the provider meanwhile.
                return False
            return True

        if not test_utils.call_until_true(
                changed, CONF.compute.build_timeout, 0.1):
            raise exceptions.TimeoutException(
                'Traits of %s cannot be changed.' % provider)

    def assertRefused(self, error, server_id, function, *args, **kwargs):
        """Assert that a request is refused and that the server is as before.

        :param error: what tempest raises for the answer
        """
        before = self.admin.show_server(server_id)['server']
        self.assertRaises(error, function, *args, **kwargs)
        self.assertEqual(
            before, self.admin.show_server(server_id)['server'])
