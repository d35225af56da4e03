# SPDX-License-Identifier: Apache-2.0

"""How the services of an embedded cloud are started."""

import pathlib

from tools.cloud import services

_RUN = pathlib.Path(__file__).with_name('__main__.py')


class Services(services.Services):
    """The services of one embedded cloud."""

    def api_program(self, api, port):
        etc = self._cloud.etc
        return {
            'neutron': self._module('neutron_process', port),
            'nova': self._module(
                'nova_process', port,
                *(etc / host / 'nova.conf' for host in self._cloud.hosts)),
            'cinder': self._module(
                'cinder_process', port, etc / 'cinder/cinder.conf'),
        }.get(api) or self._module('wsgi', self.wsgi_modules[api], port)

    def program(self, name):
        if name == 'neutron-db-manage':
            return self._module('neutron_schema')
        return super().program(name)

    def _module(self, name, *args):
        # Nova is not always that of this environment.
        service = 'nova-api' if name == 'nova_process' else name
        return [self.python(service), '-P', _RUN, name, *args]
