#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

"""Makes room for servers that wait in Nova, and rebuilds them.

The way through, a package for each step:

``events``  what is heard (notifications) and read (lists, hosts)
``cloud``   what is known of hosts and servers, in one ``World``
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
