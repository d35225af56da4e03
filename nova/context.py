# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.RequestContext)
class RequestContext:

    #: The BuildRequests of the servers that the conductor builds for this
    #: context. No attribute here is sent or copied.
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
