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

"""What follows from Nova's answer for a server that waits."""

from collections.abc import Callable

from nova_reaper.attempt import Attempt
from nova_reaper.attempt import Outcome
from nova_reaper.attempt import Result
from nova_reaper import clients
from nova_reaper import model
from nova_reaper import nova
from nova_reaper import owners


def ask(current: Attempt, compute: nova.Nova, named: owners.Owners,
        read: Callable[[], nova.NovaServer], gone: Callable[[str], Outcome],
        has_route: bool = True) -> Outcome | None:
    """Why Nova would not build the server on the host that was chosen.

    :param read: gives the server; it is called after Nova's answer
    :param gone: gives the outcome for a server that waits no more; it is told
        what the server does instead
    :param has_route: whether Nova can be asked; if not the token alone counts
    :returns: None if nothing speaks against it
    :raises: clients.RequestFailed if it cannot be found out
    """
    answer = None
    try:
        if has_route:
            answer = compute.pending(current.id, [current.host])
        server = read()
    except clients.NotFound:
        return gone('waits no more')
    except clients.Conflict:
        return gone('is being rebuilt')
    refused = refusal(current, answer) if answer else None
    if refused:
        return refused
    objection = named.objection(
        server, answer.token_required if answer else None)
    return needs_owner(current, objection) if objection else None


def refusal(current: Attempt, answer: nova.Pending) -> Outcome | None:
    """Why nothing is done for the server, None if nothing speaks against it.

    :raises: clients.Unavailable if Nova could not ask its scheduler
    """
    if answer.attempts > current.waiting.attempts:
        # Of a time before this process: it may have to be left alone still.
        return Outcome(current, Result.CONFLICT, answer.message,
                       answer.reason,
                       history=(answer.attempts, answer.last_attempt))
    if answer.reason == model.Reason.QUOTA:
        return Outcome(current, Result.REFUSED,
                       answer.message or 'Its project is over its quota.',
                       model.Reason.QUOTA)
    if answer.unavailable and answer.unavailable == answer.message:
        # Its owner has to correct it before it can be rebuilt.
        return Outcome(current, Result.REFUSED, answer.message,
                       model.Reason.UNKNOWN)
    if answer.unavailable:
        raise clients.Unavailable('nova', 'verdict', answer.unavailable, 503)
    if answer.requests != current.requests:
        return Outcome(current, Result.CONFLICT, 'It asks for something '
                       'else than others of its flavor.', apart=True)
    for host in answer.hosts:
        if host.host == current.host and host.refused_by:
            return Outcome(
                current, Result.REFUSED, f'{host.refused_by} refuses '
                'the host.', model.Reason.REFUSED,
                refused_by=host.refused_by)
    if not any(host.host == current.host for host in answer.hosts):
        return Outcome(current, Result.REFUSED, 'Nova does not know '
                       'the host.', model.Reason.REFUSED)
    return None


def needs_owner(current: Attempt, why: str) -> Outcome:
    """Nothing is done for a server that its owner alone can rebuild."""
    return Outcome(current, Result.REFUSED, why, model.Reason.REFUSED,
                   hindrance=model.Hindrance.NEEDS_OWNER)
