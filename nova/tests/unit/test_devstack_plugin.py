# SPDX-License-Identifier: Apache-2.0

"""The plugin for DevStack, with stubs for what DevStack brings."""

import pathlib
import subprocess

import fixtures
import testtools

ROOT = pathlib.Path(__file__).parents[3]

# Each function prints how it was called; iniset prints no name of a file.
DEVSTACK = r'''
set -eu
for each in pip_install run_process stop_process define_plugin \
            plugin_requires configure_keystoneauth inidelete \
            configure_keystone_authtoken_middleware; do
    eval "function $each { echo $each \"\$@\"; }"
done
function echo_summary { :; }
function iniset { echo "iniset ${1##*/} ${*:2}"; }
function sudo { [[ $1 == rm ]] && "$@" || mkdir -p "${!#}"; }
function get_notification_url { echo rabbit://bus; }
function enable_service { ENABLED+=" $1"; }
function is_service_enabled { [[ " $ENABLED " == *" $1 "* ]]; }
function bash { echo "bash ${*##*/} OS_CLOUD=$OS_CLOUD"; }
DATA_DIR=$WORK NOVA_BIN_DIR=$WORK NOVA_CONF_DIR=$WORK HORIZON_DIR=$WORK
NOVA_CONF=$WORK/nova.conf NOVA_CPU_CONF=$WORK/nova-cpu.conf
NOVA_REAPER_CONF_DIR=$WORK/reaper STACK_USER=stack SERVICE_HOST=192.0.2.1
SERVICE_PASSWORD=secret REGION_NAME=one
source "$PLUGIN/settings"
ENABLED="$SERVICES"
source "$PLUGIN/plugin.sh" $PHASE
'''


class DevStackPluginTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.work = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.enabled = self.work / 'openstack_dashboard' / 'local' / 'enabled'
        self.enabled.mkdir(parents=True)
        for name in ('nova.conf', 'nova_cell1.conf'):
            (self.work / name).touch()
        self.status(0)

    def status(self, code):
        command = self.work / 'nova-pending'
        command.write_text('#!/bin/sh\necho nova-pending "$@"\nexit %d' % code)
        command.chmod(0o755)

    def run_phase(self, phase, services='nova-reaper horizon', code=0):
        done = subprocess.run(
            ['bash', '-c', DEVSTACK], text=True, capture_output=True,
            env={'PATH': '/usr/local/bin:/usr/bin:/bin', 'PHASE': phase,
                 'SERVICES': services, 'WORK': str(self.work),
                 'PLUGIN': str(ROOT / 'devstack')})
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done.stdout.replace(str(ROOT), '').splitlines()

    def test_install(self):
        said = self.run_phase('stack install')
        self.assertEqual([
            'pip_install --no-deps ', 'pip_install /osc',
            'nova-pending status', 'pip_install /reaper[mysql]',
            'pip_install --no-deps /dashboard',
            'pip_install prometheus-client'], said[2:])
        self.assertEqual(2, len(list(self.enabled.iterdir())))

    def test_install_without_reaper_and_horizon(self):
        said = self.run_phase('stack install', services='')
        self.assertEqual(['pip_install --no-deps ', 'pip_install /osc',
                          'nova-pending status'], said[2:])
        self.assertEqual([], list(self.enabled.iterdir()))

    def test_another_nova_stops_it(self):
        self.status(1)
        said = self.run_phase('stack install', code=1)
        self.assertEqual('nova-pending status', said[-1])

    def test_post_config(self):
        said = self.run_phase('stack post-config')
        for name in ('nova.conf', 'nova_cell1.conf'):
            self.assertIn('iniset %s DEFAULT use_pending_state True' % name,
                          said)
        self.assertNotIn('nova-cpu.conf', ' '.join(said))
        self.assertIn('iniset nova-reaper.conf reaper mode preempt', said)
        self.assertIn('iniset nova-reaper.conf notifications transport_url '
                      'rabbit://bus', said)

    def test_extra(self):
        said = self.run_phase('stack extra')
        self.assertEqual([
            'bash bootstrap --url 192.0.2.1:8782 --region one --domain '
            'default OS_CLOUD=devstack-admin',
            'run_process nova-reaper %s/nova-reaper run --config-file '
            '%s/reaper/nova-reaper.conf' % (self.work, self.work)], said[2:])
        self.assertEqual([], self.run_phase('stack extra', services='')[2:])

    def test_clean(self):
        self.run_phase('stack install')
        self.run_phase('stack post-config')
        self.assertEqual(['stop_process nova-reaper'],
                         self.run_phase('unstack')[2:])
        self.run_phase('clean')
        self.assertEqual([], list(self.enabled.iterdir()))
        self.assertFalse((self.work / 'reaper').exists())
