# The slug of the panel to be added to HORIZON_CONFIG. Required.
PANEL = 'waiting_servers'
# The slug of the dashboard the PANEL associated with. Required.
PANEL_DASHBOARD = 'admin'
# The slug of the panel group the PANEL is associated with.
PANEL_GROUP = 'compute'
# Python panel class of the PANEL to be added.
ADD_PANEL = 'pending_dashboard.admin.panel.WaitingServers'
