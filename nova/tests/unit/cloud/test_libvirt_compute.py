# SPDX-License-Identifier: Apache-2.0

import pathlib
import subprocess
import sys

import testtools

ROOT = pathlib.Path(__file__).resolve().parents[4]

# Opens a terminal that then goes away, as the console of a guest does.
OPENS = '''
import os, signal, sys, types
# Who runs the tests may ignore it: nohup does.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Of nova-compute itself nothing is needed.
for name in ('nova', 'nova.cmd', 'nova.cmd.compute', 'nova.privsep'):
    sys.modules[name] = types.ModuleType(name)
sys.modules['nova.cmd'].compute = None
from tools.cloud import libvirt_compute
if sys.argv[1:]:
    terminal = libvirt_compute.keep_terminal()
master, slave = os.openpty()
os.close(os.open(os.ttyname(slave), os.O_RDWR))
os.close(slave)
os.close(master)
print('lives', flush=True)
'''


class TerminalTestCase(testtools.TestCase):

    def run_it(self, *args):
        return subprocess.run(
            [sys.executable, '-c', OPENS, *args], cwd=ROOT,
            capture_output=True, text=True, start_new_session=True)

    def test_end_of_a_console_does_not_end_nova_compute(self):
        found = self.run_it('keep')
        self.assertEqual((0, 'lives\n'), (found.returncode, found.stdout))

    def test_it_would_without_a_terminal_of_its_own(self):
        self.assertEqual(-1, self.run_it().returncode)
