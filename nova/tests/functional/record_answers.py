# SPDX-License-Identifier: Apache-2.0

"""Writes down what Nova answers about a server that no host had room for.

Run by its path with the name of a file to write and the last microversion of
the release, and in the environment NOVA_PENDING=off to have the released Nova
answer. The released Nova has no other module of ours: its package of tests
looks for these modules where this file lies.
"""

import re
import sys
import unittest

from oslo_serialization import jsonutils

from nova.api.openstack import api_version_request
from nova.tests import functional

functional.__path__.append(sys.path[0])

from nova.tests.functional import full_cloud  # noqa: E402
from nova.tests.functional import server_requests  # noqa: E402

#: The last microversion of the release.
RELEASED = sys.argv[2]

_UUID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class RecordAnswers(full_cloud.FullCloudTestCase):

    use_pending_state = None

    def setUp(self):
        super().setUp()
        self.large = '5'  # m1.xlarge, its name is the same each time
        self.server = self.create_waiting('ERROR', name='patient')
        self.answers = []

    def record(self, api, version, requests, prefix=''):
        api.microversion = version
        for method, path, body in requests:
            code, text = server_requests.ask(
                api, method, prefix + path, self.server, body)
            self.answers.append([
                version, api.auth_user, method, prefix + path, body, code,
                _UUID.sub('UUID', text)])

    def test_record(self):
        for api, version in ((self.api, '2.1'), (self.api, RELEASED),
                             (self.admin_api, RELEASED)):
            self.record(api, version, server_requests.LISTS)
            self.record(api, version, server_requests.ELSEWHERE)
            self.record(api, version, server_requests.REQUESTS +
                        server_requests.ACTIONS, '/servers/SERVER')
        self.record(self.api, RELEASED, (
            ('POST', '/action', {'lock': None}),
            ('DELETE', '', None),
            ('POST', '/action', {'unlock': None}),
            ('DELETE', '', None),
            ('GET', '', None)), '/servers/SERVER')
        self.record(self.admin_api, RELEASED, server_requests.LISTS)
        with open(sys.argv[1], 'w') as target:
            # UUIDs that the requests make up differ in each process.
            target.write(_UUID.sub('UUID', jsonutils.dumps({
                'newest': api_version_request._MAX_API_VERSION,
                'answers': self.answers})))


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
