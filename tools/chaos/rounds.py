# SPDX-License-Identifier: Apache-2.0

"""One round of the campaign."""

import collections
import functools
import signal
import time

from tools.chaos import judge
from tools.crash import watch

# Seconds that a host has to finish builds on a busy machine.
_SLACK = 240

# A rebuild with nothing dying.
_BUILD_SECONDS = 300

# How often those are rebuilt that wait again.
_TRIES = 3

# How long the owner waits before asking again, and goes on asking when
# nothing fails any more: nova-api may be about to start.
_PAUSE = 1
_PATIENCE = 60

# For how long a host that has taken a message may say nothing.
_TAKES = 10

# Seconds between two looks. More looks would keep the services from working.
_LOOK_EVERY = 3


class Round:
    """One round.

    :param cloud: the cloud.Cloud
    :param drawn: the draw.Round
    :param span: how many seconds the storm lasts
    :param settles: within how many seconds all must hold afterwards, what
        the timeouts of the cloud are
    :param report: the report.Report
    """

    def __init__(self, cloud, drawn, span, settles, report):
        self._cloud = cloud
        self._drawn = drawn
        self._span = span
        self._settles = settles + _SLACK
        self._report = report
        self._servers = []
        # The name, the kind and the owner's port of each server whose create
        # was asked for during the storm.
        self._created = []
        # The ports of those creates that have made no server.
        self._ports = []
        self._given_up = set()
        self._hosts_killed_at = []

    def run(self):
        """Run it. What fails is reported, and nothing is raised."""
        try:
            self._make()
            ids = [asked.server for asked in self._servers]
            with watch.Watch(self._cloud, *ids, pause=_LOOK_EVERY,
                             may_fail=True) as seen:
                self._cloud.set_room(True)
                self._storm()
                self._after()
            for sentence in seen.wrong:
                self._report.wrong('shown', sentence)
        except Exception as error:
            self._report.wrong('round', '%s: %s' % (
                type(error).__name__, error))
        finally:
            self._end()

    def _make(self):
        self._servers = self._cloud.make(*self._drawn.kinds)

    # The storm.

    def _storm(self):
        self._begun = time.monotonic()
        self._cloud.at_once(self._fail, *self._asks())
        self._cloud.wake_up()

    def _asks(self):
        """Return what asks for rebuilds during the storm."""
        return [*(functools.partial(self._ask, asked.server, at)
                  for asked, at in zip(self._servers, self._drawn.asked_at)),
                *(functools.partial(self._create, number, at, kind)
                  for number, (at, kind) in enumerate(self._drawn.creates))]

    def _create(self, number, at, kind):
        """Create another server; it may be there though nobody answers."""
        self._wait_until(at)
        name = 'other-%d' % number
        status, port = self._cloud.create_another(name, kind)
        self._report.count('creates answered with %s' % status)
        if status is not None and 400 <= status < 500:
            self._report.wrong(
                'refused', 'the create is answered with %d' % status)
        self._created.append((name, kind, port))

    def _wait_until(self, at):
        time.sleep(max(0, self._begun + at - time.monotonic()))

    def _fail(self):
        """Let services fail, each at its moment."""
        events = collections.deque(sorted(
            [(fault.at, fault.service,
              signal.SIGSTOP if fault.hangs else signal.SIGKILL)
             for fault in self._drawn.faults] + [
                (fault.at + fault.hangs, fault.service, signal.SIGCONT)
                for fault in self._drawn.faults if fault.hangs]))
        for at, service, signum in events:
            self._wait_until(at)
            self._report.tell('%s to %s' % (
                signal.Signals(signum).name, service))
            self._cloud.fail(service, signum)
            if signum == signal.SIGKILL and service.startswith('nova-compute'):
                self._hosts_killed_at.append(time.time())
            if signum != signal.SIGCONT:
                self._report.count('faults: ' + signum.name)

    def _ask(self, server, at):
        """Ask for a rebuild, again where nobody answered."""
        self._wait_until(at)
        while True:
            status = self._cloud.rebuild(server)
            if status == 202:
                self._report.count('rebuilds asked for')
            if status == 202 or status == 409:
                return
            self._report.count('rebuilds not answered' if status is None
                               else 'rebuilds answered with %d' % status)
            if status is not None and status < 500:
                self._report.wrong(
                    'refused', 'the rebuild is answered with %d' % status,
                    server)
                return
            if time.monotonic() > self._begun + self._span + _PATIENCE:
                return
            time.sleep(_PAUSE)

    # Afterwards.

    def _after(self):
        """See that all is as it must be, and build the servers that wait."""
        self._servers += self._find_created()
        found = self._count(self._settle(self._servers, self._settles))
        become = _outcomes(found)
        become |= self._reset([
            asked for asked in self._servers
            if become[asked.server] == judge.FAILED and
            found[asked.server].shown['OS-EXT-STS:task_state']])
        self._try_again([
            asked for asked in self._servers if become[asked.server] in (
                judge.WAITS, judge.FAILED)])

    def _reset(self, servers):
        """Set servers to ERROR that no host builds, as an administrator.

        A host that takes its message late builds the server after all, so the
        administrator looks first whether a host may still be asked.

        :returns: what has become of each server, by its ID
        """
        if not servers:
            return {}
        self._cloud.wait_for('the hosts to take their messages',
                             lambda: not self._cloud.are_hosts_asked(), _SLACK)
        # Between the message and the first word of the host in the database.
        time.sleep(_TAKES)
        become = _outcomes(self._settle(servers, self._settles))
        self._each(self._cloud.set_error, [
            asked for asked in servers
            if become[asked.server] == judge.FAILED])
        return become

    def _find_created(self):
        """Return the Asked of each server that the storm has created."""
        found = []
        for name, kind, port in self._created:
            ids = self._cloud.find_named(name)
            found += [judge.Asked(server, kind, port, (), None)
                      for server in ids]
            if port and not ids:
                self._ports.append(port)
        return found

    def _count(self, found):
        created = {asked.server for asked in self._servers
                   if not asked.before}
        for server, each in found.items():
            self._report.count('%s: %s' % (
                'creates' if server in created else 'servers',
                judge.outcome(each)))
            if each.is_stripped:
                self._report.count('without allocations since a released '
                                   'nova-compute deleted them')
        return found

    def _settle(self, servers, seconds, judged=judge.judge):
        """Wait until all is as it must be, and report what is not.

        :returns: the Found of each server, by its ID
        """
        found, wrong = {}, {}

        def is_settled():
            if found:
                time.sleep(_LOOK_EVERY)
            # What was well once is not looked at again.
            again = [asked for asked in servers
                     if wrong.get(asked.server) != []]
            try:
                looks = self._each(self._cloud.look, again)
            except Exception as error:
                # A service can need a while until it is well again.
                wrong[None] = [('look', str(error))]
                return False
            wrong.pop(None, None)
            for asked, seen in zip(again, looks):
                found[asked.server] = seen
                wrong[asked.server] = judged(asked, seen)
            return not any(wrong.values())

        begun = time.monotonic()
        try:
            self._cloud.wait_for('the servers to settle', is_settled, seconds)
        except AssertionError:
            for server, pairs in wrong.items():
                for kind, sentence in pairs:
                    self._report.wrong(kind, sentence, server)
        self._report.tell('settled after %d s' % (time.monotonic() - begun))
        self._given_up.update(
            server for server, seen in found.items()
            if judge.outcome(seen) == judge.GIVEN_UP)
        return found

    def _try_again(self, servers):
        """Rebuild the servers that wait, with nothing dying.

        On a machine that is too busy a call can time out all the same: there
        are some tries, and each is counted.
        """
        for number in range(1, _TRIES + 1):
            for asked, status in zip(
                    servers, self._each(self._cloud.rebuild, servers)):
                self._report.count('rebuilds asked for')
                # A nova-compute that starts sets a server to ERROR whose build
                # waits in its queue, and builds the server all the same.
                if status not in (202, 409):
                    self._report.wrong(
                        'next try', 'the rebuild is answered with %s' % status,
                        asked.server)
            found = self._settle(servers, _BUILD_SECONDS)
            built = [asked for asked in servers if judge.outcome(
                found[asked.server]) == judge.BUILT]
            self._report.count(
                'servers: built at try %d afterwards' % number, len(built))
            servers = [asked for asked in servers if asked not in built]
            if not servers:
                return
        for asked in servers:
            self._report.wrong('next try', 'it is %s, and not built' %
                               judge.outcome(found[asked.server]),
                               asked.server)

    def _end(self):
        """Delete all, and see that nothing is left."""
        try:
            self._cloud.wake_up()
            self._each(self._cloud.delete, self._servers)
            self._settle(self._servers, self._settles,
                         lambda _asked, found: judge.left(found))
            for asked in self._servers:
                if self._cloud.unmake(asked):
                    continue
                # The release does not know what it has not stored yet.
                if asked.server in self._given_up:
                    self._report.count('ports of owners: their host was '
                                       'killed before it had stored them')
                else:
                    self._report.wrong('owner', 'the port that its owner had '
                                       'made is deleted', asked.server)
            for port in self._ports:
                self._cloud.delete_port(port)
            self._report.count(
                'volumes: their host was killed as it made them',
                self._cloud.delete_orphans(
                    {volume for asked in self._servers
                     for volume in asked.volumes}, self._hosts_killed_at))
            self._cloud.wait_for('the volumes and ports to be gone',
                                 lambda: not self._cloud.leaks(), 30)
        except AssertionError:
            for kind, sentence in self._cloud.leaks():
                self._report.wrong(kind, sentence)
        except Exception as error:
            self._report.wrong('end of a round', '%s: %s' % (
                type(error).__name__, error))

    def _each(self, function, servers):
        """Call a function with the ID of each server, at the same time."""
        return servers and self._cloud.at_once(*(
            functools.partial(function, asked.server) for asked in servers))


def _outcomes(found):
    """Return what has become of each server, by its ID."""
    return {server: judge.outcome(seen) for server, seen in found.items()}
