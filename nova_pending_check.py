# SPDX-License-Identifier: Apache-2.0

"""Compares the tree with the release that it is laid over.

The console script ``nova-pending`` shows what each file of the tree extends,
replaces, changes and adds, refuses a file that would mislead whoever reads
it, and tells where a released body that a file replaces has changed. Services
ask for the last of these, drift(), when they start.
"""

import argparse
import functools
import hashlib
import importlib
from importlib import metadata
import inspect
import json
import logging
import os
import sys
import textwrap
import warnings

import nova_pending

EXIT_DRIFT = 1
EXIT_REFUSED = 2
EXIT_INACTIVE = 3

VERBS = ('extends', 'replaces', 'changes', 'adds')


@functools.cache
def digest(function):
    """Return the first 16 hex digits of the SHA-256 of a function's source.

    The source counts without its indentation, with its decorators.
    """
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def drift(names=None):
    """Compare the replaced bodies with the release that is installed.

    :param names: names of modules; by default those that this process has
        laid over
    :returns: an iterator over a sentence for each body that has changed
    """
    for name in sorted(nova_pending.records) if names is None else names:
        for label, before, expected in _replaced(nova_pending.records[name]):
            try:
                found = digest(before)
            except OSError:
                found = 'no source'
            if found != expected:
                yield ('%s.%s replaces a body with the digest %s, and the '
                       'release has %s' % (name, label, expected, found))


def _replaced(record):
    """Yield the label, the released value and the digest of each body."""
    space = vars(sys.modules[record.name])
    pairs = [(name, space.get(name), before)
             for name, before in vars(record.kept).items()]
    pairs += [('%s.%s' % (cls.__name__, name), value, before)
              for cls, _, name, value, before in record.members]
    for label, value, before in sorted(pairs, key=lambda pair: pair[0]):
        expected = getattr(nova_pending.function_of(value),
                           '_nova_pending_replaces', None)
        # A function of the release has no such mark.
        if expected is not None and value is not before:
            yield label, before, expected


class WatchedRecord(nova_pending.Record):
    """A record that tells a table that a file has added something to."""

    def __init__(self, name, layer, space):
        super().__init__(name, layer, space)
        self.contents = {
            key: repr(value) for key, value in space.items()
            if isinstance(value, (dict, list, set)) and
            not key.startswith('__')}


class _Comparison:
    """What a file does to its module, and what is refused of it.

    Nothing of this keeps a service from working; it would mislead whoever
    reads the file, or hide a change of the release.
    """

    def __init__(self, record):
        self._record = record
        #: pairs of one of VERBS and a name
        self.changes = []
        # Names that a later body has laid a second time.
        self._laid = set()

    def note(self, verb, label):
        self.changes.append((verb, label))

    def compare(self):
        """Note what the file does.

        :raises: LayerError for what is refused
        """
        record = self._record
        for member in record.members:
            self._member_of_a_body(*member)
        space = vars(sys.modules[record.name])
        for name, value in list(space.items()):
            before = getattr(record.kept, name, nova_pending.MISSING)
            if name.startswith('__') or isinstance(
                    value, nova_pending.NAMESPACE):
                continue
            if before is nova_pending.MISSING:
                if not isinstance(value, type(sys)):
                    self.note('adds', name)
            elif type(before) is nova_pending.ReleasedClass:
                if value is not nova_pending.parts_of(before)[0]:
                    record.refuse(name, 'is bound to something else after '
                                  'over()')
            elif value is before:
                if record.contents.get(name, '') not in ('', repr(value)):
                    self.note('extends', name)
            elif isinstance(before, type):
                self._subclass(name, value, before)
            else:
                self._value(name, value, before)

    def _member_of_a_body(self, cls, body, name, value, before):
        record = self._record
        label = '%s.%s' % (cls.__name__, name)
        if (body.__name__, body.__module__, body.__bases__) != (
                cls.__name__, cls.__module__, (object,)):
            record.refuse(cls.__name__, 'must be laid over by a class of its '
                          'name, without a base, in the file of its module')
        for special in vars(body).keys() - vars(_Empty).keys() - {
                '__init__', '__qualname__', '__annotations__'}:
            if special.startswith('__') and special.endswith('__'):
                record.refuse('%s.%s' % (cls.__name__, special), 'is a '
                              'special name: it cannot be laid over')
        if label in self._laid:
            record.refuse(label, 'is laid over twice')
        self._laid.add(label)
        for function in _wrapped(value):
            # So does super(Name, self), without need.
            if '__class__' in function.__code__.co_freevars:
                record.refuse(label, 'uses super() or __class__, which is '
                              'the body')
        # The periodic tasks of a manager: pairs of a name and a function.
        for _, task in getattr(cls, '_periodic_tasks', ()):
            if task is before:
                record.refuse(label, 'is a periodic task, and the released '
                              'one would run')
        if before is nova_pending.MISSING:
            self.note('adds', label)
        else:
            self._value(label, value, before)

    def _subclass(self, name, value, before):
        record = self._record
        if not (isinstance(value, type) and issubclass(value, before)):
            record.refuse(name, 'is no subclass of the released class')
        for member in vars(before).values():
            for function in _wrapped(member):
                if {'super', name} <= _names(function.__code__):
                    record.refuse(name, 'must be changed with over(): super('
                                  '%s, self) in the release would recurse in '
                                  'a subclass' % name)
        self.note('extends', name)
        for key, member in vars(value).items():
            functions = _wrapped(member)
            # What a decorator or metaclass puts there is not of the tree.
            if (functions[0].__code__.co_filename != record.layer
                    if functions else key.startswith(('__', '_abc_'))):
                continue
            inherited = nova_pending.lookup(before, key)
            label = '%s.%s' % (name, key)
            if inherited is nova_pending.MISSING:
                self.note('adds', label)
            else:
                record.bind(label, member, inherited)
                self._value(label, member, inherited, {'super', key})

    def _value(self, label, value, before, *calls):
        """Note what takes the place of something released.

        :param calls: a set of names that a function may use, besides the
            usual names, to call the released value
        """
        if isinstance(before, (property, functools.cached_property)):
            self._record.refuse(label, 'is a property: what takes its place '
                                'cannot be compared')
        if nova_pending.function_of(before) is None:
            if nova_pending.function_of(value) is not None:
                self._record.refuse(label, 'is released as a %s' %
                                    type(before).__name__)
            self.note('changes', label)
        elif hasattr(_wrapped(value)[0], '_nova_pending_replaces'):
            self.note('replaces', label)
        elif any(one is nova_pending.function_of(before) or
                 any(names <= _names(one.__code__)
                     for names in ({'released', *label.split('.')}, *calls))
                 for one in _wrapped(value)):
            self.note('extends', label)
        else:
            self._record.refuse(
                label, 'does not call the released one: call released.%s or '
                'mark it with nova_pending.replaces()' % label)


class _Empty:
    """Has what Python puts into the body of a class by itself."""


def _wrapped(member):
    """Return the function of a member and those that it wraps."""
    found = []
    member = nova_pending.function_of(member)
    while member is not None:
        found.append(member)
        member = nova_pending.function_of(
            getattr(member, '__wrapped__', None))
    return found


def _names(code):
    """Return the global names and attributes that a code object uses."""
    names = set(code.co_names)
    for const in code.co_consts:
        if hasattr(const, 'co_names'):
            names |= _names(const)
    return names


def modules():
    """Return the sorted names of the modules that the tree has a file for.

    Tests, and directories that only hold the tree together, do not count.
    """
    top = nova_pending.tree()
    names = []
    for path, folders, files in os.walk(top):
        folders[:] = [f for f in folders if f not in ('tests', '__pycache__')]
        parts = ['nova'] + os.path.relpath(path, top).split(os.sep)
        for name in files:
            if name.endswith('.py'):
                stem = [] if name == '__init__.py' else [name[:-3]]
                names.append('.'.join(
                    [part for part in parts if part != '.'] + stem))
    return sorted(names)


def version():
    """Return the version of nova-pending that is installed, or None."""
    found = next(metadata.distributions(name='nova-pending'), None)
    return found and found.version


def examine():
    """Lay every file of the tree, and compare it with the release.

    :returns: the exit code, and a dictionary with the ``state`` (active,
        drift, refused, inactive), what there is to say about it as
        ``message``, and, unless that is why, the ``release``, the ``tree``,
        the ``modules`` with what is done to each, and the ``drifts``
    """
    found = {'nova_pending': version(), 'release': nova_pending.release()}
    if nova_pending.switched_off():
        found.update(state='inactive', message='%s=%s is set in this '
                     'environment' % (nova_pending.SWITCH,
                                      os.environ[nova_pending.SWITCH]))
        return EXIT_INACTIVE, found
    name = 'nova'
    changes = {}
    try:
        nova_pending.check_environment()
        top = nova_pending.tree()
        if not nova_pending.laid():
            found.update(state='inactive', message=(
                'nova was imported before nova-pending could be laid over it'
                if 'nova' in sys.modules else
                'this interpreter did not run nova_pending.pth; install '
                'nova-pending into the site-packages that holds nova'))
            return EXIT_INACTIVE, found
        nova_pending.Record = WatchedRecord
        # A process has native threads or eventlet, which Nova must choose
        # before a library does.
        importlib.import_module('nova.monkey_patch').patch()
        for name in modules():
            importlib.import_module(name)
        for name in modules():
            changes[name] = None
            if name in nova_pending.records:
                comparison = _Comparison(nova_pending.records[name])
                comparison.compare()
                changes[name] = {
                    verb: sorted(n for v, n in comparison.changes if v == verb)
                    for verb in VERBS}
    except Exception as exc:
        # Whatever a file raises, its module is not laid over.
        found.update(state='refused', message='%s%s' % (
            '' if isinstance(exc, nova_pending.LayerError)
            else '%s: %s: ' % (name, type(exc).__name__), exc))
        return EXIT_REFUSED, found
    drifts = list(drift())
    found.update(
        state='drift' if drifts else 'active', tree=top, modules=changes,
        drifts=drifts, message='nova %s, laid over from %s: %d modules, %s' % (
            found['release'], top, len(changes),
            '%d drifts' % len(drifts) if drifts else 'no drift'))
    return EXIT_DRIFT if drifts else 0, found


def status(verbose=False, as_json=False):
    """Write what the tree does to the installed release.

    :param verbose: with what is done to each module
    :returns: the exit code: 0, or EXIT_DRIFT, EXIT_REFUSED (no Nova that the
        tree fits, or a file that does not fit its module), EXIT_INACTIVE
    """
    code, found = examine()
    if as_json:
        print(json.dumps(found, indent=2))
        return code
    if verbose:
        for name, changes in found.get('modules', {}).items():
            print(name)
            if changes is None:
                print('    new module')
                continue
            for verb in VERBS:
                if changes[verb]:
                    print(textwrap.fill(
                        ', '.join(changes[verb]), 79, break_on_hyphens=False,
                        initial_indent='    %-8s  ' % verb,
                        subsequent_indent=' ' * 14))
    for sentence in found.get('drifts', ()):
        print('drift: ' + sentence)
    print(found['message'] if code in (0, EXIT_DRIFT) else
          '%(state)s: %(message)s' % found)
    return code


def export(arguments):
    """Write the tree as a branch of Nova, which needs more than is installed.

    :param arguments: those of the command
    :returns: the exit code
    """
    checkout = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, checkout)
    try:
        from tools.intree import export as intree
    except ImportError as exc:
        print('nova-pending export works in a checkout of nova-pending that '
              'is installed with "pip install -e", and needs libcst and '
              'PyYAML: %s' % exc, file=sys.stderr)
        return EXIT_REFUSED
    return intree.main(arguments)


def main():
    """The console script ``nova-pending``."""
    parser = argparse.ArgumentParser(
        prog='nova-pending',
        description='Shows what nova-pending changes in the installed Nova.')
    parser.add_argument(
        '--version', action='version', version='%%(prog)s %s' % version())
    commands = parser.add_subparsers(dest='command', required=True)
    command = commands.add_parser(
        'status', help='say whether Nova is laid over and in order',
        description='Says in a line whether Nova is laid over. Exit codes: 0 '
        'if so and in order, 1 if a replaced body has changed in the release '
        '(drift), 2 if the release or a file is refused, 3 if inactive.')
    command.add_argument(
        '-v', '--verbose', action='store_true',
        help='show each module and what is done to it')
    command.add_argument(
        '-f', '--format', choices=('text', 'json'), default='text',
        help='for people (the default) or for programs')
    commands.add_parser(
        'export', add_help=False,
        help='write the tree as a branch of Nova (in a checkout)')
    if sys.argv[1:2] == ['export']:
        return export(sys.argv[2:])
    arguments = parser.parse_args()
    # Some modules of the release read the arguments of their own command.
    del sys.argv[1:]
    # What the release says while it is imported is not about the tree.
    logging.disable()
    if not sys.warnoptions:
        warnings.simplefilter('ignore')
    # By default some commands of the release choose native threads and some
    # eventlet, and the modules of all are imported here.
    if not os.environ.get('OS_NOVA_DISABLE_EVENTLET_PATCHING'):
        os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = 'true'
    return status(arguments.verbose, arguments.format == 'json')
