# SPDX-License-Identifier: Apache-2.0

"""Makes room for servers that wait in Nova, and rebuilds them.

The way through, a package for each step:

``events``  what is heard (notifications) and read (lists, hosts)
``cloud``   hosts and servers, and the arrays in which they are kept
``queue``   which of the servers that wait is next
``decide``  where it goes, and which servers are ended for it
``act``     attempts: hold, notice, swap, end, rebuild; and their recovery

``clients`` asks Nova, Placement and Keystone. ``report`` says what was decided
and done, and keeps it in the journal. ``engine`` is the loop over all of this,
and ``service`` the process around it, which also finds out which of several
reapers acts. ``cli`` has the commands, ``conf`` the options, ``simulate`` a
cloud that is a file.
"""

import warnings

# Libraries load it wherever it is installed; the reaper runs on threads.
warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
