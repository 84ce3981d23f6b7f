"""The tables, a file for each: its columns, and what each kind of record does to it.

A new kind of record is a method in the tables that it concerns, or a table of its own in `ALL`, whose tracker
`decoder` makes.
"""

import pyarrow as pa

from muster_audit.lake.row import Row, schema_of
from muster_audit.lake.tables.assignments import Assignment
from muster_audit.lake.tables.commits import Commit
from muster_audit.lake.tables.coordinators import Coordinator
from muster_audit.lake.tables.generations import Generation
from muster_audit.lake.tables.members import Member
from muster_audit.lake.tables.operations import Operation
from muster_audit.lake.tables.settings import Setting
from muster_audit.lake.tables.topics import Topic

ALL: dict[str, type[Row]] = {
    row.table: row for row in (Generation, Member, Assignment, Commit, Setting, Topic, Coordinator, Operation)
}
"""The tables by name."""

SCHEMAS: dict[str, pa.Schema] = {name: schema_of(row) for name, row in ALL.items()}
"""All columns of all tables."""
