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

"""One is active, others stand by."""

import socket
import threading
import time
from unittest import mock

import fixtures
import tooz
from tooz import coordination

from nova_reaper import coordinate
from nova_reaper import tests
from nova_reaper.tests import cloud


class CoordinatorTestCase(tests.TestCase):
    """With the lock of files, which needs no server."""

    def url(self) -> str:
        directory = self.useFixture(fixtures.TempDir()).path
        return f'file://{directory}'

    def coordinator(self, url: str | None) -> coordinate.Coordinator:
        conf = cloud.configuration()
        conf.set_override('backend_url', url, 'coordination')
        conf.set_override('check_interval', 0.1, 'coordination')
        conf.set_override('lock_name', self.id(), 'coordination')
        made = coordinate.Coordinator(conf)
        made.start()
        self.addCleanup(made.stop)
        return made

    def test_a_single_one(self) -> None:
        self.assertTrue(self.coordinator(None).active.is_set())

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
        end = time.monotonic() + 10
        while one.error is None and time.monotonic() < end:
            time.sleep(0.05)
        self.assertIsNotNone(one.error)
        self.assertFalse(one.active.is_set())


class RedisTestCase(CoordinatorTestCase):
    """With Redis, which expires the lock of one that has died."""

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


class LeaseTestCase(tests.TestCase):
    """With a driver that does not see that its lease has expired (etcd)."""

    def test_a_heartbeat_that_comes_too_late(self) -> None:
        backend = mock.Mock()
        backend.heartbeat.return_value = 30.0
        lock = backend.get_lock.return_value
        lock.is_still_owner.side_effect = tooz.NotImplemented
        conf = cloud.configuration()
        conf.set_override('backend_url', 'etcd3+http://etcd', 'coordination')
        one = coordinate.Coordinator(conf)
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
