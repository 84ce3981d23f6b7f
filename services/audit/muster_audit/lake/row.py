"""Rows of the lake: a table is a dataclass, its fields are the columns, and each says what it means."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_type_hints

import pyarrow as pa
from muster_core.position import Position

OPEN = "open"
"""The day of rows that later records may still change. As text it comes after every day, so
`day >= '2026-11-20'` finds all that lasted until that day or longer."""

_SPARK_KEY = "org.apache.spark.sql.parquet.row.metadata"


class Place(NamedTuple):
    """A record: the log it is in, its place there and its time."""

    shard: int
    position: Position
    at_ms: int


class Column(NamedTuple):
    """A column: its name, what it is in Spark, and what it means."""

    name: str
    type: str
    doc: str


@dataclass(slots=True, kw_only=True)
class Row(ABC):
    """A row of any table."""

    table: ClassVar[str]

    shard: Annotated[int, "Number of the log. The catalog's log has the number of shards."]
    epoch: Annotated[int, "Epoch of the record that the row begins with."]
    offset: Annotated[int, "Offset of that record in its log: `shard` and `offset` find the raw entry."]

    @property
    @abstractmethod
    def day(self) -> str:
        """The day that the row belongs to."""

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Self:
        """A row that was read back. What an earlier version did not write has its default."""
        names = {column.name for column in columns(cls)}
        return cls(**{name: value for name, value in stored.items() if name in names})


@dataclass(slots=True, kw_only=True)
class Interval(Row):
    """A row that begins with one record and ends with another. It is final once nothing can change it."""

    from_ms: Annotated[int, "When it began: wall clock of that record's writer, ms since the Unix epoch."]
    to_ms: Annotated[int | None, "When it ended; null: it lasts."] = None
    ended_by: Annotated[str | None, "What ended it; null: it lasts."] = None
    begun_before: Annotated[
        bool,
        "Whether it began before the first entry that there is of a trimmed log. What the row says of its "
        "beginning is then what the snapshot that covers that entry knows.",
    ] = False

    @property
    def day(self) -> str:
        """The UTC day on which it ended."""
        assert self.to_ms is not None
        return day_of(self.to_ms)

    def end(self, at: Place, by: str) -> Self:
        """Ends it, unless it has ended; returns it."""
        if self.to_ms is None:
            self.to_ms, self.ended_by = at.at_ms, by
        return self


def day_of(at_ms: int) -> str:
    """A time as UTC day, `2026-11-21`."""
    return _day_of(at_ms // _DAY_MS)


@lru_cache(maxsize=1_024)
def _day_of(days: int) -> str:
    return datetime.fromtimestamp(days * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d")


_DAY_MS = 86_400_000


_TYPES: dict[Any, tuple[str, pa.DataType]] = {
    int: ("bigint", pa.int64()),
    str: ("string", pa.string()),
    bool: ("boolean", pa.bool_()),
}


def columns(row: type[Row]) -> tuple[Column, ...]:
    """The columns of a table."""
    return tuple(Column(name, _TYPES[kind][0], doc) for name, kind, doc in _described(row))


def schema_of(row: type[Row]) -> pa.Schema:
    """The columns as Arrow declares them; Spark finds what they mean in the files."""
    if row not in _schemas:
        stated = [
            {
                "name": one.name,
                "type": _IN_JSON[one.type],
                "nullable": True,
                "metadata": {"comment": one.doc},
            }
            for one in columns(row)
        ]
        _schemas[row] = pa.schema(
            [(name, _TYPES[kind][1]) for name, kind, _ in _described(row)],
            metadata={_SPARK_KEY: json.dumps({"type": "struct", "fields": stated})},
        )
    return _schemas[row]


_schemas: dict[type[Row], pa.Schema] = {}
_IN_JSON = {"bigint": "long", "string": "string", "boolean": "boolean"}


def _described(row: type[Row]) -> Iterator[tuple[str, Any, str]]:
    hints = get_type_hints(row, include_extras=True)
    for field in fields(row):
        kind, doc = get_args(hints[field.name])
        yield field.name, next((one for one in get_args(kind) if one is not type(None)), kind), doc


def batch_of(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of one table as Arrow has them, with the columns of a schema."""
    return pa.RecordBatch.from_arrays(
        [pa.array(list(map(attrgetter(field.name), rows)), field.type) for field in schema], schema=schema
    )
