# SPDX-License-Identifier: Apache-2.0

"""The RabbitMQ that is used, and the virtual host made in it."""

import contextlib
import os
import re
import shutil
import ssl
import subprocess
import urllib.parse

from amqp import exceptions as amqp_exc
import kombu
from kombu import exceptions as kombu_exc

from tools.cloud import errors
from tools.cloud import processes

_CONNECT_SECONDS = 5
_LOCAL = ('127.0.0.1', 'localhost')

# Queues that every Nova and every Neutron has. Their names are the same for
# all, so that two clouds in one virtual host would take each other's calls.
_QUEUES = ('conductor', 'q-plugin')


class Bus:
    """The message bus of one cloud.

    The cloud gets a virtual host of its own if rabbitmqctl may be used. If not
    it uses the virtual host that the URL names, unless another cloud does.

    :param url: where RabbitMQ answers, as oslo.messaging writes it, with
        what it is to know of TLS: ``?ssl=true&ssl_ca_file=FILE``
    :param name: the name of the virtual host to be made, and of the cloud
    :param cells: the cells that have a virtual host of their own
    :raises: BadArgument for a URL that is none
    """

    def __init__(self, url, name, cells=()):
        try:
            self._parts = urllib.parse.urlsplit(url)
            if self._parts.scheme != 'rabbit' or not self._parts.hostname:
                raise ValueError('the scheme or the host is not there')
            self._parts.port
        except ValueError as error:
            raise errors.BadArgument(
                'The URL of the bus must look like '
                'rabbit://guest:guest@127.0.0.1:5672/: %s.' % error)
        self._name = name
        self._cells = tuple(cells)
        #: Whether the virtual host is not ours, and is to be left clean;
        #: None as long as none was made.
        self.shared = None

    @property
    def url(self):
        """Return the URL of the virtual host that the services use."""
        if self.shared is False:
            return self._url_of(self._name)
        return self._parts.geturl()

    def url_of(self, cell):
        """Return the URL of the virtual host that a cell uses."""
        if cell in self._cells:
            return self._url_of(self._host(cell))
        return self.url

    def _url_of(self, host):
        return self._parts._replace(path='/' + host).geturl()

    def _host(self, cell):
        return '%s_%s' % (self._name, cell)

    @property
    def _hosts(self):
        return [self._name, *map(self._host, self._cells)]

    def check(self):
        """Raise ServerMissing if the server does not let us in."""
        with self._connect():
            pass

    def create(self):
        """Make the virtual hosts, or see that we may use the given host.

        :raises: CloudError if another cloud uses it
        """
        if self._parts.path in ('', '/') and self._control(
                'add_vhost', self._name):
            self.shared = False
            for host in self._hosts:
                if host != self._name and not self._control(
                        'add_vhost', host) or not self._control(
                        'set_permissions', '-p', host, self._user,
                        '.*', '.*', '.*'):
                    raise errors.CloudError(
                        'RabbitMQ does not let %s into a new virtual host.'
                        % self._user)
            try:
                self.check()
            except errors.ServerMissing:
                raise errors.CloudError(
                    'The RabbitMQ at %s is not the one that rabbitmqctl works '
                    'on: name a virtual host of it that nobody else uses in '
                    '--bus-url.' % self._shown)
            return
        self.shared = True
        if self._cells:
            raise errors.CloudError(
                'Several cells need several virtual hosts, and rabbitmqctl '
                'makes none for us in RabbitMQ at %s: run as root, with the '
                'URL of one on this machine that ends with /.' % self._shown)
        for queue in _QUEUES:
            if self.consumers(queue) is not None:
                raise errors.CloudError(
                    'Another cloud has the queue %s on the bus at %s, and '
                    'rabbitmqctl makes no virtual host for us: run as root, '
                    'or name one of your own with --bus-url.'
                    % (queue, self._shown))

    def consumers(self, queue, cell=None):
        """Return how many processes take messages from a queue.

        :param cell: the cell whose queue it is
        :returns: None if there is no such queue
        """
        found = self._look(queue, cell)
        return found and found.consumer_count

    def messages(self, queue):
        """Return how many messages wait in a queue, 0 if there is none."""
        found = self._look(queue)
        return found.message_count if found else 0

    def _look(self, queue, cell=None):
        with self._connect(self.url_of(cell)) as connection:
            try:
                return kombu.Queue(
                    queue, channel=connection.channel()).queue_declare(
                        passive=True)
            except amqp_exc.NotFound:
                return None

    @contextlib.contextmanager
    def gone(self):
        """Have nobody reach the bus of the cloud within a with block.

        :raises: CloudError if the virtual hosts are not ours
        """
        if self.shared or not all(
                self._control('clear_permissions', '-p', host, self._user) and
                self._control('close_all_connections', '--vhost', host, 'gone')
                for host in self._hosts):
            raise errors.CloudError(
                'The bus at %s cannot be taken away from the cloud alone.'
                % self._shown)
        try:
            yield
        finally:
            for host in self._hosts:
                self._control('set_permissions', '-p', host, self._user,
                              '.*', '.*', '.*')

    def drop(self):
        """Remove the virtual hosts, if they are ours."""
        if self.shared:
            return
        for host in self._hosts:
            if self._control('delete_vhost', host):
                continue
            # A host that is gone cannot be deleted, and need not be.
            if self._control('list_permissions', '-p', host):
                raise errors.CloudError(
                    'The virtual host %s of RabbitMQ is left over: '
                    'rabbitmqctl delete_vhost did not work.' % host)

    @property
    def _user(self):
        return urllib.parse.unquote(self._parts.username or 'guest')

    @property
    def _shown(self):
        return re.sub(r':[^:@/]*@', ':***@', self.url)

    def _connect(self, url=None):
        parts = urllib.parse.urlsplit(url or self.url)
        connection = kombu.Connection(
            parts._replace(scheme='amqp', query='').geturl(),
            ssl=self._tls(), connect_timeout=_CONNECT_SECONDS)
        try:
            connection.connect()
        except (OSError, kombu_exc.KombuError, amqp_exc.AMQPError) as error:
            raise errors.ServerMissing(
                'RabbitMQ at %s does not serve us (%s): install and start it '
                '(on Debian: apt install rabbitmq-server; service '
                'rabbitmq-server start) or name another with --bus-url.'
                % (self._shown, error))
        return connection

    def _tls(self):
        """Return what kombu is to know of TLS."""
        options = dict(urllib.parse.parse_qsl(self._parts.query))
        if options.get('ssl', '').lower() not in ('true', '1', 'yes', 'on'):
            return False
        names = {'ssl_ca_file': 'ca_certs', 'ssl_cert_file': 'certfile',
                 'ssl_key_file': 'keyfile'}
        found = {names[name]: value for name, value in options.items()
                 if name in names}
        return {'cert_reqs': ssl.CERT_REQUIRED, 'ca_certs': None,
                'server_hostname': self._parts.hostname, **found} if (
                    'ca_certs' in found) else {'cert_reqs': ssl.CERT_NONE}

    def _control(self, *args):
        # rabbitmqctl speaks to the server of this machine and to no other.
        if (self._parts.hostname not in _LOCAL or
                not shutil.which('rabbitmqctl')):
            return False
        return subprocess.run(
            ['rabbitmqctl', '--quiet', *args], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, processes.MARK: self._name},
            start_new_session=True).returncode == 0
