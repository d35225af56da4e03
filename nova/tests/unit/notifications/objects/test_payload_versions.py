# SPDX-License-Identifier: Apache-2.0

"""Which version of a payload is sent, now that the enum of states grew."""

from oslo_versionedobjects import fixture

from nova.notifications.objects import compute_task
from nova.notifications.objects import instance as instance_payload
from nova.objects import base
from nova.objects import fields
from nova import test
from nova.tests.unit.notifications.objects import test_notification

# The fingerprints of the payloads that have the state.
NOTIFICATION_OBJECT_DATA = {
    'ComputeTaskPayload': '1.1-ebd185c4eb42b78b6f50a7ee3c9c9a81',
    'InstanceActionPayload': '1.10-3ee4c2cdd6485df03b3af78f8de1e7ef',
    'InstanceActionRebuildPayload': '1.11-f0ec36a80b441425de2c3ed589e9995d',
    'InstanceActionRescuePayload': '1.5-9d3ed517bef2cd2b7dd8ee2b2bf75ab1',
    'InstanceActionResizePrepPayload': '1.5-6c901ce1f49d75eb7baea22ba3d63972',
    'InstanceActionSharePayload': '1.1-85e3d3008e64f45fb69f7275c8c925bc',
    'InstanceActionSnapshotPayload': '1.11-bab26a384c52864d268e5203d3ec7fef',
    'InstanceActionVolumePayload': '1.8-562c91e2bea65ec8a5e7111cf30199b3',
    'InstanceActionVolumeSwapPayload': '1.10-f087a1487ccbadfaf1e23928ecb8f551',
    'InstanceCreatePayload': '1.14-f0d4887021a8b9aa66f4802ebe609856',
    'InstanceExistsPayload': '2.2-58c30611eb233af86650c5c49afef4c5',
    'InstancePayload': '1.10-034f31a4ceae98662f2bd6073d530e1f',
    'InstanceUpdatePayload': '2.2-b038f3c9d70fa20f6a3fcedde70a66bf',
}

STATES = fields.InstanceState.ALL + (None,)


def payload_classes():
    """Return the payloads that have a state of the enum, by name."""
    return {
        cls.__name__: cls
        for cls in base.NovaObjectRegistry.notification_classes
        if any(isinstance(field, fields.InstanceStateField)
               for field in cls.fields.values())}


def make(cls, state, old_state=None, new_state=None):
    """Return a payload of which only the states are set."""
    payload = cls.__new__(cls)
    base.NovaObject.__init__(payload, state=state)
    if 'state_update' in cls.fields:
        payload.state_update = instance_payload.InstanceStateUpdatePayload(
            old_state, new_state, None, None)
    payload.obj_reset_changes(recursive=True)
    return payload


def data(primitive):
    return primitive['nova_object.data']


class PayloadVersionsTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        base.NovaObjectRegistry.register_notification_objects()

    def test_fingerprints(self):
        expected = {
            name: fingerprint for name, fingerprint
            in test_notification.notification_object_data.items()
            if name in {cls.__name__ for cls in
                        base.NovaObjectRegistry.notification_classes}}
        expected.update(NOTIFICATION_OBJECT_DATA)
        checker = fixture.ObjectVersionChecker({
            cls.__name__: (cls,)
            for cls in base.NovaObjectRegistry.notification_classes})
        self.assertEqual(({}, {}), checker.test_hashes(
            expected, extra_data_func=test_notification.get_extra_data))

    def test_every_payload_with_the_enum_has_the_next_minor_version(self):
        self.assertEqual(NOTIFICATION_OBJECT_DATA.keys(),
                         payload_classes().keys())
        for name, cls in payload_classes().items():
            before = vars(cls)['VERSION_BEFORE_PENDING']
            self.assertIn(
                test_notification.notification_object_data[name].split('-')[0],
                (before, cls.VERSION))
            major, minor = before.split('.')
            self.assertEqual('%s.%d' % (major, int(minor) + 1), cls.VERSION)

    def test_the_version_before_is_sent_for_every_other_state(self):
        for cls in payload_classes().values():
            for state in STATES:
                primitive = make(cls, state).obj_to_primitive()
                self.assertEqual(
                    cls.VERSION if state == 'pending'
                    else cls.VERSION_BEFORE_PENDING,
                    primitive['nova_object.version'], (cls, state))
                self.assertEqual(state, data(primitive)['state'])

    def test_a_payload_without_a_state_is_sent_at_the_version_before(self):
        payload = compute_task.ComputeTaskPayload.__new__(
            compute_task.ComputeTaskPayload)
        base.NovaObject.__init__(payload)
        self.assertEqual(
            '1.0', payload.obj_to_primitive()['nova_object.version'])

    def test_an_update_from_or_to_pending_is_sent_at_the_new_version(self):
        for states, version in (
                (('pending', 'building', 'pending'), '2.2'),
                (('error', 'pending', 'error'), '2.2'),
                (('building', 'pending', 'building'), '2.2'),
                (('building', 'building', 'pending'), '2.2'),
                (('error', 'building', 'error'), '2.1')):
            primitive = make(instance_payload.InstanceUpdatePayload,
                             *states).obj_to_primitive()
            self.assertEqual(version, primitive['nova_object.version'])
            # Its states are strings.
            update = data(primitive)['state_update']
            self.assertEqual('1.0', update['nova_object.version'])
            self.assertEqual(states, (data(primitive)['state'],
                                      data(update)['old_state'],
                                      data(update)['state']))

    def test_a_payload_within_a_notification_is_sent_at_its_version(self):
        for cls in base.NovaObjectRegistry.notification_classes:
            field = cls.fields.get('payload')
            name = field and field.objname
            if name not in payload_classes():
                continue
            payload_cls = payload_classes()[name]
            for state, version in (
                    ('pending', payload_cls.VERSION),
                    ('error', payload_cls.VERSION_BEFORE_PENDING)):
                primitive = cls(
                    payload=make(payload_cls, state)).obj_to_primitive()
                self.assertEqual('1.0', primitive['nova_object.version'])
                payload = data(primitive)['payload']
                self.assertEqual(version, payload['nova_object.version'])

    def test_a_consumer_of_the_version_before_gets_error(self):
        for cls in payload_classes().values():
            payload = make(cls, 'pending', 'pending', 'pending')
            primitive = payload.obj_to_primitive(
                target_version=cls.VERSION_BEFORE_PENDING)
            self.assertEqual(cls.VERSION_BEFORE_PENDING,
                             primitive['nova_object.version'])
            self.assertNotIn('pending', str(primitive))
            self.assertEqual('error', data(primitive)['state'])
            self.assertEqual('pending', payload.state)

    def test_a_consumer_of_a_manifest_gets_error(self):
        cls = instance_payload.InstanceUpdatePayload
        for version, state in (('2.1', 'error'), ('2.2', 'pending')):
            primitive = make(cls, 'pending', 'building', 'pending'
                             ).obj_to_primitive(
                target_version=version, version_manifest={
                    'InstanceUpdatePayload': version,
                    'InstanceStateUpdatePayload': '1.0'})
            self.assertEqual(version, primitive['nova_object.version'])
            self.assertEqual(state, data(primitive)['state'])
            update = data(data(primitive)['state_update'])
            self.assertEqual(('building', state),
                             (update['old_state'], update['state']))

    def test_a_payload_without_the_enum_is_sent_as_ever(self):
        payload = instance_payload.InstanceStateUpdatePayload(
            'building', 'pending', None, None)
        payload.obj_reset_changes()
        self.assertEqual({
            'nova_object.name': 'InstanceStateUpdatePayload',
            'nova_object.namespace': 'nova',
            'nova_object.version': '1.0',
            'nova_object.data': {
                'old_state': 'building', 'state': 'pending',
                'old_task_state': None, 'new_task_state': None},
        }, payload.obj_to_primitive())

    def test_a_subclass_without_a_version_of_its_own_is_sent_at_its_version(
            self):
        @base.NovaObjectRegistry.register_if(False)
        class OtherPayload(instance_payload.InstancePayload):
            VERSION = '1.0'

        for state in ('active', 'pending'):
            self.assertEqual('1.0', make(
                OtherPayload, state).obj_to_primitive()['nova_object.version'])

    def test_an_unknown_state_is_refused_as_ever(self):
        for cls in payload_classes().values():
            self.assertRaises(ValueError, make, cls, 'waiting')
