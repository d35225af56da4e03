# SPDX-License-Identifier: Apache-2.0

"""The users, the roles and the catalogue in Keystone."""

from keystoneauth1.identity import v3
from keystoneauth1 import session

from tools.cloud import configuration
from tools.cloud import reaper
from tools.cloud import settings

_SERVICE_TYPES = {
    'placement': 'placement',
    'glance': 'image',
    'neutron': 'network',
    'nova': 'compute',
    'cinder': 'block-storage',
}


def connect(cloud, user):
    """Return a keystoneauth session of one of the two users of the cloud."""
    return session.Session(auth=v3.Password(
        **configuration.clouds(cloud)['clouds'][user]['auth']))


def seed(cloud):
    """Make what ``keystone-manage bootstrap`` leaves to do.

    The service users with their roles, the endpoints of the services, and, if
    the cloud is to have them, a project and a user that own servers.

    :param cloud: the settings.Settings
    """
    admin = _Admin(cloud)
    service = admin.create('project', name=configuration.SERVICE_PROJECT)
    roles = {role['name']: role['id'] for role in admin.get('roles')}
    for name, kind in _SERVICE_TYPES.items():
        if name == 'cinder' and not cloud.cinder:
            continue
        user = admin.create('user', name=name, password=cloud.password)
        for role in ('admin', 'service'):
            admin.grant(service, user, roles[role])
        entry = admin.create('service', name=name, type=kind)
        for interface in ('public', 'internal'):
            admin.create('endpoint', service_id=entry, interface=interface,
                         region_id=settings.REGION, url=cloud.url(name))
    if cloud.reaper:
        user = admin.create('user', name=reaper.NAME,
                            password=cloud.password)
        for role in ('admin', 'service'):
            admin.grant(service, user, roles[role])
        # In each project there will be.
        admin.grant_inherited(user, roles['member'])
        entry = admin.create('service', name='reaper',
                             type=reaper.SERVICE_TYPE)
        for interface in ('public', 'internal'):
            admin.create('endpoint', service_id=entry, interface=interface,
                         region_id=settings.REGION, url=reaper.url(cloud))
    if cloud.owner:
        project = admin.create('project', name=configuration.OWNER)
        owner = admin.create('user', name=configuration.OWNER,
                             password=cloud.password)
        admin.grant(project, owner, roles['member'])


class _Admin:
    """Keystone's API as the administrator uses it."""

    def __init__(self, cloud):
        self._session = connect(cloud, configuration.ADMIN)
        self._url = cloud.url('keystone')

    def get(self, kind):
        return self._session.get('%s/%s' % (self._url, kind)).json()[kind]

    def create(self, kind, **body):
        answer = self._session.post(
            '%s/%ss' % (self._url, kind), json={kind: body})
        return answer.json()[kind]['id']

    def grant(self, project, user, role):
        self._session.put('%s/projects/%s/users/%s/roles/%s' % (
            self._url, project, user, role))

    def grant_inherited(self, user, role):
        self._session.put(
            '%s/OS-INHERIT/domains/default/users/%s/roles/%s/'
            'inherited_to_projects' % (self._url, user, role))
