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

"""The RabbitMQ that is used, and the virtual host made in it."""

import re
import shutil
import subprocess
import urllib.parse

from amqp import exceptions as amqp_exc
import kombu
from kombu import exceptions as kombu_exc

from tools.cloud import errors

_CONNECT_SECONDS = 5
_LOCAL = ('127.0.0.1', 'localhost')

# Queues that every Nova and every Neutron has. Their names are the same for
# all, so that two clouds in one virtual host would take each other's calls.
_QUEUES = ('conductor', 'q-plugin')


class Bus:
    """The message bus of one cloud.

    The cloud gets a virtual host of its own where rabbitmqctl may be used.
    Where not it uses the one that the URL names, if no other cloud does.

    :param url: where RabbitMQ answers, as oslo.messaging writes it
    :param name: the name of the virtual host to be made
    :raises: BadArgument for a URL that is none
    """

    def __init__(self, url, name):
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
        #: Whether the virtual host is not ours, and is to be left clean.
        self.shared = True

    @property
    def url(self):
        """The URL of the virtual host that the services use."""
        return self._parts.geturl()

    def check(self):
        """Raise ServerMissing if the server does not let us in."""
        with self._connect():
            pass

    def create(self):
        """Make a virtual host, or see that we may use the given one.

        :raises: CloudError if another cloud uses it
        """
        if self._parts.path in ('', '/') and self._control(
                'add_vhost', self._name):
            self.shared = False
            if not self._control('set_permissions', '-p', self._name,
                                 self._user, '.*', '.*', '.*'):
                raise errors.CloudError(
                    'RabbitMQ does not let %s into a new virtual host.'
                    % self._user)
            self._parts = self._parts._replace(path='/' + self._name)
            return
        for queue in _QUEUES:
            if self.consumers(queue) is not None:
                raise errors.CloudError(
                    'Another cloud has the queue %s on the bus at %s, and '
                    'rabbitmqctl makes no virtual host for us: run as root, '
                    'or name one of your own with --bus-url.'
                    % (queue, self._shown))

    def consumers(self, queue):
        """Return how many processes take messages from a queue.

        :returns: None if there is no such queue
        """
        with self._connect() as connection:
            try:
                return kombu.Queue(
                    queue, channel=connection.channel()).queue_declare(
                        passive=True).consumer_count
            except amqp_exc.NotFound:
                return None

    def drop(self):
        """Remove the virtual host, if it is ours."""
        if self.shared or self._control('delete_vhost', self._name):
            return
        # One that is gone already cannot be deleted, and need not be.
        if self._control('list_permissions', '-p', self._name):
            raise errors.CloudError(
                'The virtual host %s of RabbitMQ is left over: '
                'rabbitmqctl delete_vhost did not work.' % self._name)

    @property
    def _user(self):
        return urllib.parse.unquote(self._parts.username or 'guest')

    @property
    def _shown(self):
        return re.sub(r':[^:@/]*@', ':***@', self.url)

    def _connect(self):
        connection = kombu.Connection(
            self._parts._replace(scheme='amqp').geturl(),
            connect_timeout=_CONNECT_SECONDS)
        try:
            connection.connect()
        except (OSError, kombu_exc.KombuError, amqp_exc.AMQPError) as error:
            raise errors.ServerMissing(
                'RabbitMQ at %s does not serve us (%s): install and start it '
                '(on Debian: apt install rabbitmq-server; service '
                'rabbitmq-server start) or name another with --bus-url.'
                % (self._shown, error))
        return connection

    def _control(self, *args):
        # rabbitmqctl speaks to the server of this machine and to no other.
        if (self._parts.hostname not in _LOCAL or
                not shutil.which('rabbitmqctl')):
            return False
        return subprocess.run(
            ['rabbitmqctl', '--quiet', *args], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True).returncode == 0
