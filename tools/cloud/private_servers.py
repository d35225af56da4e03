# SPDX-License-Identifier: Apache-2.0

"""A MariaDB and a RabbitMQ of a cloud's own, below its state directory.

They are started if no URL names other servers, run as the user of the tool,
listen on ports of their own and end with the cloud.
"""

import base64
import functools
import hashlib
import json
import os
import pathlib
import secrets
import shutil

from tools.cloud import bus
from tools.cloud import databases
from tools.cloud import errors
from tools.cloud import ports
from tools.cloud import processes
from tools.cloud import settings

_USER = 'cloud'

# What Debian has on the PATH may be run by two users only, on the directories
# of the machine's own server.
_RABBITMQ = pathlib.Path('/usr/lib/rabbitmq/bin/rabbitmq-server')


def find_urls(database_url, bus_url, private):
    """Return the URLs of the servers that a new cloud uses.

    :param database_url: the URL of the databases, if given
    :param bus_url: the URL of the bus, if given
    :param private: whether the cloud is to have its own servers
    :returns: for each server the given or the usual URL, or None if the cloud
        is to have a server of its own
    """
    return (
        _find_url(database_url, settings.DATABASE_URL, databases.Databases,
                  private, 'mariadbd', 'mariadb-install-db'),
        _find_url(bus_url, settings.BUS_URL, bus.Bus, private,
                  'rabbitmq-server', 'epmd'))


def _find_url(given, usual, server, private, *programs):
    if given or private:
        return given or None
    try:
        server(usual, '').check()
    except errors.ServerMissing:
        if all(map(find_program, programs)):
            return None
    return usual


def find_program(name):
    """Return the path of a program of one of the servers, or None."""
    if name == _RABBITMQ.name and _RABBITMQ.exists():
        return str(_RABBITMQ)
    return processes.find_program(name)


def _check(title, package, *programs):
    missing = [name for name in programs if not find_program(name)]
    if missing:
        raise errors.ServerMissing(
            'A %s of the cloud\'s own needs %s, which this machine has not: '
            'install it (on Debian: apt install %s).' % (
                title, ', '.join(missing), package))


def _answers(check):
    try:
        check()
    except errors.ServerMissing:
        return False
    return True


class Databases(databases.Databases):
    """The databases of one cloud, in a MariaDB of its own.

    :param directory: the directory that its files are to lie in
    :param prefix: what the names of the cloud's databases begin with
    :param names: their names
    """

    #: The processes, which listen on ports of the same names.
    ports = processes = ('mariadb',)

    #: What it writes beside the databases.
    needed_mib = 200

    def __init__(self, directory, prefix, names):
        super().__init__(
            'mysql+pymysql://%s@%s' % (_USER, ports.HOST), prefix, names)
        self._directory = directory

    def settle(self, numbers, password):
        """Note the ports that were taken for the server, and its password."""
        self._url = self._url.set(port=numbers['mariadb'], password=password)

    def check(self):
        """Raise ServerMissing if the programs are not installed."""
        _check('MariaDB', 'mariadb-server', 'mariadbd', 'mariadb-install-db')

    def add_steps(self, steps, running, reserved):
        """Add the steps that start it.

        :param steps: the plan.Plan
        :param running: the processes.Processes that it runs in
        :param reserved: the ports.Ports held for it
        """
        steps.add('mariadb', lambda: self._start(running, reserved))

    def drop(self):
        """Do nothing: the data go with the state directory."""

    def _start(self, running, reserved):
        data = self._directory / 'data'
        # Its end is noted last: what was interrupted is done again.
        made = self._directory / 'made'
        # It refuses to run as root unless told to.
        common = ['--no-defaults', '--datadir=%s' % data,
                  *(['--user=root'] if os.geteuid() == 0 else [])]
        if not made.exists():
            shutil.rmtree(data, ignore_errors=True)
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            code, output = running.run('mariadb-install-db', [
                find_program('mariadb-install-db'), *common,
                '--auth-root-authentication-method=normal', '--skip-test-db'])
            if code:
                raise errors.CloudError(
                    'mariadb-install-db failed with exit code %d:\n%s' % (
                        code, processes.tail(output)))
            made.touch()
        first = self._directory / 'init.sql'
        # Nobody else of this machine comes in over the port.
        first.write_text(
            "CREATE OR REPLACE USER {0}@'{1}' IDENTIFIED BY '{2}';\n"
            "GRANT ALL ON *.* TO {0}@'{1}';\n"
            "DROP USER IF EXISTS root@'{1}';\n".format(
                _USER, ports.HOST, self._url.password))
        reserved.release('mariadb')
        running.start('mariadb', [
            find_program('mariadbd'), *common,
            '--port=%d' % self._url.port, '--bind-address=' + ports.HOST,
            # Below the data: the path of a socket must be short.
            '--socket=mariadb.sock', '--pid-file=mariadb.pid',
            '--init-file=%s' % first, '--skip-name-resolve',
            '--max-connections=1000', '--skip-log-bin',
            # The data is to survive its process, and not the machine.
            '--innodb-flush-log-at-trx-commit=0', '--innodb-doublewrite=0'])
        running.wait_until('MariaDB', functools.partial(
            _answers, super().check), ['mariadb'])


class Bus(bus.Bus):
    """The message bus of one cloud, in a RabbitMQ of its own.

    :param directory: the directory that its files are to lie in
    :param name: the name of the virtual host, and of the cloud
    :param cells: the cells that have a virtual host of their own
    """

    #: The processes, each of which listens on a port of the same name.
    processes = ('epmd', 'rabbitmq')

    #: RabbitMQ has a further port, for its tools.
    ports = ('epmd', 'rabbitmq', 'rabbitmq-dist')

    needed_mib = 10

    def __init__(self, directory, name, cells=()):
        super().__init__('rabbit://%s@%s/' % (_USER, ports.HOST), name, cells)
        self._directory = directory
        self._numbers = {}
        self._password = None
        self.shared = False

    def settle(self, numbers, password):
        """Note the ports that were taken for the server, and its password."""
        self._numbers = numbers
        self._password = password
        self._parts = self._parts._replace(netloc='%s:%s@%s:%d' % (
            _USER, password, ports.HOST, numbers['rabbitmq']))

    def check(self):
        """Raise ServerMissing if the programs are not installed."""
        _check('RabbitMQ', 'rabbitmq-server', 'rabbitmq-server', 'epmd')

    def add_steps(self, steps, running, reserved):
        """Add the steps that start it.

        :param steps: the plan.Plan
        :param running: the processes.Processes that it runs in
        :param reserved: the ports.Ports held for it
        """
        steps.add('epmd', lambda: self._start_epmd(running, reserved))
        steps.add('rabbitmq', lambda: self._start(running, reserved), 'epmd')

    def create(self):
        """Do nothing: the start of RabbitMQ makes the virtual hosts."""

    def drop(self):
        """Do nothing: the data go with the state directory."""

    def _start_epmd(self, running, reserved):
        # One that RabbitMQ started would outlive it.
        reserved.release('epmd')
        running.start('epmd', [
            find_program('epmd'), '-port', self._numbers['epmd'],
            '-address', ports.HOST])
        running.wait_until(
            'epmd', lambda: ports.answers(self._numbers['epmd']), ['epmd'])

    def _start(self, running, reserved):
        self._write()
        for name in ('rabbitmq', 'rabbitmq-dist'):
            reserved.release(name)
        running.start('rabbitmq', [find_program('rabbitmq-server')],
                      self._environment())
        running.wait_until('RabbitMQ', functools.partial(
            _answers, super().check), ['rabbitmq'])

    def _write(self):
        (self._directory / 'home').mkdir(
            parents=True, exist_ok=True, mode=0o700)
        salt = secrets.token_bytes(4)
        digest = hashlib.sha256(salt + self._password.encode()).digest()
        files = {
            'rabbitmq.conf':
                'listeners.tcp.1 = %s:%d\n'
                'load_definitions = %s\n'
                'log.console = true\n'
                'log.console.level = warning\n'
                'log.file = false\n'
                'disk_free_limit.absolute = 50MB\n' % (
                    ports.HOST, self._numbers['rabbitmq'],
                    self._directory / 'definitions.json'),
            'definitions.json': json.dumps({
                'users': [{
                    'name': _USER, 'tags': '',
                    'password_hash': base64.b64encode(salt + digest).decode(),
                    'hashing_algorithm': 'rabbit_password_hashing_sha256'}],
                'vhosts': [{'name': host} for host in self._hosts],
                'permissions': [{
                    'user': _USER, 'vhost': host, 'configure': '.*',
                    'write': '.*', 'read': '.*'} for host in self._hosts]}),
            'enabled_plugins': '[].\n',
            'environment': '',
        }
        for name, text in files.items():
            (self._directory / name).write_text(text)

    def _environment(self):
        here = self._directory
        return {
            # Where the cookie is that its tools need.
            'HOME': str(here / 'home'),
            'ERL_EPMD_PORT': str(self._numbers['epmd']),
            'ERL_EPMD_ADDRESS': ports.HOST,
            'RABBITMQ_NODENAME': self._name + '@localhost',
            'RABBITMQ_DIST_PORT': str(self._numbers['rabbitmq-dist']),
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS':
                '-kernel inet_dist_use_interface {127,0,0,1}',
            'RABBITMQ_CONF_ENV_FILE': str(here / 'environment'),
            'RABBITMQ_CONFIG_FILE': str(here / 'rabbitmq.conf'),
            'RABBITMQ_ADVANCED_CONFIG_FILE': str(here / 'advanced.config'),
            'RABBITMQ_GENERATED_CONFIG_DIR': str(here / 'generated'),
            'RABBITMQ_ENABLED_PLUGINS_FILE': str(here / 'enabled_plugins'),
            'RABBITMQ_MNESIA_BASE': str(here / 'mnesia'),
            'RABBITMQ_LOG_BASE': str(here / 'log'),
            'RABBITMQ_PID_FILE': str(here / 'rabbitmq.pid'),
        }
