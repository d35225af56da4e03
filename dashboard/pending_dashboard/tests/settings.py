# SPDX-License-Identifier: Apache-2.0

"""Horizon's settings for tests, with the panels enabled."""

from openstack_dashboard.test.settings import *  # noqa: F401,F403
from openstack_dashboard.test.settings import HORIZON_CONFIG
from openstack_dashboard.test.settings import INSTALLED_APPS
from openstack_dashboard.utils import settings

import openstack_dashboard.enabled
import pending_dashboard.enabled

INSTALLED_APPS = list(INSTALLED_APPS)
# Horizon has made these entries without the panels.
HORIZON_CONFIG.pop('dashboards', None)
HORIZON_CONFIG.pop('default_dashboard', None)
settings.update_dashboards(
    [openstack_dashboard.enabled, pending_dashboard.enabled],
    HORIZON_CONFIG, INSTALLED_APPS)
# The applications of Horizon are there twice now.
INSTALLED_APPS = list(dict.fromkeys(INSTALLED_APPS))
