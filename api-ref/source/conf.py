# SPDX-License-Identifier: Apache-2.0

extensions = ['openstackdocstheme', 'os_api_ref']

project = 'nova-pending'
copyright = 'nova-pending maintainers'
author = 'nova-pending maintainers'

language = 'en'
root_doc = 'index'

# The theme's own licence is not that of these documents.
templates_path = ['../../doc/templates']
html_theme = 'openstackdocs'
html_theme_options = {
    'analytics_tracking_code': '',
    'display_badge': False,
    'sidebar_mode': 'toc',
}
openstackdocs_auto_name = False
openstackdocs_auto_version = False
