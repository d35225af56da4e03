# SPDX-License-Identifier: Apache-2.0

"""The demonstration on a cloud that has a host with real guests too."""

from tools.cloud import demo
from tools.cloud import errors
from tools.cloud import guest

_CREATE = ('%s server create --image %s --flavor %s --nic none '
           '-c id -c name -c status ' % (
               demo.AT_PENDING, guest.NAME, guest.NAME))


class Demo(demo.Demo):
    """The demonstration, and what guests of QEMU say of themselves.

    Their host has room for a single guest, so that the second server waits.
    """

    def _run_steps(self):
        super()._run_steps()
        with self._step('A real guest: what it writes to its console'):
            self._client.run(_CREATE + '--wait guest-1')
            self._look_at_console('guest-1')
        with self._step('A second one waits, and boots when there is room'):
            second = self._create_waiting_guest()
            self._make_room('guest-1')
            self._wait_until_active(second)
            self._look_at_console('guest-2')

    def _create_waiting_guest(self):
        # The client would wait for one of the states that it knows.
        self._client.run(_CREATE + 'guest-2')
        second = self._find()['guest-2']['id']
        self._wait_for(second, 'PENDING')
        self._client.run('%s server list' % demo.AT_PENDING)
        return second

    def _look_at_console(self, name):
        show = 'console log show ' + name
        said = guest.line(self._find()[name]['id'])

        def has_said():
            if self._stopped:
                raise errors.Stopped('The demonstration was stopped.')
            return said in self._client.ask(show)

        self._processes.wait_until(
            'the guest of %s to write: %s' % (name, said), has_said, None)
        self._client.run(show)
