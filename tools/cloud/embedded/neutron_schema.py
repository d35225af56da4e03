#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

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
