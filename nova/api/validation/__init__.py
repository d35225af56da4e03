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

from nova.api.openstack import api_version_request
import nova_pending

released = nova_pending.released(__name__)

# The last microversion of each released schema without an end that a later
# schema follows, by the identity of the schema.
_last_versions = {}


@nova_pending.over(released.Schemas)
class Schemas:

    def add_schema(self, schema, min_version, max_version):
        """Add a schema; one without an end before it ends where this begins.

        In the release the last schema of a method has no end. One that is
        laid over it must not be validated together with it.
        """
        first = api_version_request.APIVersionRequest(min_version)
        for index, (other, low, high) in enumerate(self._schemas):
            if high.is_null() and not low.is_null() and low < first:
                last = '%d.%d' % (first.ver_major, first.ver_minor - 1)
                _last_versions[id(other)] = last
                self._schemas[index] = (
                    other, low, api_version_request.APIVersionRequest(last))
        released.Schemas.add_schema(self, schema, min_version, max_version)


# Two methods can share a schema, and only one of them a later one: each has
# its own copy.

def schema(request_body_schema, min_version=None, max_version=None):
    return released.schema(
        dict(request_body_schema), min_version, max_version)


def response_body_schema(response_body_schema, min_version=None,
                         max_version=None):
    return released.response_body_schema(
        dict(response_body_schema), min_version, max_version)


def query_schema(request_query_schema, min_version=None, max_version=None):
    return released.query_schema(
        dict(request_query_schema), min_version, max_version)


def _schema_validation_helper(schema, target, min_version, max_version,
                              args, kwargs, **options):
    return released._schema_validation_helper(
        schema, target, min_version,
        max_version or _last_versions.get(id(schema)), args, kwargs,
        **options)
