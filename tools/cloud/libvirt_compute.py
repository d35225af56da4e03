# SPDX-License-Identifier: Apache-2.0

"""nova-compute as it was released, for a host whose guests are its user's.

What Nova gives to a helper with root's rights needs none of them there: the
libvirtd, the guests and their files belong to the user of nova-compute, and
there is no network to be plugged. Those calls are made in the process itself,
so that neither root nor sudo is needed. Run as a file.
"""

import fcntl
import os
import sys
import termios

from nova.cmd import compute
import nova.privsep


def keep_terminal():
    """Take a terminal of our own.

    A process without a terminal gets the first terminal that it opens. That
    would be the console of a guest, at whose end the kernel sends SIGHUP.

    :returns: the numbers of its two files, which are to stay open
    """
    ours = os.openpty()
    fcntl.ioctl(ours[1], termios.TIOCSCTTY, 0)
    return ours


if __name__ == '__main__':
    terminal = keep_terminal()
    nova.privsep.sys_admin_pctxt.set_client_mode(False)
    sys.exit(compute.main())
