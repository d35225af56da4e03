# SPDX-License-Identifier: Apache-2.0

from oslo_utils import versionutils

import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.RequestContext)
class RequestContext:

    #: The microversion of the REST API request that this context serves, as
    #: "2.105"; None if the context serves no such request. Only nova-api
    #: knows it: a context that is sent over RPC, or made by target_cell(),
    #: does not carry it.
    api_version = nova_pending.new(None)

    #: The BuildRequests of the servers that the conductor builds for this
    #: context. Like api_version they are not sent or copied.
    builds = nova_pending.new(())

    #: The nova.scheduler.held_candidate.ScheduledHold of a server that is
    #: scheduled for a build, None of a server that moves.
    hold = nova_pending.new(None)

    #: Allocations of a server that no usage is to count, or None
    #: (nova.scheduler.held_room.uncounted).
    uncounted = nova_pending.new(None)

    #: The nova.compute.rebuild_in_cell0.Asked of a request for a rebuild.
    rebuild = nova_pending.new(None)

    #: The Instance whose root volume a rebuild re-images.
    reimaged = nova_pending.new(None)

    @nova_pending.new
    def supports_api_version(self, version: str) -> bool:
        """Whether the client asks at a microversion or a later one.

        :param version: the microversion, as "2.105"
        :returns: False where the context serves no REST API request
        """
        if self.api_version is None:
            return False
        return (versionutils.convert_version_to_tuple(self.api_version) >=
                versionutils.convert_version_to_tuple(version))
