# SPDX-License-Identifier: Apache-2.0

import os
import sys

sys.path[:0] = [os.path.abspath(path) for path in ('../ext', '../../tools')]

import nova_pending_version  # noqa: E402

extensions = [
    'openstackdocstheme',
    'added_options',
    'drawing',
    'reaper_options',
]

project = 'nova-pending'
copyright = 'nova-pending maintainers'
author = 'nova-pending maintainers'
release = nova_pending_version.find()

language = 'en'
root_doc = 'index'
exclude_patterns = []
nitpicky = True

# The theme's own licence is not that of these documents.
templates_path = ['../templates']
html_theme = 'openstackdocs'
html_theme_options = {'analytics_tracking_code': '', 'display_badge': False}
openstackdocs_auto_name = False
openstackdocs_auto_version = False

html_static_path = ['_static']
html_css_files = ['tables.css']

graphviz_output_format = 'svg'

pygments_style = 'native'
