# SPDX-License-Identifier: Apache-2.0

"""Starts, watches and stops processes, of this run of the tool and of others.

A process is known by its number and the time of its start, and is one of a
cloud if it writes to a log of the cloud or has the cloud's name in its
environment. One of the two alone would not do: uwsgi and setproctitle
overwrite the environment, and not every helper writes a log.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

from tools.cloud import errors

#: The variable that holds the name of the cloud in each of its processes.
MARK = 'NOVA_PENDING_CLOUD'

_TAIL_LINES = 20

_SYSTEM_PATH = ('/usr/sbin', '/usr/local/sbin')

# How many seconds a server has that others kept their data in.
_LAST_GRACE = 20


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
    for pid in _all():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session and start_time(pid):
                found.append(pid)
    return found


def memory(pids):
    """Return the bytes that processes have in memory.

    What several of them share is counted once.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(
                    '/proc/%d/smaps_rollup' % pid).read_text().splitlines():
                if line.startswith('Pss:'):
                    total += int(line.split()[1]) * 1024
    return total


def tail(text):
    """Return the last lines of a log."""
    return '\n'.join(text.splitlines()[-_TAIL_LINES:])


def inherited():
    """Return the environment without what the client and services read."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith('OS_')}


def find_program(name):
    """Return the path of a program of the system, or None.

    Servers lie where the PATH of a user does not look.
    """
    return shutil.which(name, path=os.pathsep.join([
        os.environ.get('PATH', os.defpath), *_SYSTEM_PATH]))


def _all():
    return [int(entry) for entry in os.listdir('/proc') if entry.isdigit()]


class Process:
    """One process, the leader of a session of its own.

    :param name: the name of the service
    :param pid: its number
    :param started: the time of its start, as start_time() has it
    :param log: the path of its log
    :param popen: the subprocess.Popen, if it is a child of ours
    :param offset: where in its log it begins to write
    :param owns: tells of the number of a process whether it may be killed:
        the number of a session whose leader nobody holds can be another one's
    :param lasting: whether it is to run until it is ended
    """

    def __init__(self, name, pid, started, log, popen=None, offset=0,
                 owns=lambda pid: True, lasting=True):
        self.name = name
        self.lasting = lasting
        self.log = log
        self.pid = pid
        self.started = started
        self._popen = popen
        self._offset = offset
        self._owns = owns

    @property
    def alive(self):
        """Say whether the process runs: another may have its number."""
        return (self.started is not None and
                start_time(self.pid) == self.started)

    def wait(self):
        """Wait for its end and return its exit code.

        :returns: None for a process that is not our child
        """
        if self._popen:
            return self._popen.wait()
        while self.alive:
            time.sleep(0.05)

    def output(self):
        """Return what it wrote to its log."""
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_bytes()[self._offset:].decode(
                errors='replace')
        return ''

    def fault(self):
        """Return a sentence that says that it ended, and its last lines."""
        code = self._popen and self._popen.poll()
        return '%s has ended%s. The end of %s:\n%s' % (
            self.name, '' if code is None else ' with exit code %d' % code,
            self.log, tail(self.output()))

    def members(self):
        """Return the numbers of its process and of those it started."""
        return [pid for pid in members(self.pid) if self._owns(pid)]

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
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()


class Processes:
    """The processes of one cloud.

    Those that another run of the tool has started are among them.

    :param state: the state directory; the logs lie in ``log``, and in
        ``run`` the number and start time of each process
    :param name: the name of the cloud
    :param last: the names of those that end after all the others
    """

    def __init__(self, state, name=None, last=()):
        self._state = state
        self._logs = state / 'log'
        self._records = state / 'run'
        self._name = name
        self._last = set(last)
        self._lock = threading.Lock()
        self._closed = False
        self._running = {}
        for folder in (self._logs, self._records):
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise errors.CloudError('%s cannot be made: %s.' % (
                    folder, error.strerror))
        for path in sorted(self._records.glob('*.json')):
            self._adopt(path)

    def start(self, name, argv, env=None, lasting=True):
        """Start a process.

        :param name: the name of the service and of its log
        :param argv: the command and its arguments
        :param env: what its environment has beside ours, of which the
            variables that the client and oslo.config read are left out
        :param lasting: whether it is to run until it is ended
        :returns: the Process
        :raises: Stopped after ``close()``, CloudError if it cannot be started
        """
        env = {**inherited(), **(env or {})}
        if self._name:
            env[MARK] = self._name
        try:
            return self._start(name, argv, env, lasting)
        except OSError as error:
            raise errors.CloudError('%s cannot be started: %s.' % (
                name, error))

    def _start(self, name, argv, env, lasting):
        log = self._logs / ('%s.log' % name)
        with self._lock, log.open('ab') as output:
            if self._closed:
                raise errors.Stopped('%s is not started any more.' % name)
            offset = output.tell()
            popen = subprocess.Popen(
                [str(arg) for arg in argv], cwd=self._state, env=env,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True)
            process = self._running[name] = Process(
                name, popen.pid, start_time(popen.pid), log, popen,
                offset, lasting=lasting)
            # Who is killed before this leaves a process that is found by
            # its log.
            self._record(name).write_text(json.dumps(
                {'pid': process.pid, 'started': process.started}))
        return process

    def run(self, name, argv, env=None):
        """Run a command to its end.

        :returns: its exit code, and all that it wrote
        :raises: Stopped if ``close()`` ended it
        """
        process = self.start(name, argv, env, lasting=False)
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
            if (process.lasting if names is None else
                    process.name in names) and not process.alive:
                raise errors.CloudError(process.fault())

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
                raise errors.CloudError('\n'.join([
                    'Waited %d s in vain for %s.' % (seconds, what),
                    *('The end of %s:\n%s' % (
                        self._running[name].log,
                        tail(self._running[name].output()))
                      for name in names or () if name in self._running)]))
            time.sleep(0.2)

    def stop(self, names, grace=5):
        """End processes.

        :param grace: how many seconds they have before they are killed
        """
        chosen = [process for name, process in list(self._running.items())
                  if name in names]
        for process in chosen:
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while (any(process.alive for process in chosen) and
               time.monotonic() < deadline):
            time.sleep(0.1)
        for process in chosen:
            process.kill()
            self._forget(process)

    def close(self, grace=5, names=None):
        """End processes, and let none be started or waited for any more.

        :param grace: how many seconds they have before they are killed
        :param names: which, all if not given
        """
        with self._lock:
            self._closed = True
        if names is not None:
            self.stop(names, grace)
            return
        self.stop(set(self._running) - self._last, grace)
        self.stop(self._last, _LAST_GRACE)
        # What a run of the tool that was killed has not noted, and what has
        # left its session.
        for pid in self.strays():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def reopen(self):
        """Let processes be started again after ``close()``."""
        with self._lock:
            self._closed = False

    def running(self):
        """Return the processes, by name."""
        return dict(self._running)

    def strays(self):
        """Return the numbers of processes of the cloud that nobody noted."""
        noted = {process.pid for process in self._running.values()}
        found = []
        for pid in _all():
            with contextlib.suppress(OSError):
                if (pid != os.getpid() and os.getsid(pid) not in noted and
                        start_time(pid) and self.owns(pid)):
                    found.append(pid)
        return found

    def owns(self, pid):
        """Return whether a process is one of the cloud."""
        for number in (1, 2):
            with contextlib.suppress(OSError):
                if pathlib.Path(os.readlink(
                        '/proc/%d/fd/%d' % (pid, number))
                        ).parent == self._logs:
                    return True
        mark = ('%s=%s' % (MARK, self._name)).encode()
        with contextlib.suppress(OSError):
            return bool(self._name) and mark in pathlib.Path(
                '/proc/%d/environ' % pid).read_bytes().split(b'\0')
        return False

    def _adopt(self, path):
        name = path.name.removesuffix('.json')
        try:
            known = json.loads(path.read_text())
            pid, started = known['pid'], known['started']
        except (OSError, ValueError, KeyError):
            # Not written to its end yet, or ever: the process is a stray.
            return
        process = Process(name, pid, started, self._logs / (name + '.log'),
                          owns=self.owns)
        # Workers of a process that has ended may live, in its session.
        if not process.alive or self.owns(pid):
            self._running[name] = process

    def _record(self, name):
        return self._records / ('%s.json' % name)

    def _forget(self, process):
        if self._running.get(process.name) is process:
            self._running.pop(process.name)
        self._record(process.name).unlink(missing_ok=True)
