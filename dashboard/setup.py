# SPDX-License-Identifier: Apache-2.0

"""Puts the catalogues into a wheel as Django reads them, which git has not."""

import pathlib

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


setuptools.setup(cmdclass={'build_py': BuildPy})
