# SPDX-License-Identifier: Apache-2.0

"""What the API says of its newest microversion."""

import re

from nova.api.openstack import api_version_request
from nova.compute import pending_reason
from nova import test
from nova.tests import fixtures as nova_fixtures

NEWEST = pending_reason.API_VERSION
NEXT = '2.%d' % (int(NEWEST.partition('.')[2]) + 1)

V2 = {
    'id': 'v2.0',
    'status': 'DEPRECATED',
    'version': '',
    'min_version': '',
    'updated': '2025-07-04T12:00:00Z',
}

V2_1 = {
    'id': 'v2.1',
    'status': 'CURRENT',
    'version': NEWEST,
    'min_version': '2.1',
    'updated': '2013-07-23T11:33:21Z',
}


class VersionDocumentsTestCase(test.TestCase):

    def setUp(self):
        super().setUp()
        # The documents are given to who has no token.
        self.api = self.useFixture(
            nova_fixtures.OSAPIFixture(stub_keystone=False)).api

    def get(self, url, key):
        response = self.api.api_request(url, strip_version=True)
        self.assertEqual(200, response.status_code)
        return response.json()[key]

    def assertDocument(self, expected, document):
        self.assertEqual(
            expected, {key: document[key] for key in expected})
        self.assertTrue(document['links'])

    def test_list_of_versions(self):
        v2, v2_1 = self.get('', 'versions')
        self.assertDocument(V2, v2)
        self.assertDocument(V2_1, v2_1)

    def test_document_of_the_version(self):
        self.assertDocument(V2_1, self.get('v2.1', 'version'))
        self.assertDocument(V2_1, self.get('v2.1/', 'version'))


class RequestedMicroversionTestCase(test.TestCase):

    def setUp(self):
        super().setUp()
        self.api = self.useFixture(nova_fixtures.OSAPIFixture()).api

    def get_flavors(self, microversion):
        self.api.microversion = microversion
        return self.api.api_request('flavors')

    def test_newest(self):
        response = self.get_flavors(NEWEST)
        self.assertEqual(200, response.status_code)
        self.assertEqual('compute ' + NEWEST,
                         response.headers['OpenStack-API-Version'])

    def test_latest_is_the_newest(self):
        response = self.get_flavors('latest')
        self.assertEqual('compute ' + NEWEST,
                         response.headers['OpenStack-API-Version'])

    def test_next_is_refused(self):
        response = self.get_flavors(NEXT)
        self.assertEqual(406, response.status_code)
        self.assertIn('Version %s is not supported by the API. Minimum is '
                      '2.1 and maximum is %s.' % (NEXT, NEWEST), response.text)

    def test_history_tells_of_every_microversion(self):
        history = api_version_request.REST_API_VERSION_HISTORY
        newest = int(NEWEST.partition('.')[2])
        self.assertEqual(
            ['2.%d' % minor for minor in range(1, newest + 1)],
            re.findall(r'\* (2\.\d+) - ', history))
