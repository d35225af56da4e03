# SPDX-License-Identifier: Apache-2.0

"""Writes the tree as a branch of Nova: one commit a feature.

Everything is made in a directory that nobody sees and gets its name when all
commits are there, so that nothing is left of a run that fails.
"""

import argparse
import ast
import contextlib
import copy
import inspect
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import typing
import zlib

import yaml

import nova_pending
import nova_pending_releases
from tools.intree import edits
from tools.intree import translate

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: Who makes the commits, and when: a run makes those of the run before.
IDENTITY = {
    'GIT_AUTHOR_NAME': 'nova-pending maintainers',
    'GIT_AUTHOR_EMAIL': 'nova-pending@example.org',
    'GIT_COMMITTER_NAME': 'nova-pending maintainers',
    'GIT_COMMITTER_EMAIL': 'nova-pending@example.org',
}
FIRST_DATE = 1790000000

API_VERSION = 'nova/api/openstack/api_version_request.py'


class ExportError(Exception):
    """What is given cannot be exported; says why in a sentence."""


class Git:
    """A repository, without the settings of the user of the command."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, date=FIRST_DATE, stdin=None):
        when = '%d +0000' % date
        done = subprocess.run(
            ['git', '-c', 'safe.directory=*', '-c', 'core.autocrlf=false',
             '-C', str(self.path), *arguments],
            input=stdin, capture_output=True, text=True,
            env={**{name: value for name, value in os.environ.items()
                    if not name.startswith('GIT_')}, **IDENTITY,
                 'GIT_AUTHOR_DATE': when, 'GIT_COMMITTER_DATE': when,
                 'GIT_CONFIG_GLOBAL': os.devnull, 'GIT_CONFIG_NOSYSTEM': '1'})
        if done.returncode:
            raise ExportError('git %s: %s' % (
                arguments[0], done.stderr.strip() or done.stdout.strip()))
        return done.stdout.rstrip('\n')


def series_of(version):
    """Return the series of a version of Nova, as 34 of '34.0.0'.

    :returns: None if the tree is not made for it
    """
    match = re.fullmatch(r'(\d+)(\.\d+)+', version)
    if match and int(match[1]) in nova_pending.RELEASES:
        return int(match[1])


def check_version(version, what):
    if series_of(version) is None:
        raise ExportError(
            '%s is Nova %s, and this tree is made for Nova %s: give it the '
            'source of such a release.' % (
                what, version, ' and '.join(map(str, nova_pending.RELEASES))))
    return version


def unpack(archive, place):
    """Unpack the source archive of a release, as it is on PyPI.

    :param archive: the path of the .tar.gz
    :param place: the directory to make
    :returns: the version
    :raises: ExportError if it is not the source of a Nova that the tree fits
    """
    try:
        with tarfile.open(archive) as file:
            top = {name.partition('/')[0] for name in file.getnames()}
            if len(top) != 1:
                raise ExportError('%s is no source archive of Nova: it holds '
                                  'more than one directory.' % archive)
            file.extractall(place.parent, filter='data')
    except (OSError, EOFError, tarfile.TarError, zlib.error) as exc:
        raise ExportError('%s cannot be unpacked: %s' % (archive, exc))
    (place.parent / top.pop()).rename(place)
    try:
        info = (place / 'PKG-INFO').read_text(errors='replace')
    except OSError:
        info = ''
    found = dict(re.findall(r'^(Name|Version): (.*)$', info, re.M))
    if found.get('Name') != 'nova' or 'Version' not in found:
        raise ExportError('%s is no source archive of Nova: its PKG-INFO '
                          'does not say so.' % archive)
    return check_version(found['Version'], archive)


def clone(checkout, place):
    """Clone a checkout of Nova at the tag of a release.

    :returns: the version
    :raises: ExportError if it has changes, or is not at such a tag
    """
    git = Git(checkout)
    try:
        changes = git('status', '--porcelain')
        tags = git('tag', '--points-at', 'HEAD').split()
    except ExportError as exc:
        raise ExportError('%s is no checkout of Nova: %s' % (checkout, exc))
    if changes:
        raise ExportError('%s has changes that are not committed: commit or '
                          'stash them.' % checkout)
    versions = [tag for tag in tags if re.fullmatch(r'\d+\.\d+\.\d+', tag)]
    if not versions:
        raise ExportError(
            '%s is not at the tag of a release of Nova: check %d.0.0 out.'
            % (checkout, nova_pending.RELEASE))
    version = check_version(versions[-1], str(checkout))
    Git(place.parent)('clone', '--quiet', '--no-hardlinks', '--no-local',
                      str(pathlib.Path(checkout).resolve()), str(place))
    return version


def read_series():
    """Return the series as series.yaml has it, with each feature's number."""
    series = yaml.safe_load((HERE / 'series.yaml').read_text())
    for number, feature in enumerate(series['features'], 1):
        feature['number'] = number
    return series


class Series:
    """Which feature each thing of the tree belongs to.

    :ivar features: the features that are exported, in their order
    """

    def __init__(self, document, names=()):
        everything = document['features']
        known = [feature['name'] for feature in everything]
        for name in names:
            if name not in known:
                raise ExportError('There is no feature %s: the features are '
                                  '%s.' % (name, ', '.join(known)))
        last = max([known.index(name) + 1 for name in names],
                   default=len(known))
        missing = [name for name in known[:last] if names and
                   name not in names]
        if missing:
            raise ExportError('%s stands on %s: name %s too.' % (
                known[last - 1], ', '.join(missing),
                'it' if len(missing) == 1 else 'them'))
        self.features = everything[:last]
        self.names = document['names']
        self.words = document.get('words', {})
        self._layer = document['layer']
        self._owners = {}
        for feature in everything:
            for entry in feature['code']:
                if self._owners.setdefault(entry, feature) is not feature:
                    raise ExportError('%s belongs to two features.' % entry)

    def on(self, tree):
        """Return the series with the words and numbers of a tree.

        :param tree: the Tree as it is on a release
        """
        made = copy.copy(self)
        made.features = [
            {**feature, **{key: tree.say(feature[key]) for key in (
                'title', 'message', 'microversion') if key in feature}}
            for feature in self.features]
        made._owners = {tree.say(entry): feature
                        for entry, feature in self._owners.items()}
        return made

    def is_of_layer(self, path):
        return any(path == entry or path.startswith(entry + '/')
                   for entry in self._layer)

    def find(self, path, name=None):
        """Return the feature of a file, or of a name in it, or None.

        :param name: as translate() passes it
        """
        entries = [path]
        if name is not None:
            entries = ['%s:%s' % (path, name),
                       '%s:%s' % (path, name.partition('.')[0]), path]
        for entry in entries:
            if entry in self._owners:
                return self._owners[entry]

    def owner(self, path, name=None):
        """Return the feature of a file, or of a name in it."""
        found = self.find(path, name)
        if found is None:
            raise ExportError(
                '%s belongs to no feature: add it to tools/intree/series.yaml.'
                % (path if name is None else '%s of %s' % (name, path)))
        return found


class Tree:
    """The checkout of nova-pending, whose files are exported.

    :ivar release: the series of the release that they are read for
    """

    def __init__(self, root=ROOT, here=HERE):
        self.root, self._here = root, here
        self.release, self._words = nova_pending.RELEASE, {}

    def on(self, release, words):
        """Return the tree as it is on a release.

        :param release: the series of the release
        :param words: what is said in the place of other words, by release
        """
        made = copy.copy(self)
        made.release, made._words = release, words.get(release, {})
        return made

    def say(self, text):
        """Return a text of the tree, or a name, as it is on the release."""
        for word, other in self._words.items():
            text = text.replace(word, other)
        return nova_pending_releases.renumbered(self.release, text)

    def code(self):
        """Return the sorted paths of the modules, without the tests."""
        return sorted(
            str(path.relative_to(self.root))
            for path in (self.root / 'nova').rglob('*.py')
            if path.relative_to(self.root).parts[1] != 'tests')

    def read(self, path):
        """Return a file as it is on the release."""
        text = self.say((self.root / path).read_text())
        replaced = nova_pending_releases.REPLACED.get(self.release, {}).get(
            path.removesuffix('.py').replace('/', '.'), {})
        for name, function in replaced.items():
            text = translate.with_body(
                path, text, name, inspect.getsource(function))
        return text

    def edits(self, feature):
        """Return the Patches of a feature, in their order."""
        return [Patch(patch.name, self.say(patch.read_text()))
                for patch in edits.patches(
                    self._here / 'edits' / feature['name'], self.release)]

    def others(self, feature):
        """Return the paths of the tests and of what the patterns match."""
        found = {path for path in (
            entry.partition(':')[0] for entry in feature['code'])
            if path.startswith('nova/tests/')}
        for pattern in feature.get('files', ()):
            paths = [path for path in self.root.glob(pattern)
                     if path.is_file()]
            if not paths:
                raise ExportError('%s, of the feature %s, matches no file.'
                                  % (pattern, feature['name']))
            found |= {str(path.relative_to(self.root)) for path in paths}
        return sorted(found)


class Patch(typing.NamedTuple):
    """An edit of what is released, or of what the tree writes over it."""

    name: str
    text: str

    @property
    def until(self):
        """The name of the feature that does without the patch, or None."""
        match = re.fullmatch(r'until-([\w-]+)\.patch', self.name)
        return match and match[1]

    @property
    def paths(self):
        """The paths of the files that the patch changes."""
        return set(re.findall(r'^--- a/(.*)$', self.text, re.M))

    def apply(self, git, paths=()):
        """Change the files of a repository.

        :param paths: the files to change, by default all
        """
        try:
            git('apply', '--index', *(
                '--include=' + path for path in sorted(paths)), '-',
                stdin=self.text)
        except ExportError as exc:
            raise ExportError('%s does not apply to this release: %s' % (
                self.name, exc))


def check_names(git, names):
    """Refuse what is to be committed if it names nova-pending or nova-reaper.

    :param names: what it may name so, because it is stored
    :raises: ExportError
    """
    stored = re.compile('|'.join(
        r'(?<!\w)%s(?!\w)' % re.escape(name) for name in names))
    for path in git('diff', '--cached', '--name-only',
                    '--diff-filter=d').split('\n'):
        text = (git.path / path).read_bytes().decode(errors='replace')
        for number, line in enumerate(text.split('\n'), 1):
            if re.search(r'nova.?(pending|reaper)', stored.sub('', line),
                         re.I):
                raise ExportError(
                    '%s:%d: the branch would name nova-pending: %s' % (
                        path, number, line.strip()))


def stage_of(source, version):
    """Return the API's versions as they are up to a microversion."""
    last = float(version.partition('.')[2])

    def entry(match):
        return match[0] if float(match[1]) <= last else ''

    source = re.sub(r'^    \* 2\.(\d+) - (?:.*\n)(?:(?!    \*|""").*\n)*',
                    entry, source, flags=re.M)
    return re.sub(r"(_MAX_API_VERSION = )'[\d.]+'", r"\1'%s'" % version,
                  source)


def _is_there(owner, feature):
    """Say whether a thing is there after a feature.

    :param owner: the feature of the thing; None if it has none, as the things
        of a file that is copied
    """
    return owner is None or owner['number'] <= feature['number']


def _defines(source, name):
    """Say whether a module defines a function, class or constant."""
    for node in ast.parse(source).body:
        targets = getattr(node, 'targets', None) or [
            getattr(node, 'target', node)]
        if name in {getattr(x, 'id', getattr(x, 'name', None))
                    for x in targets}:
            return True
    return False


def module_at(tree, series, feature, path, release):
    """Return a module of the tree as it is after a feature.

    :param release: the released source, None for a new module
    :returns: None if no part of it is there yet
    :raises: translate.Refused, ExportError
    """
    number = feature['number']
    source = tree.read(path)
    if release is None:
        if source.strip() and series.owner(path)['number'] > number:
            return None
        return translate.new_module(
            source, path,
            lambda name: _is_there(series.owner(path, name), feature))
    for earlier in series.features[:number]:
        if earlier.get('microversion') and path == API_VERSION:
            source = stage_of(tree.read(path), earlier['microversion'])

    def is_there(name, module=None):
        if module is None:
            return _is_there(series.owner(path, name), feature)
        # Of other files most are the release's alone, or that name of them is.
        owner = series.find(module, name)
        return _is_there(owner, feature) or not _defines(
            tree.read(module), name)

    made = translate.translate(path, source, release, is_there)
    return None if made == release else made


def named_by_decorators(source):
    """Return the files that have what the decorators of a module name."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {name.id for node in nodes
             for decorator in getattr(node, 'decorator_list', ())
             for name in ast.walk(decorator) if isinstance(name, ast.Name)}
    return {'%s/%s.py' % (node.module.replace('.', '/'), alias.name)
            for node in nodes if isinstance(node, ast.ImportFrom)
            for alias in node.names if (alias.asname or alias.name) in names}


def touches(tree, feature, path):
    """Say whether a feature changes a file of the tree."""
    # A decorator comes with what it names.
    files = {path, *named_by_decorators(tree.read(path))}
    return (any(entry.partition(':')[0] in files
                for entry in feature['code']) or
            path == API_VERSION and 'microversion' in feature or
            not tree.read(path).strip())


def write(tree, series, git, release_of):
    """Commit the features, one after the other.

    :param git: the repository, which holds the release
    :param release_of: called with a path, returns the released source or None
    """
    paths = [path for path in tree.code() if not series.is_of_layer(path)]
    # All of it belongs somewhere, or a file would be left out unnoticed.
    owned = {path: series.owner(path) for path in paths
             if release_of(path) is None and tree.read(path).strip()}
    patches = []
    for feature in series.features:
        # A patch that holds until this feature has left out lines of earlier
        # commits. This commit writes the files of the patch with these lines.
        without = [x for x in patches if x.until == feature['name']]
        patches = [x for x in patches if x not in without]
        anew = set().union(*(patch.paths for patch in without))
        written = set()
        for path in paths:
            if release_of(path) is None and not tree.read(path).strip():
                # What holds a package together comes with what is in it.
                inside = [p for p in owned
                          if p.startswith(os.path.dirname(path) + '/')]
                if not any(owned[p]['number'] <= feature['number']
                           for p in inside):
                    continue
            if not (touches(tree, feature, path) or path in anew):
                continue
            made = module_at(tree, series, feature, path, release_of(path))
            if made is not None:
                target = git.path / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(made)
                written.add(path)
        for path in tree.others(feature):
            if series.is_of_layer(path):
                continue
            name = tree.say(path)
            target = git.path / name
            data = tree.read(path)
            if path.endswith('.py') and re.search(
                    r'^(import|from) (nova_pending|tools)\b', data, re.M):
                raise ExportError('%s is of the layer, and a feature lists '
                                  'it.' % path)
            if release_of(path) is not None and not data.strip():
                continue
            if release_of(path) is not None:
                raise ExportError(
                    '%s is in the release: it is edited by a patch in '
                    'tools/intree/edits.' % path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.endswith('.py'):
                data = translate.new_module(
                    data, path, lambda member: _is_there(
                        series.find(name, member), feature))
            target.write_text(data)
        git('add', '--all', '--force')
        # The patches of earlier features hold for what is written anew.
        for patch in patches:
            if patch.paths & written:
                patch.apply(git, patch.paths & written)
        for patch in tree.edits(feature):
            patch.apply(git)
            patches.append(patch)
        check_names(git, series.names)
        git('commit', '--quiet', '--no-verify', '--file=-',
            date=FIRST_DATE + 60 * feature['number'],
            stdin='%s\n\n%s' % (feature['title'], feature['message']))


def export(release, checkout, output, names, tree=None, document=None):
    """Write the branch.

    :param release: the path of the source archive of Nova, or None
    :param checkout: the path of a checkout of Nova, or None
    :param output: the directory to make, which must not be there
    :param names: the features, by default all
    :returns: the repository and the name of its branch
    :raises: ExportError, translate.Refused; nothing is written then
    """
    output = pathlib.Path(output).absolute()
    if output.exists():
        raise ExportError('%s is there already: name a directory that is '
                          'not.' % output)
    if not output.parent.is_dir():
        raise ExportError('%s is no directory to write to.' % output.parent)
    tree = tree or Tree()
    series = Series(document or read_series(), names)
    with tempfile.TemporaryDirectory(
            dir=output.parent, prefix='.nova-pending-') as scratch:
        place = pathlib.Path(scratch) / 'nova'
        git = Git(place)
        if release is not None:
            version = unpack(release, place)
            git('init', '--quiet', '--initial-branch=stable')
            git('add', '--all', '--force')
            git('commit', '--quiet', '--no-verify',
                '--message=Nova %s as released' % version)
            git('tag', version)
        else:
            version = clone(checkout, place)
        tree = tree.on(series_of(version), series.words)
        series = series.on(tree)
        branch = 'nova-pending/%s' % version
        git('checkout', '--quiet', '-B', branch, version)
        base = git('rev-parse', 'HEAD')
        known = set(git('ls-tree', '-r', '--name-only', base).split('\n'))
        sources = {}

        def release_of(path):
            if path not in known:
                return None
            if path not in sources:
                sources[path] = git('show', '%s:%s' % (base, path)) + '\n'
            return sources[path]

        write(tree, series, git, release_of)
        shutil.move(place, output)
    return Git(output), branch


@contextlib.contextmanager
def _signals_exit():
    """Let signals that end a process raise SystemExit.

    So what the code within has begun is cleaned up.
    """
    def leave(number, _frame):
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave)
              for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments=None):
    """Run the command ``nova-pending export``."""
    parser = argparse.ArgumentParser(
        prog='nova-pending export',
        description='Write the changes as a branch of Nova, one commit a '
                    'feature.')
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        '--release', metavar='FILE',
        help='the source archive of Nova, as it is on PyPI')
    source.add_argument(
        '--onto', metavar='CHECKOUT',
        help='a checkout of Nova at the tag of the release')
    parser.add_argument(
        '--output', metavar='DIR', required=True,
        help='the repository to write, which must not be there')
    parser.add_argument(
        '--feature', metavar='NAME', action='append', default=[],
        help='export this feature; may be given more than once (default: '
             'all)')
    arguments = parser.parse_args(arguments)
    try:
        with _signals_exit():
            git, branch = export(arguments.release, arguments.onto,
                                 arguments.output, arguments.feature)
    except (ExportError, translate.Refused, OSError) as exc:
        print('nova-pending export: %s' % exc, file=sys.stderr)
        return 2
    print('%s, on the branch %s:' % (git.path, branch))
    print(git('log', '--reverse', '--format=%h %s', '%s..%s' % (
        branch.rpartition('/')[2], branch)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
