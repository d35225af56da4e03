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

"""The MariaDB that is used, and the databases made in it."""

import sqlalchemy
from sqlalchemy import exc

from tools.cloud import errors

NAMES = ('keystone', 'placement', 'glance', 'neutron', 'nova_api', 'nova',
         'nova_cell0')
_CONNECT_SECONDS = 5


class Databases:
    """The databases of one cloud.

    :param url: where MariaDB or MySQL answers, as SQLAlchemy writes it
    :param prefix: what the names of the cloud's databases begin with
    :raises: BadArgument for a URL that is none
    """

    def __init__(self, url, prefix):
        try:
            self._url = sqlalchemy.make_url(url)
            if self._url.drivername != 'mysql+pymysql':
                raise ValueError('the scheme is not mysql+pymysql')
        except (exc.ArgumentError, ValueError) as error:
            raise errors.BadArgument(
                'The URL of the database must look like '
                'mysql+pymysql://root@127.0.0.1:3306: %s.' % error)
        self._prefix = prefix

    def url(self, name):
        """Return the URL of one of the databases, for a service."""
        return self._url.set(
            database=self._prefix + name,
            query={'charset': 'utf8mb3'}).render_as_string(
                hide_password=False)

    def check(self):
        """Raise ServerMissing if the server does not let us in."""
        self._execute(['SELECT 1'])

    def create(self):
        """Make the databases, empty."""
        self._execute('CREATE DATABASE `%s%s` CHARACTER SET utf8mb3'
                      % (self._prefix, name) for name in NAMES)

    def drop(self):
        """Remove the databases and what is in them."""
        self._execute('DROP DATABASE IF EXISTS `%s%s`'
                      % (self._prefix, name) for name in NAMES)

    def _execute(self, statements):
        engine = sqlalchemy.create_engine(
            self._url, poolclass=sqlalchemy.NullPool,
            connect_args={'connect_timeout': _CONNECT_SECONDS})
        try:
            with engine.connect() as connection:
                for statement in statements:
                    connection.exec_driver_sql(statement)
        except exc.DBAPIError as error:
            raise errors.ServerMissing(
                'MariaDB at %s does not serve us (%s): install and start it '
                '(on Debian: apt install mariadb-server; service mariadb '
                'start) or name another with --database-url.'
                % (self._url.render_as_string(), error.orig.args[-1]))
