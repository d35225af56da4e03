# SPDX-License-Identifier: Apache-2.0

"""Puts beside the installed Nova what its test harness reads there.

The harness looks for a source tree around the package ``nova``. An installed
wheel keeps ``etc`` elsewhere and has no ``doc`` at all.
"""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile


def site():
    """Return the directory in which the released package nova lies."""
    return pathlib.Path(
        importlib.metadata.distribution('nova').locate_file('')).resolve()


def link_etc():
    """Link Nova's ``etc`` of the environment beside the package."""
    # Another package may have an etc of its own there.
    link = site() / 'etc' / 'nova'
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(os.path.relpath(
            pathlib.Path(sysconfig.get_path('data'), 'etc', 'nova').resolve(),
            link.parent))


def fetch_documents():
    """Put ``doc`` of the release's source archive beside the package.

    :raises: subprocess.CalledProcessError if pip cannot fetch the archive
    """
    place = site() / 'doc'
    if place.exists():
        return
    version = importlib.metadata.version('nova')
    with tempfile.TemporaryDirectory(dir=site()) as scratch:
        subprocess.run(
            [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps',
             '--no-binary', 'nova', '--dest', scratch, 'nova==%s' % version],
            check=True)
        root = os.path.join(scratch, 'nova-%s' % version)
        shutil.unpack_archive(root + '.tar.gz', scratch)
        # Only what is whole bears the name that is looked for above.
        shutil.move(os.path.join(root, 'doc'), place)


if __name__ == '__main__':
    link_etc()
