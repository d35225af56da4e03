# SPDX-License-Identifier: Apache-2.0

"""What differs between the releases that the tree is laid over."""

import importlib
import pathlib
import re

import testtools

from nova.tests.unit.layer import fake_release
import nova_pending
import nova_pending_releases


def installed():
    """Return the series of the release that is installed."""
    return int(nova_pending.release().partition('.')[0])


class MicroversionsTest(testtools.TestCase):

    def test_numbers(self):
        self.assertEqual({'pending': '2.105', 'rebuild': '2.106',
                          'reason': '2.107'},
                         nova_pending_releases.microversions(34))
        self.assertEqual({'pending': '2.104', 'rebuild': '2.105',
                          'reason': '2.106'},
                         nova_pending_releases.microversions(33))
        self.assertEqual(
            set(nova_pending.RELEASES),
            set(nova_pending_releases.LAST_MICROVERSION))

    def test_they_follow_on_the_release(self):
        name = 'nova.api.openstack.api_version_request'
        module = importlib.import_module(name)
        self.assertEqual(
            '2.%d' % nova_pending_releases.LAST_MICROVERSION[installed()],
            nova_pending.released(name)._MAX_API_VERSION)
        numbers = nova_pending_releases.microversions(installed())
        self.assertEqual(numbers['reason'], module._MAX_API_VERSION)
        ours = module.REST_API_VERSION_HISTORY.removeprefix(
            nova_pending.released(name).REST_API_VERSION_HISTORY)
        self.assertEqual(
            sorted(numbers.values()), re.findall(r'\* (2\.\d+) - ', ours))

    def test_modules_have_the_numbers_of_the_release(self):
        numbers = nova_pending_releases.microversions(installed())
        for name, feature in nova_pending_releases.API_VERSIONS.items():
            self.assertEqual(
                numbers[feature], importlib.import_module(name).API_VERSION)

    def test_files_have_the_numbers_of_the_newest_release(self):
        numbers = nova_pending_releases.microversions(nova_pending.RELEASE)
        found = {}
        tree = pathlib.Path(nova_pending.tree())
        for path in tree.rglob('*.py'):
            parts = path.relative_to(tree).with_suffix('').parts
            match = re.search(r"^API_VERSION = '(.*)'$", path.read_text(),
                              re.MULTILINE)
            if match and 'tests' not in parts:
                found['.'.join(('nova', *parts))] = match[1]
        self.assertEqual({
            name: numbers[feature] for name, feature in
            nova_pending_releases.API_VERSIONS.items()}, found)

    def test_renumbered(self):
        text = ('As of 2.94, up to 2.104, from 2.105 on, v2.107/x, '
                'show_v2105, ServersV2106Test, test_up_to_2_107, note-2105-')
        self.assertEqual(
            'As of 2.94, up to 2.103, from 2.104 on, v2.106/x, '
            'show_v2104, ServersV2105Test, test_up_to_2_106, note-2104-',
            nova_pending_releases.renumbered(33, text))
        self.assertEqual(text, nova_pending_releases.renumbered(34, text))

    def test_other_numbers_stay(self):
        text = ('202, 2013-07-23, port 2108, 12.105, 1.2.105, 12105, 21055, '
                'a2105, 2_103, show_v2100')
        self.assertEqual(text, nova_pending_releases.renumbered(33, text))


class AdjustTest(testtools.TestCase):
    """A tree over a release before the newest."""

    def setUp(self):
        super().setUp()
        self.fake = self.useFixture(fake_release.FakeRelease('33.0.2'))
        for package in 'compute', 'api', 'api/openstack':
            self.fake.release(package + '/__init__.py', '')
        self.fake.lay('compute/pending.py', '''
            """A new module."""
            API_VERSION = '2.105'
            def source():
                return 'mark'
        ''')
        self.fake.release('api/validation.py', 'KIND = "released"')
        self.fake.lay('api/validation.py', '''
            def ending(kind, version, method):
                return kind, version, method
        ''')
        self.fake.release('api/openstack/api_version_request.py', '''
            REST_API_VERSION_HISTORY = "2.102, 2.103"
            _MAX_API_VERSION = "2.103"
        ''')
        self.fake.lay('api/openstack/api_version_request.py', '''
            import nova_pending
            released = nova_pending.released(__name__)
            REST_API_VERSION_HISTORY = (
                released.REST_API_VERSION_HISTORY + ", 2.105, 2.106, 2.107")
            _MAX_API_VERSION = "2.107"
        ''')

    def values(self, code):
        done = self.fake.run('''
            import inspect
            import pickle
            from nova.api.openstack import api_version_request as versions
            from nova.api import validation
            from nova.compute import pending
            print(%s)
        ''' % code)
        self.assertEqual('', done.stderr)
        return done.stdout.rstrip('\n')

    def test_numbers(self):
        code = ('pending.API_VERSION, versions._MAX_API_VERSION,'
                'versions.REST_API_VERSION_HISTORY,'
                'validation.ending("kind", "2.104", "method")')
        self.assertEqual(
            "2.104 2.106 2.102, 2.103, 2.104, 2.105, 2.106 "
            "('kind', '2.103', 'method')", self.values(code))
        self.fake.set_version('34.0.0')
        self.assertEqual(
            "2.105 2.107 2.102, 2.103, 2.105, 2.106, 2.107 "
            "('kind', '2.104', 'method')", self.values(code))

    def test_method_with_another_body(self):
        self.fake.lay('compute/rebuild_request.py', '''
            class Request:
                def _enforce_unified_limits(self):
                    """Ours."""
        ''')
        code = ('__import__("nova.compute.rebuild_request").compute.'
                'rebuild_request.Request._enforce_unified_limits.__module__')
        self.assertEqual('nova_pending_releases', self.values(code))
        self.fake.set_version('34.0.0')
        self.assertEqual('nova.compute.rebuild_request', self.values(code))

    def test_methods_with_another_body_are_in_the_tree(self):
        for bodies in nova_pending_releases.REPLACED.values():
            for name, members in bodies.items():
                module = importlib.import_module(name)
                for path in members:
                    cls, member = path.split('.')
                    self.assertTrue(hasattr(getattr(module, cls), member))

    def test_new_module_says_where_its_source_is(self):
        self.assertEqual("True A new module. return 'mark'", self.values(
            'pending.__file__ == pending.__spec__.origin, pending.__doc__,'
            'inspect.getsource(pending.source).split("\\n")[1].strip()'))
