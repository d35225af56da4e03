# SPDX-License-Identifier: Apache-2.0

"""A host with real guests: QEMU under a libvirtd of the cloud's own.

The libvirtd is like that of a user's session: it needs no rights, and knows
only the directories that it is told. A libvirtd that runs as root would use
the directories of the machine's libvirtd, so root starts it with the number of
another user (user_namespaces(7)).
"""

import glob
import importlib.util
import os
import pathlib
import platform
import shlex
import socket
import subprocess

from tools.cloud import errors
from tools.cloud import guest
from tools.cloud import processes

#: The name of the process.
PROCESS = 'libvirtd'

_QEMU = 'qemu-system-x86_64'
_PACKAGES = {
    _QEMU: 'qemu-system-x86',
    'qemu-img': 'qemu-utils',
    'libvirtd': 'libvirt-daemon',
    'unshare': 'util-linux',
}
_DRIVER = 'libvirt/connection-driver/libvirt_driver_qemu.so'
_LIBRARIES = ('/usr/lib/*/', '/usr/lib64/', '/usr/lib/')

# The number of any user but root.
_OTHER_USER = ('unshare', '--user', '--map-user=1000', '--map-group=1000')

# Nothing of the machine is asked for: no control groups, no name spaces, no
# security driver, and no other daemon for the consoles.
_QEMU_CONF = '''\
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
'''

# libvirtd starts guests with an environment of its own, and without their
# mark nobody would find them who has not started them.
_WRAPPER = '''\
#!/bin/sh
{mark}={name}
export {mark}
exec {program} "$@"
'''


def check():
    """See that all is there that a host with real guests needs.

    :raises: ServerMissing with a sentence that says what is not, CloudError
        where the machine cannot have it
    """
    if platform.machine() != 'x86_64':
        raise errors.CloudError(
            'The guests of --libvirt are for x86_64, and this machine is not.')
    missing = {name: package for name, package in _PACKAGES.items()
               if not processes.find_program(name)}
    if not any(glob.glob(folder + _DRIVER) for folder in _LIBRARIES):
        missing['libvirt\'s driver for QEMU'] = 'libvirt-daemon-driver-qemu'
    missing.update(guest.missing())
    hints = []
    if missing:
        hints.append('apt install ' + ' '.join(sorted(missing.values())))
    if importlib.util.find_spec('libvirt') is None:
        missing['Python\'s module libvirt'] = None
        hints.append('apt install libvirt-dev pkg-config gcc python3-dev, and '
                     'pip install -r tools/cloud/libvirt-requirements.txt')
    if missing:
        raise errors.ServerMissing(
            'A host with real guests needs %s, which this machine has not (on '
            'Debian: %s).' % (', '.join(missing), '; '.join(hints)))
    if os.geteuid() == 0 and subprocess.run(
            [*_OTHER_USER, 'true'], capture_output=True).returncode:
        raise errors.CloudError(
            'A libvirtd of the cloud\'s own cannot be started as root where '
            'unshare --user is not allowed: run the tool as another user.')


class Hypervisor:
    """The libvirtd of one cloud.

    :param directory: the directory that its files are to lie in
    :param name: the name of the cloud
    """

    #: What it writes, with the files of a guest.
    needed_mib = 400

    def __init__(self, directory, name):
        self._directory = directory
        self._name = name
        # The path of a socket has 107 characters at most, and those of
        # libvirt need half of them.
        self._short = pathlib.Path('/tmp', name)

    @property
    def uri(self):
        """Return the URI by which clients connect to libvirtd."""
        return 'qemu+unix:///session?socket=%s' % self._socket

    @property
    def _socket(self):
        return self._short / 'run/libvirt/libvirt-sock'

    def start(self, running):
        """Start it, and wait until it answers.

        :param running: the processes.Processes that it runs in
        """
        self._write()
        path = os.pathsep.join([
            str(self._short / 'bin'), os.environ.get('PATH', os.defpath)])
        running.start(PROCESS, [
            *(_OTHER_USER if os.geteuid() == 0 else ()),
            processes.find_program('libvirtd'),
            '--config', self._short / 'libvirtd.conf',
            '--pid-file', self._short / 'libvirtd.pid'], {
                'PATH': path, 'HOME': str(self._short / 'home'),
                'XDG_RUNTIME_DIR': str(self._short / 'run'),
                'XDG_CONFIG_HOME': str(self._short / 'config'),
                'XDG_CACHE_HOME': str(self._short / 'cache'),
                'XDG_DATA_HOME': str(self._short / 'data')})
        running.wait_until('libvirtd', self._answers, [PROCESS])

    def drop(self):
        """Remove what lies outside of the state directory."""
        if self._short.is_symlink():
            self._short.unlink()

    def _answers(self):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self._socket))
            except OSError:
                return False
        return True

    def _write(self):
        for name in ('bin', 'home', 'run', 'config/libvirt', 'cache', 'data'):
            (self._directory / name).mkdir(
                parents=True, exist_ok=True, mode=0o700)
        self.drop()
        try:
            self._short.symlink_to(self._directory)
        except OSError as error:
            raise errors.CloudError('%s cannot be made: %s.' % (
                self._short, error.strerror))
        (self._directory / 'libvirtd.conf').touch()
        (self._directory / 'config/libvirt/qemu.conf').write_text(_QEMU_CONF)
        wrapper = self._directory / 'bin' / _QEMU
        wrapper.write_text(_WRAPPER.format(
            mark=processes.MARK, name=self._name,
            program=shlex.quote(processes.find_program(_QEMU))))
        wrapper.chmod(0o700)
