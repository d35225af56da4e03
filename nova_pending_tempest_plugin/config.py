# SPDX-License-Identifier: Apache-2.0

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
