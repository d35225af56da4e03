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

"""What of its devices the owner of a server has named.

A host fills in what the owner has left open, by its driver, the image and the
flavor of that build. A server that returns to cell0 may be built by another
driver, from another image and with another flavor.
"""

_OF_INSTANCE = (
    'root_device_name', 'default_ephemeral_device', 'default_swap_device')
_OF_MAPPING = (
    'device_name', 'disk_bus', 'device_type', 'encryption_secret_uuid',
    'encryption_format', 'encryption_options')


def pack(instance, bdms):
    """Return what can be stored as JSON and given to restore().

    :param instance: the Instance, which no host has had yet
    :param bdms: its BlockDeviceMappingList, in the order of its records
    """
    return {'instance': _pack(instance, _OF_INSTANCE),
            'mappings': [_pack(bdm, _OF_MAPPING) for bdm in bdms]}


def restore(packed, instance, bdms):
    """Take back what a host has filled in.

    :param packed: what pack() returned, None if it is not known
    :param instance: the Instance, unsaved
    :param bdms: its BlockDeviceMappingList, in the order of its records
    """
    if packed is None or len(packed['mappings']) != len(bdms):
        return
    instance.update(packed['instance'])
    for bdm, names in zip(bdms, packed['mappings']):
        bdm.update(names)


def _pack(one, names):
    return {name: getattr(one, name) if name in one else None
            for name in names}
