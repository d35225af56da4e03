# SPDX-License-Identifier: Apache-2.0

"""Chooses the microversion of the compute API for a request.

The user's choice (--os-compute-api-version, OS_COMPUTE_API_VERSION,
compute_api_version in clouds.yaml) is the default microversion of the SDK's
proxy. Without a choice, requests take the highest microversion that the cloud
has and the plugin knows. Nova tells which microversion has which feature.
"""

import contextlib

from keystoneauth1 import discover
from openstack import exceptions as sdk_exceptions
from osc_lib import exceptions

from osc_pending.i18n import _

#: Nova shows PENDING, and takes it as a filter.
PENDING = 'pending'
#: A server in cell0 can be rebuilt.
REBUILD = 'rebuild'
#: Nova says why a server waits, and a rebuild takes flavor and zone.
REASON = 'reason'

# A later microversion means something else in each release.
_SAME_EVERYWHERE = (2, 103)

# The attribute of the SDK's proxy that keeps the answer of Nova.
_KEPT = '_osc_pending_microversions'


def highest(compute):
    """Return the microversion that requests of the plugin are sent with.

    :param compute: the SDK's compute proxy
    :returns: a tuple of two numbers, which may be too low for any feature
    """
    return given(compute) or max(
        [min(_offered(compute), _SAME_EVERYWHERE), *_numbers(compute).values()]
    )


def given(compute):
    """Return the microversion of the user's choice, None without a choice."""
    return _parse(compute.default_microversion)


def knows(compute, feature):
    """Whether requests of the plugin are sent with a microversion or later.

    :param compute: the SDK's compute proxy
    :param feature: what the microversion has brought, as REBUILD
    """
    least = _numbers(compute).get(feature)
    return least is not None and highest(compute) >= least


def choose(compute, feature, purpose):
    """Return the microversion for a purpose that needs a certain one.

    :param compute: the SDK's compute proxy
    :param feature: what the purpose needs, as REBUILD
    :param purpose: what needs the feature, as an error names it
    :returns: a tuple of two numbers
    :raises: CommandError if the user asks for less, or the cloud has less
    """
    if knows(compute, feature):
        return highest(compute)
    least = _numbers(compute).get(feature)
    if least is not None:
        raise exceptions.CommandError(_(
            '%(purpose)s needs --os-compute-api-version %(least)s or later. '
            'The command line, OS_COMPUTE_API_VERSION or clouds.yaml names '
            '%(given)s; without that the client takes what the cloud has.'
        ) % {'purpose': purpose, 'least': text(least),
             'given': text(given(compute))})
    if _numbers(compute):
        raise exceptions.CommandError(_(
            '%s needs a later nova-pending than that of this cloud.')
            % purpose)
    raise exceptions.CommandError(_(
        '%(purpose)s needs nova-pending, which this cloud does not have: a '
        'server for which it finds no host is in ERROR. Its compute API has '
        'microversion %(offered)s at most.') % {
            'purpose': purpose, 'offered': text(_offered(compute))})


@contextlib.contextmanager
def used(compute, version):
    """Send requests with a microversion, until the end of a with block."""
    before = compute.default_microversion
    compute.default_microversion = text(version)
    try:
        yield
    finally:
        compute.default_microversion = before


def text(version):
    """Return a microversion as it is sent."""
    return discover.version_to_string(version)


def _offered(compute):
    data = compute.get_endpoint_data()
    return _parse(data and data.max_microversion) or (2, 1)


def _numbers(compute):
    """Return the microversion of each feature that the cloud has.

    Nova tells these numbers, because the same number means something else in
    another release. A Nova without nova-pending does not know the request.

    :raises: HttpException if Nova refuses the request
    """
    if not hasattr(compute, _KEPT):
        found = {}
        if _offered(compute) > _SAME_EVERYWHERE:
            response = compute.get('/pending', microversion='latest')
            if response.status_code != 404:
                sdk_exceptions.raise_from_response(response)
                found = {
                    feature: _parse(version) for feature, version in
                    response.json()['pending']['microversions'].items()
                    if feature in (PENDING, REBUILD, REASON)}
        setattr(compute, _KEPT, found)
    return getattr(compute, _KEPT)


def _parse(version):
    return discover.normalize_version_number(version) if version else None
