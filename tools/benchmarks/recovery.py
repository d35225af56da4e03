# SPDX-License-Identifier: Apache-2.0

"""What an idle run of the recovery costs a large cloud.

    python tools/benchmarks/recovery.py [--url mysql+pymysql://root@host]

Databases of its own are made on a MariaDB, filled as those of a cloud of a
million servers, and dropped in the end. Printed are, while none is being
rebuilt and while some are that it is too early to recover, the times of whole
runs and each statement with what EXPLAIN says of it. Nothing is asserted.
"""

import argparse
import statistics
import time
from unittest import mock

import sqlalchemy as sa

from nova.conductor.tasks import recover_builds
import nova.conf
from nova import config
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db import migration
from nova import objects

CONF = nova.conf.CONF

_NAMES = {'api': 'nova_pending_bench_api',
          'main': 'nova_pending_bench_cell0',
          'cell1': 'nova_pending_bench_cell1'}

_CELL1 = '11111111-1111-4111-8111-111111111111'

_FILL = {'api': (
    "INSERT INTO cell_mappings (id, uuid, name, transport_url, "
    "database_connection, disabled) VALUES "
    "(1, '%(cell0)s', 'cell0', 'none:///', '%(url)s', 0), "
    "(2, '%(cell1)s', 'cell1', 'none:///', '%(url1)s', 0)",
    "INSERT INTO instance_mappings (created_at, updated_at, instance_uuid, "
    "cell_id, project_id, user_id, queued_for_delete) "
    "SELECT NOW() - INTERVAL seq SECOND, NOW() - INTERVAL seq SECOND, "
    "CONCAT('00000000-0000-4000-8000-', LPAD(seq, 12, '0')), 2, "
    "MOD(seq, 1000), 'u', 0 FROM seq_1_to_%(mappings)d",
    "INSERT INTO request_specs (created_at, instance_uuid, spec) "
    "SELECT NOW(), CONCAT('00000000-0000-4000-8000-', LPAD(seq, 12, '0')), "
    "REPEAT('{\"flavor\": 1}', 231) FROM seq_1_to_%(specs)d",
    "INSERT INTO build_requests (created_at, instance_uuid, project_id, "
    "instance, block_device_mappings, tags) SELECT NOW(), CONCAT("
    "'10000000-0000-4000-8000-', LPAD(seq, 12, '0')), 'p', "
    "REPEAT('x', 5000), '{}', '{\"nova_object.name\": \"TagList\"}' "
    "FROM seq_1_to_%(requests)d",
), 'main': (
    "INSERT INTO instances (created_at, updated_at, uuid, deleted, vm_state, "
    "project_id) SELECT NOW() - INTERVAL seq SECOND, "
    "NOW() - INTERVAL seq SECOND, CONCAT('20000000-0000-4000-8000-', "
    "LPAD(seq, 12, '0')), 0, 'pending', 'p' FROM seq_1_to_%(waiting)d",
), 'cell1': (
    "INSERT INTO instances (created_at, updated_at, uuid, deleted, vm_state, "
    "task_state, host, launched_at, project_id) SELECT "
    "NOW() - INTERVAL seq SECOND, NOW() - INTERVAL seq SECOND, "
    "CONCAT('30000000-0000-4000-8000-', LPAD(seq, 12, '0')), 0, "
    # 1,000 servers are in BUILD, 200 of them on no host yet. A tenth of the
    # other servers is shelved, and on no host.
    "IF(seq > 1000, IF(MOD(seq, 10), 'active', 'shelved_offloaded'), "
    "'building'), "
    "IF(seq > 1000, NULL, IF(seq > 200, 'spawning', 'scheduling')), "
    "IF(seq > 1000 AND MOD(seq, 10) OR seq BETWEEN 201 AND 1000, 'h', NULL), "
    "IF(seq > 1000, NOW(), NULL), 'p' FROM seq_1_to_%(servers)d",
)}

# Rebuilds that a conductor began just now.
_BEGIN = (
    "INSERT INTO build_requests (created_at, updated_at, instance_uuid, "
    "project_id, instance, block_device_mappings, tags) SELECT NOW(), "
    "UTC_TIMESTAMP(), CONCAT('30000000-0000-4000-8000-', "
    "LPAD(seq, 12, '0')), 'p', REPEAT('x', 5000), '{}', "
    "'{\"nova_pending\": {\"owner\": null}}' FROM seq_1_to_%d")

_END = "DELETE FROM build_requests WHERE instance_uuid LIKE '30000000-%%'"


def make(server, sizes):
    """Make and fill the databases.

    :returns: a dict of their URLs
    """
    urls = {kind: server.url.set(database=name)
            for kind, name in _NAMES.items()}
    with server.begin() as connection:
        for name in _NAMES.values():
            connection.exec_driver_sql('CREATE DATABASE ' + name)
    values = dict(sizes, cell0=objects.CellMapping.CELL0_UUID, cell1=_CELL1,
                  url=urls['main'].render_as_string(hide_password=False),
                  url1=urls['cell1'].render_as_string(hide_password=False))
    for kind, url in urls.items():
        engine = sa.create_engine(url)
        with mock.patch.object(migration, '_get_engine', return_value=engine):
            migration.db_sync(database='api' if kind == 'api' else 'main')
        with engine.begin() as connection:
            for statement in _FILL[kind]:
                connection.exec_driver_sql(
                    (statement % values).replace('%', '%%'))
        with engine.begin() as connection:
            for table in sa.inspect(engine).get_table_names():
                connection.exec_driver_sql('ANALYZE TABLE ' + table)
        engine.dispose()
    return urls


def run(context):
    """Do what the periodic task does, and return the seconds."""
    begin = time.perf_counter()
    # The turn of a minute ago is over.
    recover_builds.run_in_turn(context, None, -60)
    return time.perf_counter() - begin


def explain(connection, statement, parameters):
    for row in connection.exec_driver_sql('EXPLAIN ' + statement, parameters):
        row = row._mapping
        print('      %s: type %s, key %s, rows %s, %s' % (
            row['table'], row['type'], row['key'], row['rows'], row['Extra']))


def measure_runs(context, runs, begun):
    """Print what runs take while so many rebuilds have begun."""
    seconds = [run(context) for _number in range(runs)]
    print('%d rebuilds begun: median %.1f ms, longest %.1f ms, of %d' % (
        begun, statistics.median(seconds) * 1000, max(seconds) * 1000, runs))
    statements = []
    record = sa.event.listens_for(sa.Engine, 'before_cursor_execute')(
        lambda connection, _cursor, statement, parameters, *_args:
        statements.append((connection.engine.url, statement, parameters)))
    run(context)
    sa.event.remove(sa.Engine, 'before_cursor_execute', record)
    for url, statement, parameters in statements:
        if not statement.startswith(('SELECT', 'UPDATE', 'INSERT')):
            continue
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            begin = time.perf_counter()
            if statement.startswith('SELECT'):
                connection.exec_driver_sql(statement, parameters).all()
            print('   %.1f ms: %s' % (
                (time.perf_counter() - begin) * 1000,
                ' '.join(statement.split())[:300]))
            if not statement.startswith('INSERT'):
                explain(connection, statement, parameters)
        engine.dispose()


def measure(urls, runs):
    config.parse_args(['recovery'], default_config_files=[],
                      configure_db=False)
    CONF.set_override('connection', urls['api'].render_as_string(
        hide_password=False), 'api_database')
    api_db_api.configure(CONF)
    context = nova_context.get_admin_context()
    run(context)
    for begun in (0, 100, 1000):
        engine = sa.create_engine(urls['api'])
        with engine.begin() as connection:
            connection.exec_driver_sql(_END)
            if begun:
                connection.exec_driver_sql(_BEGIN % begun)
            connection.exec_driver_sql('ANALYZE TABLE build_requests')
        engine.dispose()
        measure_runs(context, runs, begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--url', default='mysql+pymysql://root@127.0.0.1')
    parser.add_argument('--runs', type=int, default=20)
    parser.add_argument('--mappings', type=int, default=1000000)
    parser.add_argument('--specs', type=int, default=300000)
    parser.add_argument('--requests', type=int, default=1000,
                        help='build requests of servers that are created')
    parser.add_argument('--waiting', type=int, default=100000,
                        help='servers that wait in cell0')
    parser.add_argument('--servers', type=int, default=100000,
                        help='servers in another cell, of which 1000 build')
    arguments = vars(parser.parse_args())
    objects.register_all()
    server = sa.create_engine(arguments.pop('url'))
    runs = arguments.pop('runs')
    try:
        begin = time.perf_counter()
        urls = make(server, arguments)
        print('%s, made in %.0f s' % (arguments, time.perf_counter() - begin),
              flush=True)
        measure(urls, runs)
    finally:
        with server.begin() as connection:
            for name in _NAMES.values():
                connection.exec_driver_sql('DROP DATABASE IF EXISTS ' + name)


if __name__ == '__main__':
    main()
