# SPDX-License-Identifier: Apache-2.0

"""Runs steps as soon as the steps that they need are done."""

import concurrent.futures
import graphlib
import time


class Plan:
    """Steps that need one another."""

    def __init__(self):
        self._functions = {}
        self._needs = {}
        #: The names of the steps that are never to be done twice.
        self.once = set()

    def __iter__(self):
        return iter(self._functions)

    def add(self, name, function, *needs, once=False):
        """Add a step.

        :param name: the name of the step
        :param function: called without arguments, in a thread of its own
        :param needs: the names of the steps that must be done before
        :param once: whether it is never to be done twice on the same data
        """
        self._functions[name] = function
        self._needs[name] = needs
        if once:
            self.once.add(name)

    def needing(self, name):
        """Return the names of the steps that need a step themselves."""
        return {each for each, needs in self._needs.items() if name in needs}

    def run(self, done, abort, names=None, started=lambda name: None):
        """Run steps, those that do not need one another side by side.

        :param done: called with the name and the seconds of each step
        :param abort: called when a step fails or a signal comes, to end what
            the steps that still run are waiting for
        :param names: the steps to run, all if not given; what they need
            beside them is done already
        :param started: called with the name of each step that begins
        :raises: whatever the first step to fail raises
        """
        chosen = set(self._functions if names is None else names)
        order = graphlib.TopologicalSorter({
            name: chosen.intersection(self._needs[name]) for name in chosen})
        order.prepare()
        with concurrent.futures.ThreadPoolExecutor(
                max(1, len(chosen))) as pool:
            running = {}
            try:
                while order.is_active():
                    for name in order.get_ready():
                        started(name)
                        future = pool.submit(_timed, self._functions[name])
                        running[future] = name
                    finished, _ = concurrent.futures.wait(
                        running,
                        return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in finished:
                        name = running.pop(future)
                        done(name, future.result())
                        order.done(name)
            except BaseException:
                abort()
                raise


def _timed(function):
    start = time.monotonic()
    function()
    return time.monotonic() - start
