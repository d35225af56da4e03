# SPDX-License-Identifier: Apache-2.0

from nova import test
from tools import words


class WordsTestCase(test.NoDBTestCase):
    """The check of tools/words.py."""

    def test_found_over_the_end_of_a_line(self):
        self.assertEqual(
            [(2, 'that which', 'the noun')],
            words.find('A host.\nIt is that\nwhich was chosen.'))
        self.assertEqual(
            [(1, 'lives from its lists', '"polls"')],
            words.find('# The reaper lives from\n    # its lists.'))

    def test_each_phrase_has_its_advice(self):
        self.assertEqual(
            ['the noun: "whose", or "the server that"', '"is not"'],
            [advice for _line, _words, advice in words.find(
                'The owner of whom Nova says: this is no JSON.')])

    def test_pronouns_and_inversions(self):
        self.assertEqual(
            ['released ones', 'of whoever', 'The same with another',
             'were it'],
            [found for _line, found, _advice in words.find(
                'Use the released ones. The work of whoever asks. '
                'The same with another token. A host, were it empty.')])

    def test_plain_sentences_pass(self):
        self.assertEqual([], words.find(
            'The answer is not JSON. Only administrators see the host that '
            'Nova chose. mask = np.ones(3)'))
