# SPDX-License-Identifier: Apache-2.0

"""The cloud whose services can be told where to fail."""

import contextlib
import os
import pathlib
import sys
import threading

from tools.cloud import errors
from tools.cloud import services
from tools.cloud import stack
from tools.crash import faults

#: [conductor] rebuild_in_cell0_timeout, in seconds.
TIMEOUT = 4

# [DEFAULT] rpc_response_timeout: how long the answer of a process that was
# killed is waited for.
_RPC_TIMEOUT = 30

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SERVICE = _ROOT / 'tools/crash/service.py'


class Services(services.Services):
    """Starts Nova's services with faults.

    :param timeout: [conductor] rebuild_in_cell0_timeout
    :param create_timeout: [conductor] interrupted_create_timeout
    :param rpc_timeout: [DEFAULT] rpc_response_timeout
    :param long_rpc_timeout: [DEFAULT] long_rpc_timeout: how long the bus
        keeps what a scheduler is asked for
    :param spacing: seconds between two runs of the recovery
    :param on_hosts: whether hosts have nova-pending, which they need not
    """

    wsgi_modules = {**services.Services.wsgi_modules,
                    'nova': 'tools.crash.wsgi'}

    def __init__(self, *args, timeout=TIMEOUT, create_timeout=60,
                 rpc_timeout=_RPC_TIMEOUT,
                 long_rpc_timeout=1800, spacing=1, on_hosts=False):
        super().__init__(*args)
        self._on_hosts = on_hosts
        self._timing = {
            'OS_CONDUCTOR__REBUILD_IN_CELL0_TIMEOUT': str(timeout),
            'OS_CONDUCTOR__INTERRUPTED_CREATE_TIMEOUT': str(create_timeout),
            'OS_DEFAULT__RPC_RESPONSE_TIMEOUT': str(rpc_timeout),
            'OS_DEFAULT__LONG_RPC_TIMEOUT': str(long_rpc_timeout),
            faults.RECOVERY_SPACING: str(spacing)}

    def program(self, name):
        if name not in faults.TARGETS:
            return super().program(name)
        argv = [sys.executable, '-P', _SERVICE, name]
        return (['env', 'NOVA_PENDING=off', *argv]
                if name == 'nova-compute' and not self._on_hosts else argv)

    def environment(self):
        directory = self._cloud.var / 'faults'
        directory.mkdir(exist_ok=True)
        inherited = super().environment()
        return {
            **inherited,
            'PYTHONPATH': os.pathsep.join(
                [str(_ROOT), *filter(None, [inherited.get('PYTHONPATH')])]),
            'PYTHONDONTWRITEBYTECODE': '1',
            faults.DIRECTORY: str(directory),
            **self._timing}


class Stack(stack.Stack):
    """A cloud with faults, and who starts again what was killed."""

    service_class = Services

    #: The services that are started again.
    names = ()

    def up(self, *args):
        super().up(*args)
        self.names = [process.name for process
                       in self.processes.running().values() if process.lasting]
        self._ended = threading.Event()
        self._supervisor = threading.Thread(
            target=self._supervise, name='supervisor', daemon=True)
        self._undo.callback(self._supervisor.join)
        self._undo.callback(self._ended.set)
        self._supervisor.start()

    def _supervise(self):
        """Start services again, as systemd does."""
        while not self._ended.wait(0.1):
            for name in self.names:
                process = self.processes.running().get(name)
                if not process or not process.alive:
                    with contextlib.suppress(errors.CloudError):
                        self.restart(name, lambda *_: None, waits=False)

    def find(self, service):
        # A service that did not come up again is to be started, too.
        return None if service in self.names else super().find(service)

    def kill(self, name):
        """Kill a service and its workers, if it runs."""
        process = self.processes.running().get(name)
        if process:
            process.kill()

    def pause(self, name):
        """End a service until it is resumed."""
        if name in self.names:
            self.names.remove(name)
        self.processes.stop({name})

    def resume(self, name):
        """Have a service started that was paused."""
        self.names.append(name)
