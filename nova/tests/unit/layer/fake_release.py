# SPDX-License-Identifier: Apache-2.0

"""A small released Nova with a tree over it, in an environment of its own.

The import system is what these tests are about, so that each of them runs in
a process, and the environments are real virtual environments without pip.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import venv

import fixtures

import nova_pending

CHECKOUT = pathlib.Path(nova_pending.__file__).resolve().parent

VERSIONS = ('3.11', '3.12', '3.13', '3.14', '3.15')


def pythons():
    """Return this interpreter and each other supported one on PATH."""
    found = {'%d.%d' % sys.version_info[:2]: sys.executable}
    for version in VERSIONS:
        path = shutil.which('python' + version)
        if path and version not in found and subprocess.run(
                [path, '-c', 'import venv'],
                capture_output=True).returncode == 0:
            found[version] = path
    return list(found.values())


class FakeRelease(fixtures.Fixture):
    """An environment with a released Nova of a few lines.

    :param version: the version that its metadata names, or None for none
    :param python: the interpreter to make the environment with
    """

    def __init__(self, version='34.0.0', python=sys.executable):
        super().__init__()
        self._version = version
        self._base = python

    def _setUp(self):
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        if self._base == sys.executable:
            venv.create(self.path / 'env', symlinks=True)
        else:
            subprocess.run(
                [self._base, '-m', 'venv', '--without-pip',
                 str(self.path / 'env')], check=True, capture_output=True)
        self.interpreter = str(self.path / 'env' / 'bin' / 'python')
        self.site = next((self.path / 'env' / 'lib').glob(
            'python*/site-packages'))
        self.tree = self.site / '_nova_pending_tree'
        self.tree.mkdir()
        for name in ('nova_pending.py', 'nova_pending.pth',
                     'nova_pending_check.py', 'nova_pending_releases.py'):
            shutil.copy(CHECKOUT / name, self.site)
        if self._version is not None:
            self.set_version(self._version)
            self.release('__init__.py', '')
            self.release('monkey_patch.py', '''
                def patch():
                    pass
            ''')

    def set_version(self, version):
        """Say which release is installed."""
        info = self.site / 'nova.dist-info'
        info.mkdir(exist_ok=True)
        (info / 'METADATA').write_text(
            'Metadata-Version: 2.1\nName: nova\nVersion: %s\n' % version)

    def release(self, path, source):
        """Put a file into the release."""
        return _write(self.site / 'nova' / path, source)

    def lay(self, path, source):
        """Put a file into the tree."""
        return _write(self.tree / path, source)

    def run(self, code, *options, **environment):
        """Run Python code in the environment and return what became of it.

        :param code: the code, as indented as the test likes
        :param options: options of the interpreter
        :param environment: what to set in the environment of the process
        """
        return self.python(*options, '-c', textwrap.dedent(code),
                           **environment)

    def python(self, *arguments, **environment):
        """Run the interpreter and return what became of it."""
        inherited = {name: value for name, value in os.environ.items()
                     if not name.startswith(('PYTHON', 'NOVA_PENDING',
                                             'COVERAGE_'))}
        return subprocess.run(
            [self.interpreter, *arguments], capture_output=True, text=True,
            env={**inherited, **environment}, cwd=self.path, timeout=60)

    def command(self, arguments, *options, **environment):
        """Run ``nova-pending``."""
        return self.run(
            'import sys, nova_pending_check as c; sys.argv[1:] = %r;'
            'sys.exit(c.main())' % arguments.split(), *options, **environment)

    def status(self, *options, **environment):
        """Run ``nova-pending status``."""
        return self.command('status', *options, **environment)


def _write(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path
