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

"""Sessions with Keystone, and the clients that use them."""

from typing import Any

from keystoneauth1 import exceptions
from keystoneauth1 import loading
from keystoneauth1 import plugin
from oslo_config import cfg

from nova_reaper import clients
from nova_reaper import conf as reaper_conf


def load_session(conf: cfg.ConfigOpts) -> Any:
    """A session with Keystone, by the options of [nova_reaper].

    :raises: keystoneauth1.exceptions.ClientException where they are wrong
    """
    auth = loading.load_auth_from_conf_options(conf, reaper_conf.AUTH_GROUP)
    return loading.load_session_from_conf_options(
        conf, reaper_conf.AUTH_GROUP, auth=auth)


def log_in(conf: cfg.ConfigOpts, session: Any, project: str
           ) -> plugin.BaseAuthPlugin:
    """A token of another project for the user of [nova_reaper].

    :raises: clients.Unavailable if Keystone does not answer,
        clients.Forbidden if it gives none
    """
    group = conf[reaper_conf.AUTH_GROUP].auth_section or reaper_conf.AUTH_GROUP
    scope = dict.fromkeys((
        'project_name', 'project_domain_id', 'project_domain_name',
        'tenant_id', 'tenant_name', 'domain_id', 'domain_name',
        'system_scope', 'trust_id')) | {'project_id': project}
    known = {option.dest for option
             in loading.get_plugin_options(conf[group].auth_type)}
    what = 'token of a project'
    if 'project_id' not in known:
        raise clients.Forbidden(
            'keystone', what, f'the auth_type {conf[group].auth_type} '
            f'knows no projects')
    try:
        auth = loading.load_auth_from_conf_options(
            conf, reaper_conf.AUTH_GROUP, **{
                name: value for name, value in scope.items()
                if name in known})
        got = auth.get_access(session).project_id
    except exceptions.ClientException as error:
        refused = isinstance(error, exceptions.AuthPluginException) or (
            isinstance(error, exceptions.HTTPClientError) and
            error.http_status != 429)
        raise (clients.Forbidden if refused else clients.Unavailable)(
            'keystone', what, str(error)) from error
    if got != project:
        raise clients.Forbidden(
            'keystone', what, f'the auth_type {conf[group].auth_type} '
            f'is bound to project {got}')
    return auth


def load_client(conf: cfg.ConfigOpts, session: Any, name: str, *,
                oldest: str | None = None, newest: str | None = None,
                observe: clients.Observer | None = None) -> clients.Client:
    """The client of the service whose options are in the group name."""
    group = conf[name]
    service = loading.load_adapter_from_conf_options(
        conf, name, session=session, auth=session.auth,
        concurrency=group.concurrency)
    return clients.Client(name, service, oldest=oldest, newest=newest,
                          rate_limit=group.rate_limit, observe=observe)
