# SPDX-License-Identifier: Apache-2.0

"""Runs tox, in an environment that is made for it on first use.

    python3 tools/tox.py -e demo
    python3 tools/tox.py

The arguments are those of tox. It lies in .venv, in the version that
constraints.txt names; nothing else needs to be installed before.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / '.venv'


def main():
    if sys.version_info < (3, 11):
        sys.exit('Python 3.11 or later is needed; this is %d.%d.'
                 % sys.version_info[:2])
    python = VENV / 'bin' / 'python'
    # Written last: an installation that was interrupted is done again.
    ready = VENV / '.ready'
    if not ready.exists():
        subprocess.run([sys.executable, '-m', 'venv', '--clear', VENV],
                       check=True)
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', '-c',
                        ROOT / 'constraints.txt', 'tox'], check=True)
        ready.touch()
    os.chdir(ROOT)
    os.execv(python, [python, '-m', 'tox', *sys.argv[1:]])


if __name__ == '__main__':
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit('tox could not be installed: %s failed.'
                 % ' '.join(str(word) for word in error.cmd))
