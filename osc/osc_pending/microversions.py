# SPDX-License-Identifier: Apache-2.0

"""Which microversion of the compute API a request is sent with.

The user's choice (--os-compute-api-version, OS_COMPUTE_API_VERSION,
compute_api_version in clouds.yaml) is the default microversion of the SDK's
proxy. Where there is none, the highest is taken that the cloud has and the
plugin knows.
"""

import contextlib

from keystoneauth1 import discover
from osc_lib import exceptions

from osc_pending.i18n import _

#: PENDING is shown, and can be asked for.
PENDING = (2, 105)
#: A server in cell0 can be rebuilt.
REBUILD = (2, 106)
#: Nova says why a server waits, and a rebuild takes flavor and zone.
REASON = (2, 107)


def highest(compute):
    """Return the microversion that requests of the plugin are sent with.

    :param compute: the SDK's compute proxy
    :returns: a tuple of two numbers; it may be too low for any of ours
    """
    return given(compute) or min(_offered(compute), REASON)


def given(compute):
    """Return the microversion that the user asks for, None if none is."""
    return _parse(compute.default_microversion)


def choose(compute, least, purpose):
    """Return the microversion for a purpose that needs a certain one.

    :param compute: the SDK's compute proxy
    :param least: the microversion that the purpose needs
    :param purpose: what is said to need it
    :returns: a tuple of two numbers
    :raises: CommandError if the user asks for less, or the cloud has less
    """
    version = highest(compute)
    if version >= least:
        return version
    values = {'purpose': purpose, 'least': text(least)}
    if given(compute):
        raise exceptions.CommandError(_(
            '%(purpose)s needs --os-compute-api-version %(least)s or later; '
            '%(given)s was asked for there, in OS_COMPUTE_API_VERSION or in '
            'clouds.yaml. Without any, the client takes what the cloud has.'
        ) % {**values, 'given': text(given(compute))})
    message = _(
        '%(purpose)s needs microversion %(least)s of the compute API; this '
        'cloud has %(offered)s at most.')
    if _offered(compute) < PENDING:
        message = _(
            '%(purpose)s needs microversion %(least)s of the compute API; '
            'this cloud has %(offered)s at most. It is without nova-pending, '
            'and a server for which no host is found is in ERROR there.')
    raise exceptions.CommandError(
        message % {**values, 'offered': text(_offered(compute))})


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


def _parse(version):
    return discover.normalize_version_number(version) if version else None
