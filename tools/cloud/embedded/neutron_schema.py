# SPDX-License-Identifier: Apache-2.0

"""Makes Neutron's tables, in place of ``neutron-db-manage upgrade heads``.

Neutron's migrations are not for SQLite. The tables are made from its models as
they are now, and marked as having all migrations.
"""

import sys

from neutron.db.migration import cli
from neutron.db.migration.models import head
import sqlalchemy


def main():
    cli.CONF(project='neutron')
    engine = sqlalchemy.create_engine(cli.CONF.database.connection)
    head.get_metadata().create_all(engine)
    engine.dispose()
    sys.argv[sys.argv.index('upgrade')] = 'stamp'
    cli.main()


if __name__ == '__main__':
    main()
