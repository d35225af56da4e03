# SPDX-License-Identifier: Apache-2.0

import socket
from unittest import mock

import sqlalchemy
import testtools

from tools.cloud import databases
from tools.cloud import errors


class DatabasesTestCase(testtools.TestCase):

    def statements(self, method):
        engine = mock.MagicMock()
        with mock.patch('sqlalchemy.create_engine', return_value=engine):
            getattr(databases.Databases(
                'mysql+pymysql://root@127.0.0.1:3306', 'cloud_1_'), method)()
        execute = engine.connect().__enter__().exec_driver_sql
        return [call.args[0] for call in execute.call_args_list]

    def test_url_of_a_service_names_its_database_and_keeps_the_rest(self):
        url = sqlalchemy.make_url(databases.Databases(
            'mysql+pymysql://us%40er:p%23w@db:3307', 'cloud_1_').url('nova'))
        self.assertEqual(
            ('us@er', 'p#w', 'db', 3307, 'cloud_1_nova'),
            (url.username, url.password, url.host, url.port, url.database))

    def test_every_database_bears_the_prefix_of_the_cloud(self):
        for method, verb in (('create', 'CREATE DATABASE'),
                             ('drop', 'DROP DATABASE IF EXISTS')):
            statements = self.statements(method)
            self.assertEqual(len(databases.NAMES), len(statements))
            for name, statement in zip(databases.NAMES, statements):
                self.assertIn('%s `cloud_1_%s`' % (verb, name), statement)

    def test_check_makes_nothing(self):
        self.assertEqual(['SELECT 1'], self.statements('check'))

    def test_statements_of_postgresql(self):
        server = databases.Databases(
            'postgresql+psycopg2://postgres@127.0.0.1:5432', 'cloud_1_',
            ['nova'])
        found = []
        server._execute = found.extend
        server.create()
        server.drop()
        self.assertEqual([
            'CREATE DATABASE "cloud_1_nova" ENCODING \'UTF8\' '
            'TEMPLATE template0',
            'DROP DATABASE IF EXISTS "cloud_1_nova" WITH (FORCE)'], found)
        self.assertEqual(
            'postgresql+psycopg2://postgres@127.0.0.1:5432/cloud_1_nova',
            server.url('nova'))

    def test_what_the_url_says_of_tls_is_for_the_services_too(self):
        server = databases.Databases(
            'mysql+pymysql://root@127.0.0.1?ssl_ca=/ca', 'x_')
        self.assertEqual(
            'mysql+pymysql://root@127.0.0.1/x_nova?'
            'charset=utf8mb3&ssl_ca=%2Fca', server.url('nova'))

    def test_what_is_no_url_of_a_database_is_refused(self):
        for url in ('', 'root@127.0.0.1', 'oracle://127.0.0.1/x',
                    'mysql+pymysql://127.0.0.1:port'):
            self.assertRaises(
                errors.BadArgument, databases.Databases, url, 'x_')

    def test_server_that_is_not_there_is_told_without_the_password(self):
        with socket.socket() as closed:
            closed.bind(('127.0.0.1', 0))
            url = 'mysql+pymysql://root:secret@127.0.0.1:%d' % (
                closed.getsockname()[1])
            error = self.assertRaises(
                errors.ServerMissing, databases.Databases(url, 'x_').check)
        self.assertEqual(1, error.exit_code)
        self.assertIn(url.replace('secret', '***'), str(error))
        self.assertIn('--database-url', str(error))
        self.assertNotIn('secret', str(error))
        self.assertNotIn('\n', str(error))
