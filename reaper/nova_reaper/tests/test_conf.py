# SPDX-License-Identifier: Apache-2.0

"""Options, what follows from them, and from what operators write elsewhere."""

import dataclasses
import pathlib
import subprocess
import sys
import threading
from typing import Any
from unittest import mock

import fixtures
from oslo_config import cfg
from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import conf as reaper_conf
from nova_reaper.report import http
from nova_reaper import tests
from nova_reaper.tests import fakes


class ConfTestCase(tests.TestCase):
    """The configuration."""

    def test_the_default_observes(self) -> None:
        conf = fakes.configuration()
        self.assertEqual(
            model.Options(max_ends_per_project_hour=20, max_ends_per_hour=100),
            reaper_conf.options(conf))
        self.assertEqual('observe', conf.reaper.mode)

    def test_each_option_of_the_model_is_one(self) -> None:
        conf = fakes.configuration()
        for field in dataclasses.fields(model.Options):
            self.assertIn(field.name, conf.reaper)

    def test_each_option_has_help(self) -> None:
        for _, options in reaper_conf.list_opts():
            for option in options:
                self.assertTrue(option.help, option.name)

    def test_what_may_change_does(self) -> None:
        fixed = {option.name for option in reaper_conf.reaper_opts
                 if not option.mutable}
        self.assertEqual({'workers', 'verdict_rate'}, fixed)

    def test_other_values_are_taken_over_or_refused_as_a_whole(self) -> None:
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        file.write_text('[reaper]\nmode = fill\n')
        conf = fakes.configuration(file)
        for wrong in ('scorers = luck', 'max_misses = 0', 'reserve = often',
                      'max_rebuilds =', 'reserve ='):
            file.write_text(f'[reaper]\nmode = preempt\n{wrong}\n')
            self.assertRaises(cfg.Error, reaper_conf.mutate, conf)
            self.assertEqual('fill', conf.reaper.mode)
        file.write_text('[reaper]\nmode = preempt\nscorers = youngest\n')
        reaper_conf.mutate(conf)
        self.assertEqual(('preempt', ['youngest']),
                         (conf.reaper.mode, conf.reaper.scorers))

    def test_what_is_looked_up_during_a_change(self) -> None:
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        file.write_text('[reaper]\nmode = preempt\n')
        conf = fakes.configuration(file)
        group = conf.reaper
        found, changed = threading.Event(), threading.Event()
        look_up = cfg.ConfigOpts._do_get

        def look_up_slowly(*args: Any) -> Any:
            answer = look_up(*args)
            if threading.current_thread() is reader:
                found.set()
                changed.wait(60)
            return answer

        reader = threading.Thread(target=lambda: group.mode)
        with mock.patch.object(cfg.ConfigOpts, '_do_get', look_up_slowly):
            reader.start()
            found.wait(60)
            file.write_text('[reaper]\nmode = observe\n')
            reaper_conf.mutate(conf)
            changed.set()
            reader.join()
        self.assertEqual('observe', group.mode)
        self.assertEqual('observe', conf['reaper']['mode'])

    def test_what_may_not_change_is_as_it_was(self) -> None:
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        file.write_text('[reaper]\nworkers = 3\n')
        conf = fakes.configuration(file)
        for mode in ('fill', 'observe'):
            file.write_text(f'[reaper]\nworkers = 4\nmode = {mode}\n')
            reaper_conf.mutate(conf)
            self.assertEqual((3, mode),
                             (conf.reaper.workers, conf.reaper.mode))

    def refused(self, *lines: str) -> None:
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        for line in lines:
            file.write_text(line)
            conf = fakes.configuration(file)
            error = self.assertRaises(cfg.Error, reaper_conf.check, conf)
            self.assertIn(line.split()[1], str(error))

    def test_nothing_is_no_value(self) -> None:
        self.refused(*(
            f'[{group}]\n{option.dest} =\n'
            for group, options in reaper_conf.OPTIONS.items()
            for option in options
            if isinstance(option.default, bool | int | float)))

    def test_numbers_that_are_too_large(self) -> None:
        for option in reaper_conf.reaper_opts:
            if isinstance(option, cfg.IntOpt):
                self.refused(
                    f'[reaper]\n{option.dest} = {option.type.max + 1}\n')
        self.refused(
            '[reaper]\npending_timeout = 400000000000\n',
            '[http]\nthreads = 257\n', '[nova]\nrate_limit = nan\n',
            '[placement]\nrate_limit = inf\n',
            '[notifications]\nsilence = 400000000000\n',
            '[notifications]\nbatch_timeout = 1e300\n',
            '[coordination]\ncheck_interval = 1e300\n')

    def test_the_generator_takes_them(self) -> None:
        groups = [group for group, _ in reaper_conf.list_opts()]
        self.assertEqual(sorted(set(groups)), sorted(groups))

    def test_the_generator_has_the_defaults(self) -> None:
        conf = fakes.configuration()
        for group, options in reaper_conf.list_opts():
            names = {option.dest for option in options}
            self.assertLessEqual(
                set(reaper_conf.DEFAULTS.get(group, ())), names)
            there = conf if group == 'DEFAULT' else conf[group]
            for option in options:
                if option.dest == 'connection':
                    self.assertEqual('sqlite:///$state_path/journal.sqlite',
                                     option.default)
                elif option.dest in there:
                    self.assertEqual(there[option.dest], option.default,
                                     f'[{group}] {option.dest}')

    def sample(self, name: str) -> pathlib.Path:
        path = (pathlib.Path(__file__).resolve().parents[2] / 'etc' /
                'nova-reaper' / name)
        if not path.exists():
            self.skipTest('This is no checkout: %s is missing.' % path)
        return path

    def test_the_samples_are_what_the_generators_write(self) -> None:
        # doc/source/contributor/reaper.rst says how to write samples again.
        # Other tests change defaults of options in this process.
        for command, kind, name in (
                ('oslo-config-generator', 'config', 'nova-reaper.conf.sample'),
                ('oslopolicy-sample-generator', 'policy',
                 'policy.yaml.sample')):
            file = pathlib.Path(
                self.useFixture(fixtures.TempDir()).path, name)
            subprocess.run(
                [pathlib.Path(sys.executable).with_name(command),
                 '--config-file', self.sample(f'{kind}-generator.conf'),
                 '--output-file', file], check=True, capture_output=True)
            self.assertEqual(file.read_text(), self.sample(name).read_text())

    def test_the_sample_keeps_the_lines_of_the_help(self) -> None:
        lines = set(self.sample(
            'nova-reaper.conf.sample').read_text().splitlines())
        # The generator adds the type of the option to the last line.
        self.assertEqual([], [
            line for _, options in reaper_conf.list_opts()
            for option in options
            for line in (option.help or '').strip().splitlines()[:-1]
            if f'# {line}'.rstrip() not in lines])

    def test_rules(self) -> None:
        enforcer = http.generator_enforcer()
        self.assertIn('pending:list', enforcer.registered_rules)


class FactsTestCase(tests.TestCase):
    """What extra specs, metadata and queries mean."""

    def flavor(self, **specs: str) -> nova.Flavor:
        return nova.Flavor('m', 2, 1024, 10, 1, 512, {
            key.replace('__', ':'): value for key, value in specs.items()})

    def server(self, flavor: nova.Flavor, image: str = 'i',
               **metadata: str) -> nova.NovaServer:
        now = timeutils.utcnow(True)
        return nova.NovaServer(
            's', 'n', 'p', 'u', 'ACTIVE', None, 'h', flavor, image,
            now, now, None, {key.replace('__', ':'): value
                             for key, value in metadata.items()}, False)

    def test_preemptible(self) -> None:
        for value, wanted in (('true', True), ('True', True), (' TRUE', True),
                              ('false', False), ('yes', False), ('', False),
                              ('1', False)):
            self.assertEqual(wanted, shapes.is_preemptible(
                self.flavor(reaper__preemptible=value)), value)
        self.assertFalse(shapes.is_preemptible(self.flavor()))

    def test_names_of_watcher(self) -> None:
        for ours, theirs, wanted in (
                (None, 'true', True), (None, 'false', False),
                (None, 'yes', False), ('false', 'true', False),
                ('true', 'false', True), ('no', 'true', False)):
            specs = {'lifecycle__preemptable': theirs}
            if ours:
                specs['reaper__preemptible'] = ours
            self.assertEqual(wanted, shapes.is_preemptible(
                self.flavor(**specs)), specs)
        for ours, theirs, said in (
                (None, 'shelve', 'shelve'), ('delete', 'shelve', 'delete'),
                ('never', 'shelve', 'shelve'), (None, 'hibernate', 'delete')):
            specs = {'lifecycle__preempt_policy': theirs}
            if ours:
                specs['reaper__action'] = ours
            self.assertEqual(said, shapes.action(
                self.server(self.flavor(**specs)), 40), specs)

    def test_amounts_that_are_none(self) -> None:
        wanted = shapes.resources(self.server(self.flavor(**{
            'resources__CUSTOM_A': '²', 'resources__CUSTOM_B': '9' * 30})))
        self.assertNotIn('CUSTOM_A', wanted)
        self.assertEqual(model.MAX_INT, wanted['CUSTOM_B'])
        shape = shapes.shape('resources=VCPU:9223372036854775808', '', {})
        self.assertEqual((('VCPU', model.MAX_INT),), shape.resources)

    def test_priority(self) -> None:
        project = {'reaper:priority': '7', 'reaper:pending_timeout': '60'}
        self.assertEqual(0, shapes.priority(self.flavor(), {}))
        self.assertEqual(7, shapes.priority(self.flavor(), project))
        self.assertEqual(-3, shapes.priority(
            self.flavor(reaper__priority='-3'), project))
        self.assertEqual(7, shapes.priority(
            self.flavor(reaper__priority='much'), project))
        self.assertEqual(60, shapes.pending_timeout(self.flavor(), project))
        self.assertEqual(60, shapes.pending_timeout(
            self.flavor(reaper__pending_timeout='-1'), project))
        self.assertEqual(0, shapes.pending_timeout(
            self.flavor(reaper__pending_timeout='0'), project))

    def test_action(self) -> None:
        def action(server: nova.NovaServer) -> model.Action:
            return shapes.action(server, 40)

        self.assertEqual('delete', action(self.server(self.flavor())))
        self.assertEqual('shelve', action(self.server(self.flavor(), '')))
        self.assertEqual('shelve', action(self.server(
            self.flavor(), reaper__action='shelve')))
        self.assertEqual('delete', action(self.server(
            self.flavor(), reaper__action='never')))
        large = dataclasses.replace(self.flavor(), disk=30, ephemeral=11)
        self.assertEqual('delete', action(self.server(
            large, reaper__action='shelve')))
        self.assertEqual('shelve', action(self.server(
            large, '', reaper__action='shelve')))
        self.assertEqual('shelve', action(self.server(dataclasses.replace(
            large, extra_specs={'reaper:action': 'shelve'}))))
        self.assertEqual('delete', action(self.server(
            self.flavor(reaper__action='delete'), '',
            reaper__action='shelve')))

    def test_resources(self) -> None:
        self.assertEqual(
            {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 12},
            shapes.resources(self.server(self.flavor())))
        self.assertEqual(
            {'PCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 2, 'CUSTOM_X': 3},
            shapes.resources(self.server(self.flavor(
                hw__cpu_policy='dedicated', resources__CUSTOM_X='3'), '')))

    def test_processors(self) -> None:
        for specs, vcpu, pcpu in (
                ({'hw__cpu_policy': 'shared'}, 8, 0),
                ({'hw__cpu_policy': 'dedicated',
                  'hw__emulator_threads_policy': 'isolate'}, 0, 9),
                ({'hw__emulator_threads_policy': 'isolate'}, 8, 0),
                ({'hw__cpu_policy': 'mixed',
                  'hw__cpu_dedicated_mask': '0-2'}, 5, 3),
                ({'hw__cpu_policy': 'mixed',
                  'hw__cpu_dedicated_mask': '^0-1, ^7',
                  'hw__emulator_threads_policy': 'isolate'}, 3, 6),
                ({'hw__cpu_policy': 'mixed',
                  'hw__cpu_dedicated_mask': '0, 2 - 5,^3'}, 4, 4),
                ({'hw__cpu_policy': 'mixed', 'hw__cpu_realtime': 'yes',
                  'hw__cpu_realtime_mask': '^0'}, 1, 7),
                ({'hw__cpu_policy': 'mixed',
                  'hw__cpu_dedicated_mask': '6-' + '9' * 200}, 6, 2),
                ({'hw__cpu_policy': 'mixed',
                  'hw__cpu_dedicated_mask': 'nonsense'}, 8, 0),
                ({'resources__PCPU': '8'}, 0, 8),
                ({'resources__VCPU': '0', 'resources__CUSTOM_CPU': '1'},
                 0, 0)):
            found = shapes.resources(self.server(dataclasses.replace(
                self.flavor(**specs), vcpus=8)))
            self.assertEqual((vcpu, pcpu), (
                found.get('VCPU', 0), found.get('PCPU', 0)), specs)

    def test_threads(self) -> None:
        for policy, trait in (
                ('isolate', {'!HW_CPU_HYPERTHREADING'}), ('prefer', set()),
                ('require', {'HW_CPU_HYPERTHREADING'}), ('nonsense', set())):
            shape = shapes.shape(shapes.query(self.server(self.flavor(
                hw__cpu_policy='dedicated', hw__cpu_thread_policy=policy))),
                '', {})
            self.assertEqual({'!COMPUTE_STATUS_DISABLED', *trait},
                             shape.required)

    def test_shape(self) -> None:
        shape = shapes.shape(
            'resources=VCPU%3A2%2CMEMORY_MB%3A512&required=A%2C%21B&'
            'member_of=in%3Ax%2Cy&member_of=z&in_tree=uuid&limit=1000', 'k',
            {'uuid': 'h1'})
        self.assertEqual(model.Shape.of(
            {'VCPU': 2, 'MEMORY_MB': 512}, required=frozenset({'A', '!B'}),
            member_of=frozenset({'in:x,y', 'z'}), host='h1', key='k'), shape)
        for more in ('required_PORT=T', 'resources1=X%3A1&required2=T',
                     'resources1=X%3A1&in_tree1=x', 'resources1=X%3A1&'
                     'member_of1=x', 'resources1=X%3A1&same_subtree=1'):
            self.assertTrue(shapes.shape(f'resources=VCPU%3A1&{more}', '',
                                        {}).fill_only, more)
        self.assertTrue(shapes.shape('resources=VGPU%3A1', '', {}).fill_only)

    def test_shape_with_groups(self) -> None:
        group = model.Group.of({'VGPU': 1}, {'A', '!B', 'in:C,D'})
        self.assertEqual(model.Shape.of(
            {'VCPU': 1, 'VGPU': 3}, required=frozenset({'R'}), isolate=True,
            spread=model.Group.of({'VCPU': 1, 'VGPU': 1}, {'T'}),
            groups=(model.Group.of({'VGPU': 1}), group), key='k'),
            shapes.shape(
                'resources=VCPU:1,VGPU:1&required=T&root_required=R&'
                'resources_X=VGPU:1&resources1=VGPU:1&required1=A,!B&'
                'required1=in:C,D&group_policy=isolate', 'k', {}))
        for requests, others, expected in (
                ('resources=VCPU:1&resources_A=X:1&resources_B=X:2',
                 'resources=VCPU:1&resources_C=X:2&resources_D=X:1', True),
                ('resources=VCPU:1&resources_A=X:1',
                 'resources=VCPU:1&resources_A=X:2', False),
                ('resources=VCPU:1&resources_A=X:1&same_subtree=_A',
                 'resources=VCPU:1&resources_B=X:1&same_subtree=_B', False),
                ('resources=VGPU:1', 'resources=VGPU:1', True)):
            self.assertEqual(expected, shapes.are_alike(
                (requests,), (others,)))
        # It is in no group, and only where providers below hosts have it may
        # another provider than the host's own give it.
        spread = shapes.shape('resources=VGPU:1', '', {}, {'VGPU'})
        self.assertEqual((False, model.Group.of({'VGPU': 1})),
                         (spread.fill_only, spread.spread))
        shape = shapes.shape('resources=VCPU:1', '', {}, {'VGPU'})
        self.assertEqual(model.Shape.of({'VCPU': 1}), shape)
