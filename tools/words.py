# SPDX-License-Identifier: Apache-2.0

"""Find turns of phrase that readers had to read twice.

    python tools/words.py

Looks at the pages, release notes and sources that git keeps. Prints the file
and the line of each find with what to write in its place, and exits with 1 if
there is any.
"""

import pathlib
import re
import subprocess
import sys

_LOOKED_AT = ('*.rst', '*.py', '*.yaml', '*.inc', '*.html', '*.po')

#: What to write in the place of each, by the regular expression.
_PHRASES = {
    r'\bthat which\b': 'the noun',
    r'\bof whom\b': 'the noun: "whose", or "the server that"',
    r'\bof which none\b': 'a negated verb: "that are not"',
    r'\b(lives?|works?) from (its |the )?lists\b': '"polls"',
    r'\bwithout a request of anybody\b': '"automatically"',
    r'\bis no (JSON|UTF-8|UUID|YAML|number|text|time)\b': '"is not"',
    r'\b(is|was) (had|there) when it was\b': 'who did what, in that order',
    r'\btells? of whom\b': 'the noun',
    r'\badministrators alone\b': '"only administrators"',
    r'\bfrom 1 on\b': '"1 or more"',
    r'\bAsked for a rebuild of\b': '"Requested rebuild of"',
    r'\b\w+ ones\b': 'the noun',
    r'\b(as|by|for|is|of|to) whoever\b': 'the noun',
    r'\bthe same with (another|other)\b': 'the noun',
    r'\bwere it\b': '"if the NOUN were"',
}
_ALL = re.compile('|'.join(_PHRASES), re.IGNORECASE)


def find(text):
    """Return the number, the words and the advice for each find in a text.

    A phrase may go over the end of a line.
    """
    found = []
    for match in re.finditer(_ALL.pattern.replace(' ', r'\s+(?:[#*]\s+)?'),
                             text, re.IGNORECASE):
        words = ' '.join(re.sub('[#*]', '', match.group()).split())
        advice = next(advice for phrase, advice in _PHRASES.items() if
                      re.search(phrase, words, re.IGNORECASE))
        found.append((text.count('\n', 0, match.start()) + 1, words, advice))
    return found


def main():
    """Look at all files that git keeps; returns the exit code."""
    names = subprocess.run(
        ['git', 'ls-files', '-z', *_LOOKED_AT], check=True,
        capture_output=True, text=True).stdout.split('\0')
    bad = False
    for name in filter(None, names):
        path = pathlib.Path(name)
        # The phrases stand in this file and in its test.
        if path.name in ('words.py', 'test_words.py') or not path.exists():
            continue
        for line, words, advice in find(path.read_text()):
            bad = True
            print('%s:%d: "%s": write %s' % (name, line, words, advice))
    return bad


if __name__ == '__main__':
    sys.exit(main())
