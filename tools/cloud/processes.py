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

"""Starts, watches and stops processes.

A process is known by its number and the time of its start. Command line and
environment would not do: uwsgi and setproctitle overwrite both.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

from tools.cloud import errors

_TAIL_LINES = 20


def start_time(pid):
    """Return when a process was started, in clock ticks since the boot.

    :returns: None for a process that is gone, or that nobody has reaped
    """
    try:
        stat = pathlib.Path('/proc/%d/stat' % pid).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses itself.
    state, *fields = stat.rpartition(')')[2].split()
    return None if state in 'ZX' else int(fields[18])


def members(session):
    """Return the numbers of the living processes of a session."""
    found = []
    for entry in os.listdir('/proc'):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) == session and start_time(int(entry)):
                    found.append(int(entry))
    return found


def tail(text):
    """Return the last lines of a log."""
    return '\n'.join(text.splitlines()[-_TAIL_LINES:])


def _inherited():
    return {name: value for name, value in os.environ.items()
            if not name.startswith('OS_')}


class Process:
    """One process, the leader of a session of its own."""

    def __init__(self, name, popen, log):
        self.name = name
        self.log = log
        self.pid = popen.pid
        self.started = start_time(popen.pid)
        self._popen = popen

    @property
    def alive(self):
        """Whether it still runs, and is not another one of that number."""
        return (self.started is not None and
                start_time(self.pid) == self.started)

    def wait(self):
        """Wait for its end and return its exit code."""
        return self._popen.wait()

    def output(self):
        """Return what is in its log."""
        return self.log.read_text(errors='replace')

    def send(self, signum):
        """Send a signal to it, its workers not included."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self):
        """Kill it and all that it started.

        The number of a session is not given to another process while a
        member lives or while nobody has reaped the leader, which we do last.
        """
        for pid in members(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()


class Processes:
    """The processes of one cloud.

    :param state: the state directory; the logs lie in ``log``, and in
        ``run`` the number and start time of each process
    """

    def __init__(self, state):
        self._state = state
        self._lock = threading.Lock()
        self._closed = False
        self._running = {}
        for folder in ('log', 'run'):
            (state / folder).mkdir(exist_ok=True)

    def start(self, name, argv, env=None):
        """Start a process that goes on running.

        :param name: the name of the service and of its log
        :param argv: the command and its arguments
        :param env: what its environment has beside ours, of which the
            variables that the client and oslo.config read are left out
        :returns: the Process
        :raises: Stopped after ``close()``
        """
        log = self._state / 'log' / ('%s.log' % name)
        with self._lock, log.open('ab') as output:
            if self._closed:
                raise errors.Stopped('%s is not started any more.' % name)
            process = Process(name, subprocess.Popen(
                [str(arg) for arg in argv], cwd=self._state,
                env={**_inherited(), **(env or {})}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True), log)
            self._running[name] = process
            self._record(name).write_text(json.dumps(
                {'pid': process.pid, 'started': process.started}))
        return process

    def run(self, name, argv, env=None):
        """Run a command to its end.

        :returns: its exit code, and all that it wrote
        :raises: Stopped if ``close()`` ended it
        """
        process = self.start(name, argv, env)
        code = process.wait()
        self._forget(process)
        if self._closed:
            raise errors.Stopped('%s was stopped.' % name)
        return code, process.output()

    def check(self, names=None):
        """Raise CloudError if a service has ended.

        :param names: the services to look at, all if not given
        """
        for process in list(self._running.values()):
            if (names is None or process.name in names) and not process.alive:
                raise errors.CloudError('%s has ended:\n%s' % (
                    process.name, tail(process.output())))

    def wait_until(self, what, ready, names, seconds=300):
        """Wait until something is ready.

        :param what: what is waited for, for the message
        :param ready: called until it returns a true value
        :param names: the services that must live meanwhile
        :returns: what ``ready`` returned
        :raises: CloudError if a service ends, or after so many seconds
        """
        deadline = time.monotonic() + seconds
        while True:
            result = ready()
            if self._closed:
                raise errors.Stopped('%s is not waited for any more.' % what)
            self.check(names)
            if result:
                return result
            if time.monotonic() > deadline:
                raise errors.CloudError(
                    'Waited %d s in vain for %s.' % (seconds, what))
            time.sleep(0.2)

    def close(self, grace=5):
        """End all processes, and let none be started any more.

        :param grace: how many seconds they have before they are killed
        """
        with self._lock:
            self._closed = True
        running = list(self._running.values())
        for process in running:
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while (any(process.alive for process in running) and
               time.monotonic() < deadline):
            time.sleep(0.1)
        for process in running:
            process.kill()
            self._forget(process)

    def running(self):
        """Return the processes, by name."""
        return dict(self._running)

    def _record(self, name):
        return self._state / 'run' / ('%s.json' % name)

    def _forget(self, process):
        self._running.pop(process.name, None)
        self._record(process.name).unlink(missing_ok=True)
