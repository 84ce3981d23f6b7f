"""The fence of a database: in the transaction that writes."""

import re
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from muster._errors import SettingsError
from muster.sinks._resource import Owned, StaleToken, resource_of

Dialect = Literal["sqlite", "postgresql"]

_IDLE = 0  # of libpq: no transaction is open
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_COLLATIONS: dict[str, str] = {"sqlite": "BINARY", "postgresql": '"C"'}
_PLACES: dict[str, str] = {"sqlite": "?, ?", "postgresql": "%s, %s"}


class Executes(Protocol):
    """A connection or cursor of a driver: `sqlite3`, `psycopg`."""

    def execute(self, statement: str, parameters: Sequence[str], /) -> Any:
        """Executes a statement; the result has `fetchone`."""


class SqlFence:
    """Keeps the highest token of each partition in a table, and refuses lower ones.

    Call `check` first in the transaction that writes. In PostgreSQL it locks the partition's row until the
    end of the transaction, so an owner and its successor take turns; set its
    `idle_in_transaction_session_timeout`, or a worker that was stopped within a transaction holds up its
    successor. In SQLite it holds up whoever writes.

    Args:
        dialect: `sqlite` (3.35 or newer) or `postgresql`.
        table: name of the table, with its schema if need be; see `create_table`.

    Attributes:
        create_table: the statement that makes the table if it is missing.
        statement: raises the token of a partition, and returns no row if a higher one is there. Its
            parameters are `parameters(p)`. For drivers other than those of `check`.

    Raises:
        SettingsError: the dialect or the table's name is not one.
    """

    def __init__(self, dialect: Dialect, table: str = "muster_fence") -> None:
        if not isinstance(dialect, str) or dialect not in _PLACES:
            raise SettingsError("dialect", f"{dialect!r} is not one of {', '.join(_PLACES)}")
        if not isinstance(table, str) or _TABLE.fullmatch(table) is None:
            raise SettingsError("table", f"{table!r} is no plain name of a table")
        token = f"TEXT COLLATE {_COLLATIONS[dialect]} NOT NULL"
        self.create_table: str = (
            f"CREATE TABLE IF NOT EXISTS {table} (resource TEXT PRIMARY KEY, token {token})"
        )
        held = table.rpartition(".")[2]
        self.statement: str = (
            f"INSERT INTO {table} (resource, token) VALUES ({_PLACES[dialect]}) "  # noqa: S608  a plain name, see above
            f"ON CONFLICT (resource) DO UPDATE SET token = excluded.token "
            f"WHERE {held}.token <= excluded.token RETURNING token"
        )

    @staticmethod
    def parameters(owned: Owned) -> tuple[str, str]:
        """The parameters of `statement`."""
        return resource_of(owned), owned.token

    def check(self, connection: Executes, owned: Owned) -> None:
        """Raises the partition's token within the transaction that is open.

        Args:
            connection: connection or cursor of `sqlite3` or `psycopg`.
            owned: the partition.

        Raises:
            StaleToken: it has a higher one; roll the transaction back.
            RuntimeError: no transaction is open, so nothing that follows would be protected.
        """
        _check_executes(connection)
        row = connection.execute(self.statement, self.parameters(owned)).fetchone()
        _check(connection, row, owned)

    async def check_async(self, connection: Any, owned: Owned) -> None:
        """`check` for asynchronous connections and cursors, of `psycopg` or `aiosqlite`.

        Raises:
            StaleToken: it has a higher one; roll the transaction back.
            RuntimeError: no transaction is open, so nothing that follows would be protected.
        """
        _check_executes(connection)
        cursor = await connection.execute(self.statement, self.parameters(owned))
        _check(connection, await cursor.fetchone(), owned)


def _check_executes(connection: object) -> None:
    if not callable(getattr(connection, "execute", None)):
        raise TypeError(f"connection must be one of a database driver, or a cursor, not {connection!r}")


def _check(connection: Any, row: object, owned: Owned) -> None:
    if row is None:
        raise StaleToken(resource_of(owned), owned.token)
    if not _in_transaction(getattr(connection, "connection", connection)):
        raise RuntimeError(
            "no transaction is open: begin one, in which the token is checked and the data written"
        )


def _in_transaction(connection: Any) -> bool:
    """Whether a transaction is open, as the driver says; True where it says nothing of it."""
    if hasattr(connection, "in_transaction"):  # sqlite3, aiosqlite
        return bool(connection.in_transaction)
    status = getattr(getattr(connection, "info", None), "transaction_status", None)  # psycopg
    return status is None or int(status) != _IDLE
