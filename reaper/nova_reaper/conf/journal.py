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

"""The options of the group [journal], and what [database] is by default."""

from oslo_config import cfg
from oslo_db import options as db_options

STATE_PATH = cfg.StrOpt(
    'state_path', default='/var/lib/nova-reaper',
    help="""
The directory of what nova-reaper itself writes: the journal, unless
``[database] connection`` names another database.
""")
CONNECTION = 'sqlite:///$state_path/journal.sqlite'

journal_opts = [
    cfg.IntOpt(
        'retention_days', default=90, min=0, max=36500,
        help="""
Days after which a record of the journal is deleted. 0 keeps all records.
"""),
    cfg.IntOpt(
        'purge_batch', default=500, min=1, max=10000,
        help="""
Old records are deleted in transactions of at most so many. The next
transaction follows some seconds later.
"""),
    cfg.BoolOpt(
        'required', default=False,
        help="""
Whether the reaper ends servers only while the journal can be written and read.
Off, the reaper goes on without its database: records wait in memory until the
database is back. A reaper that is started without it knows neither of a pause
nor whom was ended before. On, it then builds servers in free room only.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register what names the database of the journal with conf."""
    conf.register_opt(STATE_PATH)
    db_options.set_defaults(conf, connection=CONNECTION)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options that oslo.db and nova-reaper share, for the generator."""
    opts = [opt for _, group in db_options.list_opts() for opt in group]
    cfg.set_defaults(opts, connection=CONNECTION)
    return [('DEFAULT', [STATE_PATH]), ('database', opts)]
