# SPDX-License-Identifier: Apache-2.0

"""PEP 517 and PEP 660 build backend: pbr, and the files that it cannot carry.

pbr and setuptools do not put a ``.pth`` file at the top of a wheel, nor a
tree named ``nova`` under another name. The wheel that they build is packed
again with both; pip then records and removes them like any other file.
"""

import base64
import csv
import functools
import hashlib
import io
import os
import pathlib
import zipfile

import nova_pending_version
from pbr import build

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_FILES = ('nova_pending.pth', 'nova_pending.start')
TREE = '_nova_pending_tree'


def _versioned(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        os.environ.setdefault('SKIP_GENERATE_AUTHORS', '1')
        os.environ.setdefault('SKIP_WRITE_GIT_CHANGELOG', '1')
        os.environ.setdefault('PBR_VERSION', nova_pending_version.find())
        return function(*args, **kwargs)
    return call


get_requires_for_build_editable = _versioned(
    build.get_requires_for_build_editable)
get_requires_for_build_sdist = _versioned(build.get_requires_for_build_sdist)
get_requires_for_build_wheel = _versioned(build.get_requires_for_build_wheel)
prepare_metadata_for_build_editable = _versioned(
    build.prepare_metadata_for_build_editable)
prepare_metadata_for_build_wheel = _versioned(
    build.prepare_metadata_for_build_wheel)
build_sdist = _versioned(build.build_sdist)


@_versioned
def build_wheel(wheel_directory, config_settings=None,
                metadata_directory=None):
    name = build.build_wheel(
        wheel_directory, config_settings, metadata_directory)
    _add(pathlib.Path(wheel_directory) / name,
         {**_start_files(), **_tree_files()})
    return name


@_versioned
def build_editable(wheel_directory, config_settings=None,
                   metadata_directory=None):
    name = build.build_editable(
        wheel_directory, config_settings, metadata_directory)
    _add(pathlib.Path(wheel_directory) / name, _start_files())
    return name


def _start_files():
    return {name: (ROOT / name).read_bytes() for name in START_FILES}


def _tree_files():
    """Read what the tree installs: all but its tests and how to read it."""
    top = ROOT / 'nova'
    files = {}
    for path in sorted(top.rglob('*')):
        parts = path.relative_to(top).parts
        if (path.is_file() and not path.name.startswith('.') and
                path.suffix not in ('.pyc', '.rst') and
                'tests' not in parts):
            files['/'.join((TREE, *parts))] = path.read_bytes()
    return files


def _add(wheel, files):
    """Pack a wheel again with more files, and record them."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {info: archive.read(info) for info in archive.infolist()}
    record = next(info for info in contents
                  if info.filename.endswith('.dist-info/RECORD'))
    rows = list(csv.reader(io.StringIO(contents.pop(record).decode())))
    for name, data in files.items():
        contents[zipfile.ZipInfo(name, record.date_time)] = data
        rows.insert(0, (name, 'sha256=' + base64.urlsafe_b64encode(
            hashlib.sha256(data).digest()).rstrip(b'=').decode(), len(data)))
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows(rows)
    contents[record] = text.getvalue().encode()
    with zipfile.ZipFile(wheel, 'w', zipfile.ZIP_DEFLATED) as archive:
        for info, data in contents.items():
            info.external_attr = info.external_attr or 0o644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
