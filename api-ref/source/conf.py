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
