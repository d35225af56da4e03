# SPDX-License-Identifier: Apache-2.0

import configparser
import pathlib

from docutils import nodes

_setup_cfg = configparser.ConfigParser()
_setup_cfg.read(pathlib.Path(__file__).resolve().parents[2] / 'setup.cfg')
_version = _setup_cfg['metadata']['version']

extensions = [
    'openstackdocstheme',
    'reno.sphinxext',
]

project = 'nova-pending release notes'
copyright = 'nova-pending maintainers'
author = 'nova-pending maintainers'

language = 'en'
root_doc = 'index'
exclude_patterns = []

# The theme's own licence is not that of these documents.
templates_path = ['../../doc/templates']
html_theme = 'openstackdocs'
html_theme_options = {'analytics_tracking_code': '', 'display_badge': False}
openstackdocs_auto_name = False
openstackdocs_auto_version = False

pygments_style = 'native'


def _name_what_is_made(app, doctree):
    """Head the notes that no tag names with the version that is being made.

    Reno calls that 0.0.0 as long as there is no tag at all.
    """
    for title in doctree.findall(nodes.title):
        if title.astext() == '0.0.0':
            title[:] = [nodes.Text('%s (not yet released)' % _version)]


def setup(app):
    app.connect('doctree-read', _name_what_is_made)
    return {'parallel_read_safe': True}
