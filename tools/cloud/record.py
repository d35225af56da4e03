# SPDX-License-Identifier: Apache-2.0

"""What a process of the tool leaves for the next process to find.

Everything is written before it becomes true: a process that is killed in the
middle has noted at least what there is to clean up.
"""

import fcntl
import json
import os
import pathlib

from tools.cloud import errors

NAME = 'cloud.json'
_LOCK = 'lock'

# What a process that was killed at once may leave in an empty directory.
_HARMLESS = {_LOCK, NAME + '.new'}


class Record:
    """The facts about the cloud in a state directory.

    :param state: the pathlib.Path of the directory
    """

    def __init__(self, state):
        self._state = state
        self._path = state / NAME
        self._lock = None

    def read(self):
        """Return the facts, or None if there is no cloud in the directory.

        :raises: CloudError if the file holds no facts
        """
        try:
            return json.loads(self._path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise errors.CloudError('%s cannot be read: %s.' % (
                self._path, error))

    def write(self, facts):
        """Put facts in place of those that are there.

        A reader finds the old facts or the new facts, also on a full disk.
        """
        new = self._path.with_suffix('.json.new')
        try:
            with open(new, 'w', opener=_private) as file:
                json.dump(facts, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            raise errors.CloudError('%s cannot be written: %s.' % (
                self._path, error.strerror))

    def update(self, **facts):
        """Write some facts beside those that are there."""
        self.write({**(self.read() or {}), **facts})

    def forget(self):
        """Note that there is no cloud any more."""
        self._path.unlink(missing_ok=True)

    def is_free(self):
        """Return whether a cloud may be made in the directory."""
        return not self._state.exists() or (
            self._state.is_dir() and
            {entry.name for entry in self._state.iterdir()} <= _HARMLESS)

    def lock(self):
        """Let nobody else change the cloud while this process does.

        :raises: CloudError if somebody else does
        """
        if self._lock:
            return
        try:
            file = open(self._state / _LOCK, 'a', opener=_private)
        except OSError as error:
            raise errors.CloudError('%s cannot be used: %s.' % (
                self._state, error.strerror))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise errors.CloudError(
                'Another process works on the cloud in %s. Wait for its end, '
                'or give another --state-dir.' % self._state)
        self._lock = file

    def unlock(self):
        """Let others change the cloud."""
        if self._lock:
            self._lock.close()
            self._lock = None


def default_state():
    """Return the state directory that is meant if none is given."""
    given = os.environ.get('CLOUD_STATE_DIR')
    base = os.environ.get('XDG_STATE_HOME') or '~/.local/state'
    return pathlib.Path(
        given or pathlib.Path(base, 'nova-pending/cloud')).expanduser()


def _private(path, flags):
    return os.open(path, flags, 0o600)
