# SPDX-License-Identifier: Apache-2.0

"""The two ways in which a user asks the cloud: the client and the API."""

import concurrent.futures
import itertools
import json
import os
import shlex

from tools.cloud import configuration
from tools.cloud import errors
from tools.cloud import identity
from tools.cloud import processes
from tools.cloud import settings


def environment(cloud, user):
    """Return an environment with the credentials of a user.

    :param cloud: the settings.Settings
    :param user: the user, as named in clouds.yaml
    """
    return {**processes.inherited(), **_credentials(cloud, user),
            'PATH': os.pathsep.join([
                str(settings.PREFIX / 'bin'),
                os.environ.get('PATH', os.defpath)])}


def _credentials(cloud, user):
    return {'OS_CLIENT_CONFIG_FILE': str(cloud.etc / 'clouds.yaml'),
            'OS_CLOUD': user, 'PYTHONWARNINGS': 'ignore'}


class Client:
    """Runs the openstack client, and shows each command and its answer.

    :param cloud: the settings.Settings
    :param running: the processes.Processes that it runs in
    :param write: called with each text to be shown
    """

    def __init__(self, cloud, running, write):
        self._processes = running
        self._write = write
        self._numbers = itertools.count(1)
        self._env = _credentials(cloud, configuration.OWNER)
        self._secret = cloud.password
        self._commands = set()

    def stop(self):
        """End the commands that run."""
        self._processes.stop(set(self._commands), grace=0)

    def run(self, command, fails=False):
        """Run one command, as the owner if it names no other user.

        :param command: what follows ``openstack``, as one types it
        :param fails: whether the client is to say that it failed
        :returns: what it answers
        :raises: StepFailed if it fails, or does not where it should
        """
        code, output = self._call(command)
        self._show(command, code, output, fails)
        return output

    def ask(self, command):
        """Return what one command answers, without showing it.

        :raises: StepFailed if it fails
        """
        code, output = self._call(command)
        if code:
            raise errors.StepFailed(
                'openstack %s ended with exit code %d.' % (command, code))
        return output

    def run_together(self, *commands):
        """Run commands side by side, and show them in their order.

        :raises: StepFailed if one of them fails
        """
        with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
            answers = list(pool.map(self._call, commands))
        for command, answer in zip(commands, answers):
            self._show(command, *answer, fails=False)

    def _call(self, command):
        name = 'openstack-%d' % next(self._numbers)
        self._commands.add(name)
        return self._processes.run(
            name, [settings.PREFIX / 'bin/openstack', *shlex.split(command)],
            self._env)

    def _show(self, command, code, output, fails):
        command = command.replace(self._secret, '********')
        self._write('$ openstack %s\n%s' % (command, output))
        if bool(code) != fails:
            raise errors.StepFailed(
                'openstack %s ended with exit code %d.' % (command, code))


class Api:
    """Nova's API as a user asks it without a client.

    :param cloud: the settings.Settings
    :param write: called with each text to be shown
    :param user: the user, as named in clouds.yaml
    """

    def __init__(self, cloud, write, user=configuration.OWNER):
        self._session = identity.connect(cloud, user)
        self._url = cloud.url('nova')
        self._write = write

    def get(self, path, version):
        """Return the body of the answer to a GET.

        :param path: what follows the endpoint
        :param version: the microversion
        :raises: StepFailed if the answer is not 200
        """
        return self._request('GET', path, version, None, 200).json()

    def show(self, path, version):
        """Send a GET, show it and its answer, and return the body of that.

        :param path: what follows the endpoint
        :param version: the microversion
        :raises: StepFailed if the answer is not 200
        """
        self._write('> GET %s\n> OpenStack-API-Version: compute %s' % (
            path, version))
        body = self.get(path, version)
        self._write('%s\n' % json.dumps(body, indent=1))
        return body

    def post(self, path, version, body, shown, wanted=202):
        """Send a POST, and show it and its answer.

        :param path: what follows the endpoint
        :param version: the microversion
        :param body: the body
        :param shown: picks what is to be shown of the body of the answer
        :param wanted: the HTTP status that is to be answered
        :raises: StepFailed if another one is
        """
        self._write('> POST %s\n> OpenStack-API-Version: compute %s\n> %s' % (
            path, version, json.dumps(body)))
        answer = self._request('POST', path, version, body, wanted)
        self._write('< %d %s\n%s' % (
            answer.status_code, answer.reason,
            '< %s\n' % json.dumps(shown(answer.json()))
            if answer.content else ''))

    def _request(self, method, path, version, body, wanted):
        answer = self._session.request(
            self._url + path, method, json=body, raise_exc=False,
            headers={'OpenStack-API-Version': 'compute ' + version})
        if answer.status_code != wanted:
            raise errors.StepFailed('%s %s at %s is answered with %d: %s' % (
                method, path, version, answer.status_code, answer.text))
        return answer
