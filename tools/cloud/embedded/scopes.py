# SPDX-License-Identifier: Apache-2.0

"""Which service of a process a thread works for.

A process of Nova is one service, and keeps much of what it is in the modules:
its configuration, whether it may use the database, the identity of its node.
Here several services share a process, and each finds its own there. A thread
works for the service that started it, and so does what is given to a pool of
threads.
"""

import concurrent.futures
import contextvars
import functools
import threading

import futurist
from oslo_config import cfg

_scope = contextvars.ContextVar('scope', default=None)


class Scope:
    """One of the services of this process.

    Whatever no such service does is done by the process itself, with the
    configuration that it was started with.

    :param config_file: the path of the file of its configuration
    """

    def __init__(self, config_file):
        self._config_file = str(config_file)
        self.read()

    def read(self):
        """Read the file, again where its service is told to."""
        conf = cfg.ConfigOpts()
        conf(['--config-file', self._config_file], default_config_files=[])
        self.namespace = conf._namespace

    def run(self, function):
        """Call a function, and return what it returns, as this service."""
        context = contextvars.copy_context()
        context.run(_scope.set, self)
        return context.run(function)


class Configuration(cfg.ConfigOpts):
    """Answers each service from its own file.

    The options themselves are the same for all of them.
    """

    def _get(self, name, group=None, namespace=None):
        scope = _scope.get()
        if scope is None:
            return super()._get(name, group, namespace)
        # Not through the cache, which is the process's.
        return self._do_get(name, group, namespace or scope.namespace)[0]


class InScopes:
    """An attribute of a class, or a truth, that only services see.

    :param value: what the services of this process see; the process itself
        sees None
    """

    def __init__(self, value):
        self._value = value

    def __get__(self, instance, owner):
        return self._value if _scope.get() else None

    def __bool__(self):
        return bool(self.__get__(None, None))


def each(function):
    """Return a function that gives each service a result of its own.

    :param function: called without arguments, once for each service and once
        for the process itself, and never by two threads at a time
    """
    lock = threading.Lock()
    results = {}

    @functools.wraps(function)
    def wrapper():
        scope = _scope.get()
        with lock:
            if scope not in results:
                results[scope] = function()
            return results[scope]

    return wrapper


def prepare():
    """Let threads work for the service that started them.

    To be called before any of the services is started.
    """
    threading.Thread.start = _start(threading.Thread.start)
    for pool in (concurrent.futures.ThreadPoolExecutor,
                 futurist.ThreadPoolExecutor):
        pool.submit = _submit(pool.submit)


def _start(released):
    @functools.wraps(released)
    def start(self):
        self.run = functools.partial(contextvars.copy_context().run, self.run)
        released(self)

    return start


def _submit(released):
    @functools.wraps(released)
    def submit(self, function, /, *args, **kwargs):
        return released(self, contextvars.copy_context().run, function,
                        *args, **kwargs)

    return submit
