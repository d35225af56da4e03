# SPDX-License-Identifier: Apache-2.0

import fixtures

from nova.api.openstack.compute import server_pending
from nova.api.openstack.compute import servers
from nova.compute import pending_reason
from nova.compute import vm_states
import nova.conf
from nova import exception
from nova import objects
from nova.policies import server_pending as policies
from nova.tests.unit.api.openstack import fakes
from nova.tests.unit import fake_instance
from nova.tests.unit.policies import base

CONF = nova.conf.CONF


class ServerPendingPolicyTest(base.BasePolicyTest):
    """Which roles are told why a server waits, and which of the hosts."""

    enforce_new_defaults = False

    def setUp(self):
        super().setUp()
        # The harness may turn off what the services do by default.
        if 'enforce_scope' in CONF.oslo_policy:
            self.flags(enforce_scope=True, group='oslo_policy')
        self.controller = server_pending.ServerPendingController()
        self.req = fakes.HTTPRequest.blank(
            '', version=pending_reason.API_VERSION)
        self.instance = fake_instance.fake_instance_obj(
            self.project_member_context, project_id=self.project_id,
            vm_state=vm_states.PENDING)
        self.get = self.useFixture(fixtures.MockPatch(
            'nova.api.openstack.common.get_instance',
            return_value=self.instance)).mock
        self.explain = self.useFixture(fixtures.MockPatch(
            'nova.compute.pending_reason.PendingReason.explain',
            side_effect=lambda context, instance, page: {
                'since': '2026-11-22T11:30:00Z', 'attempts': 1,
                'last_attempt': '2026-11-22T11:30:00Z', 'reason': 'no_room',
                'message': '', 'advice': '', 'asked_to_wait': False,
                **({'hosts': [], 'requests': []} if page else {})}
            )).mock
        self.told_of_hosts = {
            self.legacy_admin_context, self.project_admin_context,
            self.service_context}
        self.told = self.told_of_hosts | {
            self.project_manager_context, self.project_member_context,
            self.project_reader_context}
        if not self.enforce_new_defaults:
            self.told.add(self.project_foo_context)

    def ask(self, context):
        self.req.environ['nova.context'] = context
        return self.controller.show(self.req, self.instance.uuid)['pending']

    def test_show(self):
        for context in self.all_contexts:
            if context in self.told:
                self.assertEqual(context in self.told_of_hosts,
                                 'hosts' in self.ask(context), context)
            else:
                exc = self.assertRaises(
                    exception.PolicyNotAuthorized, self.ask, context)
                self.assertIn(policies.BASE_POLICY_NAME % 'show', str(exc))

    def test_hosts_are_told_of_servers_of_any_project(self):
        for context in self.told_of_hosts:
            self.ask(context)
            used = self.get.call_args[0][1]
            self.assertTrue(used.is_admin)
            self.assertEqual(context.project_id, used.project_id)

    def test_server_that_is_not_created(self):
        judge = self.useFixture(fixtures.MockPatch(
            'nova.compute.pending_reason.PendingReason.judge',
            return_value={'reason': 'fits', 'requests': [], 'hosts': []})).mock
        controller = server_pending.PendingController()
        body = {'pending': {'server': {
            'flavorRef': '1', 'project_id': self.project_id}}}
        for context in self.all_contexts:
            self.req.environ['nova.context'] = context
            judge.reset_mock()
            if context in self.told_of_hosts:
                controller.create(self.req, body=body)
                self.assertTrue(judge.call_args[0][0].is_admin)
            else:
                self.assertRaises(exception.PolicyNotAuthorized,
                                  controller.create, self.req, body=body)
                judge.assert_not_called()

    def test_list_of_servers_of_all_projects(self):
        get_all = self.useFixture(fixtures.MockPatch(
            'nova.compute.api.API.get_all',
            return_value=objects.InstanceList(objects=[]))).mock
        controller = servers.ServersController()
        request = fakes.HTTPRequest.blank(
            '/servers/detail?all_tenants=1&status=PENDING',
            version=pending_reason.API_VERSION)
        for context in self.all_contexts:
            get_all.reset_mock()
            request.environ['nova.context'] = context
            if context in self.told_of_hosts:
                self.assertEqual({'servers': []}, controller.detail(request))
                self.assertNotIn('project_id',
                                 get_all.call_args[1]['search_opts'])
            else:
                self.assertRaises(exception.PolicyNotAuthorized,
                                  controller.detail, request)
                get_all.assert_not_called()

    def test_list_of_a_service_shows_it_what_members_are_shown(self):
        # All projects are read, and the service does not become an
        # administrator to whom a host or user data would be shown.
        self.useFixture(fixtures.MockPatch(
            'nova.compute.api.API.get_all',
            return_value=objects.InstanceList(objects=[])))
        request = fakes.HTTPRequest.blank(
            '/servers/detail?all_tenants=1',
            version=pending_reason.API_VERSION)
        request.environ['nova.context'] = self.service_context
        servers.ServersController().detail(request)
        self.assertFalse(request.environ['nova.context'].is_admin)
        self.assertNotIn('admin', self.service_context.roles)

    def test_rules_of_an_operator(self):
        self.policy.set_rules({
            policies.BASE_POLICY_NAME % 'hosts:show': '!',
            policies.BASE_POLICY_NAME % 'show': 'role:manager'},
            overwrite=False)
        self.assertNotIn('hosts', self.ask(self.project_manager_context))
        self.assertRaises(exception.PolicyNotAuthorized, self.ask,
                          self.project_reader_context)


class ServerPendingNewDefaultsPolicyTest(ServerPendingPolicyTest):
    """The same without the deprecated rules."""

    enforce_new_defaults = True
    without_deprecated_rules = True

    def setUp(self):
        super().setUp()
        self.flags(enforce_new_defaults=True, group='oslo_policy')
