# SPDX-License-Identifier: Apache-2.0

"""Lays a tree of changes over the released Nova.

``lay()`` runs at the start of every interpreter of the environment (from
``nova_pending.pth``) and registers one finder. When a module of ``nova`` is
imported for which the tree has a file, the released module is run first and
then the file of the tree, in the same namespace. No released file is touched.

A file of the tree gets what the release defined from ``released(__name__)``
and changes released classes in place with ``over()``. What could not work is
refused here; ``nova_pending_check`` looks at the rest of it.

Every Python process of the environment imports this module: nothing but what
the interpreter has loaded already is imported at its top.
"""

import os
import sys

#: The series of Nova releases that the tree is made for. It is written for the
#: newest; nova_pending_releases has what differs on the others.
RELEASES = (33, 34)
RELEASE = RELEASES[-1]

SWITCH = 'NOVA_PENDING'
MISSING = object()
NAMESPACE = type(sys.implementation)


class LayerError(ImportError):
    """The tree, or a file of it, cannot be laid over the release."""


def tree():
    """Return the directory that holds the tree.

    :returns: the path of ``_nova_pending_tree`` (a wheel) or ``nova`` (a
        checkout) beside this module
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
    return os.environ.get(SWITCH, '').strip().lower() == 'off'


def lay():
    """Register the finder, once. Nothing is imported and no file is read."""
    if switched_off() or laid():
        return
    # A part of it would stay as released.
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
    found = next(metadata.distributions(name='nova'), None)
    return found and found.version


def check_environment():
    """Refuse a Nova that the tree is not made for, and a misspelt switch.

    :returns: the series of the release that is installed, one of RELEASES
    :raises: LayerError
    """
    import re
    value = os.environ.get(SWITCH, '')
    if value.strip().lower() not in ('', 'on', 'off'):
        raise LayerError('%s=%s is neither "on" nor "off": set it to "off" to '
                         'run Nova without nova-pending, or unset it.'
                         % (SWITCH, value))
    found = release()
    # ">=33,<35": what comes before 33.0.0, a candidate for instance, is not.
    # A candidate of 34.0.0 is refused, too: its series is not released.
    match = re.match(r'(\d+)(?!\d)(?!(\.0)*\.?(a|b|rc|dev))', found or '')
    if match is None or int(match[1]) not in RELEASES:
        raise LayerError(
            'nova-pending is made for Nova %s, and this environment has %s: '
            'install "nova>=%d,<%d" or the nova-pending of that release, or '
            'set %s=off to run Nova without it.' % (
                ' and '.join(map(str, RELEASES)),
                'nova ' + found if found else 'none installed',
                RELEASES[0], RELEASE + 1, SWITCH), name='nova')
    return int(match[1])


class Finder:
    """Finds the modules of nova for which the tree has a file."""

    def __init__(self):
        self._tree = None
        self._release = None

    def find_spec(self, name, path=None, target=None):
        """Return a module spec, or None for what the tree does not have."""
        if name != 'nova' and not name.startswith('nova.'):
            return None
        if self._tree is None:
            self._release = check_environment()
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
            spec = util.spec_from_file_location(name, layer)
            if self._release != RELEASE:
                spec.loader = NewLoader(spec.loader, self._release)
        elif spec.origin != layer:
            spec.loader = Loader(spec.loader, layer, self._release)
        return spec

    def _released_spec(self, name, path, target):
        # Those ahead of this one have been asked already.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1:]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec


class NewLoader:
    """Runs a new module of the tree on a release before the newest."""

    def __init__(self, loader, release):
        self.loader = loader
        self.release = release

    def __getattr__(self, name):
        # Modules are made, and their sources and resources found, as by the
        # other loader.
        if name == 'loader':
            raise AttributeError(name)
        return getattr(self.loader, name)

    def exec_module(self, module):
        self.loader.exec_module(module)
        adjust(self.release, module)


class Loader(NewLoader):
    """Runs a released module and then a file of the tree over it."""

    def __init__(self, released_loader, layer, release):
        super().__init__(released_loader, release)
        self.layer = layer

    def get_code(self, name):
        raise LayerError('%s is laid over: import it, it cannot be run as a '
                         'script' % name)

    def exec_module(self, module):
        from importlib import machinery
        name = module.__name__
        space = module.__dict__
        code = machinery.SourceFileLoader(name, self.layer).get_code(name)
        self.loader.exec_module(module)
        record = records[name] = Record(name, self.layer, space)
        exec(code, space)
        space['__doc__'] = record.kept.__doc__
        adjust(self.release, module)
        record.bind_functions(space)


def adjust(release, module):
    """Change what a file of the tree has defined, where a release needs it.

    :param release: the series of the release, one of RELEASES
    :param module: the module, whose files have been run
    """
    if release != RELEASE:
        import nova_pending_releases
        nova_pending_releases.adjust(release, module)


class Record:
    """What the tree puts over one released module."""

    def __init__(self, name, layer, space):
        self.name = name
        self.layer = layer
        #: the names of the module as they were before the tree
        self.kept = NAMESPACE(**space)
        #: what over() has laid: tuples of a class, the body, and the name,
        #: the value and the released value (or MISSING) of a member
        self.members = []

    def refuse(self, label, why):
        raise LayerError('%s.%s %s' % (self.name, label, why))

    def bind_functions(self, space):
        """Bind what the file has put in the place of released functions."""
        for name, before in vars(self.kept).items():
            if name not in space:
                self.refuse(name, 'is deleted, and the release uses it')
            if space[name] is not before:
                self.bind(name, space[name], before)

    def bind(self, label, value, before):
        """Refuse a function that callers of the released one cannot call."""
        function, theirs = function_of(value), function_of(before)
        if theirs is None:
            return
        bound = {staticmethod, classmethod}
        if function is None or {type(value)} & bound != {type(before)} & bound:
            self.refuse(label, 'is released as a ' + type(before).__name__)
        if problem := _misfit(function, theirs):
            self.refuse(label, problem)
        # Decorators without a wrapper leave marks, a response code for
        # instance, that the release reads off the method.
        for key, mark in vars(theirs).items():
            if not key.startswith('__'):
                vars(function).setdefault(key, mark)


#: The Record of each module that is laid over, by its name.
records = {}


def record_of(name):
    if name not in records:
        raise LayerError('%s is not laid over a released module' % name)
    return records[name]


def released(name):
    """Return what the release defines in a module that the tree changes.

    :param name: the name of the module, from a file of the tree ``__name__``
    :returns: an object with the names of the released module as attributes;
        classes that ``over()`` changes have the functions that they had
    :raises: LayerError if the tree has nothing over that module
    """
    return record_of(name).kept


class ReleasedClass:
    """A class as released, after the tree has changed it in place."""

    def __init__(self, cls):
        self._parts = (cls, {})

    def __getattribute__(self, name):
        # Not __getattr__: __init__ and its like are those of the release too.
        cls, kept = parts_of(self)
        if name not in kept:
            return getattr(cls, name)
        get = getattr(kept[name], '__get__', None)
        return kept[name] if get is None else get(None, cls)


def parts_of(view):
    """Return the class of a ReleasedClass and its released members."""
    return object.__getattribute__(view, '_parts')


class new:
    """Marks a member of an ``over()`` body that the released class lacks."""

    def __init__(self, value):
        self.value = value


def replaces(digest):
    """Mark a function that takes the place of one with this digest."""
    def mark(function):
        function._nova_pending_replaces = digest
        return function
    return mark


def in_tree(decorator):
    """Name a decorator that a function has in the branch of Nova alone.

    There it takes the place of a released one, which the layer leaves on the
    released function.
    """
    return lambda function: function


def over(cls):
    """Put the members of the decorated class over a released class, in place.

    In place, because released code calls ``super(Name, self)``: a subclass
    bound to that name would recurse, and registries hold the released class.

    :param cls: the class as ``released(__name__)`` gives it
    :returns: a class decorator that returns the released class
    :raises: LayerError for a name that the release lacks and ``new()`` does
        not mark, or the other way round, and for what callers cannot call
    """
    view = cls if type(cls) is ReleasedClass else ReleasedClass(cls)
    cls, kept = parts_of(view)
    record = record_of(cls.__module__)

    def put(body):
        members = []
        for name, value in vars(body).items():
            # Of those only __init__ is laid over, most are of Python itself.
            if name.startswith('__') and name.endswith('__') and (
                    name != '__init__'):
                continue
            label, before = cls.__name__ + '.' + name, lookup(cls, name)
            if isinstance(value, new):
                value = value.value
                if before is not MISSING:
                    record.refuse(label, 'is marked as new, and the release '
                                  'has it')
            elif before is MISSING:
                record.refuse(label, 'is not in the release: mark it with '
                              'nova_pending.new()')
            else:
                record.bind(label, value, before)
            members.append((cls, body, name, value, before))
        # Nothing has changed so far.
        record.members.extend(members)
        for _, _, name, value, before in members:
            if before is not MISSING:
                kept.setdefault(name, before)
            setattr(cls, name, value)
            # The class has looked for its periodic tasks when it was made.
            if getattr(value, '_periodic_task', False):
                cls._add_periodic_task(value)
        setattr(record.kept, cls.__name__, view)
        return cls
    return put


def lookup(cls, name):
    """Return a member as a class or a base of it holds it, or MISSING."""
    return next((vars(base)[name] for base in cls.__mro__
                 if base is not object and name in vars(base)), MISSING)


def function_of(member):
    """Return the function of a member of a class or module, or None."""
    while not isinstance(member, type(lay)) and hasattr(member, '__wrapped__'):
        member = member.__wrapped__
    return member if isinstance(member, type(lay)) else None


def _misfit(function, before):
    """Say why callers of the released function cannot call this one."""
    import inspect
    ours = inspect.signature(function)
    theirs = list(inspect.signature(before).parameters.values())
    needed = [p for p in theirs if p.default is p.empty]
    placed, by_name = inspect._ParameterKind(2), inspect._ParameterKind(0)
    # Everything in its place, what is needed in its place, all by name. The
    # arguments are the names of the parameters, to see where they arrive.
    for passed, last in (theirs, placed), (needed, placed), (theirs, by_name):
        try:
            places = ours.bind(
                *[p.name for p in passed if p.kind <= last],
                **{p.name: p.name for p in passed
                   if p.kind > last and p.kind != placed}).arguments
        except TypeError as exc:
            return 'cannot be called as released: %s' % exc
        for name, value in places.items():
            if isinstance(value, str) and value != name:
                return 'takes %s where callers pass %s' % (name, value)
