# SPDX-License-Identifier: Apache-2.0
import os
from unittest import mock

from oslo_serialization import jsonutils

from nova.compute import pending_reason
from nova.compute import rebuild_in_cell0
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import api_samples_test_base
from nova.tests.functional import full_cloud
from nova.tests.functional import microversions

HERE = os.path.dirname(os.path.abspath(__file__))


class PendingSampleTestCase(full_cloud.FullCloudTestCase,
                            api_samples_test_base.ApiSampleTestBase):
    """The samples of a server that waits.

    With GENERATE_SAMPLES in the environment a sample that is not there is
    written.
    """

    USE_PROJECT_ID = True

    #: The microversion that the directory of the samples bears: the number of
    #: the newest release, on whatever release the test runs.
    samples_of = None

    @classmethod
    def _get_sample(cls, name, api_version=None):
        doc = os.path.join(
            HERE, os.pardir, os.pardir, os.pardir, os.pardir, 'doc')
        return cls._get_sample_path(
            name, os.path.normpath(doc), api_version=cls.samples_of)

    @classmethod
    def _get_template(cls, name, api_version=None):
        return cls._get_sample_path(
            name, HERE, suffix='.tpl', api_version=cls.samples_of)

    def _write_sample(self, name, data):
        # The base class passes what was parsed of an answer.
        if not isinstance(data, str):
            data = jsonutils.dumps(data, indent=4, sort_keys=True)
        super()._write_sample(name, data.strip() + '\n')

    def setUp(self):
        self.flags(glance_link_prefix=self._get_glance_host(),
                   compute_link_prefix=self._get_host(), group='api')
        super().setUp()
        self.generate_samples = 'GENERATE_SAMPLES' in os.environ
        self.large = '5'  # m1.xlarge
        self.server = self.create_waiting(
            name='new-server-test', metadata={'My Server Name': 'Apache1'})

    def verify(self, name, response, code=200, **subs):
        subs['hostname'] = r'[\w\.\-]+'
        self._verify_response(name, subs, response, code)


class ServersV2105SampleTestCase(PendingSampleTestCase):

    sample_dir = 'servers'
    microversion = microversions.PENDING
    samples_of = '2.105'

    def test_servers(self):
        path = 'servers/' + self.server['id']
        for name, response in (
                ('server-get-resp', self._do_get(path)),
                ('servers-details-resp',
                 self._do_get('servers/detail?status=PENDING')),
                ('servers-list-resp', self._do_get('servers?status=PENDING')),
                ('server-update-resp',
                 self._do_put(path, 'server-update-req', {}))):
            self.verify(name, response)


class ServersV2106SampleTestCase(PendingSampleTestCase):

    sample_dir = 'servers'
    microversion = rebuild_in_cell0.API_VERSION
    samples_of = '2.106'

    def test_rebuild(self):
        with mock.patch('nova.utils.generate_password',
                        return_value='seekr3t'):
            response = self._do_post(
                'servers/%s/action' % self.server['id'],
                'server-action-rebuild', {})
        # Nothing may still be at work when the databases go.
        self.wait_for(self.server, 'PENDING')
        self.verify('server-action-rebuild-resp', response, 202)


class ServersV2107SampleTestCase(PendingSampleTestCase):

    sample_dir = 'servers'
    microversion = pending_reason.API_VERSION
    samples_of = '2.107'

    @mock.patch('nova.compute.pending_reason.asked_to_wait',
                return_value=True)
    def test_servers(self, _asked):
        self.verify('server-get-resp',
                    self._do_get('servers/' + self.server['id']))
        self.verify('servers-details-resp',
                    self._do_get('servers/detail?status=PENDING'))

    def test_rebuild(self):
        with mock.patch('nova.utils.generate_password',
                        return_value='seekr3t'):
            response = self._do_post(
                'servers/%s/action' % self.server['id'],
                'server-action-rebuild', {'flavor': '1'})
        # Nothing may still be at work when the databases go.
        self.wait_for(self.server, 'ACTIVE')
        self.verify('server-action-rebuild-resp', response, 202)


class ServerPendingV2107SampleTestCase(PendingSampleTestCase):

    sample_dir = 'server-pending'
    microversion = pending_reason.API_VERSION
    samples_of = '2.107'

    def test_index(self):
        self.verify('pending-get-resp', self._do_get('pending'),
                    number=r'2\.\d+')

    def test_create(self):
        with mock.patch.object(self, 'api', self.admin_api):
            response = self._do_post('pending', 'pending-create-req', {
                'image': nova_fixtures.GlanceFixture.image2['id'],
                'project': self.api.project_id})
        self.verify('pending-create-resp', response,
                    required=r'(OWNER_NOVA%2C)?%21COMPUTE_STATUS_DISABLED')

    @mock.patch('nova.compute.pending_reason.asked_to_wait',
                return_value=True)
    def test_show(self, _asked):
        path = 'servers/%s/pending' % self.server['id']
        self.verify('server-pending-get-resp', self._do_get(path))
        # Not every scheduler asks for providers of its own.
        self.verify('server-pending-get-admin-resp',
                    self.admin_api.api_request(path),
                    required=r'(OWNER_NOVA%2C)?%21COMPUTE_STATUS_DISABLED')
