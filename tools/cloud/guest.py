# SPDX-License-Identifier: Apache-2.0

"""A guest that boots in seconds, and says which server it is.

It is a kernel and one program, with no network and a disk that it does not
look at. What it says it reads from its firmware, where the hypervisor puts
what Nova told it: nobody but a guest of that server can say it.
"""

import glob
import gzip
import os
import pathlib
import re
import shutil
import stat
import subprocess

from tools.cloud import configuration
from tools.cloud import errors
from tools.cloud import identity

#: The name of the image and of the flavor.
NAME = 'guest'

_PACKAGE = 'linux-image-cloud-amd64'
_BUSYBOX = pathlib.Path('/bin/busybox')
_TRAIT = 'trait:' + configuration.REAL_GUEST
_COMMAND_LINE = 'console=ttyS0 quiet no_timer_check'
_DISK_BYTES = 1024 * 1024

_INIT = '''\
#!/bin/busybox sh
/bin/busybox mount -t sysfs sysfs /sys
cd /sys/class/dmi/id
echo "A guest of $(/bin/busybox cat product_name), \\
kernel $(/bin/busybox uname -r)"
echo "I am server $(/bin/busybox cat product_uuid)"
while :; do /bin/busybox sleep 3600; done
'''


def line(server):
    """Return the line that the guest of a server writes to its console.

    :param server: the ID of the server
    """
    return 'I am server ' + server


def missing():
    """Return what a guest needs and this machine has not.

    :returns: the names of the Debian packages, by what they bring
    """
    found = {}
    if not _is_static(_BUSYBOX):
        found['a static busybox'] = 'busybox-static'
    if not _installed_kernel() and not _kernel_package():
        found['a kernel that one may read'] = _PACKAGE
    return found


def _is_static(path):
    try:
        # What is not names the program that loads its libraries.
        return b'/ld-linux' not in path.read_bytes()
    except OSError:
        return False


def _installed_kernel():
    """Return the path of the newest kernel that we may read, or None."""
    found = [path for path in glob.glob('/boot/vmlinuz-*')
             if os.access(path, os.R_OK)]
    return max(found, key=os.path.getmtime, default=None)


def _kernel_package():
    """Return the name of the package with the newest kernel, or None."""
    if not (shutil.which('apt-get') and shutil.which('dpkg-deb')):
        return None
    answer = subprocess.run(
        ['apt-cache', 'depends', _PACKAGE], capture_output=True, text=True,
        stdin=subprocess.DEVNULL)
    found = re.search(r'Depends: (linux-image-\S+)', answer.stdout)
    return found and found[1]


def make(directory, running):
    """Make the files of the guest, ``kernel``, ``ramdisk`` and ``disk``.

    :param directory: the directory that they are to lie in
    :param running: the processes.Processes that commands run in
    :raises: CloudError if the kernel cannot be had
    """
    directory.mkdir(parents=True, exist_ok=True)
    installed = _installed_kernel()
    if installed:
        shutil.copyfile(installed, directory / 'kernel')
    else:
        _fetch_kernel(directory, running)
    (directory / 'ramdisk').write_bytes(gzip.compress(archive({
        'bin': None, 'dev': None, 'sys': None,
        'bin/busybox': _BUSYBOX.read_bytes(), 'init': _INIT.encode()})))
    with (directory / 'disk').open('wb') as file:
        file.truncate(_DISK_BYTES)


def _fetch_kernel(directory, running):
    def run(*argv):
        code, output = running.run(
            'kernel', ['env', '--chdir', directory, *argv])
        if code:
            raise errors.CloudError(
                'The kernel of the guest cannot be had: %s failed with exit '
                'code %d:\n%s' % (' '.join(argv), code, output))

    run('apt-get', 'download', _kernel_package())
    package, = directory.glob('*.deb')
    run('dpkg-deb', '--extract', package.name, 'package')
    kernel, = directory.glob('package/boot/vmlinuz-*')
    kernel.rename(directory / 'kernel')
    # Its modules are a hundred times as large.
    package.unlink()
    shutil.rmtree(directory / 'package')


def archive(files):
    """Return files as the kernel takes them for its first file system.

    This is cpio's format "newc": a header of hexadecimal numbers, the name
    and the content, each filled up to four bytes.

    :param files: the content by name, None for a directory; all may be run
    """
    parts = []
    for number, (name, content) in enumerate(
            [*files.items(), ('TRAILER!!!', b'')], 1):
        mode = 0o755 | (stat.S_IFDIR if content is None else stat.S_IFREG)
        content = content or b''
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0,
                  len(name) + 1, 0)
        header = '070701' + ''.join('%08x' % field for field in fields)
        for part in ((header + name).encode() + b'\0', content):
            parts.append(part + bytes(-len(part) % 4))
    return b''.join(parts)


def register(cloud, directory):
    """Make the image and the flavor, and keep other servers off the host.

    :param cloud: the settings.Settings
    :param directory: the directory that the files of the guest lie in
    """
    session = identity.connect(cloud, configuration.ADMIN)
    nova, glance = cloud.url('nova'), cloud.url('glance') + '/v2/images'

    def upload(name, path, kind, container, **properties):
        image = session.post(glance, json={
            'name': name, 'disk_format': kind, 'container_format': container,
            'visibility': 'public', **properties}).json()['id']
        with (directory / path).open('rb') as file:
            session.put('%s/%s/file' % (glance, image), data=file, headers={
                'Content-Type': 'application/octet-stream'})
        return image

    upload(NAME, 'disk', 'raw', 'bare', os_command_line=_COMMAND_LINE,
           kernel_id=upload(NAME + '-kernel', 'kernel', 'aki', 'aki'),
           ramdisk_id=upload(NAME + '-ramdisk', 'ramdisk', 'ari', 'ari'))
    flavor = session.post(nova + '/flavors', json={'flavor': {
        'name': NAME, 'vcpus': 1, 'ram': 128, 'disk': 1}}).json()['flavor']
    session.post('%s/flavors/%s/os-extra_specs' % (nova, flavor['id']), json={
        'extra_specs': {_TRAIT: 'required'}})
    aggregate = session.post(nova + '/os-aggregates', json={
        'aggregate': {'name': 'real-guests'}}).json()['aggregate']
    for action in ({'add_host': {'host': cloud.libvirt_host}},
                   {'set_metadata': {
                       'metadata': {_TRAIT: 'required'}}}):
        session.post('%s/os-aggregates/%s/action' % (nova, aggregate['id']),
                     json=action)
