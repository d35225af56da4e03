# SPDX-License-Identifier: Apache-2.0
from oslo_db.sqlalchemy import enginefacade
from oslo_db.sqlalchemy import test_fixtures
from oslo_db.sqlalchemy import utils as db_utils
from oslo_utils.fixture import uuidsentinel as uuids
from sqlalchemy import orm

from nova.compute import pending
from nova.db.main import api as db_api
from nova.db.main import models
from nova import test
from nova.tests.unit import requirements_of_tests

STATES = (None, 'active', 'error', 'pending', 'stopped')


class HiddenStateOnDatabase(requirements_of_tests.DatabaseServer,
                            test_fixtures.OpportunisticDBTestMixin):
    """The filter and the order of a list for who does not know PENDING."""

    def setUp(self):
        super().setUp()
        engine = enginefacade.writer.get_engine()
        models.Instance.__table__.create(engine)
        session = orm.Session(engine)
        self.addCleanup(session.close)
        for state in STATES:
            session.add(models.Instance(
                uuid=getattr(uuids, str(state)), vm_state=state))
        session.flush()
        self.query = session.query(models.Instance)

    def found(self, column, value):
        query = db_api._exact_instance_filter(
            self.query, {column: value}, ['vm_state'])
        return {row.vm_state for row in query} if query is not None else set()

    def test_filter(self):
        """What is found is what was if PENDING were stored as ERROR.

        Whether upper case, accents and trailing blanks matter is up to the
        collation of the database.
        """
        for value in ('error', 'Error', 'ERROR', 'error ', '\u00e9rror',
                      'active', 'Active', 'pending', 'PENDING', 'pending ',
                      'p\u00e9nding', '', ['error'], ['active', 'error'],
                      ['pending'], ['pending', 'active'], []):
            expected = self.found('vm_state', value) - {'pending'}
            if 'error' in expected:
                expected.add('pending')
            self.assertEqual(
                expected, self.found(pending.HIDDEN_COLUMN, value), value)
        self.assertIn('pending', self.found(pending.HIDDEN_COLUMN, 'error'))
        self.assertEqual(set(), self.found(pending.HIDDEN_COLUMN, 'pending'))
        self.assertIn('pending', self.found('vm_state', 'pending'))

    def test_order_and_pages(self):
        for direction in 'asc', 'desc':
            keys = [pending.HIDDEN_COLUMN, 'uuid']
            rows, marker = [], None
            while True:
                page = db_utils.paginate_query(
                    self.query.filter(models.Instance.vm_state.isnot(None)),
                    models.Instance, 2, keys, marker=marker,
                    sort_dirs=[direction, 'asc']).all()
                if not page:
                    break
                rows += page
                marker = page[-1]
            expected = ['active', 'error', 'error', 'stopped']
            if direction == 'desc':
                expected.reverse()
            self.assertEqual(
                expected, [row[pending.HIDDEN_COLUMN] for row in rows])
            # The two are in the order of what comes after the state.
            both = [row.uuid for row in rows if row[
                pending.HIDDEN_COLUMN] == 'error']
            self.assertEqual(sorted(both), both)


class HiddenStateTestCase(HiddenStateOnDatabase, test.NoDBTestCase):
    """On SQLite."""


class HiddenStateOnMySQLTestCase(HiddenStateOnDatabase, test.NoDBTestCase):

    FIXTURE = test_fixtures.MySQLOpportunisticFixture


class HiddenStateOnPostgreSQLTestCase(
        HiddenStateOnDatabase, test.NoDBTestCase):

    FIXTURE = test_fixtures.PostgresqlOpportunisticFixture
