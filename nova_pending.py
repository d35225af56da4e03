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

"""Lays a tree of changes over the released Nova.

``lay()`` runs at the start of every interpreter of the environment (from
``nova_pending.pth``) and registers one finder. When a module of ``nova`` is
imported for which the tree has a file, the released module is run first and
then the file of the tree, in the same namespace. No released file is touched.

A file of the tree gets what the release defined from ``released(__name__)``
and changes released classes in place with ``over()``.

This module is imported by every Python process of the environment: nothing
but what the interpreter has loaded already is imported at its top.
"""

import os
import sys

#: The series of Nova releases that the tree was made for.
RELEASE = 34

EXIT_DRIFT = 1
EXIT_REFUSED = 2
EXIT_INACTIVE = 3

_SWITCH = 'NOVA_PENDING'


class LayerError(ImportError):
    """A file of the tree does not fit the module that it is laid over."""


def tree():
    """Return the directory that holds the tree.

    :returns: the path of ``_nova_pending_tree`` beside this module (an
        installed wheel) or of ``nova`` (a checkout)
    :raises: LayerError if neither is there
    """
    here = os.path.dirname(os.path.abspath(__file__))
    for name in ('_nova_pending_tree', 'nova'):
        path = os.path.join(here, name)
        # A regular package is the release itself, never the tree.
        if os.path.isdir(path) and not os.path.exists(
                os.path.join(path, '__init__.py')):
            return path
    raise LayerError('The files of nova-pending are not beside %s: install '
                     'nova-pending again.' % __file__)


def switched_off():
    """Whether ``NOVA_PENDING=off`` leaves this process without the tree."""
    return os.environ.get(_SWITCH, '').strip().lower() == 'off'


def lay():
    """Register the finder that lays the tree over the released Nova.

    Safe to call again. Nothing is imported and no file is read.

    :raises: LayerError if nova is imported already, for then part of it
        would stay as released
    """
    if switched_off() or laid():
        return
    if 'nova' in sys.modules:
        raise LayerError('nova was imported before nova-pending could be '
                         'laid over it: start a new process.')
    # Ahead of the finder of sys.path, which would answer for every module
    # that the release has.
    sys.meta_path.insert(0, Finder())


def laid():
    """Whether the finder is registered in this process."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def release():
    """Return the version of the Nova that is installed, or None."""
    from importlib import metadata
    try:
        return metadata.version('nova')
    except metadata.PackageNotFoundError:
        return None


def check_release():
    """Refuse a Nova that the tree was not made for.

    :raises: ImportError with a sentence that says what to do
    """
    found = release()
    if found is None or found.split('.')[0] != str(RELEASE):
        raise ImportError(
            'nova-pending is made for Nova %(ours)d, and this environment '
            'has %(found)s: install "nova>=%(ours)d,<%(next)d" or the '
            'nova-pending of that release, or set %(switch)s=off to run Nova '
            'without it.' % {
                'ours': RELEASE, 'next': RELEASE + 1, 'switch': _SWITCH,
                'found': 'nova %s' % found if found else 'none installed'},
            name='nova')


class Finder:
    """Finds the modules of nova for which the tree has a file."""

    def __init__(self):
        self._tree = None

    def find_spec(self, name, path=None, target=None):
        """Return a module spec, or None for what the tree does not have.

        :raises: ImportError if the installed release is not the one that
            the tree was made for
        """
        if name == 'nova':
            check_release()
            self._tree = tree()
            return None
        if not name.startswith('nova.') or self._tree is None:
            return None
        base = os.path.join(self._tree, *name.split('.')[1:])
        package = os.path.join(base, '__init__.py')
        layer = package if os.path.isfile(package) else base + '.py'
        if not os.path.isfile(layer):
            return None
        spec = self._released_spec(name, path, target)
        if spec is None:
            from importlib import util
            return util.spec_from_file_location(name, layer)
        if spec.origin != layer:
            spec.loader = Loader(spec.loader, layer)
        return spec

    def _released_spec(self, name, path, target):
        for finder in sys.meta_path:
            find_spec = getattr(finder, 'find_spec', None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                return spec


class Loader:
    """Runs a released module and then a file of the tree over it."""

    def __init__(self, released_loader, layer):
        self.released_loader = released_loader
        self.layer = layer

    def __getattr__(self, name):
        # Sources and resources are those of the release.
        return getattr(self.released_loader, name)

    def create_module(self, spec):
        return self.released_loader.create_module(spec)

    def exec_module(self, module):
        from importlib import machinery
        self.released_loader.exec_module(module)
        space = module.__dict__
        record = _records[module.__name__] = _Record(module.__name__, space)
        code = machinery.SourceFileLoader(
            module.__name__, self.layer).get_code(module.__name__)
        exec(code, space)
        space['__doc__'] = record.kept.__doc__
        record.compare(space)


class _Released:
    """The names of a released module, as they were before the tree."""

    def __init__(self, space):
        self.__dict__.update(space)


class _Record:
    """What the tree does to one released module."""

    def __init__(self, name, space):
        self.name = name
        self.kept = _Released(space)
        #: pairs of 'extends', 'replaces', 'changes' or 'adds' and a name
        self.changes = []
        self._bodies = []
        self._contents = {
            key: value.copy() for key, value in space.items()
            if isinstance(value, (dict, list, set))
            and not key.startswith('__')} if _watch else {}

    def note(self, verb, name):
        self.changes.append((verb, name))

    def compare(self, space):
        """Note what a file did to the names of the module.

        :raises: LayerError for a function or class that drops the released
            one and does not say so
        """
        kept = vars(self.kept)
        for name, value in space.items():
            if name.startswith('__') or name == 'released':
                continue
            if name not in kept:
                if not isinstance(value, type(sys)):
                    self.note('adds', name)
                continue
            before = kept[name]
            if isinstance(before, _ReleasedClass) or value is before:
                continue
            if isinstance(before, type):
                if not (isinstance(value, type) and issubclass(value, before)):
                    raise LayerError('%s.%s is no subclass of the released '
                                     'class' % (self.name, name))
                self.note('extends', name)
            elif hasattr(before, '__code__'):
                self.note(self.verb(name, value, before), name)
            else:
                self.note('changes', name)
        for name, content in self._contents.items():
            if space.get(name) is kept[name] and kept[name] != content:
                self.note('extends', name)

    def verb(self, name, value, before):
        """Tell whether a function extends or replaces the released one.

        :raises: LayerError if it does neither
        """
        expected = getattr(value, '_nova_pending_replaces', None)
        if expected is not None:
            self._bodies.append((name, before, expected))
            return 'replaces'
        if not _calls(value, before):
            raise LayerError(
                '%s.%s does not call the released function: call '
                'released.%s or mark it with nova_pending.replaces()'
                % (self.name, name, name))
        return 'extends'

    def drift(self):
        """Yield a sentence for each replaced body that the release moved."""
        for name, before, expected in self._bodies:
            found = digest(before)
            if found != expected:
                yield ('%s.%s replaces a body with the digest %s, and the '
                       'release has %s' % (self.name, name, expected, found))


_records = {}
_watch = False


def released(name):
    """Return what the release defines in a module that the tree changes.

    Classes that ``over()`` changes keep, here, the functions that they had.

    :param name: the name of the module, from a file of the tree ``__name__``
    :returns: an object with the names of the released module as attributes
    :raises: LayerError if the tree has nothing over that module
    """
    try:
        return _records[name].kept
    except KeyError:
        raise LayerError('%s is not laid over a released module' % name)


class _ReleasedClass:
    """A class as released, after the tree has changed it in place."""

    def __init__(self, cls):
        self._cls = cls

    def _keep(self, name, member):
        # In the namespace of the object, where __init__ too is found before
        # that of this class.
        get = getattr(member, '__get__', None)
        vars(self)[name] = member if get is None else get(None, self._cls)

    def __getattr__(self, name):
        return getattr(self._cls, name)


def new(value):
    """Mark a member of an ``over()`` body that the released class lacks."""
    if hasattr(value, '__code__'):
        value._nova_pending_new = True
        return value
    return _New(value)


class _New:
    def __init__(self, value):
        self.value = value


def replaces(expected):
    """Mark a function that does not call the released one.

    :param expected: the ``digest()`` of the released function; the drift
        check compares it with the release that is installed
    """
    def mark(function):
        function._nova_pending_replaces = expected
        return function
    return mark


def digest(function):
    """Return the first 16 hex digits of the SHA-256 of a function's source.

    The source counts without its indentation, with its decorators.
    """
    import hashlib
    import inspect
    import textwrap
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def over(cls):
    """Put the members of the decorated class over a released class, in place.

    In place, because released code calls ``super(Name, self)``: a subclass
    bound to that name would recurse, and registries hold the released class.

    :param cls: the class as ``released(__name__)`` gives it
    :returns: a class decorator that returns the released class
    :raises: LayerError for a body that could not work: zero-argument
        ``super()``, a special name other than ``__init__``, a signature that
        callers of the released method do not fit, a name that the released
        class lacks and that ``new()`` does not mark, a method that neither
        calls the released one nor is marked with ``replaces()``
    """
    if isinstance(cls, _ReleasedClass):
        cls = cls._cls
    kept = released(cls.__module__)
    record = _records[cls.__module__]
    view = getattr(kept, cls.__name__)
    if not isinstance(view, _ReleasedClass):
        view = _ReleasedClass(cls)

    def put(body):
        if body.__name__ != cls.__name__ or body.__bases__ != (object,):
            raise LayerError('The body over %s.%s must have its name and no '
                             'base' % (cls.__module__, cls.__name__))
        members = {name: value for name, value in vars(body).items()
                   if name not in _CLASS_MACHINERY}
        for name, value in members.items():
            label = '%s.%s' % (cls.__name__, name)
            before = _lookup(cls, name)
            if isinstance(value, _New) or hasattr(value, '_nova_pending_new'):
                if before is not _MISSING:
                    raise LayerError('%s.%s is marked as new, and the release '
                                     'has it' % (cls.__module__, label))
                record.note('adds', label)
                continue
            if before is _MISSING:
                raise LayerError('%s has no %s: mark it with '
                                 'nova_pending.new()' % (cls.__module__, label))
            _check_member(record, label, value, before)
            view._keep(name, before)
        # The released names are looked up at run time: set the view first.
        setattr(kept, cls.__name__, view)
        for name, value in members.items():
            setattr(cls, name, value.value if isinstance(value, _New)
                    else value)
        return cls
    return put


_MISSING = object()

_CLASS_MACHINERY = {
    '__module__', '__qualname__', '__doc__', '__dict__', '__weakref__',
    '__annotations__', '__annotate__', '__annotate_func__',
    '__firstlineno__', '__static_attributes__'}


def _lookup(cls, name):
    for base in cls.__mro__:
        if base is not object and name in vars(base):
            return vars(base)[name]
    return _MISSING


def _check_member(record, label, value, before):
    name = label.split('.')[1]
    if name.startswith('__') and name.endswith('__') and name != '__init__':
        raise LayerError('%s.%s: a special method cannot be laid over'
                         % (record.name, label))
    if type(value) is not type(before) and (
            callable(value) or isinstance(value, (staticmethod, classmethod))):
        raise LayerError('%s.%s is released as a %s' % (
            record.name, label, type(before).__name__))
    value = getattr(value, '__func__', value)
    before = getattr(before, '__func__', before)
    if not hasattr(before, '__code__'):
        record.note('changes', label)
        return
    if '__class__' in _unwrapped(value)[-1].__code__.co_freevars:
        raise LayerError('%s.%s uses super() without arguments'
                         % (record.name, label))
    problem = _misfit(value, before)
    if problem:
        raise LayerError('%s.%s %s' % (record.name, label, problem))
    record.note(record.verb(label, value, before), label)


def _unwrapped(function):
    chain = [function]
    while hasattr(chain[-1], '__wrapped__'):
        chain.append(chain[-1].__wrapped__)
    return chain


def _calls(function, before):
    """Whether a function wraps a released one or names it in its code."""
    chain = _unwrapped(function)
    if before in chain:
        return True
    codes = [chain[-1].__code__]
    while codes:
        code = codes.pop()
        if {'released', before.__name__} <= set(code.co_names):
            return True
        codes.extend(const for const in code.co_consts
                     if hasattr(const, 'co_names'))
    return False


def _misfit(function, before):
    """Say why callers of the released function cannot call this one."""
    import inspect
    ours = list(inspect.signature(function).parameters.values())
    theirs = list(inspect.signature(before).parameters.values())
    named = {p.name: p for p in ours}
    kinds = {p.kind for p in ours}
    anything = inspect.Parameter.VAR_KEYWORD in kinds
    for index, wanted in enumerate(theirs):
        if wanted.kind in (wanted.VAR_POSITIONAL, wanted.VAR_KEYWORD):
            if wanted.kind not in kinds:
                return 'does not take %s' % wanted
            continue
        got = named.get(wanted.name)
        if got is None:
            swallowed = anything and (
                wanted.kind == wanted.KEYWORD_ONLY
                or wanted.default is not wanted.empty
                or inspect.Parameter.VAR_POSITIONAL in kinds)
            if not swallowed:
                return 'does not take %s' % wanted.name
            continue
        if (wanted.kind != wanted.KEYWORD_ONLY
                and (ours.index(got) != index
                     or got.kind not in (got.POSITIONAL_ONLY,
                                         got.POSITIONAL_OR_KEYWORD))):
            return 'takes %s in another place' % wanted.name
        if wanted.default is not wanted.empty and got.default is got.empty:
            return 'wants %s, which callers may leave out' % wanted.name
    known = {p.name for p in theirs}
    for extra in ours:
        if (extra.name not in known and extra.default is extra.empty
                and extra.kind not in (extra.VAR_POSITIONAL,
                                       extra.VAR_KEYWORD)):
            return 'wants %s, which callers do not pass' % extra.name


def modules():
    """Return the sorted names of the modules that the tree has a file for.

    Tests, and directories that only hold the tree together, do not count.
    """
    top = tree()
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


def status(write=print):
    """Write what the tree does to the installed release.

    :param write: called with each line
    :returns: the exit code: 0, or EXIT_DRIFT, EXIT_REFUSED (no Nova that the
        tree fits, or a file that does not fit its module), EXIT_INACTIVE
    """
    import importlib
    global _watch
    setting = os.environ.get(_SWITCH)
    if switched_off():
        write('inactive: %s=%s is set in this environment' % (
            _SWITCH, setting))
        return EXIT_INACTIVE
    if setting:
        write('%s=%s is not known: only "off" has a meaning' % (
            _SWITCH, setting))
    try:
        check_release()
        top = tree()
        if not laid():
            write('inactive: this interpreter did not run nova_pending.pth; '
                  'install nova-pending into the site-packages that holds '
                  'nova')
            return EXIT_INACTIVE
        _watch = True
        names = modules()
        for name in names:
            importlib.import_module(name)
    except ImportError as exc:
        write(str(exc))
        return EXIT_REFUSED
    write('nova %s, laid over from %s' % (release(), top))
    drifts = []
    for name in names:
        write(name)
        record = _records.get(name)
        if record is None:
            write('    new module')
            continue
        for verb in ('extends', 'replaces', 'changes', 'adds'):
            what = sorted(n for v, n in record.changes if v == verb)
            if what:
                write('    %-8s  %s' % (verb, ', '.join(what)))
        drifts.extend(record.drift())
    for sentence in drifts:
        write('drift: ' + sentence)
    write('%d modules, %s' % (len(names), '%d drifts' % len(drifts)
                              if drifts else 'no drift'))
    return EXIT_DRIFT if drifts else 0


def main():
    """The console script ``nova-pending``."""
    import argparse
    parser = argparse.ArgumentParser(
        prog='nova-pending',
        description='Shows what nova-pending changes in the installed Nova.')
    commands = parser.add_subparsers(dest='command', required=True)
    commands.add_parser(
        'status', help='show the release found, each module that is laid '
        'over and each drift; exit 0 if active and in order, 1 on drift, 2 '
        'if the release is refused, 3 if inactive')
    parser.parse_args()
    return status()
