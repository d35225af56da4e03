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

"""One look at the cloud: what would be decided, and the cloud as a file."""

from concurrent import futures

from oslo_config import cfg
from oslo_utils import timeutils

from nova_reaper import conf as reaper_conf
from nova_reaper import lists
from nova_reaper import metrics
from nova_reaper import model
from nova_reaper import reader
from nova_reaper import shapes
from nova_reaper import snapshot
from nova_reaper import wiring
from nova_reaper import world


def once(conf: cfg.ConfigOpts, services: wiring.Services
         ) -> list[tuple[model.Waiting, model.Decision]]:
    """What would be decided now, in order; nothing is done.

    :raises: clients.RequestFailed
    """
    known = look(conf, services)
    decided = []
    while (item := known.planner.next(timeutils.utcnow(True), everybody=True)):
        decided.append(item)
    return decided


def look(conf: cfg.ConfigOpts, services: wiring.Services) -> world.World:
    """The cloud as it is now.

    :raises: clients.RequestFailed
    """
    with futures.ThreadPoolExecutor(conf.placement.concurrency) as pool:
        source = reader.Reader(services.nova, services.placement,
                               services.keystone, pool)
        forms = shapes.Shapes(services.nova)
        found = lists.Lists(source, forms).read_all()
    known = world.World(reaper_conf.options(conf), source, forms,
                        metrics.Metrics())
    for view in found.hosts.values():
        if view:
            known.put_host(view)
    for uuid, answer in found.waiting.answers.items():
        known.put_server(found.waiting.servers[uuid], answer)
    return known


def take_snapshot(conf: cfg.ConfigOpts, services: wiring.Services
                  ) -> snapshot.Snapshot:
    """The cloud as it is now, as a file for ``simulate`` has it.

    :raises: clients.RequestFailed
    """
    known = look(conf, services)
    waiting = known.queue.in_order()
    return snapshot.Snapshot(
        now=timeutils.utcnow(True), options=known.options,
        hosts=[view.host for view in known.views.values()],
        servers=[server for view in known.views.values()
                 for server in view.servers],
        waiting=waiting,
        refusals={item.shape: by_host for item in waiting if (
            by_host := known.index.exclusions.refusals(item.shape))})
