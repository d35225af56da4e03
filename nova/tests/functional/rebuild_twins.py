# SPDX-License-Identifier: Apache-2.0

"""Compares a server that waited with one that was asked for in the same way.

The one is put into cell0 and rebuilt, its twin is created when there is room.
What the API shows of them, what is stored, what nova-compute is told and what
Neutron and Placement have of them must be the same.
"""

import copy
import re
from unittest import mock

from oslo_serialization import jsonutils

from nova.compute import rpcapi
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova.objects import base as objects_base
from nova.tests.functional import rebuild_base
from nova import utils

# What no two servers have in common. IDs that only one of the two names are
# replaced too.
_VOLATILE = (
    (re.compile(r'\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?'),
     'TIME'),
    (re.compile(r'\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b'), 'MAC'),
    (re.compile(r'\br-[0-9a-z]{8}\b'), 'RESERVATION'),
    (re.compile(r'\b(instance|i)-[0-9a-f]{8}\b'), 'NAME'),
    (re.compile(r'\btap[0-9a-f]{8}-[0-9a-f]{2}\b'), 'TAP'),
)
_UUID = re.compile(r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}')

# Bookkeeping of rows and objects. A build request that was made for a rebuild
# has a time at which it was updated, and the request spec says how often a
# host was looked for, and whether the owner has asked for it.
_DROPPED = ('nova_object.changes', 'updated_at', 'updated', 'attempts',
            'asked_to_wait')

_ROWS = (
    (models.Instance, 'uuid', 'id'),
    (models.InstanceExtra, 'instance_uuid', 'id'),
    (models.InstanceSystemMetadata, 'instance_uuid', 'key'),
    (models.InstanceMetadata, 'instance_uuid', 'key'),
    (models.BlockDeviceMapping, 'instance_uuid', 'id'),
    (models.PciDevice, 'instance_uuid', 'address'),
    (models.VirtualInterface, 'instance_uuid', 'id'),
    (models.Tag, 'resource_id', 'tag'))


def _plain(thing):
    """Return a thing, with all objects in it, as JSON can hold it."""
    def convert(thing, **kwargs):
        if isinstance(thing, objects_base.NovaObject):
            return thing.obj_to_primitive()
        return jsonutils.to_primitive(thing, **kwargs)

    return jsonutils.loads(jsonutils.dumps(thing, default=convert))


def without_bookkeeping(thing):
    """Return a thing that JSON can hold without what merely tells of saves."""
    if isinstance(thing, dict):
        return {key: without_bookkeeping(value)
                for key, value in thing.items()
                if key not in _DROPPED and
                not (key == 'id' and isinstance(value, int))}
    if isinstance(thing, list):
        return [without_bookkeeping(value) for value in thing]
    if isinstance(thing, str) and thing[:1] in '[{':
        # Objects and lists are stored as such.
        try:
            return without_bookkeeping(jsonutils.loads(thing))
        except ValueError:
            pass
    return thing


def differences(one, other, apart=(), path=''):
    """Yield where two things that JSON can hold differ.

    What is not there is the same as None and as an empty list.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(set(one) | set(other)):
            if key not in apart:
                yield from differences(one.get(key), other.get(key), apart,
                                        '%s/%s' % (path, key))
    elif (isinstance(one, list) and isinstance(other, list) and
            len(one) == len(other)):
        for index, pair in enumerate(zip(one, other)):
            yield from differences(*pair, apart, '%s/%d' % (path, index))
    elif (None if one == [] else one) != (None if other == [] else other):
        yield '%s: rebuilt with %r, created with %r' % (path, one, other)


class TwinsTestCase(rebuild_base.RebuildInCell0Base):

    def setUp(self):
        super().setUp()
        self.told = {}
        build = rpcapi.ComputeAPI.build_and_run_instance

        def record(compute, context, **kwargs):
            self.told[kwargs['instance'].uuid] = _plain(kwargs)
            return build(compute, context, **kwargs)

        patcher = mock.patch.object(
            rpcapi.ComputeAPI, 'build_and_run_instance', record)
        patcher.start()
        self.addCleanup(patcher.stop)

    def request(self, flavor=None, **server):
        """Return the request for a server for which there is no room."""
        request = self._build_server(
            name='twin', flavor_id=flavor or self.large, networks='none')
        request.update(server)
        return {'server': {**request, 'adminPass': 'secret'}}

    def kept(self, request, once=None, api=None, times=1, room=None,
             between=None, created_at=None, twin=None, **rebuild):
        """Let a server wait, rebuild it, and compare it with its twin.

        :param request: the body of the create request
        :param once: pairs of what the request names that only one server can
            have, and what the twin has in its place
        :param api: the client that asks for all, by default the tenant's
        :param times: how often it is put into cell0 before there is room
        :param room: called to make room, by default make_room()
        :param between: called with the server when it is known, before its
            twin is created
        :param created_at: the microversion of the create
        :param twin: the body of the create request for the twin, if it is
            another one
        :param rebuild: what the rebuild request says
        :returns: the server as the API shows it, and its twin
        """
        api = api or self.api
        server = self.create_at(created_at, api, request, 'PENDING')
        for _time in range(times - 1):
            self.rebuild_with(api, server, rebuild)
            server = self.wait_for(server, 'PENDING')
        (room or self.make_room)()
        self.rebuild_with(api, server, rebuild)
        server = self.wait_for(server, 'ACTIVE')
        known = self.all_of(server)
        if between:
            between(server)
        twin = jsonutils.dumps(twin or request)
        for one, other in (once or {}).items():
            twin = twin.replace(one, other)
        twin = self.create_at(created_at, api, jsonutils.loads(twin),
                              'ACTIVE')
        self.same(known, self.all_of(twin), once)
        return server, twin

    def create_at(self, microversion, api, request, status):
        with utils.temporary_mutation(
                api, microversion=microversion or self.microversion):
            return self.wait_for(api.post_server(request), status)

    def rebuild_with(self, api, server, body):
        api.post_server_action(
            server['id'], {'rebuild': {'adminPass': 'secret', **body}},
            check_response_status=[202])

    def same(self, one, other, once=None, apart=()):
        """Fail if what is known of two servers differs in what it need not.

        :param one: what all_of() says of the server that was rebuilt
        :param other: what it says of the one that was not
        :param once: pairs of what the one has and the other
        :param apart: keys of what may differ
        """
        one, other = (jsonutils.dumps(known, sort_keys=True)
                      .replace(known['shown']['id'], 'SERVER')
                      for known in (one, other))
        for name, substitute in (once or {}).items():
            other = other.replace(substitute, name)
        for pattern, substitute in _VOLATILE:
            one, other = (pattern.sub(substitute, text)
                          for text in (one, other))
        common = set(_UUID.findall(one)) & set(_UUID.findall(other))
        one, other = (jsonutils.loads(_UUID.sub(
            lambda found: (found[0] if found[0] in common else 'UUID'),
            text)) for text in (one, other))
        self.assertEqual('', '\n'.join(differences(one, other, apart)))

    def all_of(self, server):
        """Return what is known of a server that was built."""
        told = dict(self.told[server['id']])
        # Where to go if this host fails.
        told.pop('host_list')
        shown = self.admin_api.get_server(server['id'])
        rows = self.rows(server)
        # The API shows them in the order in which the database finds them.
        devices = [row['volume_id'] for row in rows['block_device_mapping']]
        shown['os-extended-volumes:volumes_attached'].sort(
            key=lambda volume: devices.index(volume['id']))
        return without_bookkeeping({
            'shown': shown,
            'told': told,
            'interfaces': self.api.get_port_interfaces(server['id']),
            'ports': [port for port in self.ports()
                      if port['device_id'] == server['id']],
            'rows': _plain(rows),
            'allocations': {
                provider: allocated['resources'] for provider, allocated
                in self._get_allocations_by_server_uuid(
                    server['id']).items()},
        })

    def delete(self, server):
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)

    def ports(self):
        return copy.deepcopy(list(self.neutron._ports.values()))

    def rows(self, server):
        """Return what is stored of a server that is in a cell."""
        context = nova_context.get_admin_context()
        rows = {}
        with api_db_api.context_manager.reader.using(context):
            for model in (api_models.RequestSpec, api_models.InstanceMapping,
                          api_models.InstanceGroupMember):
                rows[model.__tablename__] = [
                    dict(row) for row in context.session.query(model)
                    .filter_by(instance_uuid=server['id'])]
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            with main_db_api.get_context_manager(cctxt).reader.using(cctxt):
                for model, column, order in _ROWS:
                    rows[model.__tablename__] = [
                        {c.name: getattr(row, c.name)
                         for c in model.__table__.columns}
                        for row in cctxt.session.query(model)
                        .filter_by(**{column: server['id']})
                        .order_by(order)]
        return rows
