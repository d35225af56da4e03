# SPDX-License-Identifier: Apache-2.0

"""The version of the four distributions, which are made from one tree.

A commit with a tag of a version has that version. Every other commit is on its
way to the version in setup.cfg: ``34.0.0.dev591+g2ca1cbc`` is commit 2ca1cbc,
the 591st. A tree that is not in git has ``34.0.0.dev0``, and an sdist has the
version with which it was made.
"""

import configparser
import email
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

_TAG = re.compile(r'\d+\.\d+\.\d+((a|b|rc)\d+)?')


def find():
    """Return the version."""
    info = ROOT / 'PKG-INFO'
    if info.exists():
        return email.message_from_string(info.read_text('utf-8'))['Version']
    config = configparser.ConfigParser()
    config.read(ROOT / 'setup.cfg')
    version = config['metadata']['version']
    # A repository around a tree without git tells nothing about the tree.
    if not (ROOT / '.git').exists():
        return version + '.dev0'
    try:
        for tag in _git('tag', '--points-at', 'HEAD').split():
            if _TAG.fullmatch(tag):
                return tag
        return '%s.dev%s+g%s' % (
            version, _git('rev-list', '--count', 'HEAD').strip(),
            _git('rev-parse', '--short=7', 'HEAD').strip())
    except (OSError, subprocess.CalledProcessError):
        return version + '.dev0'


def _git(*words):
    return subprocess.run(('git', *words), cwd=ROOT, check=True,
                          capture_output=True, text=True).stdout
