# SPDX-License-Identifier: Apache-2.0

import ast
import pathlib
import unittest

from django.utils import translation

import pending_dashboard
from pending_dashboard import sentences

_TREE = pathlib.Path(pending_dashboard.__file__).parents[2]
_SOURCES = ('reaper/nova_reaper/report/answers.py',
            'reaper/nova_reaper/queue/queue.py',
            'nova/compute/pending_reason.py')


def _strings(path):
    """Return the strings of a module, with marks where values are put in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            # The only word that is put in is that for what is done.
            yield ''.join(
                part.value if isinstance(part, ast.Constant) else
                'built' if ast.unparse(part.value) == 'built' else '%(time)s'
                for part in node.values)


class SentencesTestCase(unittest.TestCase):

    def test_in_german(self):
        with translation.override('de'):
            self.assertEqual(
                'Kein Host, der ihn aufnehmen könnte, hat Platz. Um '
                '2026-11-22T11:54:00Z wird es wieder versucht.',
                sentences.translate(
                    'No host that could take it has room. It is tried again '
                    'at 2026-11-22T11:54:00Z.'))

    def test_other_sentences_stay(self):
        for text in ('', '812 of 1000 hosts could take it; 100 % are full.'):
            with translation.override('de'):
                self.assertEqual(text, sentences.translate(text))

    def test_each_is_still_said(self):
        if not all((_TREE / path).exists() for path in _SOURCES):
            self.skipTest('This is no checkout.')
        said = '\n'.join(text for path in _SOURCES
                         for text in _strings(_TREE / path))
        # The first is the message of a released exception.
        for sentence in sentences._SENTENCES[1:]:
            self.assertIn(sentence, said)
