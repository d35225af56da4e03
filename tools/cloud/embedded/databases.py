# SPDX-License-Identifier: Apache-2.0

"""The SQLite files of a cloud, and the bus that is no server."""

import contextlib
import sqlite3

from tools.cloud import databases

# How long a write waits for another one. Each holds the file for
# milliseconds; a service that holds it longer is broken.
_BUSY_SECONDS = 60


class Databases:
    """The databases of one cloud.

    :param directory: the directory that the files lie in
    """

    #: What every service's section for its database has beside the URL. No
    #: write waits for the disk: the files need to survive the death of a
    #: process, and not that of the machine.
    options = {'sqlite_synchronous': False}

    def __init__(self, directory):
        self._directory = directory

    def url(self, name):
        """Return the URL of one of the databases, for a service."""
        return 'sqlite:///%s?timeout=%d' % (self._path(name), _BUSY_SECONDS)

    def check(self):
        """Do nothing: there is no server that could be missing."""

    def create(self):
        """Make the databases, empty."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in databases.NAMES:
            with contextlib.closing(
                    sqlite3.connect(self._path(name))) as connection:
                # Kept in the file: reads and a write do not wait for each
                # other.
                connection.execute('PRAGMA journal_mode = WAL')

    def drop(self):
        """Do nothing: the files go with the state directory."""

    def _path(self, name):
        return self._directory / (name + '.sqlite')


class Bus:
    """The bus inside of each process."""

    url = 'fake:///'
    shared = False

    def check(self):
        """Do nothing: there is no server that could be missing."""

    def create(self):
        """Do nothing: each process makes its own bus."""

    def drop(self):
        """Do nothing: the bus ends with its process."""
