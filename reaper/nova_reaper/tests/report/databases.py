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
