# SPDX-License-Identifier: Apache-2.0

"""Waiting is the choice of the owner: which servers the reaper builds."""

import dataclasses

from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import tests
from nova_reaper.tests import test_engine

TIME = timeutils.utcnow(True)

# Property, metadata, whether its owner asked Nova; whether it is built where
# the option says "asked", and where it says "all".
CASES = (
    (None, None, False, False, True),
    (None, None, True, True, True),
    ('asked', None, False, False, False),
    ('asked', None, True, True, True),
    ('all', None, False, True, True),
    ('never', None, True, False, False),
    ('never', 'true', False, True, True),
    ('all', 'false', True, False, False),
    (None, 'true', False, True, True),
    (None, 'false', True, False, False),
    ('nonsense', 'nonsense', False, False, True))


class WaitTestCase(tests.TestCase):
    """What flavor, project, metadata and option say together."""

    def test_who_goes_before_whom(self) -> None:
        for said, metadata, asked, *expected in CASES:
            server = nova.NovaServer(
                'w', 'w', 'p', 'u', 'PENDING', None, '',
                nova.Flavor('f', 1, 1, 0, extra_specs={
                    'reaper:wait': said} if said else {}), '',
                TIME, TIME, None,
                {'reaper:wait': metadata} if metadata else {}, False)
            waiting = model.Waiting(
                'w', model.Shape(()), TIME, asked=asked,
                wait=shapes.wait(server, {}))
            self.assertEqual(expected, [waiting.is_wanted(wait) for wait
                                        in (model.Wait.ASKED, model.Wait.ALL)],
                             (said, metadata, asked))
            # The owner of a server in ERROR may have asked in the past.
            self.assertEqual(
                waiting.wait is not model.Wait.NEVER, dataclasses.replace(
                    waiting, failed=True).is_wanted(model.Wait.ASKED))
            if waiting.wait:
                self.assertEqual(waiting.wait, shapes.wait(
                    server, {'reaper:wait': 'all'}))

    def test_a_shelved_server_comes_back(self) -> None:
        waiting = model.Waiting('w', model.Shape(()), TIME, asked=False,
                                shelved=True, wait=model.Wait.NEVER)
        self.assertTrue(waiting.is_wanted(model.Wait.ASKED))


class AskedTestCase(test_engine.EngineTestCase):
    """The reaper works for those who have asked."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)

    def test_a_client_that_gave_up(self) -> None:
        unasked = self.nova.add_server('w', 4, asked=False)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.turns()
        self.assertEqual(('PENDING', 'ACTIVE'),
                         (self.status(unasked), self.status(victim)))
        self.assertEqual([], self.actions())
        entry = self.shown.entry(unasked)
        assert entry
        shown = entry.to_dict(True)
        self.assertEqual((None, 'not_asked'),
                         (shown['position'], shown['hindrance']))
        self.assertIn('reaper:wait=true', shown['detail'])
        self.assertEqual(1, self.value('pending', state='pending',
                                       reason='not_asked'))
        # An alarm would wake an operator for a server that its owner has
        # given up.
        self.assertEqual(0, self.value('oldest_pending_seconds',
                                       state='pending'))
        self.nova.servers[self.nova.add_server('v', 16)]['created'] = (
            self.nova.servers[unasked]['created'])
        self.offset += 600
        self.turns(20, 5)
        self.assertLess(600, self.value('oldest_pending_seconds',
                                        state='pending'))

    def test_one_that_asks_later(self) -> None:
        unasked = self.nova.add_server('w', 4, asked=False)
        asked = self.nova.add_server('x', 4)
        self.turns()
        self.assertEqual(('PENDING', 'ACTIVE'),
                         (self.status(unasked), self.status(asked)))
        # It was rebuilt at 2.106, in vain.
        self.nova.servers[unasked]['asked'] = True
        self.turns(20, 5)
        self.assertEqual('ACTIVE', self.status(unasked))
        self.assertEqual({}, self.engine.world.not_asked)

    def test_all(self) -> None:
        unasked = self.nova.add_server('w', 4, asked=False)
        self.turns(10)
        self.conf.set_override('wait', 'all', 'reaper')
        self.turns()
        self.assertEqual('ACTIVE', self.status(unasked))

    def test_asked_for_in_vain_from_now_on(self) -> None:
        self.conf.set_override('wait', 'all', 'reaper')
        unasked = self.nova.add_server('w', 16, asked=False)
        self.turns(10)
        self.assertIn(unasked, self.engine.world.queue)
        self.conf.set_override('wait', 'asked', 'reaper')
        self.turns(10)
        self.assertNotIn(unasked, self.engine.world.queue)
        self.assertIn(unasked, self.engine.world.not_asked)

    def test_given_up_where_the_operator_wants_that(self) -> None:
        unasked = self.nova.add_server('w', 4, asked=False)
        self.turns(10)
        self.conf.set_override('pending_timeout', 60, 'reaper')
        self.turns(20, 5)
        self.assertEqual('ERROR', self.status(unasked))
        self.assertEqual(1, self.value('given_up_total', reason='deadline'))
