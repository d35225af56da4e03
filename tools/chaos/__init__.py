# SPDX-License-Identifier: Apache-2.0

"""A campaign of random kills on a real cloud.

``tox -e chaos`` brings the cloud of the crash tests (tools/crash) up. In each
round servers wait, room is made, all are rebuilt at random moments, and the
services are killed or hang at random moments and are started again. What must
hold afterwards is looked at in databases, Placement, Neutron and Cinder.

draw       what happens in a round, drawn from a seed
cloud      the cloud, and what stands of a server in all its services
judge      what must hold of what stands
rounds     one round
report     what was found, and the summary
__main__   the command line
"""
