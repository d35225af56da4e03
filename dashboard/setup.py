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
