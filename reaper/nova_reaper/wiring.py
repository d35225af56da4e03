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

"""What is made of the configuration: clients of the cloud, and an engine."""

from concurrent import futures
import dataclasses
import functools
import time

from oslo_config import cfg

from nova_reaper import act
from nova_reaper import announce
from nova_reaper import clients
from nova_reaper import conf as reaper_conf
from nova_reaper import ending
from nova_reaper import engine as engine_module
from nova_reaper import guard
from nova_reaper import holds
from nova_reaper import keystone
from nova_reaper import metrics
from nova_reaper import nova
from nova_reaper import owners
from nova_reaper import placement
from nova_reaper import reader
from nova_reaper import recovery
from nova_reaper import sessions
from nova_reaper import shapes
from nova_reaper import world


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The three services that are asked, and who the reaper is to them."""

    nova: nova.Nova
    owners: owners.Owners
    placement: placement.Placement
    keystone: keystone.Keystone
    project: str
    user: str


def connect(conf: cfg.ConfigOpts, meters: metrics.Metrics) -> Services:
    """Find Nova, Placement and Keystone by the configuration.

    :raises: clients.RequestFailed; keystoneauth1's ClientException where
        Keystone refuses or does not answer
    """
    session = sessions.load_session(conf)

    def client(name: str, oldest: str | None = None,
               newest: str | None = None) -> clients.Client:
        return sessions.load_client(
            conf, session, name, oldest=oldest, newest=newest,
            observe=meters.observe_request)

    compute = nova.Nova(client('nova', nova.OLDEST, nova.NEWEST))
    project = session.get_project_id() or ''
    return Services(
        compute, owners.Owners(compute, project, functools.partial(
            sessions.log_in, conf, session)),
        placement.Placement(client('placement', placement.OLDEST,
                                   placement.NEWEST)),
        keystone.Keystone(client('keystone')),
        project, session.get_user_id() or '')


def build(conf: cfg.ConfigOpts, services: Services,
          meters: metrics.Metrics, pool: futures.Executor,
          readers: futures.Executor, announcer: announce.Announcer
          ) -> engine_module.Engine:
    """An engine, ready for its first turn.

    :param readers: a pool of their own for hosts: a job of the first pool
        waits for it
    """
    def clock() -> float:
        return time.monotonic()

    source = reader.Reader(services.nova, services.placement,
                           services.keystone, readers)
    forms = shapes.Shapes(services.nova)
    held = holds.Holds(services.placement, services.project, services.user)
    ends = ending.Victims(conf, services.nova, announcer, meters,
                          source.locked_by_admin, clock)
    safe = guard.Guard(conf, services.nova, held, meters)
    known = world.World(reaper_conf.options(conf), source, forms, meters)
    actor = act.Actor(conf, services.nova, services.placement, held, ends,
                      services.owners, meters, lambda: safe.mode, clock)
    finder = recovery.Recovery(conf, services.nova, services.placement, held,
                               ends, source, meters, known.waiting, clock)
    return engine_module.Engine(
        conf, source, forms, actor, finder, safe, known,
        meters, pool, announcer)
