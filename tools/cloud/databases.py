# SPDX-License-Identifier: Apache-2.0

"""The database server that is used, and the databases made in it."""

import sqlalchemy
from sqlalchemy import exc

from tools.cloud import errors

NAMES = ('keystone', 'placement', 'glance', 'neutron', 'cinder', 'nova_api',
         'nova', 'nova_cell0')
_CONNECT_SECONDS = 5


class _MariaDB:
    title = 'MariaDB'
    package = 'mariadb-server'
    service = 'mariadb'
    example = 'mysql+pymysql://root@127.0.0.1:3306'
    query = {'charset': 'utf8mb3'}
    neutron_migrates = True
    # Any of them can make databases.
    database = None
    create = 'CREATE DATABASE `%s` CHARACTER SET utf8mb3'
    drop = 'DROP DATABASE IF EXISTS `%s`'


class _PostgreSQL:
    title = 'PostgreSQL'
    package = service = 'postgresql'
    example = 'postgresql+psycopg2://postgres@127.0.0.1:5432'
    query = {}
    # One of its migrations is in MySQL's own words.
    neutron_migrates = False
    # What every server has.
    database = 'postgres'
    create = 'CREATE DATABASE "%s" ENCODING \'UTF8\' TEMPLATE template0'
    # Without it a connection that has not ended yet would keep it.
    drop = 'DROP DATABASE IF EXISTS "%s" WITH (FORCE)'


_KINDS = {
    'mysql+pymysql': _MariaDB,
    'postgresql+psycopg2': _PostgreSQL,
    'postgresql': _PostgreSQL,
}


class Databases:
    """The databases of one cloud.

    :param url: where MariaDB, MySQL or PostgreSQL answers, as SQLAlchemy
        writes it; its query, for instance for TLS, is for the services too
    :param prefix: what the names of the cloud's databases begin with
    :param names: their names
    :raises: BadArgument for a URL that is none
    """

    #: What every service's section for its database has beside the URL. Each
    #: process has several pools, and servers serve 100 or 150 at a time.
    options = {'max_pool_size': 2, 'max_overflow': 10}

    def __init__(self, url, prefix, names=NAMES):
        try:
            self._url = sqlalchemy.make_url(url)
            self._kind = _KINDS[self._url.drivername]
        except (exc.ArgumentError, ValueError) as error:
            raise errors.BadArgument(
                'The URL of the database must look like %s: %s.'
                % (_MariaDB.example, error))
        except KeyError as error:
            raise errors.BadArgument(
                'The URL of the database must look like %s or %s: the scheme '
                '%s is none of these.' % (
                    _MariaDB.example, _PostgreSQL.example, error))
        #: Whether Neutron's own migrations can make its tables.
        self.neutron_migrates = self._kind.neutron_migrates
        self._prefix = prefix
        self._names = tuple(names)

    def url(self, name):
        """Return the URL of one of the databases, for a service."""
        return self._url.set(
            database=self._prefix + name,
            query={**self._kind.query, **self._url.query}).render_as_string(
                hide_password=False)

    def check(self):
        """Raise ServerMissing if the server does not let us in."""
        self._execute(['SELECT 1'])

    def create(self):
        """Make the databases, empty."""
        self._execute(self._kind.create % (self._prefix + name)
                      for name in self._names)

    def drop(self):
        """Remove the databases and what is in them."""
        self._execute(self._kind.drop % (self._prefix + name)
                      for name in self._names)

    def _execute(self, statements):
        engine = sqlalchemy.create_engine(
            self._url.set(database=self._url.database or self._kind.database),
            poolclass=sqlalchemy.NullPool, isolation_level='AUTOCOMMIT',
            connect_args={'connect_timeout': _CONNECT_SECONDS})
        try:
            with engine.connect() as connection:
                for statement in statements:
                    connection.exec_driver_sql(statement)
        except exc.DBAPIError as error:
            raise errors.ServerMissing(
                '%s at %s does not serve us (%s): install and start it '
                '(on Debian: apt install %s; service %s start) or name '
                'another with --database-url.' % (
                    self._kind.title, self._url.render_as_string(),
                    str(error.orig.args[-1]).strip(),
                    self._kind.package, self._kind.service))
