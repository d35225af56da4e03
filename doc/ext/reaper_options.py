# SPDX-License-Identifier: Apache-2.0

"""The options of nova-reaper, with their own help."""

import pathlib
import sys
import textwrap

from sphinx.util import docutils

# It is a distribution of its own, which this environment need not have.
sys.path.append(str(pathlib.Path(__file__).parents[2] / 'reaper'))

from nova_reaper import conf  # noqa: E402


class ReaperOptions(docutils.SphinxDirective):
    """Show all options, group by group."""

    def run(self):
        lines = []
        for group, options in sorted(conf.OPTIONS.items()):
            lines += ['.. oslo.config:group:: %s' % group, '']
            for option in options:
                lines += self._described(option)
        return self.parse_text_to_nodes('\n'.join(lines))

    @staticmethod
    def _described(option):
        default = option.default
        if isinstance(default, list):
            default = ','.join(default)
        body = [':Type: %s' % option.type.type_name,
                ':Default: ``%s``' % ('not set' if default is None
                                      else default)]
        for name, limit in (('Minimum', 'min'), ('Maximum', 'max')):
            value = getattr(option.type, limit, None)
            if value is not None:
                body.append(':%s Value: %s' % (name, value))
        choices = getattr(option.type, 'choices', None) or {}
        for value, text in choices.items():
            body.append(':``%s``: %s' % (value, text))
        if option.mutable:
            body.append(':Mutable: takes effect on SIGHUP')
        body += ['', *textwrap.dedent(option.help).strip().splitlines()]
        return ['.. oslo.config:option:: %s' % option.dest, '',
                *('   ' + line if line else '' for line in body), '']


def setup(app):
    app.setup_extension('oslo_config.sphinxext')
    app.add_directive('reaper-options', ReaperOptions)
    return {'parallel_read_safe': True}
