# SPDX-License-Identifier: Apache-2.0

import copy

from nova.api.openstack import wsgi as os_wsgi
from nova import context
from nova import test
from nova.tests.unit.api.openstack import fakes


class ApiVersionTestCase(test.NoDBTestCase):

    def test_unknown_where_no_request_is_served(self):
        for ctxt in (context.RequestContext(), context.get_admin_context(),
                     context.get_context()):
            self.assertIsNone(ctxt.api_version)

    def test_is_compared_by_number(self):
        ctxt = context.RequestContext()
        self.assertFalse(ctxt.supports_api_version('2.1'))
        ctxt.api_version = '2.100'
        for version, supported in (('2.1', True), ('2.99', True),
                                   ('2.100', True), ('2.101', False),
                                   ('2.1000', False), ('3.0', False)):
            self.assertIs(
                supported, ctxt.supports_api_version(version), version)

    def test_stays_with_copies(self):
        ctxt = context.RequestContext()
        ctxt.api_version = '2.100'
        for other in (ctxt.elevated(), copy.copy(ctxt), copy.deepcopy(ctxt)):
            self.assertEqual('2.100', other.api_version)
        self.assertIsNone(context.RequestContext().api_version)

    def test_is_not_sent_to_other_services(self):
        ctxt = context.RequestContext()
        before = ctxt.to_dict()
        ctxt.api_version = '2.100'
        self.assertEqual(before, ctxt.to_dict())
        self.assertIsNone(context.RequestContext.from_dict(
            ctxt.to_dict()).api_version)

    def test_is_that_of_the_request(self):
        class Controller(os_wsgi.Controller):
            def index(self, req):
                return {'seen': req.environ['nova.context'].api_version}

        app = fakes.TestRouter(Controller())
        for version in '2.1', '2.99', '2.103':
            req = fakes.HTTPRequest.blank('/tests', version=version)
            req.headers = {os_wsgi.API_VERSION_REQUEST_HEADER:
                           'compute ' + version}
            self.assertEqual({'seen': version}, req.get_response(app).json)
