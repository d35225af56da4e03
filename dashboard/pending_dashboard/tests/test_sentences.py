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
_REAPER = 'reaper/nova_reaper/'
# Modules whose sentences reach the panels, and the classes, functions and
# constants there whose texts do not.
_SOURCES = {
    _REAPER + 'act/steps.py': {'_rehearse', '_needless'},
    _REAPER + 'cloud/model.py': set(),
    _REAPER + 'decide/choose.py': {'decided_by'},
    _REAPER + 'queue/queue.py': set(),
    _REAPER + 'report/answers.py': set(),
    _REAPER + 'report/health.py': {'Metrics', 'failed'},
    # Of errors the panels show those of POST alone.
    _REAPER + 'report/http.py': {
        'RULES', 'Server', '_ask', '_asked', '_behind_keystone', '_boolean',
        '_check_method', '_limit', '_list', '_object', '_pause', '_project',
        '_query', '_reason', '_servers', '_show', '_time', '_word',
        'application', 'history_query', 'list_rules'},
    _REAPER + 'report/probe.py': {'_run'},
    'nova/compute/pending_reason.py': {
        'InstanceNotPending', 'RequestNotJudged', 'ServersNotOnHost', 'judge'},
}
# Modules of which these functions alone make sentences for the panels.
_PARTS = {
    _REAPER + 'act/attempts.py': {'_gave_up', 'rehearse'},
    _REAPER + 'act/ending.py': {'objection'},
    _REAPER + 'clients/nova.py': {'_login', 'objection'},
    _REAPER + 'engine.py': {'rehearse'},
    _REAPER + 'report/journal.py': {'_message'},
    _REAPER + 'service.py': {'_turn'},
    _REAPER + 'world.py': {'objection'},
}
# Texts beside such sentences that the panels do not show.
_UNSEEN = {
    # Answers to requests that the panels do not send, and titles.
    'Bad Request', 'Internal Server Error',
    'Paths and queries are encoded in UTF-8.',
    'There is nothing at this path.',
    # What is well.
    'none so far', 'last one \0 s ago',
    # Of servers that do not wait in PENDING.
    'brought back', 'may run on', 'The server',
    'the server cannot be given notice',
    # For the log and the journal alone.
    'the server would be refused', 'there is room without its end',
}
_VALUE = re.compile(r'%\(\w+\)s')
# Messages of exceptions of the released Nova.
_RELEASED = ('No valid host was found.', 'Quota exceeded for ')


def _strings(path):
    """Return the strings of a module of which sentences are made."""
    found = {node.value for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Constant) and
             isinstance(node.value, str)}
    return {part.strip().removeprefix('; ') for text in found
            if ' ' in text or text in ('.', 'built', 'behind')
            for part in _VALUE.split(text)} - {''}


class _Texts(ast.NodeVisitor):
    """Finds the texts of a module, with \\0 in the place of each value.

    It leaves out docstrings, what is logged, and what attempts tell nobody:
    an outcome without a reason.
    """

    def __init__(self, only, silent):
        self._only = only
        self._silent = silent
        self._within = []
        self.found = set()

    def visit(self, node):
        targets = [node.target] if isinstance(
            node, ast.AnnAssign) else getattr(node, 'targets', ())
        names = [node.name] if isinstance(node, (
            ast.ClassDef, ast.FunctionDef)) else [
                target.id for target in targets
                if isinstance(target, ast.Name)]
        if self._silent.intersection(names) or self._says_nothing(node):
            return
        self._within += names
        super().visit(node)
        del self._within[len(self._within) - len(names):]

    @staticmethod
    def _says_nothing(node):
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):
            return getattr(node.func.value, 'id', '') == 'LOG'
        return getattr(node.func, 'id', '') == 'Outcome' and (
            len(node.args) < 4 and
            'reason' not in [keyword.arg for keyword in node.keywords])

    def _add(self, text):
        if ' ' in text and text not in _UNSEEN and (
                not self._only or self._only.intersection(self._within)):
            self.found.add(text)

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            self._add(_VALUE.sub('\0', node.value))

    def visit_JoinedStr(self, node):
        self._add(''.join(
            part.value if isinstance(part, ast.Constant) else '\0'
            for part in node.values))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)


def _fragments(path, only=(), silent=()):
    """Return what a module says to the panels, without values."""
    texts = _Texts(frozenset(only), frozenset(silent))
    texts.visit(ast.parse(path.read_text()))
    return {fragment.strip() for text in texts.found
            for part in text.split('\0')
            for fragment in re.split(r'(?<=[.:;]) ', part)
            if re.search('[A-Za-z]', fragment)}


class SentencesTestCase(unittest.TestCase):

    def test_in_german(self):
        with translation.override('de'):
            self.assertEqual(
                'Kein Host, der ihn aufnehmen könnte, hat Platz. Der nächste '
                'Versuch folgt am 22. November 2026 11:54.',
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
                ('1 of 2 hosts could take it; none has room, except a host '
                 'that is kept for a server ahead in the queue.',
                 '1 von 2 Hosts könnten ihn aufnehmen; keiner hat Platz außer '
                 'einem Host, der für einen Server weiter vorn in der Reihe '
                 'reserviert ist.'),
                ('its database cannot be used (OSError); 3 records wait, 0 '
                 'are lost; ends and builds of before the start are not known',
                 'seine Datenbank kann nicht benutzt werden (OSError); 3 '
                 'Einträge warten, 0 sind verloren; was vor dem Start beendet '
                 'und gebaut wurde, ist nicht bekannt'),
                ("The clock of this machine is 9 s ahead of Nova's.",
                 'Die Uhr dieses Rechners geht der von Nova um 9 s vor.'),
                ('A server that was to make room for it is ACTIVE with the '
                 'task powering-off.',
                 'Ein Server, der für ihn Platz machen sollte, ist in ACTIVE '
                 'mit der Aufgabe powering-off.'),
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

    def _skip_if_installed(self):
        if not all((_TREE / path).exists() for path in (*_SOURCES, *_PARTS)):
            self.skipTest('This is no checkout.')

    def test_each_is_still_said(self):
        self._skip_if_installed()
        strings = set().union(*(
            _strings(_TREE / path) for path in (*_SOURCES, *_PARTS)))
        # A clause of the log begins a sentence of the panels.
        said = re.compile(r'(?:(?:%s)\s*)+' % '|'.join(
            map(re.escape, sorted(strings, key=len, reverse=True))), re.I)
        unknown = [sentence for sentence in sentences._SENTENCES
                   if not sentence.startswith(_RELEASED) and
                   not said.fullmatch(_VALUE.sub(' ', sentence).strip())]
        self.assertEqual([], unknown)

    def test_all_that_is_said_is_known(self):
        self._skip_if_installed()
        said = set().union(
            *(_fragments(_TREE / path, silent=names)
              for path, names in _SOURCES.items()),
            *(_fragments(_TREE / path, only=names)
              for path, names in _PARTS.items()))
        for fragment in (
                # Of a plain text, of a clause, and around values.
                'The full list of hosts is empty.',
                'the room was taken meanwhile', 'records are lost',
                'Nothing has to be done.',
                'No scheduler tells which hosts refuse the server.'):
            self.assertIn(fragment, said)
        known = '\n'.join(
            _VALUE.sub('\0', sentence) for sentence in sentences._SENTENCES
        ).lower()
        self.assertEqual([], sorted(
            fragment for fragment in said if fragment.lower() not in known))
