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

from nova.tests.functional import full_cloud


class PendingTestCase(full_cloud.FullCloudTestCase):

    def test_show(self):
        server = self.bury()
        for version, status, vm_state in (
                ('2.1', 'ERROR', 'error'),
                ('2.104', 'ERROR', 'error'),
                ('2.105', 'PENDING', 'pending'),
                ('latest', 'PENDING', 'pending')):
            self.speak(version)
            shown = self.api.get_server(server['id'])
            self.assertEqual(status, shown['status'])
            self.assertEqual(vm_state, shown['OS-EXT-STS:vm_state'])
            self.assertIn('No valid host', shown['fault']['message'])

    def test_filter(self):
        server = self.bury()
        for version, wanted, ids in (
                ('2.1', 'status=PENDING', []),
                ('2.1', 'status=ERROR', [server['id']]),
                ('2.104', 'status=ERROR', [server['id']]),
                ('2.104', 'vm_state=error', [server['id']]),
                ('2.104', 'vm_state=pending', []),
                ('2.105', 'status=ERROR', []),
                ('2.105', 'vm_state=error', []),
                ('2.105', 'vm_state=pending', [server['id']]),
                ('2.105', 'status=PENDING', [server['id']])):
            self.speak(version)
            found = self.admin_api.api_get('/servers?all_tenants=1&' + wanted)
            self.assertEqual(
                ids, [s['id'] for s in found.body['servers']],
                (version, wanted))
