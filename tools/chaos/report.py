# SPDX-License-Identifier: Apache-2.0

"""What a campaign has found."""

import collections
import sys
import threading
import time


class Report:
    """Counts what happens, and prints what is wrong as soon as it is seen.

    :param seed: the seed of the campaign
    :param write: called with each line
    """

    def __init__(self, seed, write=None):
        self._seed = seed
        self._write = write or _write
        self._lock = threading.Lock()
        self._round = None
        self._counts = collections.Counter()
        self._wrong = collections.Counter()

    def begin(self, number):
        """Say that a round begins."""
        self._round = number

    def tell(self, line):
        """Print a line."""
        self._write('%s %s' % (time.strftime('%H:%M:%S'), line))

    def count(self, what, number=1):
        """Count something of what the summary tells."""
        with self._lock:
            self._counts[what] += number

    def wrong(self, kind, sentence, server=None):
        """Note a violation.

        :param kind: by which violations are counted
        :param sentence: what was found
        :param server: the ID of the server that is concerned, if any
        """
        with self._lock:
            self._wrong[kind] += 1
        self.tell('VIOLATION seed %s round %s%s: %s: %s' % (
            self._seed, self._round, server and ' server %s' % server or '',
            kind, sentence))

    @property
    def exit_code(self):
        """Return 1 if anything was wrong, else 0."""
        return int(bool(self._wrong))

    def summary(self):
        """Return the lines of the summary."""
        if not self._counts and not self._wrong:
            return ['Seed %s: no round was run' % self._seed]
        return [
            'Seed %s:' % self._seed,
            *('  %6d  %s' % (number, what)
              for what, number in sorted(self._counts.items())),
            *('  %6d  violations: %s' % (number, kind)
              for kind, number in sorted(self._wrong.items())),
            *([] if self._wrong else ['  no violation'])]


def _write(line):
    print(line)
    sys.stdout.flush()
