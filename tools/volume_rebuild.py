# SPDX-License-Identifier: Apache-2.0

"""Rebuilds volume-backed servers on a local cloud whose Cinder fails.

The cloud is one that ``python -m tools.cloud up`` has brought up. What fails
is forced on Cinder, Glance and Nova from outside, mostly by their policy
files, which they read again when they change, and once nova-compute is killed:
the services are those of the release. Guests are not real, volumes and what is
written to them are.
"""

import argparse
import contextlib
import os
import pathlib
import sys
import time

import openstack
from openstack import exceptions

from tools.cloud import profiles

_MICROVERSION = '2.106'
_SECONDS = 300
# For the services to see that a policy file has changed.
_POLICY_SECONDS = 1


class Failure(Exception):
    """Something is not as it should be."""


class Trial:
    """The rebuilds on one cloud.

    :param stack: a cloud that is up
    """

    def __init__(self, stack):
        self._stack = stack
        cloud = stack.settings
        self._etc = cloud.etc
        self._volumes = cloud.var / 'cinder' / 'volumes'
        os.environ['OS_CLIENT_CONFIG_FILE'] = str(cloud.etc / 'clouds.yaml')
        self.admin = openstack.connect(
            cloud='admin', compute_default_microversion=_MICROVERSION)
        self.api = openstack.connect(
            cloud='owner', compute_default_microversion=_MICROVERSION)
        self.nova = self.api.compute
        name = time.strftime('reimage-%H%M%S')
        self.images = {
            kind: self._image('%s-%s' % (name, kind), kind.encode())
            for kind in ('first', 'second', 'lost')}
        for path in (cloud.var / 'glance').rglob(self.images['lost'].id):
            path.unlink()
        self.flavor = self.admin.compute.create_flavor(
            name=name, vcpus=1, ram=64, disk=1)
        self.cinder = self.admin.identity.find_user('cinder').id
        self.name = name
        self.server = None
        self.volume = None

    def _image(self, name, content):
        return self.admin.image.create_image(
            name, data=content.ljust(4096, b'.'), disk_format='raw',
            container_format='bare', visibility='public', wait=True)

    def run(self):
        """Run all trials; raise Failure at the first that is not well."""
        for trial in (
                self.good, self.refused, self.refused_when_stopped,
                self.no_image, self.failed, self.event_lost,
                self.create_fails, self.delete_fails, self.killed,
                self.deleted):
            start = time.monotonic()
            self._create()
            try:
                trial()
            finally:
                self._remove()
            print('%-24s %5.1f s  %s' % (
                trial.__name__, time.monotonic() - start, trial.__doc__))

    # The trials.

    def good(self):
        """Re-imaged, and running."""
        self._rebuild('second')
        self._expect_running('second')

    def refused(self):
        """Refused by Cinder's policy: undone. Then allowed: re-imaged."""
        with self._policy('cinder', 'volume:reimage_reserved'):
            self._rebuild('second', name='renamed')
        self._expect_running('first')
        self._expect_said('reimage')
        # What the request itself names stays.
        self._expect('name', self._show().name, 'renamed')
        self._rebuild('second')
        self._expect_running('second')

    def refused_when_stopped(self):
        """Refused for a server that is off: as before, and off."""
        self.nova.stop_server(self.server)
        self._wait('SHUTOFF')
        with self._policy('cinder', 'volume:reimage_reserved'):
            self._rebuild('second')
        self._expect_running('first', 'SHUTOFF')

    def no_image(self):
        """Cinder finds no such image: as before. Then it does: re-imaged."""
        with self._no_image():
            self._rebuild('second')
        self._expect_running('first')
        self._expect_said('404')
        self._rebuild('second')
        self._expect_running('second')

    def failed(self):
        """Cinder fails while it writes: in error. Then the retry works."""
        self._rebuild('lost')
        self._expect('status', self._show().status, 'ERROR')
        self._expect_in('fault', self.volume, self._show().fault['message'])
        self._expect('volume', self._volume().status, 'error')
        self._rebuild('second')
        self._expect_running('second')

    def event_lost(self):
        """Nova refuses the event of Cinder: the volume is looked at."""
        with self._policy(
                'nova', 'os_compute_api:os-server-external-events:create'):
            self._rebuild('second')
        self._expect_running('second')

    def create_fails(self):
        """Cinder makes no attachment: as before."""
        with self._policy('cinder', 'volume:attachment_create'):
            self._rebuild('second')
        self._expect_running('first')
        self._expect_said('attachment_create')

    def delete_fails(self):
        """Cinder deletes no attachment: as before, once it deletes again."""
        with self._policy('cinder', 'volume:attachment_delete') as allow:
            self._ask('second')
            # It is refused once, and there are several tries to go back.
            self._until('there are two attachments',
                        lambda: len(self._attachments()) == 2)
            time.sleep(3)
            allow()
            self._at_rest()
        self._expect_running('first')
        self._rebuild('second')
        self._expect_running('second')

    def killed(self):
        """nova-compute is killed as it waits: in error. The retry works."""
        running = self._stack.processes.running()
        host = self.admin.compute.get_server(self.server).compute_host
        name = 'nova-compute@%s' % host
        if name not in running:
            # It shares the process.
            name = 'nova-api'
        with self._policy(
                'nova', 'os_compute_api:os-server-external-events:create'):
            self._ask('second')
            self._until('the volume is re-imaged', lambda: (
                self._content() == 'second' and
                self._volume().status == 'reserved'))
            running[name].kill()
        self._stack.restart(name, lambda *_: None)
        self._wait('ERROR')
        self._expect('volume', self._volume().status, 'reserved')
        self._rebuild('first')
        self._expect_running('first')

    def deleted(self):
        """The server is deleted meanwhile: no attachment is left."""
        self._ask('second')
        self.nova.delete_server(self.server)
        self.nova.wait_for_delete(self.server, wait=_SECONDS)
        self._until('the volume is available',
                    lambda: self._volume().status == 'available')
        self._expect('attachments', len(self._attachments()), 0)

    # What they do.

    def _create(self):
        volume = self.api.block_storage.create_volume(
            name=self.name, size=1, image_id=self.images['first'].id)
        self.volume = volume.id
        self._until('the volume is made',
                    lambda: self._volume().status == 'available')
        self.server = self.nova.create_server(
            name=self.name, networks='none',
            flavor_id=self.flavor.id,
            block_device_mapping=[{
                'boot_index': 0, 'uuid': self.volume,
                'source_type': 'volume', 'destination_type': 'volume'}])
        self._wait('ACTIVE')

    def _remove(self):
        self.nova.delete_server(self.server, ignore_missing=True)
        self.nova.wait_for_delete(self.server, wait=_SECONDS)
        self._until('the volume is free', lambda: self._volume().status in (
            'available', 'error'))
        self.api.block_storage.delete_volume(self.volume)

    def _no_image(self):
        """Let Glance show Cinder, and nobody else, no image."""
        return self._policy(
            'glance', 'get_image', 'not service_user_id:' + self.cinder,
            # Glance does not forget a rule that is gone from the file.
            '"get_image": "@"\n')

    @contextlib.contextmanager
    def _policy(self, service, rule, check='!', otherwise='{}\n'):
        """Let a service refuse a call to everybody, or who does not pass."""
        path = self._etc / service / 'policy.yaml'
        path.write_text('"%s": "%s"\n' % (rule, check))
        time.sleep(_POLICY_SECONDS)
        try:
            yield lambda: path.write_text(otherwise)
        finally:
            path.write_text(otherwise)
            time.sleep(_POLICY_SECONDS)

    def _ask(self, kind, **changes):
        self.nova.rebuild_server(
            self.server, image=self.images[kind].id, **changes)

    def _rebuild(self, kind, **changes):
        self._ask(kind, **changes)
        self._at_rest()

    def _at_rest(self):
        def done():
            return self._show().task_state is None and self._event().result
        self._until('the rebuild ends', done)

    def _show(self):
        return self.nova.get_server(self.server)

    def _volume(self):
        return self.api.block_storage.get_volume(self.volume)

    def _content(self):
        """Return the kind of the image that is on the volume."""
        with (self._volumes / ('volume-' + self.volume)).open('rb') as file:
            return file.read(16).partition(b'.')[0].decode()

    def _attachments(self):
        return [each for each in self.admin.block_storage.attachments(
            all_tenants=True) if each.volume_id == self.volume]

    def _event(self):
        """Return the event of nova-compute in the newest rebuild."""
        action = next(
            each for each in self.admin.compute.server_actions(self.server)
            if each.action == 'rebuild')
        action = self.admin.compute.get_server_action(
            action.request_id, self.server)
        for event in action.events or ():
            if event.event == 'compute_rebuild_instance':
                return event
        return openstack.compute.v2.server_action.ServerActionEvent()

    def _wait(self, status):
        self._until('the server is ' + status,
                    lambda: self._show().status == status)

    def _until(self, what, done):
        end = time.monotonic() + _SECONDS
        while not done():
            if time.monotonic() > end:
                raise Failure('It was waited in vain until %s.' % what)
            time.sleep(0.2)

    def _expect(self, what, found, wanted):
        if found != wanted:
            raise Failure('%s: %r, not %r' % (what, found, wanted))

    def _expect_in(self, what, part, whole):
        if part not in whole:
            raise Failure('%s: %r is not in %r' % (what, part, whole))

    def _expect_said(self, part):
        event = self._event()
        self._expect('result', event.result, 'Error')
        self._expect_in('event', part, event.details or '')

    def _expect_running(self, kind, status='ACTIVE'):
        """Check that all is whole, with the content of an image."""
        server = self._show()
        self._expect('status', (server.status, server.vm_state),
                     (status, 'active' if status == 'ACTIVE' else 'stopped'))
        self._expect('volume', self._volume().status, 'in-use')
        [attachment] = self._attachments()
        self._expect('attachment', (attachment.instance, attachment.status),
                     (server.id, 'attached'))
        attached = self.nova.get_volume_attachment(self.server, self.volume)
        self._expect('attachment in Nova', attached.attachment_id,
                     attachment.id)
        self._expect('content', self._content(), kind)
        self._expect(
            'image of the volume',
            self._volume().volume_image_metadata['image_id'],
            self.images[kind].id)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog='python -m tools.volume_rebuild', description=__doc__)
    parser.add_argument('--state-dir', required=True, type=pathlib.Path,
                        metavar='DIR', help='the directory of the cloud')
    args = parser.parse_args(argv)
    try:
        Trial(profiles.load(args.state_dir.absolute())).run()
    except (Failure, exceptions.SDKException) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
