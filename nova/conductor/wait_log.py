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

"""Logs a server that waits as what it is: no failure.

The release logs an error with a traceback and two warnings where no valid
host is found. With use_pending_state on that is a normal state, which a
program that tries again makes a stream of.
"""

import logging

from nova.conductor import cell0

_SCHEDULING_FAILED = 'Failed to schedule instances'
_NOT_BUILT = 'Failed to %(service)s_%(method)s: %(ex)s'
_STATE_SET = 'Setting instance to %s state.'


def install():
    """Look at what the conductor logs, from now on."""
    for name in ('nova.conductor.manager', 'nova.scheduler.utils'):
        # The same filter is not added twice.
        logging.getLogger(name).addFilter(_lower)


def _lower(record):
    """Lower the level of a record that tells of a server that waits.

    :param record: a logging.LogRecord
    :returns: whether it is logged at that level
    """
    level = _level(record)
    if level is None:
        return True
    record.levelno, record.levelname = level, logging.getLevelName(level)
    return logging.getLogger(record.name).isEnabledFor(level)


def _level(record):
    if record.msg == _SCHEDULING_FAILED and record.exc_info:
        return logging.DEBUG if _waits(record.exc_info[1]) else None
    if record.msg == _NOT_BUILT and isinstance(record.args, dict):
        return logging.INFO if _waits(record.args.get('ex')) else None
    if record.msg == _STATE_SET and record.args == ('PENDING',):
        return logging.DEBUG


def _waits(exc):
    """Whether a server with this failure is put into PENDING."""
    return cell0.found_no_host(exc) and cell0.use_pending_state()
