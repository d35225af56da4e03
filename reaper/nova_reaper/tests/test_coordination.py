# SPDX-License-Identifier: Apache-2.0

"""A single reaper is active, others stand by."""

from collections.abc import Callable
import shutil
import signal
import socket
import subprocess
import threading
import time
from typing import Any
from unittest import mock
import urllib.request

import fixtures
import tooz
from tooz import coordination

from nova_reaper import service
from nova_reaper import tests
from nova_reaper.tests import fakes


class CoordinatorTestCase(tests.TestCase):
    """With the lock of files, which needs no server."""

    def url(self) -> str:
        directory = self.useFixture(fixtures.TempDir()).path
        return f'file://{directory}'

    def coordinator(self, url: str | None) -> service.Coordinator:
        conf = fakes.configuration()
        conf.set_override('backend_url', url, 'coordination')
        conf.set_override('check_interval', 0.1, 'coordination')
        conf.set_override('lock_name', self.id(), 'coordination')
        made = service.Coordinator(conf)
        made.start()
        self.addCleanup(made.stop)
        return made

    def wait_until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not ready():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_a_single_one(self) -> None:
        self.assertTrue(self.coordinator(None).active.is_set())

    def test_one_that_is_the_first_is_active_at_once(self) -> None:
        get = coordination.get_coordinator

        def late(*arguments: Any) -> Any:
            time.sleep(0.5)
            return get(*arguments)

        url = self.url()
        with mock.patch.object(coordination, 'get_coordinator', late):
            self.assertTrue(self.coordinator(url).active.is_set())

    def test_the_second_takes_over(self) -> None:
        url = self.url()
        first = self.coordinator(url)
        self.assertTrue(first.active.wait(10))
        second = self.coordinator(url)
        self.assertFalse(second.active.wait(0.5))
        first.stop()
        self.assertFalse(first.active.is_set())
        self.assertTrue(second.active.wait(10))

    def test_a_backend_that_does_not_answer(self) -> None:
        one = self.coordinator('file:///proc/nothing/can/be/made')
        self.wait_until(lambda: one.error is not None)
        self.assertFalse(one.active.is_set())


class RedisTestCase(CoordinatorTestCase):
    """With Redis, which expires the lock of a reaper that has died."""

    def setUp(self) -> None:
        super().setUp()
        try:
            socket.create_connection(('127.0.0.1', 6379), 1).close()
        except OSError as error:
            self.do_without('There is no Redis on 127.0.0.1: %s' % error)

    def url(self) -> str:
        return 'redis://127.0.0.1:6379'

    def test_the_lock_is_lost(self) -> None:
        import redis
        one = self.coordinator(self.url())
        self.assertTrue(one.active.wait(10))
        server = redis.Redis()
        keys = [key for key in server.keys('*')
                if self.id().encode() in key]
        self.assertTrue(keys)
        lost, lose = threading.Event(), one._lost

        def tell(why: str) -> None:
            lose(why)
            lost.set()

        with mock.patch.object(one, '_lost', tell):
            server.delete(*keys)
            self.assertTrue(lost.wait(60))


class EtcdTestCase(CoordinatorTestCase):
    """With an etcd of the test's own, whose leases last five seconds."""

    def setUp(self) -> None:
        super().setUp()
        etcd = shutil.which('etcd') or ''
        if not etcd:
            self.do_without('etcd is missing; it is in the package '
                            '"etcd-server" of Debian.')
        self.server, peers = self.addresses(2)
        self.process = subprocess.Popen(
            [etcd, '--data-dir', self.useFixture(fixtures.TempDir()).path,
             '--listen-client-urls', f'http://{self.server}',
             '--advertise-client-urls', f'http://{self.server}',
             '--listen-peer-urls', f'http://{peers}',
             '--initial-advertise-peer-urls', f'http://{peers}',
             '--initial-cluster', f'default=http://{peers}'],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.wait_until(self.answers)

    @staticmethod
    def addresses(number: int) -> list[str]:
        sockets = [socket.create_server(('127.0.0.1', 0))
                   for _ in range(number)]
        try:
            return ['%s:%d' % each.getsockname() for each in sockets]
        finally:
            for each in sockets:
                each.close()

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                    f'http://{self.server}/health', timeout=5) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def url(self) -> str:
        return f'etcd3+http://{self.server}?timeout=5'

    def test_one_that_dies(self) -> None:
        first = self.coordinator(self.url())
        self.assertTrue(first.active.wait(10))
        second = self.coordinator(self.url())
        with mock.patch.object(first, '_close'):
            first.stop()
        self.assertTrue(second.active.wait(60))

    def test_one_that_hangs_beyond_its_lease(self) -> None:
        first = self.coordinator(self.url())
        self.assertTrue(first.active.wait(10))
        second = self.coordinator(self.url())
        beat = first._backend.heartbeat

        def late() -> int:
            second.active.wait(60)
            return int(beat())

        with mock.patch.object(first._backend, 'heartbeat', late):
            self.assertTrue(second.active.wait(60))
            self.wait_until(lambda: not first.active.is_set())
        # What it gives back as it ends is no longer its own.
        time.sleep(0.5)
        self.assertTrue(second.active.is_set())
        self.assertFalse(first.active.is_set())

    def test_the_server_hangs(self) -> None:
        one = self.coordinator(self.url())
        self.assertTrue(one.active.wait(10))
        self.process.send_signal(signal.SIGSTOP)
        self.wait_until(lambda: not one.active.is_set())
        self.assertIsNotNone(one.error)
        self.process.send_signal(signal.SIGCONT)
        self.assertTrue(one.active.wait(60))
        self.wait_until(lambda: one.error is None)


class LeaseTestCase(tests.TestCase):
    """With a driver that does not see that its lease has expired (etcd)."""

    def test_a_heartbeat_that_comes_too_late(self) -> None:
        backend = mock.Mock()
        backend.heartbeat.return_value = 30.0
        lock = backend.get_lock.return_value
        lock.is_still_owner.side_effect = tooz.NotImplemented
        conf = fakes.configuration()
        conf.set_override('backend_url', 'etcd3+http://etcd', 'coordination')
        one = service.Coordinator(conf)
        now = 1000.0
        with mock.patch.object(time, 'monotonic', lambda: now), (
                mock.patch.object(coordination, 'get_coordinator',
                                  return_value=backend)):
            one._turn()
            now += 29
            one._turn()
            self.assertTrue(one.active.is_set())
            now += 30
            one._turn()
            self.assertFalse(one.active.is_set())
            lock.release.assert_called_once_with()
            lock.acquire.return_value = False
            one._turn()
        self.assertFalse(one.active.is_set())
