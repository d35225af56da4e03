# SPDX-License-Identifier: Apache-2.0

"""Lets Horizon's tables of instances show servers that wait."""

import functools

from django import apps
from django.utils.translation import pgettext_lazy


class PendingDashboardConfig(apps.AppConfig):
    name = 'pending_dashboard'

    def ready(self):
        from openstack_dashboard import api
        from openstack_dashboard.dashboards.admin.instances import (
            tables as admin_tables)
        from openstack_dashboard.dashboards.project.instances import (
            tables as project_tables)

        _show_waiting(api.nova, 'server_list_paged',
                      lambda answer: answer[0])
        _show_waiting(api.nova, 'server_get', lambda answer: [answer])
        for table in (project_tables.InstancesTable,
                      admin_tables.AdminInstancesTable):
            _know_pending(table)


def _show_waiting(module, name, servers):
    """Have a function of Horizon's API show PENDING of servers that wait.

    :param module: the module of the function
    :param name: its name
    :param servers: a function that finds the servers in the answer
    """
    from pending_dashboard import api

    function = getattr(module, name)

    @functools.wraps(function)
    def shown(request, *args, **kwargs):
        answer = function(request, *args, **kwargs)
        api.show_waiting(request, servers(answer))
        return answer

    setattr(module, name, shown)


def _know_pending(table):
    # A server waits until there is room. Horizon need not ask for its row
    # again and again, as it does for a server that is being built.
    column = table.base_columns['status']
    column.status_choices = (*column.status_choices, ('pending', True))
    column.display_choices = (
        *column.display_choices,
        ('pending', pgettext_lazy(
            'Current status of an Instance', 'Waiting for room')))
