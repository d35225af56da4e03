# SPDX-License-Identifier: Apache-2.0

"""Gives the distribution the version of the tree that it is made from.

The catalogues of the wheel are compiled here; git does not have them so.
"""

import email
import pathlib
import sys

from babel.messages import mofile
from babel.messages import pofile
import setuptools
from setuptools.command import build_py


class BuildPy(build_py.build_py):

    def run(self):
        super().run()
        target = pathlib.Path('' if self.editable_mode else self.build_lib)
        for source in pathlib.Path().glob(
                'pending_dashboard/locale/*/LC_MESSAGES/*.po'):
            with source.open('rb') as file:
                catalogue = pofile.read_po(file)
            with (target / source).with_suffix('.mo').open('wb') as file:
                mofile.write_mo(file, catalogue)


def find_version():
    """Return the version of an sdist, or that of the tree around this one."""
    info = pathlib.Path('PKG-INFO')
    if info.exists():
        return email.message_from_string(info.read_text('utf-8'))['Version']
    sys.path.insert(0, '../tools')
    import nova_pending_version
    return nova_pending_version.find()


setuptools.setup(version=find_version(), cmdclass={'build_py': BuildPy})
