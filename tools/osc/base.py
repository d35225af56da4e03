# SPDX-License-Identifier: Apache-2.0

"""What the tests share: a cloud, and the client on it."""

import atexit
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from oslo_utils import units
import testtools

from tools.cloud import profiles
from tools.cloud import reaper

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_OPENSTACK = pathlib.Path(sys.executable).with_name('openstack')
# Of each of the two hosts of the cloud.
_VCPUS = '2'
_SPOT = ('--property', 'reaper:preemptible=true',
         '--property', 'reaper:action=shelve')
#: The exit code of a command that ended on PENDING.
WAITS = 3
#: Seconds in which what nobody is asked for has to happen.
PATIENCE = 600


@functools.cache
def _cloud():
    """Bring the cloud up, once for all tests.

    :returns: its directory, and None or why it is not up
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix='nova-pending-osc-'))
    # The runner lets nothing else end a test at once.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    atexit.register(run_tool, 'down', folder)
    try:
        _fill(folder)
    except (AssertionError, subprocess.CalledProcessError) as error:
        return folder, error
    return folder, None


def _fill(folder):
    run_tool('up', folder, '--no-cinder', '--reaper')
    image = folder / 'image'
    image.write_bytes(bytes(units.Mi))
    _client(folder, 'admin', 'image', 'create', '--public', '--disk-format',
            'raw', '--file', image, 'cirros')
    for name, vcpus, more in (('whole-host', _VCPUS, ()),
                              ('too-big', '10', ()), ('spot', _VCPUS, _SPOT)):
        _client(folder, 'admin', 'flavor', 'create', '--vcpus', vcpus,
                '--ram', '512', '--disk', '1', *more, name)
    # The first command of the owner makes the project as well.
    run_tool('exec', folder, _OPENSTACK, 'server', 'list')


def run_tool(command, folder, *words):
    """Run a command of tools.cloud on a cloud."""
    subprocess.run(
        [sys.executable, '-m', 'tools.cloud', command, '--state-dir', folder,
         *words], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)


def _client(folder, user, *words, code=0):
    """Run the client, and return what it wrote to both streams."""
    done = subprocess.run(
        [_OPENSTACK, *words], text=True, capture_output=True,
        env={**os.environ, 'OS_CLOUD': user, 'PYTHONWARNINGS': 'ignore',
             'no_proxy': '*',
             'OS_CLIENT_CONFIG_FILE': str(folder / 'etc/clouds.yaml')})
    if done.returncode != code:
        raise AssertionError('openstack %s ended with exit code %d: %s%s' % (
            ' '.join(map(str, words)), done.returncode, done.stdout,
            done.stderr))
    return done.stdout, done.stderr


@functools.cache
def _endpoints(folder):
    out, _err = _client(folder, 'admin', 'endpoint', 'list', '--service',
                        reaper.SERVICE_TYPE, '-f', 'value', '-c', 'ID')
    return out.split()


@functools.lru_cache(maxsize=1)
def _list_reaper(folder, listed):
    """Have the catalog list the reaper, or not."""
    for endpoint in _endpoints(folder):
        _client(folder, 'admin', 'endpoint', 'set',
                '--enable' if listed else '--disable', endpoint)


@functools.lru_cache(maxsize=1)
def _set_mode(folder, mode, options):
    cloud = profiles.load(folder)
    reaper.change(cloud.settings, cloud.processes, mode=mode, **dict(options))
    cloud.processes.wait_until(
        'nova-reaper is in the mode ' + mode,
        lambda: reaper.is_ready(cloud.settings, mode), [reaper.NAME])


class ClientTestCase(testtools.TestCase):
    """Two hosts, and a server that fills each.

    :cvar listed: whether the catalog has the reaper
    """

    listed = True

    def setUp(self):
        super().setUp()
        self.cloud, error = _cloud()
        if error is not None:
            raise error
        _list_reaper(self.cloud, self.listed)
        self.let_reaper('observe')
        self.addCleanup(self._delete_all)
        self.client('server', 'create', '--image', 'cirros', '--flavor',
                    'whole-host', '--nic', 'none', '--min', '2', '--max',
                    '2', 'filler')
        self.wait_until(lambda: len(
            self.read('server', 'list', '--status', 'ACTIVE')[0]) == 2)

    def client(self, *words, code=0, user='owner'):
        """Run the client; return what it wrote to both streams."""
        return _client(self.cloud, user, *words, code=code)

    def read(self, *words, code=0, user='owner'):
        """Run the client; return what it shows, and its other stream."""
        out, err = self.client(*words, '-f', 'json', code=code, user=user)
        return json.loads(out), err

    def create(self, name, flavor='whole-host', code=0):
        """Create a server, and wait for its end."""
        return self.read('server', 'create', '--image', 'cirros', '--flavor',
                         flavor, '--nic', 'none', '--wait', name,
                         code=code)[0]

    def make_room(self):
        """Have one of the two hosts empty."""
        self.client('server', 'delete', '--wait', 'filler-1')

    def let_reaper(self, mode, **options):
        """Have the reaper work in a mode, with these options."""
        _set_mode(self.cloud, mode, tuple(options.items()))

    def wait_until(self, look):
        """Return what a look finds that finds nothing at first."""
        deadline = time.monotonic() + PATIENCE
        while not (found := look()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        return found

    def _delete_all(self):
        servers, _err = self.read('server', 'list')
        if servers:
            self.client('server', 'delete', '--wait',
                        *(server['ID'] for server in servers))
