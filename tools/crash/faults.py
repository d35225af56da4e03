# SPDX-License-Identifier: Apache-2.0

"""Lets a service fail at a function, when a file says so.

Each of TARGETS is wrapped. When the service comes to one of them it looks in
the directory DIRECTORY for a file of that name, which arm() writes. A fault
is used once: a service that is started again does not fail again.
"""

import functools
import importlib
import inspect
import json
import os
import pathlib
import signal
import socket
import threading
import time

#: The variable of the environment that names the directory.
DIRECTORY = 'CRASH_DIRECTORY'

#: The name of a file without which no periodic recovery runs.
RECOVERY = 'recovery-runs'

#: The variable that says how many seconds are between two runs of the
#: periodic recovery. In a cloud there are 60.
RECOVERY_SPACING = 'CRASH_RECOVERY_SPACING'

_TASKS = 'nova.conductor.manager:ComputeTaskManager.'
_BUILD = 'nova.conductor.manager:_RebuildTaskManager.'
_BUILD_REQUEST = 'nova.objects.build_request:BuildRequest.'
_RECORD = 'nova.objects.unbuilt_instance:'
_RETURN = 'nova.conductor.tasks.return_to_cell0:'

#: The functions at which a service can fail, by the service.
TARGETS = {
    'nova-api': (
        'nova.compute.rebuild_request:Request.check',
        _BUILD_REQUEST + 'create_in_place_of_mapping',
        _RECORD + 'destroy_unchanged',
        'nova.compute.rebuild_in_cell0:_move',
        _BUILD_REQUEST + '_save_lease',
        _BUILD_REQUEST + '_delete_all_rows',
        'nova.conductor.rpcapi:ComputeTaskAPI.rebuild_instance_in_cell0',
    ),
    'nova-conductor': (
        _TASKS + 'rebuild_instance_in_cell0',
        _TASKS + 'schedule_and_build_instances',
        _TASKS + '_recheck_quota',
        _TASKS + '_map_instance_to_cell',
        _BUILD + '_schedule_instances',
        _BUILD + '_create_block_device_mapping',
        _BUILD + '_delete_build_request',
        _BUILD + '_bury_in_cell0',
        _BUILD_REQUEST + 'take',
        _BUILD_REQUEST + 'convert_to_mapping',
        _RECORD + 'purge',
        _RETURN + '_create_record',
        'nova.compute.rpcapi:ComputeAPI.build_and_run_instance',
        'nova.scheduler.client.query:SchedulerQueryClient.'
        'select_destinations',
        'nova.scheduler.allocations:delete',
    ),
    'nova-compute': (
        'nova.compute.manager:ComputeManager.build_and_run_instance',
        'nova.compute.manager:ComputeManager._build_and_run_instance',
        'nova.virt.fake:FakeDriver.spawn',
    ),
    'nova-reaper': (
        'nova_reaper.act.holds:Holds.take',
        'nova_reaper.act.holds:Holds.swap',
        'nova_reaper.act.holds:Holds.give_back',
        'nova_reaper.act.ending:Victims.notify',
        'nova_reaper.clients.nova:Nova.stop',
        'nova_reaper.clients.nova:Nova.force_delete',
        'nova_reaper.clients.nova:Nova.shelve',
        'nova_reaper.clients.nova:Nova.unshelve',
        'nova_reaper.clients.nova:Owners.rebuild',
    ),
}

# How long the first of several requests waits for the others.
_PATIENCE = 60

_cut = threading.local()


# In the tests.

def arm(directory, where, how, count=1):
    """Tell the services to fail.

    :param directory: the directory that they look in
    :param where: 'before' or 'after' and one of TARGETS; 'in' for a database
    :param how: 'kill'; 'hold', until disarm(); 'timeout' or 'undelivered' of
        a message; 'statement', 'commit' or 'answer': the database goes away
        before the first statement, before the commit, or before the commit is
        answered
    :param count: how many requests must have come there; the first waits for
        the others before the process is killed
    """
    path = pathlib.Path(directory, where)
    # What an earlier fault at the same place has left.
    for left in path.parent.glob(path.name + '.*'):
        left.unlink()
    written = path.with_name('.' + path.name)
    written.write_text(json.dumps({'how': how, 'count': count}))
    written.rename(path)


def disarm(directory):
    """Forget all faults, also faults that no service has reached."""
    for path in pathlib.Path(directory).glob('* *'):
        path.unlink()


def reached(directory, where):
    """Say whether all requests that were to fail at a place have failed."""
    return pathlib.Path(directory, where + '.reached').exists()


# In a service.

def install(service):
    """Wrap the functions of a service.

    :param service: one of TARGETS
    """
    for target in TARGETS[service]:
        module, _, path = target.partition(':')
        owner = importlib.import_module(module)
        *classes, name = path.split('.')
        for each in classes:
            owner = getattr(owner, each)
        function = inspect.getattr_static(owner, name)
        static = isinstance(function, staticmethod)
        # uwsgi starts a worker again, nobody starts nova-conductor again.
        wrapped = _wrap(target, function.__func__ if static else function,
                        whole=service != 'nova-api')
        setattr(owner, name, staticmethod(wrapped) if static else wrapped)
    _listen()


def hasten_recovery():
    """Let the periodic recovery run often, and only while a file says so."""
    from nova.conductor import manager
    task = manager.ConductorManager._recover_builds

    @functools.wraps(task)
    def gated(*args, **kwargs):
        if _path(RECOVERY).exists():
            task(*args, **kwargs)

    gated._periodic_spacing = int(os.environ[RECOVERY_SPACING])
    owner = manager.ConductorManager
    owner._recover_builds = gated
    # The class has looked for its periodic tasks when it was made.
    owner._periodic_tasks = [
        (name, each) for name, each in owner._periodic_tasks
        if name != gated._periodic_name]
    owner._add_periodic_task(gated)


def _path(name):
    return pathlib.Path(os.environ[DIRECTORY], name)


def _wrap(target, function, whole):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        _fail('before ' + target, whole)
        with _Cut(_take('in ' + target)):
            result = function(*args, **kwargs)
        _fail('after ' + target, whole)
        return result
    return wrapped


def _take(where):
    """Return how this request is to fail at a place, None if it is not."""
    path = _path(where)
    try:
        fault = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    for number in range(fault['count']):
        try:
            _path('%s.%d' % (where, number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        if number + 1 == fault['count']:
            path.rename(_path(where + '.reached'))
        return fault['how']
    return None


def _fail(where, whole):
    how = _take(where)
    if how == 'kill':
        deadline = time.monotonic() + _PATIENCE
        while (_path(where).exists() and time.monotonic() < deadline):
            time.sleep(0.02)
        _path(where).unlink(missing_ok=True)
        if whole:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == 'hold':
        while _path(where).exists() or _path(where + '.reached').exists():
            time.sleep(0.02)
    elif how is not None:
        import oslo_messaging
        raise {'timeout': oslo_messaging.MessagingTimeout,
               'undelivered': oslo_messaging.MessageDeliveryFailure}[how]()


class _Cut:
    """While it is entered, this thread has no way to any database.

    A wrapped function leaves the fault of a wrapped function that calls it as
    that fault is.
    """

    def __init__(self, how):
        self._how = how

    def __enter__(self):
        self._before = getattr(_cut, 'how', None)
        _cut.how = self._how or self._before

    def __exit__(self, *exc_info):
        _cut.how = self._before


def _listen():
    from sqlalchemy import engine
    from sqlalchemy.engine import default
    from sqlalchemy import event

    @event.listens_for(engine.Engine, 'before_cursor_execute')
    def before(connection, cursor, *args):
        if getattr(_cut, 'how', None) == 'statement':
            _hang_up(cursor.connection)

    commit = default.DefaultDialect.do_commit

    def do_commit(dialect, connection):
        how = getattr(_cut, 'how', None)
        if how == 'answer':
            commit(dialect, connection)
        if how in ('commit', 'answer'):
            _hang_up(getattr(connection, 'dbapi_connection', connection))
        commit(dialect, connection)

    default.DefaultDialect.do_commit = do_commit


def _hang_up(connection):
    # What PyMySQL sends after this fails as if the server had gone.
    connection._sock.shutdown(socket.SHUT_RDWR)
