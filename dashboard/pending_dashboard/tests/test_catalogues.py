# SPDX-License-Identifier: Apache-2.0

"""The catalogues have all that is shown, and are where Django reads them."""

import gettext
import io
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from babel.messages import extract
from babel.messages import pofile
from django.utils.translation import template

import pending_dashboard

_PACKAGE = pathlib.Path(pending_dashboard.__file__).parent
_KEYWORDS = {
    **extract.DEFAULT_KEYWORDS, 'gettext_lazy': None,
    'ngettext_lazy': (1, 2), 'pgettext_lazy': ((1, 'c'), 2)}


def _shown():
    """Return context and text (both, of a plural) of what is translated."""
    found = set()
    for path in (*_PACKAGE.rglob('*.py'), *_PACKAGE.rglob('*.html')):
        text = path.read_text()
        if path.suffix == '.html':
            # It is no Python by its indentation.
            text = '\n'.join(
                line.strip() for line in template.templatize(text).split('\n'))
        found.update((context, text) for _line, text, _comments, context in
                     extract.extract('python', io.BytesIO(text.encode()),
                                     _KEYWORDS))
    return found


class CataloguesTestCase(unittest.TestCase):

    def test_complete(self):
        shown = _shown()
        self.assertIn((None, 'Servers by reason'), shown)
        self.assertIn((None, ('Delete Server', 'Delete Servers')), shown)
        for path in _PACKAGE.glob('locale/*/LC_MESSAGES/django.po'):
            with path.open('rb') as file:
                catalogue = pofile.read_po(file)
            self.assertEqual(shown, {
                (message.context, message.id) for message in catalogue
                if message.id and message.string and
                not message.fuzzy}, path)

    def test_words_of_german(self):
        with _PACKAGE.joinpath(
                'locale/de/LC_MESSAGES/django.po').open('rb') as file:
            strings = [text for message in pofile.read_po(file) if message.id
                       for text in (message.string if isinstance(
                           message.string, tuple) else (message.string,))]
        # Horizon's word is another one, and a time begins with its date.
        for wrong in (r'Flavor', r'(?i)\bum %\(time\)s'):
            self.assertEqual([], [
                text for text in strings if re.search(wrong, text)])

    def test_compiled_into_the_wheel(self):
        source = _PACKAGE.parent
        if not source.joinpath('setup.py').exists():
            self.skipTest('This is no checkout.')
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [sys.executable, 'setup.py', '-q', 'egg_info', '--egg-base',
                 folder, 'build_py', '--build-lib', folder],
                cwd=source, check=True)
            german = gettext.translation(
                'django', pathlib.Path(folder, _PACKAGE.name, 'locale'),
                ['de'])
        self.assertEqual('Wartende Server', german.gettext('Waiting Servers'))
        self.assertEqual('Server löschen', german.ngettext(
            'Delete Server', 'Delete Servers', 2))
