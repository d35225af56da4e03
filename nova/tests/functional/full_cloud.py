# SPDX-License-Identifier: Apache-2.0

"""A functional test base with a host that can be full."""

import time

from nova.tests.functional import integrated_helpers
from nova.tests.functional import shared_work


class FullCloudTestCase(integrated_helpers._IntegratedTestBase):
    """One compute that has room for two small servers and no large one.

    ``self.api`` is the tenant, ``self.admin_api`` the administrator. Both
    speak the microversion of the class until a test changes it with
    ``speak()``.
    """

    REQUIRES_LOCKING = True
    # A cast that fails must fail as it does on a real bus: unseen.
    CAST_AS_CALL = False

    microversion = 'latest'
    compute_driver = 'fake.SmallFakeDriver'

    #: The option, None where it is not to be set.
    use_pending_state = True

    def setUp(self):
        self.useFixture(shared_work.SharedWork())
        self.flags(compute_driver=self.compute_driver)
        if self.use_pending_state is not None:
            self.flags(use_pending_state=self.use_pending_state)
        # Threads share the one connection that each database of the harness
        # has, and a service that reports looks for itself in the database
        # that was targeted last: in cell0 that fails, and rolls back what a
        # test is at there.
        self.flags(report_interval=3600, service_down_time=7200)
        # A test may end while its conductor waits for the scheduler. Nobody
        # answers then, and the process of the tests ends with that thread.
        self.flags(long_rpc_timeout=60)
        super().setUp()
        # No quota is on disk, so that many of them can wait.
        self.large = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000)
        self.small = self._create_flavor(vcpu=1, memory_mb=128, disk=1)

    def speak(self, microversion):
        """Let both clients use another microversion."""
        self.api.microversion = microversion
        self.admin_api.microversion = microversion

    def create_waiting(self, status='PENDING', api=None, **server):
        """Create a server that no host has room for; wait until it waits.

        :param status: the status that it ends in
        :param api: the client that asks for it, by default the tenant's
        :param server: arguments of _build_server(), and keys of the request
        """
        built = {name: server.pop(name) for name in (
            'name', 'image_uuid', 'az', 'host') if name in server}
        request = self._build_server(
            flavor_id=self.large, networks='none', **built)
        request.update(server)
        return self.wait_for(
            (api or self.api).post_server({'server': request}), status)

    @staticmethod
    def _has_build_request(server):
        # The harness selects the kind of threads before anything of Nova is
        # imported.
        from nova import context as nova_context
        from nova.db.api import api as api_db_api
        from nova.db.api import models as api_models
        context = nova_context.get_admin_context()
        with api_db_api.context_manager.reader.using(context) as session:
            return session.query(api_models.BuildRequest).filter_by(
                instance_uuid=server['id']).first() is not None

    def wait_for(self, server, status):
        """Wait for a status as the newest microversion shows it."""
        spoken = self.admin_api.microversion
        self.admin_api.microversion = 'latest'
        try:
            for attempt in range(100):
                # The build request is deleted last: until then no rebuild
                # can have the server. To look for a build request takes less
                # of the processor time that the services need than to show
                # a server does.
                if status == 'BUILD' or not self._has_build_request(server):
                    server = self.admin_api.get_server(server['id'])
                    # The fault is stored after the state.
                    if server['status'] == status and (
                            status not in ('ERROR', 'PENDING') or
                            'fault' in server):
                        return server
                time.sleep(min(0.05 * 2 ** attempt, 0.4))
        finally:
            self.admin_api.microversion = spoken
        self.fail('Waited for %s: %s' % (status, server))
