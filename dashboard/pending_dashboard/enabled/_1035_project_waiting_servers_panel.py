# SPDX-License-Identifier: Apache-2.0

# The slug of the panel to be added to HORIZON_CONFIG. Required.
PANEL = 'waiting_servers'
# The slug of the dashboard the PANEL associated with. Required.
PANEL_DASHBOARD = 'project'
# The slug of the panel group the PANEL is associated with.
PANEL_GROUP = 'compute'
# Python panel class of the PANEL to be added.
ADD_PANEL = 'pending_dashboard.project.panel.WaitingServers'
# Applications to be added to INSTALLED_APPS.
ADD_INSTALLED_APPS = ['pending_dashboard']
# Tabs that are added to Horizon's pages of a server.
EXTRA_TABS = {
    'openstack_dashboard.dashboards.project.instances.tabs.'
    'InstanceDetailTabs': ('pending_dashboard.tabs.WaitTab',
                           'pending_dashboard.tabs.EndTab'),
    'openstack_dashboard.dashboards.admin.instances.tabs.'
    'AdminInstanceDetailTabs': ('pending_dashboard.tabs.AdminWaitTab',
                                'pending_dashboard.tabs.AdminEndTab'),
}
