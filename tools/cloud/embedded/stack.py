# SPDX-License-Identifier: Apache-2.0

"""The order in which an embedded cloud comes up."""

import functools

from tools.cloud.embedded import databases
from tools.cloud.embedded import services
from tools.cloud import errors
from tools.cloud import stack
from tools.cloud import stack_plan


class StackPlan(stack_plan.StackPlan):
    """What is a process of its own elsewhere is in that of its API here."""

    def _plan_neutron(self, steps, run):
        self._plan_neutron_database(steps, run)
        steps.add('neutron', functools.partial(run.start_api, 'neutron'),
                  'neutron database')
        steps.add('agents', run.wait_for_agents, 'neutron', 'identities')

    def _plan_cinder(self, steps, run):
        self._plan_cinder_database(steps, run)
        steps.add('cinder', functools.partial(run.start_api, 'cinder'),
                  'cinder database', 'identities')
        steps.add('volumes', run.wait_for_volumes, 'cinder')

    def _plan_nova(self, steps, run):
        self._plan_nova_databases(steps, run)
        # The computes ask Placement and Neutron as soon as they start.
        steps.add('nova', functools.partial(run.start_api, 'nova'),
                  'nova databases', 'identities', 'placement', 'neutron')
        steps.add('hosts', run.wait_for_hosts, 'nova')


class Stack(stack.Stack):
    """One embedded cloud. It has no use for the URL of a server."""

    profile = 'embedded'
    description = (
        'nova-api, nova-conductor, nova-scheduler and two nova-compute are '
        'threads of one process and share its bus; Keystone, Placement, '
        'Glance, Neutron and Cinder are a process each, and the databases '
        'are SQLite files.')
    service_class = services.Services
    plan_class = StackPlan

    @staticmethod
    def find_urls(database_url, bus_url, private):
        if private:
            raise errors.BadArgument(
                '--private-servers is for the profile services: an embedded '
                'cloud has no servers.')
        return '', ''

    def servers(self, database_url, bus_url):
        return databases.Databases(self.state / 'var/db'), databases.Bus()

    def check(self):
        self.check_choices()
        super().check()

    def check_choices(self):
        """Raise BadArgument if more is asked for than fits a process."""
        for name in ('workers', 'conductors', 'cells'):
            if self._choices.get(name, 1) > 1:
                raise errors.BadArgument(
                    '--%s is for the profile services: the services of an '
                    'embedded Nova share one process and one bus.' % name)
        for name in ('libvirt', 'pci'):
            if self._choices.get(name):
                raise errors.BadArgument(
                    '--%s is for the profile services: the driver of an '
                    'embedded Nova is the fake one.' % name)
