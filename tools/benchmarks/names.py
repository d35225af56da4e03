# SPDX-License-Identifier: Apache-2.0
"""What the cloud of tools/benchmarks/reaper_service.py is made of."""

from oslo_config import cfg
import oslo_messaging

TOPIC = 'reaper_notifications'
PROJECT = '5' * 32
# What one server of a flavor has.
SPOT = {'VCPU': 1, 'MEMORY_MB': 2048, 'DISK_GB': 20}
PLAIN = {'VCPU': 2, 'MEMORY_MB': 8192, 'DISK_GB': 80}
URGENT = {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 40}
# Flavors that wait; each project of each of these flavors is a shape.
BATCHES, PROJECTS = 10, 4
# A host has all of these traits but that of the last digit of its number.
TRAITS = ['CUSTOM_BENCHMARK_%d' % number for number in range(10)]


def host_name(host):
    return 'compute%05d' % host


def provider_id(host):
    return '%08x-0000-4000-8000-000000000001' % host


def spot_id(host, number):
    return '%08x-%04x-4000-8000-000000000002' % (host, number)


def plain_id(host):
    return '%08x-0000-4000-8000-000000000003' % host


def waiting_id(number):
    return '%08x-0000-4000-8000-000000000004' % number


def urgent_id(number):
    return '%08x-0000-4000-8000-000000000005' % number


def new_id(number):
    return '%08x-0000-4000-8000-000000000006' % number


def _flavor(name, amounts, **specs):
    return {'original_name': name, 'name': name, 'id': name,
            'vcpus': amounts['VCPU'], 'ram': amounts['MEMORY_MB'],
            'disk': amounts['DISK_GB'], 'ephemeral': 0, 'swap': 0,
            'OS-FLV-EXT-DATA:ephemeral': 0, 'extra_specs': specs}


def _batch(number):
    # As preemptible as all others, so that nobody is ended for it.
    return _flavor('batch-%d' % number, {
        'VCPU': 2, 'MEMORY_MB': 2048 + 64 * number, 'DISK_GB': 40},
        **{'reaper:preemptible': 'true'})


FLAVORS = {flavor['id']: flavor for flavor in (
    _flavor('spot', SPOT, **{'reaper:preemptible': 'true',
                             'reaper:action': 'delete'}),
    _flavor('urgent', URGENT, **{'reaper:priority': '1'}),
    _flavor('plain', PLAIN),
    *map(_batch, range(BATCHES)))}


class Notifier:
    """Tells on the bus what Nova tells.

    :param url: of the bus
    """

    def __init__(self, url):
        conf = cfg.ConfigOpts()
        conf([], project='bench')
        self._notifier = oslo_messaging.Notifier(
            oslo_messaging.get_notification_transport(conf, url=url),
            driver='messagingv2', topics=[TOPIC])

    def tell(self, event, host, uuid, flavor, **more):
        """Send an event of a server on a host."""
        self._notifier.prepare(publisher_id='nova-compute:' + host).info(
            {}, event, {'nova_object.data': {
                'uuid': uuid, 'host': host, 'flavor': {'nova_object.data': {
                    'extra_specs': flavor['extra_specs']}}, **more}})

    def tell_waits(self, uuid):
        """Send the event that no host was found for a server."""
        self._notifier.prepare(publisher_id='nova-conductor:control').error(
            {}, 'compute_task.build_instances.error', {'nova_object.data': {
                'instance_uuid': uuid, 'state': 'pending'}})


def ask(http, url, method, path, body=None):
    """Send Placement a request as an administrator; return the answer."""
    answer = http.request(method, url + path, json=body, headers={
        'X-Auth-Token': 'admin', 'OpenStack-API-Version': 'placement 1.38'})
    if answer.status_code >= 400 and answer.status_code not in (404, 409):
        raise RuntimeError('%s %s: %s' % (method, path, answer.text))
    return answer.json() if answer.content else {}
