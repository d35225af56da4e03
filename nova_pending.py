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
    """The tree, or a file of it, cannot be laid over the release."""


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


def check_switch():
    """Refuse a value of NOVA_PENDING that may have been meant as "off".

    :raises: LayerError with a sentence that says what to do
    """
    value = os.environ.get(_SWITCH, '')
    if value.strip().lower() not in ('', 'on', 'off'):
        raise LayerError('%s=%s is neither "on" nor "off": set it to "off" to '
                         'run Nova without nova-pending, or unset it.'
                         % (_SWITCH, value))


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


def _fits(version):
    """Whether a version is in the range that the tree was made for.

    As in ``>=RELEASE,<RELEASE+1``: what comes before the first release, its
    candidates for instance, is not.
    """
    import re
    numbers, suffix = re.match('([0-9.]*)(.*)', version).groups()
    major, *minors = numbers.strip('.').split('.')
    early = suffix.startswith(('a', 'b', 'rc', 'dev'))
    return major == str(RELEASE) and not (
        early and not any(minor.strip('0') for minor in minors))


def check_release():
    """Refuse a Nova that the tree was not made for.

    :raises: LayerError with a sentence that says what to do
    """
    found = release()
    if found is None or not _fits(found):
        raise LayerError(
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

        :raises: LayerError if the installed release is not the one that
            the tree was made for
        """
        if name != 'nova' and not name.startswith('nova.'):
            return None
        if self._tree is None:
            check_switch()
            check_release()
            self._tree = tree()
        if name == 'nova':
            return None
        base = os.path.join(self._tree, *name.split('.')[1:])
        package = os.path.join(base, '__init__.py')
        layer = package if os.path.isfile(package) else base + '.py'
        if not os.path.isfile(layer):
            return None
        spec = self._released_spec(name, path, target)
        # A directory without code, left over from something, is no release.
        if spec is None or not spec.has_location:
            from importlib import util
            return util.spec_from_file_location(name, layer)
        if spec.origin != layer:
            spec.loader = Loader(spec.loader, layer)
        return spec

    def _released_spec(self, name, path, target):
        finders = list(sys.meta_path)
        if self in finders:
            # Those ahead of this one have been asked already.
            finders = finders[finders.index(self) + 1:]
        for finder in finders:
            find_spec = getattr(finder, 'find_spec', None)
            spec = find_spec and find_spec(name, path, target)
            if spec is not None:
                return spec


class Loader:
    """Runs a released module and then a file of the tree over it."""

    def __init__(self, released_loader, layer):
        self.released_loader = released_loader
        self.layer = layer

    def __getattr__(self, name):
        # Sources and resources are those of the release.
        if name == 'released_loader':
            raise AttributeError(name)
        return getattr(self.released_loader, name)

    def get_code(self, name):
        raise LayerError('%s is laid over: import it, it cannot be run as a '
                         'script' % name)

    def create_module(self, spec):
        return self.released_loader.create_module(spec)

    def exec_module(self, module):
        from importlib import machinery
        name = module.__name__
        space = module.__dict__
        code = machinery.SourceFileLoader(name, self.layer).get_code(name)
        if name in _records:
            _records[name].withdraw(space)
        self.released_loader.exec_module(module)
        record = _records[name] = _Record(name, self.layer, space)
        exec(code, space)
        space['__doc__'] = record.kept.__doc__
        record.compare(space)


class _Released:
    """The names of a released module, as they were before the tree."""

    def __init__(self, space):
        self.__dict__.update(space)


class _Record:
    """What the tree does to one released module."""

    def __init__(self, name, layer, space):
        self.name = name
        self.layer = layer
        self.kept = _Released(space)
        #: pairs of 'extends', 'replaces', 'changes' or 'adds' and a name
        self.changes = []
        self._bodies = []
        self._contents = {
            key: repr(value) for key, value in space.items()
            if isinstance(value, (dict, list, set)) and
            not key.startswith('__')} if _watch else {}

    def note(self, verb, name):
        self.changes.append((verb, name))

    def refuse(self, label, why):
        raise LayerError('%s.%s %s' % (self.name, label, why))

    def withdraw(self, space):
        """Take the names of the tree out of a module that is reloaded."""
        for name in space.keys() - vars(self.kept).keys():
            # The import system binds submodules, and only once.
            if not isinstance(space[name], type(sys)):
                del space[name]

    def compare(self, space):
        """Note what a file did to the names of the module.

        :raises: LayerError for a released name that is gone, and for a
            function or class that drops the released one and does not say so
        """
        kept = vars(self.kept)
        for name in kept.keys() - space.keys():
            self.refuse(name, 'is deleted, and the release uses it')
        for name, value in list(space.items()):
            if name.startswith('__') or isinstance(value, _Released):
                continue
            if name not in kept:
                if not isinstance(value, type(sys)):
                    self.note('adds', name)
                continue
            before = kept[name]
            if isinstance(before, _ReleasedClass):
                if value is not _parts(before)[0]:
                    self.refuse(name, 'is bound to something else after '
                                'over()')
            elif value is before:
                if self._contents.get(name, '') not in ('', repr(value)):
                    self.note('extends', name)
            elif isinstance(before, type):
                self.compare_class(name, value, before)
            else:
                self.compare_member(name, value, before)

    def compare_class(self, name, value, before):
        """Note what a class does that takes the place of a released one.

        :raises: LayerError if it is no subclass, or if released code would
            recurse in it
        """
        if not (isinstance(value, type) and issubclass(value, before)):
            self.refuse(name, 'is no subclass of the released class')
        for member in vars(before).values():
            for function in _functions(member)[1].values():
                for one in _reachable(function):
                    if name in _supers(one.__code__):
                        self.refuse(name, 'must be changed with over(): '
                                    'super(%s, self) in the release would '
                                    'recurse in a subclass' % name)
        self.note('extends', name)
        for key, member in vars(value).items():
            functions = _functions(member)[1].values()
            if functions:
                # What a decorator or metaclass puts there is not of the tree.
                if not any(one.__code__.co_filename == self.layer
                           for function in functions
                           for one in _reachable(function)):
                    continue
            elif key.startswith(('__', '_abc_')):
                continue
            label = '%s.%s' % (name, key)
            inherited = _lookup(before, key)
            if inherited is _MISSING:
                self.note('adds', label)
            else:
                self.compare_member(label, member, inherited, {'super', key})

    def compare_member(self, label, value, before, *calls):
        """Note what a function or another value does to the released one.

        :param label: the name in the module, with that of the class if it is
            a member of one
        :param calls: sets of names that a function may use, besides the
            usual ones, to call the released one
        :raises: LayerError if it is of another kind than the released one,
            cannot be called like it, or neither calls it nor is marked with
            replaces()
        """
        kind, ours = _functions(value)
        before_kind, theirs = _functions(before)
        if kind != before_kind:
            self.refuse(label, 'is released as a %s' % (
                before_kind or type(before).__name__))
        calls += ({'released', *label.split('.')},)
        verbs = set() if theirs else {'changes'}
        for part, released_function in theirs.items():
            if part not in ours:
                self.refuse(label, 'lacks the %s of the release' % part)
            function = ours[part]
            problem = _misfit(function, released_function)
            if problem:
                self.refuse(label, problem)
            expected = getattr(function, '_nova_pending_replaces', None)
            if expected is not None:
                self._bodies.append((label, released_function, expected))
                verbs.add('replaces')
            elif _calls(function, released_function, calls):
                verbs.add('extends')
                # Decorators without a wrapper leave marks, a response code
                # for instance, that the release reads off the method.
                for key, mark in vars(released_function).items():
                    if not key.startswith('__'):
                        vars(function).setdefault(key, mark)
            else:
                self.refuse(label, 'does not call the released one: call '
                            'released.%s or mark it with '
                            'nova_pending.replaces()' % label)
        for verb in verbs:
            self.note(verb, label)

    def drift(self):
        """Yield a sentence for each replaced body that the release moved."""
        for name, before, expected in self._bodies:
            try:
                found = digest(before)
            except OSError:
                found = 'no source'
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

    __slots__ = ('_parts',)

    def __init__(self, cls):
        self._parts = (cls, {})

    def __getattribute__(self, name):
        # Not __getattr__: __init__ and its like are those of the release too.
        cls, kept = _parts(self)
        if name not in kept:
            return getattr(cls, name)
        get = getattr(kept[name], '__get__', None)
        return kept[name] if get is None else get(None, cls)


def _parts(view):
    """Return the class of a _ReleasedClass and its released members."""
    return object.__getattribute__(view, '_parts')


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
        calls the released one nor is marked with ``replaces()``, one that
        the class lists elsewhere, as it does its periodic tasks
    """
    view = cls if type(cls) is _ReleasedClass else None
    if view is not None:
        cls = _parts(view)[0]
    if not isinstance(cls, type):
        raise LayerError('over() takes a class, not %r' % (cls,))
    kept = released(cls.__module__)
    record = _records[cls.__module__]
    if view is None:
        view = _ReleasedClass(cls)
        if getattr(kept, cls.__name__, None) is not cls:
            record.refuse(cls.__qualname__, 'is not a class as released')

    def put(body):
        if (body.__name__, body.__module__, body.__bases__) != (
                cls.__name__, cls.__module__, (object,)):
            record.refuse(cls.__name__, 'must be laid over by a class of its '
                          'name, without a base, in the file of its module')
        members = {name: value for name, value in vars(body).items()
                   if name not in _CLASS_MACHINERY}
        for name, value in members.items():
            label = '%s.%s' % (cls.__name__, name)
            if name.startswith('__') and name.endswith('__') and (
                    name != '__init__'):
                record.refuse(label, 'is a special name: it cannot be laid '
                              'over')
            before = _lookup(cls, name)
            is_new = isinstance(value, _New) or hasattr(
                value, '_nova_pending_new')
            if isinstance(value, _New):
                members[name] = value = value.value
            for function in _functions(value)[1].values():
                for one in _reachable(function):
                    if body in _held(one) and (
                            _supers(one.__code__) - {cls.__name__}):
                        record.refuse(label, 'uses super() without arguments, '
                                      'or __class__')
            if name in _parts(view)[1]:
                record.refuse(label, 'is laid over twice')
            holder = _holder(cls, before)
            if holder:
                record.refuse(label, 'is listed in %s.%s, where the released '
                              'one would stay' % (cls.__name__, holder))
            if is_new and before is not _MISSING:
                record.refuse(label, 'is marked as new, and the release has '
                              'it')
            if is_new:
                record.note('adds', label)
            elif before is _MISSING:
                record.refuse(label, 'is not in the release: mark it with '
                              'nova_pending.new()')
            else:
                record.compare_member(label, value, before)
        # Nothing has changed so far. The released names are looked up at run
        # time: the view comes first.
        _parts(view)[1].update(
            (name, _lookup(cls, name)) for name in members
            if _lookup(cls, name) is not _MISSING)
        setattr(kept, cls.__name__, view)
        for name, value in members.items():
            setattr(cls, name, value)
        return cls
    return put


_MISSING = object()

_CLASS_MACHINERY = {
    '__module__', '__qualname__', '__doc__', '__dict__', '__weakref__',
    '__annotations__', '__annotate__', '__annotate_func__',
    '__annotations_cache__', '__firstlineno__', '__static_attributes__'}


def _lookup(cls, name):
    for base in cls.__mro__:
        if base is not object and name in vars(base):
            return vars(base)[name]
    return _MISSING


def _holder(cls, member):
    """Return the name of an attribute of a class that lists a member of it.

    The periodic tasks of a manager are kept in such a list.
    """
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, dict):
                value = value.values()
            elif not isinstance(value, (list, tuple, set)):
                continue
            for item in value:
                parts = item if isinstance(item, tuple) else (item,)
                if any(part is member for part in parts):
                    return name


def _functions(member):
    """Return the kind of a member and its functions, by what each is for."""
    import functools
    if isinstance(member, (staticmethod, classmethod)):
        return type(member).__name__, {'function': member.__func__}
    if isinstance(member, property):
        return 'property', {
            part: getattr(member, part) for part in ('fget', 'fset', 'fdel')
            if getattr(member, part) is not None}
    if isinstance(member, functools.cached_property):
        return 'cached property', {'function': member.func}
    while not isinstance(member, type(lay)) and hasattr(member, '__wrapped__'):
        member = member.__wrapped__
    if isinstance(member, type(lay)):
        return 'function', {'function': member}
    return None, {}


def _held(function):
    """Return what a function closes over."""
    held = []
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            # The name that it closes over is not bound yet.
            continue
    return held


def _reachable(function):
    """Return a function and all that it wraps or closes over."""
    found = [function]
    for one in found:
        found.extend(
            other for other in (getattr(one, '__wrapped__', None), *_held(one))
            if isinstance(other, type(lay)) and other not in found)
    return found


def _names(code):
    """Return the global names and attributes that a code object uses."""
    names = set(code.co_names)
    for const in code.co_consts:
        if hasattr(const, 'co_names'):
            names |= _names(const)
    return names


def _supers(code):
    """Return the names of the classes that code calls super() for.

    None is among them if it does so without arguments or uses __class__.
    """
    found = set()
    if 'super' in code.co_names or '__class__' in code.co_freevars:
        import dis
        steps = [step for step in dis.get_instructions(code)
                 if step.opname != 'EXTENDED_ARG']
        for step, after in zip(steps, steps[1:]):
            if (step.opname, step.argval) == ('LOAD_GLOBAL', 'super'):
                found.add(after.argval if after.opname == 'LOAD_GLOBAL'
                          else None)
            elif (step.opname, step.argval) == ('LOAD_DEREF', '__class__'):
                found.add(None)
    for const in code.co_consts:
        if hasattr(const, 'co_names'):
            found |= _supers(const)
    return found


def _calls(function, before, calls):
    """Whether a function wraps a released one or names it in its code."""
    return any(one is before or any(call <= _names(one.__code__)
                                    for call in calls)
               for one in _reachable(function))


def _misfit(function, before):
    """Say why callers of the released function cannot call this one."""
    import inspect
    ours = list(inspect.signature(function).parameters.values())
    theirs = list(inspect.signature(before).parameters.values())
    named = {p.name: p for p in ours}
    kinds = {p.kind for p in ours}
    anything = inspect.Parameter.VAR_KEYWORD in kinds
    places = 0
    for index, wanted in enumerate(theirs):
        if wanted.kind in (wanted.VAR_POSITIONAL, wanted.VAR_KEYWORD):
            if wanted.kind not in kinds:
                return 'does not take %s' % wanted
            if wanted.kind == wanted.VAR_POSITIONAL:
                places = len(ours)
            continue
        placed = wanted.kind != wanted.KEYWORD_ONLY
        places += placed
        got = named.get(wanted.name)
        if got is None:
            swallowed = anything and (
                not placed or
                wanted.default is not wanted.empty or
                inspect.Parameter.VAR_POSITIONAL in kinds)
            if not swallowed:
                return 'does not take %s' % wanted.name
            continue
        if (got.kind not in (wanted.kind, wanted.POSITIONAL_OR_KEYWORD) or
                placed and ours.index(got) != index):
            return 'takes %s in another place' % wanted.name
        if wanted.default is not wanted.empty and got.default is got.empty:
            return 'wants %s, which callers may leave out' % wanted.name
    known = {p.name for p in theirs}
    for index, extra in enumerate(ours):
        if extra.name in known or extra.kind in (
                extra.VAR_POSITIONAL, extra.VAR_KEYWORD):
            continue
        if extra.default is extra.empty:
            return 'wants %s, which callers do not pass' % extra.name
        if extra.kind != extra.KEYWORD_ONLY and index < places:
            return 'takes %s where callers pass something else' % extra.name


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
    if switched_off():
        write('inactive: %s=%s is set in this environment' % (
            _SWITCH, os.environ[_SWITCH]))
        return EXIT_INACTIVE
    name = 'nova'
    try:
        check_switch()
        check_release()
        top = tree()
        if not laid():
            write('inactive: %s' % (
                'nova was imported before nova-pending could be laid over it'
                if 'nova' in sys.modules else
                'this interpreter did not run nova_pending.pth; install '
                'nova-pending into the site-packages that holds nova'))
            return EXIT_INACTIVE
        _watch = True
        names = modules()
        for name in names:
            importlib.import_module(name)
    except Exception as exc:
        # Whatever a file raises, its module is not laid over.
        write('refused: %s%s' % (
            '' if isinstance(exc, LayerError)
            else '%s: %s: ' % (name, type(exc).__name__), exc))
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
    # Some modules of the release read the arguments of their own command.
    del sys.argv[1:]
    import logging
    import warnings
    # What the release says while it is imported is not about the tree.
    logging.disable()
    if not sys.warnoptions:
        warnings.simplefilter('ignore')
    # The commands of the release want native threading, or eventlet, and
    # refuse the other in the same process.
    os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = 'false'
    return status()
