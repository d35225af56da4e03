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

"""What is said of a server that waits: why, its owner's part, the reaper's.

Each sentence says one of these, and none stands in the place of another.
Owners read all of them but for numbers of hosts and their sizes.
"""

import datetime

from nova_reaper.cloud import model
from nova_reaper.queue import queue

Reason, Hindrance = model.Reason, model.Hindrance

_WHY = {
    Reason.NO_ROOM: 'No host that could take it has room.',
    Reason.REFUSED: 'The scheduler refuses it the hosts that have room.',
    Reason.NO_SUCH_HOST: 'The host that it was created for is not there.',
    Reason.NOTHING_FITS: 'No host could take it, even if the host were empty.',
    Reason.BUILD_FAILED: 'Its build failed on a host.',
    Reason.QUOTA: 'The quota of its project does not allow it.',
    Reason.UNKNOWN: 'Nova does not say why it waits.',
}
_HINDERED = {
    Hindrance.PROTECTED: 'Servers that could make room for it are protected '
                         'for now.',
    Hindrance.BACK_OFF: 'Its last try came to nothing.',
    Hindrance.RESERVED: 'Room is kept for a server that waits before it.',
    Hindrance.MODE: 'No server is ended to make room for it.',
    Hindrance.DEADLINE: 'It has waited for too long.',
    Hindrance.NEEDS_OWNER: 'Volumes or secrets are made when it is built, so '
                           'that only its owner can rebuild it.',
}
_NOTHING = 'Nothing has to be done.'
_ADVICE = {
    Reason.NO_ROOM: f'{_NOTHING} With a smaller flavor it may run sooner.',
    Reason.REFUSED: 'Another flavor, image or availability zone may be '
                    'accepted. The administrator knows what the filters '
                    'require.',
    Reason.NO_SUCH_HOST: 'Delete it and create it again without asking for '
                         'this host, or ask the administrator for the host.',
    Reason.NOTHING_FITS: 'Rebuild it with a flavor, an image or an '
                         'availability zone for which there are hosts.',
    Reason.BUILD_FAILED: 'If the message names its image or its flavor as the '
                         'cause, rebuild it with another.',
    Reason.QUOTA: 'Delete servers that are not needed, or ask for more quota.',
}


def why(decision: model.Decision) -> str:
    """Why a server waits, without numbers of hosts and sizes."""
    if decision.verdict is model.Verdict.ROOM:
        return 'A host has room.'
    if decision.verdict is model.Verdict.PREEMPT:
        return 'Room can be made for it.'
    if decision.hindrance is Hindrance.NOT_ASKED:
        return queue.NOT_ASKED
    if decision.reason is Reason.QUOTA:
        # It tells of the quota of the project alone.
        return decision.detail
    said = [_WHY[decision.reason]] if decision.reason else []
    if decision.hindrance:
        said.append(_HINDERED[decision.hindrance])
    return ' '.join(said)


def advice(decision: model.Decision | None, mode: model.Mode, step: str,
           of_nova: str) -> str | None:
    """What the owner can do, None if nothing is known.

    :param of_nova: what Nova says, which knows of no reaper
    """
    hindrance = decision.hindrance if decision else None
    if step == 'given_up':
        return 'Rebuild it, or delete it.'
    if hindrance is Hindrance.NOT_ASKED:
        return ('Rebuild it at microversion 2.106 or later to have it wait, '
                'or delete it.')
    if mode is model.Mode.OBSERVE or hindrance is Hindrance.NEEDS_OWNER:
        return of_nova or None
    reason = decision.reason if decision and step == 'waiting' else None
    return _ADVICE.get(reason, _NOTHING) if reason else _NOTHING


def automatic(waiting: model.Waiting, decision: model.Decision | None,
              mode: model.Mode, step: str,
              next_attempt: datetime.datetime | None,
              deadline: datetime.datetime | None) -> str:
    """What the reaper does for a server, and when."""
    if step == 'given_up':
        return 'Nothing: it was set to ERROR.'
    if mode is model.Mode.OBSERVE:
        return 'Nothing: the reaper only observes.'
    said = _next(waiting, decision, step, next_attempt)
    if deadline and step == 'waiting':
        said += (f' If it still waits at {deadline:%Y-%m-%dT%H:%M:%SZ} it is '
                 'set to ERROR.')
    return said


def _next(waiting: model.Waiting, decision: model.Decision | None, step: str,
          next_attempt: datetime.datetime | None) -> str:
    built = 'brought back' if waiting.shelved else 'built'
    if step in ('holding', 'rebuilding'):
        return f'It is being {built}.'
    if step in ('notice', 'ending'):
        return f'Room is being made for it; then it is {built}.'
    hindrance = decision.hindrance if decision else None
    if hindrance is Hindrance.NOT_ASKED:
        return 'Nothing, until its owner asks.'
    if hindrance is Hindrance.NEEDS_OWNER:
        return 'Nothing: its owner has to rebuild it.'
    if next_attempt:
        return f'It is tried again at {next_attempt:%Y-%m-%dT%H:%M:%SZ}.'
    if decision and decision.reason in model.NEVER:
        return f'It is {built} as soon as there is a host that can take it.'
    return f'It is {built} as soon as there is room.'
