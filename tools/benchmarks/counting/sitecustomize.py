# SPDX-License-Identifier: Apache-2.0

"""Notes what a process asks: SQL statements, RPC messages, HTTP requests.

Python imports this module at its start where PYTHONPATH has its directory. A
line holds the IDs of the request that is being served, what it was, and the
database, the topic or the host and port. What is counted is found without an
import: order matters to programs that patch the standard library first.
"""

import importlib.abc
import importlib.util
import os
import sys

PATH = os.environ.get('BENCHMARK_COUNTS')


def note(kind, detail, context=None):
    """Append a line to the file.

    :param kind: sql, call, cast, notification or http
    :param detail: the database, the topic of the message, or the host and
        port
    :param context: the context of the message, by default that of the thread
    """
    if context is None:
        from oslo_context import context as oslo_context
        current = oslo_context.get_current()
        context = current and {
            'request_id': current.request_id,
            'global_request_id': current.global_request_id}
    ids = context or {}
    os.write(_file, ('%s %s %s %s\n' % (
        ids.get('request_id'), ids.get('global_request_id'), kind,
        detail)).encode())


def count_statements(module):
    """Count what any engine of SQLAlchemy sends."""
    from sqlalchemy import engine
    from sqlalchemy import event

    @event.listens_for(engine.Engine, 'before_cursor_execute')
    def before(connection, *args):
        note('sql', connection.engine.url.database)


def count_messages(module):
    """Count what any transport of oslo.messaging sends."""
    send = module.Transport._send
    notify = module.Transport._send_notification

    def _send(self, target, ctxt, message, wait_for_reply=None, **kwargs):
        note('call' if wait_for_reply else 'cast', target.topic, ctxt)
        return send(self, target, ctxt, message,
                    wait_for_reply=wait_for_reply, **kwargs)

    def _send_notification(self, target, ctxt, *args, **kwargs):
        note('notification', target.topic, ctxt)
        return notify(self, target, ctxt, *args, **kwargs)

    module.Transport._send = _send
    module.Transport._send_notification = _send_notification


def count_requests(module):
    """Count what any session of keystoneauth sends."""
    from urllib import parse
    send = module.Session._send_request

    def _send_request(self, url, *args, **kwargs):
        note('http', parse.urlsplit(url).netloc)
        return send(self, url, *args, **kwargs)

    module.Session._send_request = _send_request


_AFTER = {
    'keystoneauth1.session': count_requests,
    'oslo_db.sqlalchemy.engines': count_statements,
    'oslo_messaging.transport': count_messages,
}


class _Finder(importlib.abc.MetaPathFinder):

    def find_spec(self, name, path=None, target=None):
        after = _AFTER.pop(name, None)
        if after is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            after(module)

        spec.loader.exec_module = exec_module
        return spec


if PATH:
    _file = os.open(PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    sys.meta_path.insert(0, _Finder())
