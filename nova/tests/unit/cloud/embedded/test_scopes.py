# SPDX-License-Identifier: Apache-2.0

"""Several services in one process."""

import concurrent.futures
import pathlib
import threading

import fixtures
import futurist
from oslo_config import cfg
import testtools

from tools.cloud.embedded import scopes


class ScopesTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        for pool in (concurrent.futures.ThreadPoolExecutor,
                     futurist.ThreadPoolExecutor):
            self.useFixture(fixtures.MonkeyPatch(
                '%s.ThreadPoolExecutor.submit' % pool.__module__,
                pool.submit))
        self.useFixture(fixtures.MonkeyPatch(
            'threading.Thread.start', threading.Thread.start))
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.conf = cfg.ConfigOpts()
        self.conf.register_opts([
            cfg.StrOpt('host', default='unset'),
            cfg.StrOpt('state_path', default='/var/$host'),
            cfg.BoolOpt('pending', default=False, mutable=True)])
        self.conf.register_opt(cfg.IntOpt('workers', default=1),
                               group='conductor')
        self.conf(['--config-file', str(self._file('control'))],
                  default_config_files=[])
        self.conf.__class__ = scopes.Configuration
        self.one = scopes.Scope(self._file('one', workers=7))
        self.two = scopes.Scope(self._file('two'))
        scopes.prepare()

    def _file(self, host, workers=None, pending=False):
        path = self.folder / (host + '.conf')
        path.write_text('[DEFAULT]\nhost = %s\npending = %s\n%s' % (
            host, pending,
            '[conductor]\nworkers = %d\n' % workers if workers else ''))
        return path

    def _host(self):
        return self.conf.host


class TestConfiguration(ScopesTestCase):

    def test_each_from_its_own_file(self):
        # Twice: what was read last is not what the next one finds.
        for _ in range(2):
            self.assertEqual('one', self.one.run(self._host))
            self.assertEqual('control', self._host())
            self.assertEqual('two', self.two.run(self._host))

    def test_substitution(self):
        def state_path():
            return self.conf.state_path

        self.assertEqual('/var/one', self.one.run(state_path))
        self.assertEqual('/var/control', state_path())
        self.assertEqual('control', self._host())

    def test_group(self):
        def workers():
            return self.conf.conductor.workers

        self.assertEqual(7, self.one.run(workers))
        self.assertEqual(1, self.two.run(workers))
        self.assertEqual(1, workers())

    def test_read_again(self):
        def pending():
            return self.conf.pending

        self._file('one', pending=True)
        self.assertFalse(self.one.run(pending))
        self.one.read()
        self.assertTrue(self.one.run(pending))
        self.assertFalse(self.two.run(pending))


class TestThreads(ScopesTestCase):

    def test_thread(self):
        found = []

        def look():
            found.append(self._host())

        def start():
            inner = threading.Thread(target=look)
            inner.start()
            inner.join()

        def start_two():
            outer = threading.Thread(target=start)
            outer.start()
            outer.join()

        self.one.run(start_two)
        start_two()
        self.assertEqual(['one', 'control'], found)

    def _test_pool(self, pool):
        # The one thread of the pool is started for the first of them.
        self.addCleanup(pool.shutdown)
        for scope, host in ((self.one, 'one'), (self.two, 'two'),
                            (self.one, 'one')):
            self.assertEqual(host, scope.run(
                lambda: pool.submit(self._host)).result())
        self.assertEqual('control', pool.submit(self._host).result())

    def test_pool(self):
        self._test_pool(concurrent.futures.ThreadPoolExecutor(1))

    def test_pool_of_futurist(self):
        self._test_pool(futurist.ThreadPoolExecutor(1))

    def test_pool_passes_arguments(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            self.assertEqual((1, {'fn': 2}), pool.submit(
                lambda *args, **kwargs: (*args, kwargs), 1, fn=2).result())


class TestValues(ScopesTestCase):

    def test_in_scopes(self):
        class Owner:
            api = scopes.InScopes('conductor')

        self.assertIsNone(Owner.api)
        self.assertIsNone(Owner().api)
        self.assertEqual('conductor', self.one.run(lambda: Owner.api))
        self.assertEqual('conductor', self.one.run(lambda: Owner().api))

    def test_in_scopes_as_a_truth(self):
        disabled = scopes.InScopes(True)
        self.assertFalse(bool(disabled))
        self.assertTrue(self.one.run(lambda: bool(disabled)))

    def test_each(self):
        calls = []

        @scopes.each
        def client():
            calls.append(self._host())
            return object()

        ones = {self.one.run(client) for _ in range(3)}
        twos = {self.two.run(client) for _ in range(3)}
        ours = {client() for _ in range(3)}
        self.assertEqual(['one', 'two', 'control'], calls)
        self.assertEqual(3, len(ones | twos | ours))
