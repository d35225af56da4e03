# SPDX-License-Identifier: Apache-2.0

"""Databases that tests of the journal run on, by oslo.db's convention."""

from oslo_db import exception
from oslo_db.sqlalchemy import provision
from oslo_utils import uuidutils

from nova_reaper import tests


def make(case: tests.TestCase, kind: str) -> str:
    """The URL of an empty database on a server, which the test drops.

    :param kind: as oslo.db calls it: ``mysql`` or ``postgresql``
    """
    try:
        backend = provision.Backend.backend_for_database_type(kind)
    except exception.BackendNotAvailable as error:
        case.do_without(
            f'{error}: the user openstack_citest, with the same word as '
            'password and database, must have all rights on localhost.')
    name = f'nova_reaper_{uuidutils.generate_uuid(dashed=False)[:12]}'
    backend.create_named_database(name)
    case.addCleanup(backend.drop_named_database, name)
    url: str = backend.provisioned_database_url(name).render_as_string(
        hide_password=False)
    return url
