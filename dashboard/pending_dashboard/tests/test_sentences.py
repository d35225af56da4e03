# SPDX-License-Identifier: Apache-2.0

import ast
import datetime
import pathlib
import re
import unittest

from django.utils import timezone
from django.utils import translation

import pending_dashboard
from pending_dashboard import sentences

_TREE = pathlib.Path(pending_dashboard.__file__).parents[2]
_SOURCES = ('reaper/nova_reaper/act/attempts.py',
            'reaper/nova_reaper/cloud/model.py',
            'reaper/nova_reaper/engine.py',
            'reaper/nova_reaper/report/answers.py',
            'reaper/nova_reaper/report/health.py',
            'reaper/nova_reaper/report/http.py',
            'reaper/nova_reaper/report/store.py',
            'reaper/nova_reaper/decide/choose.py',
            'reaper/nova_reaper/queue/queue.py',
            'nova/compute/pending_reason.py')
_VALUE = re.compile(r'%\(\w+\)s')
# Messages of exceptions of the released Nova.
_RELEASED = ('No valid host was found.', 'Quota exceeded for ')


def _strings(path):
    """Return the strings of a module of which sentences are made."""
    found = {node.value for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Constant) and
             isinstance(node.value, str)}
    return {part.strip() for text in found
            if ' ' in text or text in ('.', 'built')
            for part in _VALUE.split(text)} - {''}


class SentencesTestCase(unittest.TestCase):

    def test_in_german(self):
        with translation.override('de'):
            self.assertEqual(
                'Kein Host, der ihn aufnehmen könnte, hat Platz. Um 22. '
                'November 2026 11:54 wird es wieder versucht.',
                sentences.translate(
                    'No host that could take it has room. It is tried again '
                    'at 2026-11-22T11:54:00Z.'))

    def test_numbers(self):
        for said, german in (
                ('12 of 1000 hosts could take it; those with room are refused '
                 'by ComputeFilter, NUMATopologyFilter. 3 preemptible '
                 'servers on one host would have to go.',
                 '12 von 1000 Hosts könnten ihn aufnehmen; die mit Platz '
                 'lehnt ComputeFilter, NUMATopologyFilter ab. 3 verdrängbare '
                 'Server auf einem Host müssten weichen.'),
                ('1 of 2 hosts could take it; none has room, but for one that '
                 'is kept for a server that waits before it.',
                 '1 von 2 Hosts könnten ihn aufnehmen; keiner hat Platz außer '
                 'einem, der für einen Server reserviert ist, der vor ihm '
                 'wartet.'),
                ('none for 912 s: the reaper polls',
                 'seit 912 s keine: nova-reaper fragt in Abständen')):
            self.assertEqual(said, sentences.translate(said))
            with translation.override('de'):
                self.assertEqual(german, sentences.translate(said))

    def test_time_zone(self):
        with timezone.override(datetime.timezone(
                datetime.timedelta(hours=2))):
            self.assertEqual(
                'It is tried again at Nov. 23, 2026, 1:54 a.m.',
                sentences.translate(
                    'It is tried again at 2026-11-22T23:54:00Z.'))

    def test_other_sentences_stay(self):
        for text in ('', '100 % of 812 hosts are full.'):
            with translation.override('de'):
                self.assertEqual(text, sentences.translate(text))

    def test_each_is_still_said(self):
        if not all((_TREE / path).exists() for path in _SOURCES):
            self.skipTest('This is no checkout.')
        strings = set().union(*(
            _strings(_TREE / path) for path in _SOURCES))
        said = re.compile(r'(?:(?:%s)\s*)+' % '|'.join(
            map(re.escape, sorted(strings, key=len, reverse=True))))
        unknown = [sentence for sentence in sentences._SENTENCES
                   if not sentence.startswith(_RELEASED) and
                   not said.fullmatch(_VALUE.sub(' ', sentence).strip())]
        self.assertEqual([], unknown)
