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
