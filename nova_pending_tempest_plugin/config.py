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

"""What an operator says about the cloud under test."""

from oslo_config import cfg

OPTIONS = {
    'service_available': [
        cfg.BoolOpt('nova_pending',
                    default=True,
                    help='Whether every nova-api of the cloud runs with '
                         'nova-pending.'),
    ],
    'compute-feature-enabled': [
        cfg.BoolOpt('pending_state',
                    default=True,
                    help='Whether servers wait in PENDING: the value of '
                         '[DEFAULT] use_pending_state of the '
                         'nova-conductors.'),
        cfg.StrOpt('reaper_mode',
                   default='none',
                   choices=['none', 'observe', 'fill', 'preempt'],
                   help='How far the nova-reaper of the cloud may go: '
                        '[reaper] mode of its configuration, or "none" if '
                        'there is none. The tests of it want a min_run_time '
                        'of 0 and a grace_period of at least 10 seconds; '
                        'those of a rebuild by hand want it not to build '
                        'servers that wait.'),
    ],
}
