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

"""Runs steps as soon as the steps that they need are done."""

import concurrent.futures
import graphlib
import time


class Plan:
    """Steps that need one another."""

    def __init__(self):
        self._functions = {}
        self._needs = {}

    def add(self, name, function, *needs):
        """Add a step.

        :param name: the name of the step
        :param function: called without arguments, in a thread of its own
        :param needs: the names of the steps that must be done before
        """
        self._functions[name] = function
        self._needs[name] = needs

    def run(self, done, abort):
        """Run all steps, those that do not need one another side by side.

        :param done: called with the name and the seconds of each step
        :param abort: called when a step fails or a signal comes, to end what
            the steps that still run are waiting for
        :raises: whatever the first step to fail raises
        """
        order = graphlib.TopologicalSorter(self._needs)
        order.prepare()
        with concurrent.futures.ThreadPoolExecutor(
                len(self._functions)) as pool:
            running = {}
            try:
                while order.is_active():
                    for name in order.get_ready():
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
