# SPDX-License-Identifier: Apache-2.0

import dataclasses
from unittest import mock

from nova.tests.unit.cloud import base
from tools.cloud import identity


class SeedTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        self.session = mock.Mock()
        self.session.get.return_value.json.return_value = {'roles': [
            {'name': name, 'id': name}
            for name in ('admin', 'member', 'service')]}
        self.session.post.side_effect = lambda url, json: mock.Mock(
            json=lambda: {kind: {'id': body.get('name')}
                          for kind, body in json.items()})
        patch = mock.patch('tools.cloud.identity.connect',
                           return_value=self.session)
        patch.start()
        self.addCleanup(patch.stop)

    def made(self, kind):
        return {call.kwargs['json'][kind]['name']
                for call in self.session.post.call_args_list
                if kind in call.kwargs['json']}

    def granted(self):
        return [call.args[0].partition('/projects/')[2]
                for call in self.session.put.call_args_list]

    def test_owner_has_a_project_and_the_role_of_a_member(self):
        identity.seed(self.cloud)
        self.assertEqual({'owner', 'service'}, self.made('project'))
        self.assertIn('owner/users/owner/roles/member', self.granted())

    def test_cloud_without_an_owner(self):
        identity.seed(dataclasses.replace(self.cloud, owner=False))
        self.assertEqual({'service'}, self.made('project'))
        self.assertEqual({'placement', 'glance', 'neutron', 'nova', 'cinder'},
                         self.made('user'))
        self.assertNotIn('member', str(self.granted()))
