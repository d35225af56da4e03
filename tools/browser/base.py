# SPDX-License-Identifier: Apache-2.0

"""What the tests share: a cloud with dashboard and reaper, and a browser."""

import atexit
import functools
import os
import pathlib
import shutil
import signal
import tempfile
import time

import openstack
from selenium import webdriver
from selenium.webdriver.chrome import service
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support import wait
import testtools

from tools.cloud import client
from tools.cloud import configuration
from tools.cloud import dashboard
from tools.cloud import ports
from tools.cloud import profiles
from tools.cloud import reaper

_PROGRAMS = ('chromium', 'chromedriver')

#: Where everything is expected to be there, nothing may be skipped.
_REQUIRE_ALL = 'NOVA_PENDING_REQUIRE_ALL'

#: A directory that pictures of the pages are to be put into.
_PICTURES = 'CLOUD_PICTURES'

# The first page makes the style sheets of all.
_PATIENCE = 600

_ARGUMENTS = (
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic',
    '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync',
    '--disable-dev-shm-usage', '--window-size=1400,900')


class Cloud:
    """A cloud with a dashboard, on which two tenants and nothing else is."""

    def __init__(self):
        self._stack = profiles.find('embedded')(
            '', '', dashboard=True, reaper=True)
        self._stack.check()
        self._connections = []
        self._listed = True
        self._reaper = {}

    def up(self):
        self._stack.up(lambda name, seconds: None)
        self.url = 'http://%s:%d' % (
            ports.HOST, self._stack.settings.ports[dashboard.NAME])
        self.password = self._stack.settings.password
        self.admin = self.connect(configuration.ADMIN)
        self.owner = self.connect(configuration.OWNER)
        self._make()

    def down(self):
        for connection in self._connections:
            connection.close()
        self._stack.down()

    def connect(self, user):
        """Return an openstacksdk connection of a user of the cloud."""
        os.environ.update({
            name: value for name, value in client.environment(
                self._stack.settings, user).items()
            if name.startswith('OS_')})
        connection = openstack.connect(
            cloud=user, compute_default_microversion='2.105')
        self._connections.append(connection)
        return connection

    def list_reaper(self, listed):
        """Have the catalog list the reaper, or not."""
        if listed == self._listed:
            return
        [service] = self.admin.identity.services(type=reaper.SERVICE_TYPE)
        for endpoint in self.admin.identity.endpoints(service_id=service.id):
            self.admin.identity.update_endpoint(endpoint, is_enabled=listed)
        self._listed = listed

    def let_reaper(self, mode, **options):
        """Have the reaper work in a mode, with these options."""
        if self._reaper == {**options, 'mode': mode}:
            return
        self._reaper = {**options, 'mode': mode}
        reaper.change(self._stack.settings, self._stack.processes,
                      **self._reaper)
        self._stack.processes.wait_until(
            'nova-reaper is in the mode ' + mode,
            lambda: reaper.is_ready(self._stack.settings, mode),
            [reaper.NAME])

    def signal_reaper(self, signum):
        """Send a signal to all processes of the reaper."""
        for pid in self._stack.processes.running()[reaper.NAME].members():
            os.kill(pid, signum)

    def _make(self):
        admin, owner = self.admin, self.owner
        stranger = admin.identity.create_user(
            name='stranger', password=self.password, domain_id='default')
        project = admin.identity.create_project(
            name='stranger', domain_id='default')
        admin.identity.assign_project_role_to_user(
            project, stranger, admin.identity.find_role('member'))
        self.flavor = admin.compute.create_flavor(
            name='whole-host', vcpus=2, ram=64, disk=1)
        self.spot = admin.compute.create_flavor(
            name='spot', vcpus=2, ram=64, disk=1)
        admin.compute.create_flavor_extra_specs(self.spot, {
            'reaper:preemptible': 'true', 'reaper:action': 'shelve'})
        image = owner.create_image(
            'cirros', data=b'guest', container_format='bare',
            disk_format='raw', wait=True)
        network = owner.network.create_network(name='net')
        owner.network.create_subnet(
            network_id=network.id, ip_version=4, cidr='10.0.0.0/24')
        self._asked_for = {
            'image_id': image.id,
            'networks': [{'uuid': network.id}]}

    def create(self, name, status, flavor=None):
        """Create a server of the owner and wait for its status."""
        server = self.owner.compute.create_server(
            name=name, flavor_id=(flavor or self.flavor).id,
            **self._asked_for)
        return self.owner.compute.wait_for_server(
            server, status, ['ERROR', 'PENDING'], wait=_PATIENCE)

    def delete(self, server):
        self.owner.compute.delete_server(server, ignore_missing=True)
        self.owner.compute.wait_for_delete(server, wait=_PATIENCE)


@functools.cache
def _cloud():
    """Bring the cloud up, once for all tests.

    :returns: the Cloud, and None or why it is not up
    """
    cloud = Cloud()
    # The runner lets nothing else end a test at once.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    atexit.register(cloud.down)
    try:
        cloud.up()
    except Exception as error:
        return cloud, error
    return cloud, None


class BrowserTestCase(testtools.TestCase):
    """Tests with pages of the dashboard of a cloud.

    :cvar listed: whether the catalog has the reaper
    """

    listed = True

    def setUp(self):
        super().setUp()
        missing = [name for name in _PROGRAMS if not shutil.which(name)]
        if missing and os.environ.get(_REQUIRE_ALL) != '1':
            self.skipTest('There is no %s: apt-get install chromium '
                          'chromium-driver.' % ' and no '.join(missing))
        self.cloud, error = _cloud()
        if error is not None:
            raise error
        self.cloud.list_reaper(self.listed)
        self.cloud.let_reaper('observe')
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which('chromium')
        profile = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, profile, ignore_errors=True)
        for argument in (*_ARGUMENTS, '--user-data-dir=' + profile):
            options.add_argument(argument)
        self.browser = webdriver.Chrome(options, service.Service(
            shutil.which('chromedriver')))
        self.addCleanup(self.browser.quit)
        self.browser.set_page_load_timeout(_PATIENCE)

    def log_in(self, user):
        """Log in as a user of the cloud."""
        self.open('/auth/login/')
        for name, value in (('username', user),
                            ('password', self.cloud.password)):
            self.browser.find_element(By.NAME, name).send_keys(value)
        self.browser.find_element(By.ID, 'loginBtn').click()
        self.wait_for(expected_conditions.presence_of_element_located(
            (By.CLASS_NAME, 'topbar')))

    def open(self, path):
        self.browser.get(self.cloud.url + path)

    def open_until(self, path, look):
        """Open a page again and again, until a look at it finds something."""
        def looked(browser):
            self.open(path)
            return look()

        return self.wait_for(looked)

    def wait_for(self, condition):
        return wait.WebDriverWait(self.browser, _PATIENCE).until(condition)

    def row_of(self, server):
        """Return the row of a server, None if the page has none."""
        found = self.browser.find_elements(
            By.CSS_SELECTOR, 'tr[data-object-id="%s"]' % server.id)
        return found[0] if found else None

    def press(self, server, text):
        """Press a button in the row of a server, and confirm if asked to."""
        row = self.row_of(server)
        buttons = row.find_elements(By.CSS_SELECTOR, 'button[name="action"]')
        # Those that are not shown lie in a menu.
        wanted = next(each for each in buttons if text in each.get_attribute(
            'textContent'))
        if not wanted.is_displayed():
            row.find_element(By.CSS_SELECTOR, '.dropdown-toggle').click()
        dangerous = 'btn-danger' in wanted.get_attribute('class')
        wanted.click()
        if dangerous:
            self.wait_for(expected_conditions.element_to_be_clickable(
                (By.CSS_SELECTOR, '.modal.in .btn-danger'))).click()
        self.wait_for(expected_conditions.presence_of_element_located(
            (By.CSS_SELECTOR, '.alert-success')))

    def take_picture(self, name):
        """Keep a picture of the page where one is asked for."""
        folder = os.environ.get(_PICTURES)
        if folder:
            time.sleep(1)
            self.browser.save_screenshot(
                str(pathlib.Path(folder, name + '.png')))
