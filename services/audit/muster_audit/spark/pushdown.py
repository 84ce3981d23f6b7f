"""What a source can leave out: logs that a filter excludes, and columns that nobody wants."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In
from pyspark.sql.types import StructType


class WantedLogs:
    """The logs that filters on the column `shard` leave; without any, all."""

    def __init__(self) -> None:
        self._numbers: frozenset[object] | None = None

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Takes filters; yields those that it cannot apply by itself."""
        for one in filters:
            if isinstance(one, EqualTo | EqualNullSafe) and one.attribute == ("shard",):
                self._keep([one.value])
            elif isinstance(one, In) and one.attribute == ("shard",):
                self._keep(one.value)
            else:
                yield one

    def of(self, logs: Iterable[int]) -> list[int]:
        """Those of some logs that are wanted."""
        return [shard for shard in logs if self._numbers is None or shard in self._numbers]

    def _keep(self, numbers: Iterable[object]) -> None:
        self._numbers = frozenset(numbers) if self._numbers is None else self._numbers & frozenset(numbers)


def wanted_columns(all_columns: pa.Schema, wanted: StructType) -> pa.Schema:
    """The columns of a source that a reader was given, in its order.

    Spark asks a source in Python for all columns, whatever a query selects, unless the query names those to
    be read: `spark.read.format(…).schema("shard bigint, kind string")`.

    Raises:
        ValueError: the source has no such column, or of another type.
    """
    types: Sequence[tuple[str, str]] = [(field.name, field.dataType.simpleString()) for field in wanted]
    found = []
    for name, type_ in types:
        index = all_columns.get_field_index(name)
        if index < 0:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(all_columns.names)}")
        field = all_columns.field(index)
        if _SPARK[str(field.type)] != type_:
            raise ValueError(f"column {name!r} is {_SPARK[str(field.type)]}, not {type_}")
        found.append(field)
    return pa.schema(found)


_SPARK = {"int64": "bigint", "string": "string", "bool": "boolean", "binary": "binary"}
