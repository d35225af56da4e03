# SPDX-License-Identifier: Apache-2.0

"""Asks the API all the time what it shows of some servers."""

import collections
import contextlib
import threading
import time

from keystoneauth1 import exceptions


class Watch(contextlib.AbstractContextManager):
    """While it is entered, servers are shown and listed again and again.

    Each must be shown, and be once in the list, until ``may_go()``. A list is
    made of several databases, one after the other: it can miss a server that
    leaves cell0 meanwhile, and the next list must have it. A request while
    nova-api dies gets no answer, and so no wrong answer.

    :param cloud: the clouds.Cloud
    :param servers: the IDs of the servers
    :param pause: seconds between two looks
    :param may_fail: whether answers may say that nova-api failed: what asks a
        database as its connection is cut
    """

    def __init__(self, cloud, *servers, pause=0.4, may_fail=False):
        self._cloud = cloud
        self._pause = pause
        self._may_fail = may_fail
        self._servers = servers
        self._leaving = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: sentences on what was not as it should be
        self.wrong = []
        #: the statuses that each server was shown with, in their order
        self.statuses = collections.defaultdict(list)
        #: how many answers there were
        self.answers = 0

    def may_go(self, server):
        """Say that a server is about to be deleted."""
        self._leaving.add(server)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._end.set()
        self._thread.join()

    def _run(self):
        while not self._end.is_set():
            for look in (self._list, *(
                    [lambda server=server: self._show(server)
                     for server in self._servers])):
                try:
                    look()
                except exceptions.ConnectFailure:
                    continue
                except Exception as error:
                    self._note('the API fails: %s' % error)
            self._end.wait(self._pause)

    def _note(self, sentence):
        self.wrong.append('%s %s' % (
            time.strftime('%H:%M:%S'), sentence))

    def _ask(self, path):
        """Return an answer, None if it says that nova-api failed."""
        answer = self._cloud.request('nova', 'GET', path, fails=True)
        self.answers += 1
        if answer.status_code < 500:
            return answer
        if not self._may_fail:
            self._note('%s is answered with %d' % (path, answer.status_code))

    def _list(self):
        listed = self._count()
        if listed is None:
            return
        if any(self._is_missed(server, listed) for server in self._servers):
            again = self._count()
            if again is None:
                return
            # Each server must be in one of two lists, and in none twice.
            listed |= again
        for server in self._servers:
            if listed[server] > 1 or self._is_missed(server, listed):
                self._note('%s is listed %d times' % (server, listed[server]))

    def _count(self):
        """Return how often each server is listed, None without an answer."""
        answer = self._ask('/servers')
        return None if answer is None else collections.Counter(
            server['id'] for server in answer.json()['servers'])

    def _is_missed(self, server, listed):
        return not listed[server] and server not in self._leaving

    def _show(self, server):
        answer = self._ask('/servers/' + server)
        if answer is None:
            return
        if answer.ok:
            found = answer.json()['server']['status']
            seen = self.statuses[server]
            if not seen or seen[-1] != found:
                seen.append(found)
        elif answer.status_code != 404 or server not in self._leaving:
            self._note('%s is answered with %d' % (
                server, answer.status_code))
