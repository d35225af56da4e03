# SPDX-License-Identifier: Apache-2.0

"""What the command line shows: progress, tables and the next line to type."""

import contextlib
import pathlib
import shlex
import sys
import threading
import time

from oslo_utils import units
from rich import console
from rich import table

from tools.cloud import processes
from tools.cloud import record


class Screen:
    """Writes to the standard output, as a terminal or a file can show it."""

    def __init__(self):
        self._console = console.Console(highlight=False, markup=False)

    def write(self, text=''):
        """Write a text as it is."""
        print(text, flush=True)

    @contextlib.contextmanager
    def steps(self):
        """Show steps while they run, and the seconds of each at its end.

        :returns: two callables for plan.Plan.run: one to be called when a
            step is done, the other when one begins
        """
        running, lock = {}, threading.Lock()
        with self._console.status('') as status:
            def show():
                status.update(', '.join(running))

            def started(name):
                with lock:
                    running[name] = time.monotonic()
                    show()

            def done(name, seconds):
                with lock:
                    running.pop(name, None)
                    self._console.print('%7.1f s  %s' % (seconds, name))
                    show()

            yield done, started

    def services(self, cloud):
        """Show the services of a cloud, with what they take.

        :param cloud: the stack.Stack
        :returns: whether all of them run
        """
        grid = table.Table(box=None, pad_edge=False)
        for title, justify in (
                ('service', 'left'), ('port', 'right'), ('pid', 'right'),
                ('processes', 'right'), ('MiB', 'right'), ('', 'left')):
            grid.add_column(title, justify=justify)
        total = 0
        running = cloud.processes.running()
        for name, process in sorted(running.items()):
            members = process.members()
            size = processes.memory(members)
            total += size
            port = cloud.settings.ports.get(name.removesuffix('-api'), '')
            grid.add_row(
                name, str(port),
                str(process.pid) if process.alive else '',
                str(len(members)), '%.0f' % (size / units.Mi),
                '' if process.alive else 'has ended')
        grid.add_row('in all', '', '', '', '%.0f' % (total / units.Mi), '')
        self._console.print(grid)
        return bool(running) and all(
            process.alive for process in running.values())

    def timeline(self, steps):
        """Show when steps began, and their seconds.

        :param steps: triples of the title, the time.time() of the start and
            the seconds
        """
        for title, start, seconds in steps:
            self._console.print('%s %7.1f s  %s' % (
                time.strftime('%H:%M:%S', time.localtime(start)), seconds,
                title))


def command(state, *words):
    """Return the line to type for a command on a cloud.

    :param state: the state directory
    """
    python = pathlib.Path(sys.executable)
    with contextlib.suppress(ValueError):
        python = python.relative_to(pathlib.Path.cwd())
    name, *rest = words
    given = () if state == record.default_state() else (
        '--state-dir', str(state))
    return shlex.join([str(python), '-m', 'tools.cloud', name, *given, *rest])
