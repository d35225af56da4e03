# SPDX-License-Identifier: Apache-2.0

from nova.api.openstack import api_version_request
import nova_pending

released = nova_pending.released(__name__)


def ending(kind, version, method):
    """Give the last schema of a released method an end.

    In the release the last schema of a method has no end. A schema for a
    later microversion needs one: this sets the max_version of the released
    decorator.

    :param kind: 'request_body_schema' or 'response_body_schema'
    :param version: the last microversion of the schema, as '2.104'
    :param method: the released method, with its decorators
    """
    wrapper = method
    while hasattr(wrapper, '__wrapped__'):
        variables = dict(zip(wrapper.__code__.co_freevars,
                             wrapper.__closure__ or ()))
        if kind in variables and (
                variables['max_version'].cell_contents is None):
            variables['max_version'].cell_contents = version
        wrapper = wrapper.__wrapped__
    schemas = getattr(method, kind + 's')._schemas
    schema, first, _none = schemas[-1]
    schemas[-1] = schema, first, api_version_request.APIVersionRequest(version)
    return method
