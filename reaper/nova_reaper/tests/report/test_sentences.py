# SPDX-License-Identifier: Apache-2.0

"""One sentence for each: why, what the owner can do, what follows."""

import dataclasses
import datetime
import re

from nova_reaper.cloud import model
from nova_reaper.report import answers
from nova_reaper import tests

TIME = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
PRESS = 'Wait until there is room and rebuild the server.'


def entry(reason: model.Reason | None = model.Reason.NO_ROOM,
          hindrance: model.Hindrance | None = None, **others: object
          ) -> answers.Entry:
    decision = model.Decision(
        'w', model.Verdict.WAIT, reason=reason, hindrance=hindrance,
        detail='812 of 1000 hosts could take it; the largest host has 96.')
    return dataclasses.replace(answers.Entry(
        model.Waiting('w', model.Shape(()), TIME), 3, 40, None, None,
        'waiting', decision, TIME, model.Mode.FILL, PRESS),
        **others)  # type: ignore[arg-type]


class SentencesTestCase(tests.TestCase):

    def test_each_fact_has_its_own(self) -> None:
        for reason in (None, *model.Reason):
            for hindrance in (None, *model.Hindrance):
                if reason is model.Reason.QUOTA:
                    continue
                shown = entry(reason, hindrance).to_dict(False, False)
                self.assertEqual(
                    (reason, hindrance),
                    (shown['reason'], shown['hindrance']))
                if hindrance is not model.Hindrance.NOT_ASKED:
                    self.assertIsNone(re.search(r'\d', shown['detail']), shown)
                self.assertEqual(3, len({
                    shown['detail'], shown['advice'], shown['automatic']}))
                self.assertNotIn('queue_length', shown)

    def test_no_button_where_a_reaper_works(self) -> None:
        for mode, expected in (
                (model.Mode.OBSERVE, PRESS),
                (model.Mode.FILL, 'Nothing has to be done. With a smaller '
                                  'flavor it may run sooner.')):
            self.assertEqual(expected, entry(mode=mode).to_dict(
                False)['advice'])
        self.assertEqual(PRESS, entry(
            hindrance=model.Hindrance.NEEDS_OWNER).to_dict(False)['advice'])

    def test_what_is_automatic(self) -> None:
        for said, expected in (
                (entry(), 'It is built as soon as there is room.'),
                (entry(next_attempt=TIME),
                 'It is tried again at 2026-11-22T12:00:00Z.'),
                (entry(deadline=TIME),
                 'It is built as soon as there is room. If it still waits at '
                 '2026-11-22T12:00:00Z it is set to ERROR.'),
                (entry(step='notice'),
                 'Room is being made for it; then it is built.'),
                (entry(step='rebuilding', deadline=TIME),
                 'It is being built.'),
                (entry(waiting=model.Waiting('w', model.Shape(()), TIME,
                                             shelved=True)),
                 'It is brought back as soon as there is room.'),
                (entry(mode=model.Mode.OBSERVE),
                 'Nothing: the reaper only observes.'),
                (entry(hindrance=model.Hindrance.NOT_ASKED),
                 'Nothing, until its owner asks.'),
                (entry(decision=None),
                 'It is built as soon as there is room.'),
                (entry(model.Reason.REFUSED),
                 'It is built as soon as a host that the scheduler accepts '
                 'has room.'),
                (entry(step='given_up'), 'Nothing: it was set to ERROR.')):
            self.assertEqual(expected, said.to_dict(False)['automatic'])

    def test_administrators_read_numbers(self) -> None:
        shown = entry().to_dict(True, True)
        self.assertIn('812 of 1000', shown['detail'])
        self.assertEqual(40, shown['queue_length'])
