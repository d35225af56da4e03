# SPDX-License-Identifier: Apache-2.0

"""Horizon, with the panels of waiting servers, as a service of a cloud."""

import importlib.util
import json
import pathlib
import secrets

from tools.cloud import errors
from tools.cloud import ports
from tools.cloud import settings

#: The name of the process, and of its port.
NAME = 'horizon'

# The packages of Horizon that have catalogues of translations.
_PACKAGES = ('horizon', 'openstack_dashboard')

_FOLDER = pathlib.Path(__file__).with_name('horizon')


def check():
    """Raise CloudError if this environment has no Horizon."""
    if not (importlib.util.find_spec('openstack_dashboard') and
            importlib.util.find_spec('pending_dashboard')):
        raise errors.CloudError(
            'The environment %s has no Horizon: pip install -r '
            'tools/cloud/dashboard-requirements.txt -c constraints.txt there.'
            % settings.PREFIX)


class Dashboard:
    """Horizon of one cloud.

    :param cloud: the settings.Settings
    :param run: the services.Services
    """

    def __init__(self, cloud, run):
        self._cloud = cloud
        self._run = run
        self._files = cloud.var / NAME

    def make(self):
        """Collect what Horizon's pages are made of, and translations."""
        (self._files / 'sessions').mkdir(parents=True)
        (self._files / 'secret').write_text(secrets.token_hex(32))
        self._run.command(
            NAME + '-static', 'python', _FOLDER / 'cloud_horizon.py',
            'collectstatic', '--noinput', env=self._environment())

    def start(self):
        """Start it, and wait until it shows who may log in."""
        self._run.start_wsgi(
            NAME, 'cloud_horizon', self._environment(),
            '--processes', 1, '--pythonpath', _FOLDER,
            '--static-map', '/static=%s' % (self._files / 'static'))

    def _environment(self):
        return {'CLOUD_HORIZON': json.dumps({
            'ALLOWED_HOSTS': [ports.HOST],
            'CACHES': {'default': {
                'BACKEND': 'django.core.cache.backends.locmem.LocMemCache'}},
            'DEBUG': False,
            'LOCALE_PATHS': [str(self._files / 'locale' / package)
                             for package in _PACKAGES],
            'LOGGING': {
                'version': 1, 'disable_existing_loggers': False,
                'handlers': {'stderr': {'class': 'logging.StreamHandler'}},
                'root': {'handlers': ['stderr'], 'level': 'WARNING'}},
            'OPENSTACK_KEYSTONE_URL': self._cloud.url('keystone'),
            'SECRET_KEY': (self._files / 'secret').read_text(),
            'SESSION_ENGINE': 'django.contrib.sessions.backends.file',
            'SESSION_FILE_PATH': str(self._files / 'sessions'),
            'STATIC_ROOT': str(self._files / 'static'),
        })}
