# SPDX-License-Identifier: Apache-2.0

"""The options that the layer adds to Nova, with their own help."""

import importlib
import textwrap

from docutils import nodes
from oslo_config import cfg
from sphinx.util import docutils

import nova_pending
import nova_pending_check


def added_options():
    """Yield a group name and an option for each that the layer adds."""
    for name in nova_pending_check.modules():
        if not name.startswith('nova.conf.'):
            continue
        module = importlib.import_module(name)
        released = _released_options(name)
        for group, options in module.list_opts().items():
            for option in options:
                if option not in released:
                    yield getattr(group, 'name', group), option


def _released_options(name):
    try:
        kept = nova_pending.released(name)
    except nova_pending.LayerError:
        return []
    return [option for value in vars(kept).values() if isinstance(value, list)
            for option in value if isinstance(option, cfg.Opt)]


class AddedOptions(docutils.SphinxDirective):
    """Show one option or all of a group; without arguments, name them all."""

    optional_arguments = 2

    def run(self):
        if not self.arguments:
            return self.parse_text_to_nodes('\n'.join(self._table()))
        lines = ['.. oslo.config:group:: %s' % self.arguments[0], '']
        for group, option in added_options():
            if group == self.arguments[0] and (
                    option.dest in self.arguments[1:] or
                    not self.arguments[1:]):
                lines += self._described(option)
        found = self.parse_text_to_nodes('\n'.join(lines))
        for node in found:
            # A bare "DEFAULT" looks like a mistake.
            for title in node.findall(nodes.title):
                title[:] = [nodes.Text('[%s] in nova.conf'
                                       % self.arguments[0])]
        return found

    @staticmethod
    def _table():
        yield from ('.. list-table::', '   :header-rows: 1',
                    '   :widths: 45 15 40', '',
                    '   * - Option', '     - Default', '     - What for')
        for group, option in added_options():
            first = ' '.join(option.help.split()).partition('. ')[0]
            yield '   * - :oslo.config:option:`[%s] %s <%s.%s>`' % (
                group, option.dest, group, option.dest)
            yield '     - ``%s``' % option.default
            yield '     - %s.' % first.rstrip('.')

    @staticmethod
    def _described(option):
        body = [':Type: %s' % option.type.type_name,
                ':Default: ``%s``' % option.default]
        if getattr(option.type, 'min', None) is not None:
            body.append(':Minimum Value: %s' % option.type.min)
        if option.mutable:
            body.append(':Mutable: can be changed without a restart')
        body += ['', *textwrap.dedent(option.help).strip().splitlines()]
        return ['.. oslo.config:option:: %s' % option.dest, '',
                *('   ' + line if line else '' for line in body), '']


def setup(app):
    app.setup_extension('oslo_config.sphinxext')
    app.add_directive('added-options', AddedOptions)
    return {'parallel_read_safe': True}
