# SPDX-License-Identifier: Apache-2.0

"""What the layer costs an interpreter at its start.

Run it with an environment that has Nova and the wheel of nova-pending:

    python tools/benchmarks/startup.py [--runs N] [--python PATH]

Each command is run with the layer, with NOVA_PENDING=off, and with the file
that starts the layer moved aside; in turn, so that a busy machine slows all of
them down alike. Medians of wall-clock and processor time are printed. Nothing
is asserted.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

COMMANDS = ('pass', 'import nova.conductor.manager')

START_FILES = ('nova_pending.pth', 'nova_pending.start')


def site_of(python):
    """Return the directory that an interpreter reads the start files from."""
    done = subprocess.run(
        [python, '-c', 'import os, nova_pending; print(os.path.dirname('
         'os.path.abspath(nova_pending.__file__)))'],
        capture_output=True, text=True)
    if done.returncode:
        sys.exit('%s has no nova-pending: install its wheel there.' % python)
    site = pathlib.Path(done.stdout.strip())
    if not (site / '_nova_pending_tree').is_dir():
        sys.exit('%s has an editable nova-pending: install its wheel there '
                 'instead.' % python)
    return site


@contextlib.contextmanager
def moved_aside(site):
    """Have the interpreter start as if nova-pending were not installed."""
    pairs = [(site / name, site / (name + '.aside')) for name in START_FILES]
    for path, aside in pairs:
        path.rename(aside)
    try:
        yield
    finally:
        for path, aside in pairs:
            aside.rename(path)


def measure(python, command, **environment):
    """Return the wall-clock and processor seconds of a process."""
    start = time.perf_counter()
    process = subprocess.Popen([python, '-W', 'ignore', '-c', command],
                               cwd='/', env={**os.environ, **environment})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit('%s -c "%s" failed.' % (python, command))
    return (time.perf_counter() - start, usage.ru_utime + usage.ru_stime)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--runs', type=int, default=31,
                        help='how often each is measured (default: 31)')
    parser.add_argument('--python', default=sys.executable,
                        help='the interpreter of the environment')
    arguments = parser.parse_args()
    python = arguments.python
    site = site_of(python)
    print('%-30s %-5s %9s %9s %9s %8s %8s' % (
        'median of %d' % arguments.runs, 'ms', 'without', 'off', 'with',
        'off/w.o.', 'with/w.o.'))
    for command in COMMANDS:
        times = []
        # The first round fills the caches of the file system and is dropped.
        for _ in range(arguments.runs + 1):
            with moved_aside(site):
                without = measure(python, command)
            times.append((without,
                          measure(python, command, NOVA_PENDING='off'),
                          measure(python, command)))
        for index, kind in enumerate(('wall', 'cpu')):
            without, off, laid = (
                statistics.median(one[index] for one in variant) * 1000
                for variant in zip(*times[1:]))
            print('%-30s %-5s %9.1f %9.1f %9.1f %8.3f %8.3f' % (
                command, kind, without, off, laid, off / without,
                laid / without))


if __name__ == '__main__':
    main()
