# SPDX-License-Identifier: Apache-2.0
import jsonschema
from oslo_serialization import jsonutils

from nova.api.openstack import api_version_request
from nova.api.openstack import compute
from nova.api.openstack.compute import server_pending
from nova.api.openstack.compute import servers
from nova.api import validation
from nova.compute import pending
from nova.compute import pending_reason
from nova.compute import rebuild_in_cell0
from nova import test

PENDING = pending.API_VERSION
REBUILD = rebuild_in_cell0.API_VERSION
REASON = pending_reason.API_VERSION

#: The last microversion that does not know PENDING.
RELEASED = '2.%d' % (int(PENDING.partition('.')[2]) - 1)

KINDS = ('request_body_schemas', 'request_query_schemas',
         'response_body_schemas')


def version(text):
    return api_version_request.APIVersionRequest(text)


def methods():
    """Yield every method of the API that a route leads to, once."""
    seen = set()
    for route in compute.APIRouterV21().map.matchlist:
        resource = route.defaults.get('controller')
        if resource is None:
            continue
        names = {route.defaults['action']}
        if 'action' in names:
            names = set(resource.wsgi_actions.values())
        for name in names:
            method = name if callable(name) else getattr(
                resource.controller, name)
            if method.__qualname__ not in seen:
                seen.add(method.__qualname__)
                yield method


class MicroversionSchemasTestCase(test.NoDBTestCase):

    def schemas_at(self, method, kind, text):
        return [schema for schema, low, high in getattr(method, kind)._schemas
                if version(text).matches(low, high)]

    def test_newest_is_known(self):
        self.assertEqual(REASON, api_version_request._MAX_API_VERSION)
        for number in PENDING, REBUILD, REASON:
            self.assertIn('* %s - ' % number,
                          api_version_request.REST_API_VERSION_HISTORY)
            self.assertTrue(version(number) <= version(REASON))

    def test_each_version_of_a_method_has_one_schema(self):
        for method in methods():
            top = getattr(method, 'max_version', None) or REASON
            for kind in KINDS:
                if not hasattr(method, kind):
                    continue
                for text in RELEASED, PENDING, REBUILD, REASON:
                    if version(text) > version(top):
                        continue
                    self.assertLessEqual(
                        len(self.schemas_at(method, kind, text)), 1,
                        (method.__qualname__, kind, text))
                if getattr(method, 'min_version', None) != REASON:
                    self.assertEqual(
                        len(self.schemas_at(method, kind, RELEASED)),
                        len(self.schemas_at(method, kind, PENDING)),
                        (method.__qualname__, kind))

    def test_state_is_in_the_schemas_of_its_microversions(self):
        know = set()
        for method in methods():
            for schema, low, _high in method.response_body_schemas._schemas:
                text = jsonutils.dumps(schema)
                if '"PENDING"' in text:
                    self.assertIn(low.get_string(),
                                  (PENDING, REASON))
                    know.add(method.__qualname__)
        self.assertEqual({
            'ServersController.detail', 'ServersController.show',
            'ServersController.update', 'ServersController._rebuild'}, know)

    def test_added_schemas_are_valid(self):
        for controller, names in (
                (servers.ServersController,
                 ('detail', 'show', 'update', '_rebuild')),
                (server_pending.PendingController, ('index', 'create')),
                (server_pending.ServerPendingController, ('show',))):
            for name in names:
                method = getattr(controller, name)
                for kind in KINDS:
                    if hasattr(method, kind):
                        schema, = self.schemas_at(method, kind, REASON)
                        jsonschema.Draft202012Validator.check_schema(schema)

    def accepts(self, text, **rebuild):
        schema, = self.schemas_at(servers.ServersController._rebuild,
                                  'request_body_schemas', text)
        validator = validation.validators._SchemaValidator(schema)
        try:
            validator.validate({'rebuild': rebuild})
        except Exception as exc:
            self.assertIn('imageRef', str(exc))
            return False
        return True

    def test_rebuild_needs_no_image_from_its_microversion_on(self):
        image = '155d900f-4e14-4e4c-a73d-069cbf4541e6'
        for text, none, null in (PENDING, False, False), (REBUILD, True, True):
            self.assertTrue(self.accepts(text, imageRef=image))
            self.assertFalse(self.accepts(text, imageRef=12))
            self.assertEqual(none, self.accepts(text))
            self.assertEqual(null, self.accepts(text, imageRef=None))
            self.assertFalse(self.accepts(text, imageRef='http://host/image'))
