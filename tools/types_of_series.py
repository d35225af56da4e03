# SPDX-License-Identifier: Apache-2.0

"""Checks the types of the modules that the series adds to Nova.

    python tools/types_of_series.py

mypy reads files: it knows nothing of a tree that is laid over at import. So
the released package is linked into a directory, with the modules beside it
that it does not have.
"""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The fields of objects are no attributes that a reader of the source knows,
# nor is what the tree lays over a released module.
OPTIONS = ('--ignore-missing-imports', '--follow-imports=silent',
           '--disable-error-code=attr-defined')


def link(place):
    """Link the package as it is under the tree, and return what is new.

    :param place: the directory that is to have the package
    :returns: a list of paths relative to it
    """
    site = pathlib.Path(
        importlib.metadata.distribution('nova').locate_file(''))
    new = []
    for source in (site, ROOT):
        for path in sorted((source / 'nova').rglob('*.py*')):
            name = path.relative_to(source)
            if path.suffix not in ('.py', '.pyi') or 'tests' in name.parts:
                continue
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                os.symlink(path, target)
                if source == ROOT:
                    new.append(str(name))
    return new


def main():
    with tempfile.TemporaryDirectory() as place:
        new = link(pathlib.Path(place))
        return subprocess.run(
            [sys.executable, '-m', 'mypy', *OPTIONS,
             '--cache-dir', str(ROOT / '.mypy_cache'), *new],
            cwd=place).returncode


if __name__ == '__main__':
    sys.exit(main())
