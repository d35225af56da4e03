# SPDX-License-Identifier: Apache-2.0

"""What the tests share: a cloud with dashboard and reaper, and a browser.

With CLOUD_PICTURES=DIRECTORY the tests put pictures of the pages there, in the
state that the documentation shows. The cloud is of the profile services then:
the reaper hears notifications there, and is well.
"""

import atexit
import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time

import openstack
from selenium import webdriver
from selenium.webdriver.chrome import service
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support import select
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
PICTURES = 'CLOUD_PICTURES'

# The first page makes the style sheets of all.
_PATIENCE = 600

#: The cookie that has the language of a user.
_LANGUAGE = 'horizon_language'

#: As wide as a telephone that lies on its side.
NARROW = 480

# Visible elements that the page has to be scrolled to the right for.
_TOO_WIDE = r"""
const room = document.documentElement.clientWidth;
return Array.from(document.body.querySelectorAll('*'), each => {
  const shape = each.getBoundingClientRect();
  return shape.width && shape.right > room + 1 ? each.outerHTML : '';
}).filter(text => text);
"""

# Words of the main part of which a part stands on another line. Where a line
# may break within a word is left to the browser: after hyphens and slashes.
_BROKEN_WORDS = r"""
const walker = document.createTreeWalker(
  document.getElementById('content_body'), NodeFilter.SHOW_TEXT);
const broken = [];
while (walker.nextNode()) {
  const node = walker.currentNode;
  for (const word of node.data.matchAll(/[^\s\/-]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    const lines = new Set(Array.from(
      range.getClientRects(), shape => Math.round(shape.top)));
    if (lines.size > 1) broken.push(word[0]);
  }
}
return broken;
"""

_ARGUMENTS = (
    '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-quic',
    '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync',
    '--disable-dev-shm-usage', '--window-size=1400,900')


class Cloud:
    """A cloud with a dashboard, on which two tenants and nothing else is."""

    def __init__(self):
        profile = profiles.find(
            'services' if os.environ.get(PICTURES) else 'embedded')
        self._stack = profile(*profile.find_urls(
            os.environ.get('CLOUD_DATABASE_URL'),
            os.environ.get('CLOUD_BUS_URL'), False),
            dashboard=True, reaper=True)
        self._stack.check()
        self._connections = []
        self._listed = True
        self._reaper = {}
        #: of all servers that were created
        self.names = set()

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

    @contextlib.contextmanager
    def quota_of_owner(self, **amounts):
        """Let the owner have a quota, whatever its servers need."""
        self.admin.set_compute_quotas(configuration.OWNER, **amounts)
        try:
            yield
        finally:
            self.admin.delete_compute_quotas(configuration.OWNER)

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
        self.small = admin.compute.create_flavor(
            name='half-host', vcpus=1, ram=64, disk=1)
        self.urgent = admin.compute.create_flavor(
            name='urgent', vcpus=2, ram=64, disk=1)
        admin.compute.create_flavor_extra_specs(self.urgent, {
            'reaper:priority': '10'})
        self.memory = admin.compute.create_flavor(
            name='memory', vcpus=2, ram=2048, disk=1)
        admin.compute.create_flavor_extra_specs(self.memory, {
            'reaper:priority': '5'})
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
        self.names.add(name)
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

    def log_in(self, user, language='en'):
        """Log in as a user of the cloud, whoever was logged in before."""
        # A page that refreshes itself just then would be given a cookie again.
        self.browser.get('about:blank')
        self.browser.execute_cdp_cmd('Network.clearBrowserCookies', {})
        self.open('/auth/login/')
        self.speak(language)
        for name, value in (('username', user),
                            ('password', self.cloud.password)):
            self.browser.find_element(By.NAME, name).send_keys(value)
        self.browser.find_element(By.ID, 'loginBtn').click()
        self.wait_for(expected_conditions.presence_of_element_located(
            (By.CLASS_NAME, 'topbar')))

    def speak(self, language):
        """Have the dashboard speak another language from now on."""
        self.browser.add_cookie({'name': _LANGUAGE, 'value': language})
        # The catalogue of the scripts has the same URL in each language.
        self.browser.execute_cdp_cmd('Network.clearBrowserCache', {})
        self.browser.refresh()

    def open(self, path):
        self.browser.get(self.cloud.url + path)

    def create(self, *args):
        """Have a server of the owner, which is deleted after the test."""
        server = self.cloud.create(*args)
        self.addCleanup(self.cloud.delete, server)
        return server

    def open_until(self, path, look):
        """Open a page again and again, until a look at it finds something."""
        def looked(browser):
            self.open(path)
            return look()

        return self.wait_for(looked)

    def wait_for(self, condition):
        return wait.WebDriverWait(self.browser, _PATIENCE).until(condition)

    def row_of(self, server, table=''):
        """Return the row of a server, None if the page has none.

        :param table: the CSS selector of a table, all tables if not given
        """
        found = self.browser.find_elements(
            By.CSS_SELECTOR, '%s tr[data-object-id="%s"]' % (table, server.id))
        return found[0] if found else None

    def text_of(self, element):
        """Return the text of the element of an ID."""
        return self.browser.find_element(By.ID, element).text

    def sentences_of(self, element):
        """Return the texts of an element of an ID, as a set of sentences."""
        # Between the cells of a row are tabs.
        text = self.browser.find_element(By.ID, element).get_property(
            'innerText')
        return {part.strip() for part in re.split(
            r'[\n\t]|(?<=[a-z][.;:])\s', text)} - {''}

    def show(self, width, height=900):
        """Give the page a size, whatever the least size of a window is."""
        self.browser.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', {
            'width': width, 'height': height, 'deviceScaleFactor': 1,
            'mobile': False})

    def check_narrow(self):
        """Check that a narrow window shows the page without loss."""
        self.show(NARROW)
        self.assertEqual([], self.browser.execute_script(_TOO_WIDE))
        self.assertEqual([], self.browser.execute_script(_BROKEN_WORDS))

    def cell_of(self, server, heading):
        """Return what stands below a heading in the row of a server."""
        headings = [each.text for each in self.browser.find_elements(
            By.XPATH, '//tr[@data-object-id="%s"]/ancestor::table'
            '//tr[contains(@class, "table_column_header")]/th' % server.id)]
        return self.row_of(server).find_elements(
            By.TAG_NAME, 'td')[headings.index(heading)].text

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
        self._wait_for_success()

    def click(self, text):
        """Press a button or a link of the page that has no other text."""
        self.browser.find_element(
            By.XPATH, '//*[self::button or self::a][normalize-space()="%s"]'
            % text).click()

    def tick(self, server):
        """Choose the row of a server, or do not choose it any more."""
        self.row_of(server).find_element(
            By.CSS_SELECTOR, 'input[type=checkbox] + label').click()

    def rebuild_with(self, flavor='The flavor that it has'):
        """Rebuild the only server of the page, in its dialog."""
        self.click('Rebuild')
        self.answer(flavor=flavor)
        self._wait_for_success()

    def answer(self, **choices):
        """Choose in the dialog that opens, and confirm.

        :param choices: the text to choose, by the name of the field
        """
        confirm = self.wait_for(expected_conditions.element_to_be_clickable(
            (By.CSS_SELECTOR, '.modal.in .btn-primary')))
        for field, text in choices.items():
            select.Select(self.browser.find_element(
                By.ID, 'id_' + field)).select_by_visible_text(text)
        confirm.click()

    def told(self):
        """Return what the page tells after a dialog."""
        return self.wait_for(expected_conditions.presence_of_element_located(
            (By.CSS_SELECTOR, '.alert-success, .alert-info'))).text

    def _wait_for_success(self):
        self.wait_for(expected_conditions.presence_of_element_located(
            (By.CSS_SELECTOR, '.alert-success')))

    def take_picture(self, name, width=1400, most=2000):
        """Keep a picture of the page, down to a height."""
        self.show(width)
        self.show(width, min(most, self.browser.execute_script(
            'return document.getElementById("content_body").scrollHeight'
            ' + 60')))
        # What moves has come to its end then.
        time.sleep(1)
        self.browser.save_screenshot(
            str(pathlib.Path(os.environ[PICTURES], name + '.png')))
