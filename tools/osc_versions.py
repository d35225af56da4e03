# SPDX-License-Identifier: Apache-2.0

"""Tests osc-pending with each python-openstackclient that there is.

    python tools/osc_versions.py
    python tools/osc_versions.py 8.0.0 9.0.1 --save table.csv

For each version an environment is made, with whatever pip takes for it, and
removed again. In it the tests of the plugin run twice, once with the client
installed first and once with the plugin first, and then the plugin is
uninstalled, and the client must be the stock client.
"""

import argparse
import csv
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENT = 'python-openstackclient'
FIRST = (8, 0)

# What the client says without the plugin.
_STOCK = """
import subprocess
from openstackclient import shell
from openstackclient.compute.v2 import server
commands = shell.OpenStackShell().command_manager
for group in ('openstack.compute.v2', 'openstack.extension'):
    commands.add_command_group(group)
for words, stock in ((['server', 'create'], server.CreateServer),
                     (['server', 'list'], server.ListServer),
                     (['server', 'rebuild'], server.RebuildServer)):
    assert commands.find_command(words)[0] is stock
done = subprocess.run([%r, 'pending', 'list'], capture_output=True, text=True)
assert done.returncode == 2, done.stderr
assert 'is not an openstack command' in done.stdout, done.stdout
"""


def main(argv=None):
    """Run the command line.

    :returns: the exit code, 1 if a version failed
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('versions', nargs='*', metavar='VERSION',
                        help='which (all from 8.0 on that pip finds)')
    parser.add_argument('--save', type=pathlib.Path, metavar='FILE',
                        help='write the table as CSV')
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = _build(pathlib.Path(folder))
        for version in args.versions or _find():
            start = time.monotonic()
            row = _try(version, wheel, pathlib.Path(folder) / version)
            rows.append(row)
            print('%s (%d s)' % (', '.join(row.values()),
                                 time.monotonic() - start), flush=True)
    if args.save and rows:
        with args.save.open('w', newline='') as file:
            writer = csv.DictWriter(file, rows[0], lineterminator='\n')
            writer.writeheader()
            writer.writerows(rows)
    return int(any('failed' in row.values() for row in rows))


def _build(folder):
    # setuptools leaves its work beside what it packs.
    shutil.copytree(ROOT / 'osc', folder / 'osc')
    # What setup.py reads of the tree around it.
    (folder / 'tools').mkdir()
    for name in ('setup.cfg', 'tools/nova_pending_version.py'):
        shutil.copy(ROOT / name, folder / name)
    _run(sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps',
         '--wheel-dir', folder, folder / 'osc')
    return next(folder.glob('*.whl'))


def _find():
    listed = _run(sys.executable, '-m', 'pip', 'index', 'versions', CLIENT)
    versions = re.search('Available versions: (.*)', listed).group(1)
    return [version for version in reversed(versions.split(', '))
            if _key(version) >= FIRST]


def _key(version):
    return tuple(int(part) for part in version.split('.'))


def _try(version, wheel, folder):
    """Return what became of one version, a row of the table."""
    _run(sys.executable, '-m', 'venv', folder)
    python = folder / 'bin' / 'python'
    client = '%s==%s' % (CLIENT, version)

    def pip(command, *words):
        _run(python, '-m', 'pip', command, '--quiet', *words)

    row = {'python-openstackclient': version}
    pip('install', client)
    pip('install', wheel, '-r', ROOT / 'osc' / 'test-requirements.txt')
    for name in ('cliff', 'openstacksdk'):
        row[name] = _run(
            python, '-c', 'import importlib.metadata as m; '
            'print(m.version(%r))' % name).strip()
    row['Client first'] = _test(python)
    pip('uninstall', '--yes', CLIENT)
    pip('install', client)
    row['Plugin first'] = _test(python)
    pip('uninstall', '--yes', 'osc-pending')
    row['Uninstalled'] = _outcome(python, '-c', _STOCK % str(
        folder / 'bin' / 'openstack'))
    shutil.rmtree(folder)
    return row


def _test(python):
    tests = _run(python, '-c', 'import osc_pending.tests as t; '
                 'print(t.__path__[0])').strip()
    return _outcome(python, '-m', 'unittest', 'discover', '-s', tests, '-t',
                    pathlib.Path(tests).parent.parent)


def _outcome(*command):
    try:
        text = _run(*command)
    except subprocess.CalledProcessError as error:
        print(error.output, file=sys.stderr)
        return 'failed'
    count = re.search(r'Ran (\d+) tests', text)
    return '%s passed' % count.group(1) if count else 'stock'


def _run(*command):
    # No file of the checkout is imported in place of an installed file.
    return subprocess.run(
        [str(word) for word in command], check=True, cwd=tempfile.gettempdir(),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


if __name__ == '__main__':
    sys.exit(main())
