# SPDX-License-Identifier: Apache-2.0

"""Notifications are hints, whatever is in them."""

import time
from typing import Any

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import conffixture

from nova_reaper import conf as reaper_conf
from nova_reaper.events import bus
from nova_reaper.events.bus import Kind
from nova_reaper import tests


def payload(**data: Any) -> dict[str, Any]:
    return {'nova_object.name': 'SomePayload', 'nova_object.data': data}


def instance(host: str | None = 'h1', preemptible: str = '',
             **data: Any) -> dict[str, Any]:
    specs = {preemptible: 'true'} if preemptible else {}
    return payload(uuid='s1', host=host,
                   flavor=payload(extra_specs=specs), **data)


def update(old: str, new: str, task: str | None = None,
           host: str | None = None) -> dict[str, Any]:
    return instance(host, state_update=payload(
        old_state=old, state=new, old_task_state=None, new_task_state=task))


class HintsTestCase(tests.TestCase):
    """What each notification hints at."""

    def hints(self, event_type: str, data: Any,
              publisher: str = 'nova-compute:h1') -> list[tuple[str, ...]]:
        return [(hint.kind.value, hint.host, hint.server)
                for hint in bus.hints(event_type, publisher, data)]

    def test_it_waits(self) -> None:
        self.assertEqual([('waits', '', 's1')], self.hints(
            'compute_task.build_instances.error',
            payload(instance_uuid='s1', state='pending')))
        self.assertEqual([('waits', '', 's1')], self.hints(
            'instance.update', update('building', 'pending')))

    def test_it_is_in_error(self) -> None:
        self.assertEqual([('ignored', '', '')], self.hints(
            'compute_task.build_instances.error',
            payload(instance_uuid='s1', state='error')))
        self.assertEqual(
            [('server', 'h1', 's1'), ('host', 'h1', '')], self.hints(
                'instance.update', update('active', 'error', host='h1')))

    def test_it_waits_no_more(self) -> None:
        self.assertEqual([('server', '', 's1')], self.hints(
            'instance.update', update('pending', 'building')))
        self.assertEqual([('ignored', '', '')], self.hints(
            'instance.update', update('pending', 'pending', 'rebuilding')))

    def test_whose_run_time_is_limited(self) -> None:
        for specs, said in (({'reaper:max_run_time': '60'}, True),
                            ({'reaper:priority': '60'}, False)):
            hint, *_ = bus.hints('instance.create.end', 'nova-compute:h1',
                                 payload(uuid='s1', host='h1', flavor=payload(
                                     extra_specs=specs)))
            self.assertIs(said, hint.preemptible)

    def test_the_first_mark_counts(self) -> None:
        for specs, said in (({'lifecycle:preemptable': 'true'}, True),
                            ({'lifecycle:preemptable': 'true',
                              'reaper:preemptible': 'false'}, False)):
            hint, *_ = bus.hints('instance.create.end', 'nova-compute:h1',
                                 payload(uuid='s1', host='h1', flavor=payload(
                                     extra_specs=specs)))
            self.assertIs(said, hint.preemptible)

    def test_room(self) -> None:
        for name in ('delete', 'shelve_offload'):
            self.assertEqual(
                [('ended', 'h1', 's1'), ('host', 'h1', '')],
                self.hints(f'instance.{name}.end', instance()))
        for name in ('create', 'unshelve', 'live_migration_post_dest'):
            self.assertEqual(
                [('server', 'h1', 's1'), ('taken', 'h1', '')],
                self.hints(f'instance.{name}.end', instance()))

    def test_both_ends_of_a_move(self) -> None:
        self.assertEqual(
            [('server', 'h2', 's1'), ('host', 'h1', ''), ('host', 'h2', '')],
            self.hints('instance.resize_confirm.end', instance('h2')))

    def test_deleted_by_the_api(self) -> None:
        self.assertEqual([('ended', '', 's1')], self.hints(
            'instance.delete.end', instance(None), 'nova-api:c1'))

    def test_a_soft_delete_frees_nothing(self) -> None:
        self.assertEqual([('server', 'h1', 's1')], self.hints(
            'instance.soft_delete.end', instance()))

    def test_services_aggregates_flavors(self) -> None:
        self.assertEqual(
            [('host', 'h1', ''), ('shape', 'h1', '')],
            self.hints('service.update', payload(binary='nova-compute',
                                                 host='h1')))
        self.assertEqual([('ignored', '', '')], self.hints(
            'service.update', payload(binary='nova-conductor', host='h1')))
        self.assertEqual([('shape', '', '')], self.hints(
            'aggregate.update_metadata.end', payload(name='a')))
        self.assertEqual([('ignored', '', '')], self.hints(
            'aggregate.update_metadata.start', payload(name='a')))
        self.assertEqual([('shape', '', '')], self.hints(
            'flavor.update', payload(name='f')))

    def test_preemptible(self) -> None:
        for name in ('reaper:preemptible', 'lifecycle:preemptable', ''):
            hint, _ = bus.hints('instance.create.end', 'nova-compute:h1',
                                instance(preemptible=name))
            self.assertEqual(bool(name), hint.preemptible)

    def test_nonsense(self) -> None:
        for data in ({}, {'nova_object.data': None}, None, 'x', payload(),
                     {'instance_id': 's1'}):
            for name in ('instance.update', 'instance.delete.end',
                         'service.update',
                         'compute_task.build_instances.error'):
                self.assertEqual([('ignored', '', '')],
                                 self.hints(name, data))


class MailboxTestCase(tests.TestCase):
    """A flood of the same is one."""

    def test_the_first_of_the_same_stays(self) -> None:
        box = bus.Mailbox()
        box.put([bus.Hint(Kind.HOST, 'h1', at=float(at))
                 for at in range(1, 1000)])
        hint, = box.take(0)
        self.assertEqual(1.0, hint.at)
        self.assertEqual([], box.take(0))


class ListenerTestCase(tests.TestCase):
    """From the bus to the mailbox."""

    def test_what_is_sent_arrives(self) -> None:
        conf = cfg.ConfigOpts()
        reaper_conf.register_opts(conf)
        conf([], default_config_files=[])
        fixture = self.useFixture(conffixture.ConfFixture(
            conf, transport_url='fake:/'))
        self.assertIsNotNone(fixture)
        conf.set_override('transport_url', 'fake:/', 'notifications')
        box = bus.Mailbox()
        kinds: list[str] = []
        listener = bus.listener(conf, box,
                                   lambda kind: kinds.append(kind.value))
        listener.start()
        self.addCleanup(listener.wait)
        self.addCleanup(listener.stop)
        notifier = oslo_messaging.Notifier(
            oslo_messaging.get_notification_transport(conf, url='fake:/'),
            'nova-compute:h1', driver='messaging',
            topics=['reaper_notifications'])
        for _ in range(3):
            notifier.info({}, 'instance.delete.end', instance())
            notifier.error({}, 'compute_task.build_instances.error',
                           payload(instance_uuid='s2', state='pending'))
            notifier.info({}, 'volume.usage', payload())
        found: set[tuple[str, str]] = set()
        end = time.monotonic() + 30
        while len(found) < 3 and time.monotonic() < end:
            found |= {(hint.kind.value, hint.server or hint.host)
                      for hint in box.take(1)}
        self.assertEqual(
            {('ended', 's1'), ('host', 'h1'), ('waits', 's2')}, found)
