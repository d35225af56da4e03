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

"""One record of the journal: what was done to one server."""

from collections.abc import Mapping
import dataclasses
import datetime
import enum
from typing import Any

from oslo_utils import timeutils
from oslo_utils import uuidutils


class Kind(enum.StrEnum):
    """What was done."""

    NOTICE = 'notice'          # to a preemptible server
    WITHDRAWAL = 'withdrawal'  # of a notice: the server lives on
    END = 'end'                # of a preemptible server
    BUILD = 'build'            # of a server that waited
    RETURN = 'return'          # of a server that was shelved for another
    GIVEN_UP = 'given_up'      # a server that waited was set to ERROR
    PAUSE = 'pause'            # of the reaper, by an administrator
    RESUME = 'resume'


#: Results of a build or a return that say how it ends say more than this one,
#: which is written before Nova is asked.
ASKED = 'asked'
#: The result of an end that the reaper did not bring about.
LEFT = 'left'


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One record.

    :ivar server: ID of the server to which it was done
    :ivar waiting: ID of the server for which it was done; the same server's
        where it was done for nobody else
    :ivar waiting_project: '' if it is not known
    :ivar result: of an end ``delete``, ``shelve`` or ``left``; of a build
        ``asked`` and then how it ended; of a server that was given up why
    :ivar detail: more, as JSON has it; ``why`` is a sentence. For
        administrators.
    """

    kind: Kind
    server: str = ''
    project: str = ''
    name: str = ''
    waiting: str = ''
    waiting_project: str = ''
    host: str = ''
    result: str = ''
    detail: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    at: datetime.datetime = dataclasses.field(
        default_factory=lambda: timeutils.utcnow(True))
    id: str = dataclasses.field(default_factory=uuidutils.generate_uuid)

    def to_dict(self, everything: bool) -> dict[str, Any]:
        """The record as it is answered.

        :param everything: whether to name hosts and servers of other
            projects; a project's own reader does not see them
        """
        own = self.waiting_project == self.project
        answer: dict[str, Any] = {
            'id': self.id,
            'at': self.at.strftime('%Y-%m-%dT%H:%M:%SZ'),
            'kind': self.kind.value, 'server': self.server or None,
            'name': self.name or None, 'project_id': self.project or None,
            'action': self.detail.get('action'),
            'result': self.result or None,
            'terminate_at': self.detail.get('terminate_at'),
            'for': (self.waiting if everything or own else '') or None,
            'for_own_project': own if self.waiting_project else None}
        if everything:
            answer |= {'for_project_id': self.waiting_project or None,
                       'host': self.host or None,
                       'detail': dict(self.detail)}
        return answer
