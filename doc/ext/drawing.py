# SPDX-License-Identifier: Apache-2.0

"""Drawings that do not keep the documentation from being built.

With Graphviz there is a picture. Where ``dot`` is not installed, the text of
the drawing stands in its place, and a sentence says why.
"""

import pathlib
import shutil

from docutils import nodes
from sphinx.util import docutils


class DrawingAsText(docutils.SphinxDirective):
    """Takes the place of the directive ``graphviz``."""

    required_arguments = 1

    def run(self):
        relative, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        text = pathlib.Path(path).read_text('utf-8')
        why = ('This was built without Graphviz: what follows is the source '
               'of a drawing. An arrow leads from one state to the next, with '
               'its reason.')
        return [nodes.note('', nodes.paragraph(why, why)),
                nodes.literal_block(text, text, language='dot')]


def setup(app):
    if shutil.which('dot'):
        app.setup_extension('sphinx.ext.graphviz')
    else:
        app.add_directive('graphviz', DrawingAsText)
    return {'parallel_read_safe': True}
