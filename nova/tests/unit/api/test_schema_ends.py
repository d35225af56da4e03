# SPDX-License-Identifier: Apache-2.0
import functools
from unittest import mock

from nova.api.openstack import api_version_request
from nova.api import validation
from nova import exception
from nova import test

OLD = {'type': 'object', 'properties': {'state': {'enum': ['old']}},
       'additionalProperties': False}
NEW = {'type': 'object', 'properties': {'state': {'enum': ['old', 'new']}},
       'additionalProperties': False}
OTHER = {'type': 'object', 'properties': {'state': {'enum': ['other']}},
         'additionalProperties': False}


class SchemaWithoutEndTestCase(test.NoDBTestCase):
    """The last schema of a released method ends where a later one begins."""

    def setUp(self):
        super().setUp()
        self.flags(response_validation='error', group='api')

        @validation.response_body_schema(OLD, '2.50')
        def detail(controller, req, state):
            return {'state': state}

        @validation.response_body_schema(OLD, '2.50')
        @validation.response_body_schema(OTHER, '2.1', '2.49')
        def show(controller, req, state):
            return {'state': state}

        self.detail = detail
        self.show = validation.response_body_schema(NEW, '2.60')(
            validation.ending('response_body_schema', '2.59', show))

    def refuses(self, version, state, method=None):
        req = mock.Mock(
            api_version_request=api_version_request.APIVersionRequest(version))
        req.is_legacy_v2.return_value = False
        try:
            self.assertEqual({'state': state},
                             (method or self.show)(None, req, state))
        except exception.ValidationError:
            return True
        return False

    def test_each_version_has_its_own(self):
        for version, accepted in (
                ('2.1', ['other']), ('2.49', ['other']), ('2.50', ['old']),
                ('2.59', ['old']), ('2.60', ['old', 'new']),
                ('2.90', ['old', 'new'])):
            for state in 'other', 'old', 'new':
                self.assertEqual(state not in accepted,
                                 self.refuses(version, state),
                                 (version, state))

    def test_method_that_shares_the_schema(self):
        """What ends in one method does not end in another."""
        for version in ('2.59', '2.60', '2.90'):
            self.assertFalse(self.refuses(version, 'old', self.detail))
            self.assertTrue(self.refuses(version, 'new', self.detail))

    def test_ranges(self):
        self.assertEqual(
            [('2.1', '2.49'), ('2.50', '2.59')],
            [(low.get_string(), high.get_string()) for _schema, low, high
             in self.show.response_body_schemas._schemas[:2]])
        self.assertTrue(
            self.show.response_body_schemas._schemas[2][2].is_null())

    def test_request(self):
        @validation.schema(OLD, '2.50')
        @validation.schema(OTHER, '2.1', '2.49')
        def update(controller, req, body):
            return body

        update = validation.schema(NEW, '2.60')(
            validation.ending('request_body_schema', '2.59', update))
        for version, state, accepted in (
                ('2.59', 'old', True), ('2.59', 'new', False),
                ('2.60', 'new', True), ('2.49', 'other', True)):
            req = mock.Mock(
                api_version_request=api_version_request.APIVersionRequest(
                    version))
            req.is_legacy_v2.return_value = False
            ask = functools.partial(
                update, None, req=req, body={'state': state})
            if accepted:
                self.assertEqual({'state': state}, ask())
            else:
                self.assertRaises(exception.ValidationError, ask)

    def test_without_an_end_the_release_refuses_a_later_one(self):
        self.assertRaises(
            AssertionError,
            validation.response_body_schema(NEW, '2.60'), self.detail)
