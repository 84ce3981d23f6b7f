"""The fence of a database, on SQLite and on PostgreSQL: a zombie is refused in each order of events."""

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.waiting import until
from muster.sinks import SqlFence, StaleToken
from sinks.sinks_owners import HEIR, ZOMBIE, Owner, owner

pytestmark = pytest.mark.cluster
WHY = "PostgreSQL is missing: `./x test tests/sinks` brings it for Python 3.11 and 3.12"


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The address of a server."""
    pgserver = pytest.importorskip("pgserver", reason=WHY)
    pytest.importorskip("psycopg", reason=WHY)
    folder = Path("/tmp") / f"muster-pg-{id(pgserver)}"  # a socket's path has to be short
    with pgserver.get_server(folder, cleanup_mode="delete") as server:
        yield server.get_uri()
    shutil.rmtree(folder, ignore_errors=True)


def write(connection: Any, fence: SqlFence, one: Owner, place: str = "?") -> None:
    fence.check(connection, one)
    connection.execute(f"INSERT INTO written (token) VALUES ({place})", (one.token,))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, SqlFence]]:
    fence = SqlFence("sqlite")
    connection = sqlite3.connect(tmp_path / "data.db", isolation_level=None)
    connection.execute(fence.create_table)
    connection.execute("CREATE TABLE written (token TEXT)")
    yield connection, fence
    connection.close()


def written(connection: Any) -> list[str]:
    return [token for (token,) in connection.execute("SELECT token FROM written ORDER BY token")]


def test_sqlite_takes_an_owner_and_its_successor_and_refuses_the_zombie(
    database: tuple[sqlite3.Connection, SqlFence],
) -> None:
    connection, fence = database
    for one in (ZOMBIE, ZOMBIE, HEIR, HEIR):
        connection.execute("BEGIN")
        write(connection, fence, one)
        connection.execute("COMMIT")
    connection.execute("BEGIN")
    with pytest.raises(StaleToken, match=f"crawlers/sites/3: token {ZOMBIE.token} is not the owner's"):
        write(connection, fence, ZOMBIE)
    connection.execute("ROLLBACK")
    assert written(connection) == [ZOMBIE.token] * 2 + [HEIR.token] * 2
    connection.execute("BEGIN")
    write(connection, fence, owner(1, 1, number=4))  # another partition is another fence
    connection.execute("COMMIT")


def test_a_check_without_a_transaction_is_an_error(database: tuple[sqlite3.Connection, SqlFence]) -> None:
    connection, fence = database
    for used in (connection, connection.cursor()):
        with pytest.raises(RuntimeError, match="no transaction is open: begin one"):
            fence.check(used, HEIR)
    connection.isolation_level = "DEFERRED"  # as by default: the driver begins one by itself
    write(connection, fence, HEIR)
    connection.commit()
    assert written(connection) == [HEIR.token]


@pytest.mark.parametrize("settings", [{"dialect": "mysql"}, {"dialect": "sqlite", "table": "a; DROP"}])
def test_what_is_no_dialect_and_no_table_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"dialect: 'mysql' is not one of|table: 'a; DROP' is no plain name"):
        SqlFence(**settings)


class Postgres:
    """A database with the fence, and connections to it."""

    def __init__(self, uri: str) -> None:
        import psycopg

        self._uri = uri
        self._psycopg = psycopg
        self.fence = SqlFence("postgresql", "public.fences")
        with self.connect() as connection:
            connection.execute("DROP TABLE IF EXISTS fences; DROP TABLE IF EXISTS written")
            connection.execute(self.fence.create_table)
            connection.execute("CREATE TABLE written (token TEXT)")

    def connect(self) -> Any:
        return self._psycopg.connect(self._uri)

    def write(self, connection: Any, one: Owner) -> None:
        write(connection, self.fence, one, "%s")

    def in_thread(self, one: Owner) -> tuple[threading.Thread, list[BaseException]]:
        """Writes in a transaction of its own, in a thread; gives it, and its error in a list."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with self.connect() as connection:
                    self.write(connection, one)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, errors

    async def waits(self) -> None:
        """Waits until a transaction waits for another."""
        with self.connect() as connection:
            connection.autocommit = (
                True  # within one transaction the view would show its first answer for ever
            )

            def waiting() -> bool:
                sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                return bool(connection.execute(sql).fetchone()[0])

            await until(waiting, "a transaction waits for another")


@pytest.fixture
def postgres(postgresql: str) -> Postgres:
    return Postgres(postgresql)


def test_a_check_in_autocommit_is_an_error(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        connection.autocommit = True
        with pytest.raises(RuntimeError, match="no transaction is open: begin one"):
            postgres.fence.check(connection, HEIR)
        with connection.transaction():
            postgres.fence.check(connection, HEIR)


def test_postgresql_refuses_the_zombie(postgres: Postgres) -> None:
    for one in (ZOMBIE, ZOMBIE, HEIR):
        with postgres.connect() as connection:
            postgres.write(connection, one)
    with pytest.raises(StaleToken), postgres.connect() as connection:
        postgres.write(connection, ZOMBIE)
    with postgres.connect() as connection:
        assert written(connection) == [ZOMBIE.token] * 2 + [HEIR.token]


async def test_a_successor_waits_for_a_transaction_that_the_owner_before_has_open(postgres: Postgres) -> None:
    with postgres.connect() as zombie:
        postgres.write(zombie, ZOMBIE)
        thread, errors = postgres.in_thread(HEIR)
        await postgres.waits()
    thread.join(60)
    assert errors == []
    with postgres.connect() as connection:
        assert written(connection) == [ZOMBIE.token, HEIR.token]


async def test_a_zombie_that_waited_for_its_successor_is_refused(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        postgres.write(connection, ZOMBIE)
    with postgres.connect() as heir:
        postgres.write(heir, HEIR)
        thread, errors = postgres.in_thread(ZOMBIE)
        await postgres.waits()
    thread.join(60)
    assert [type(error) for error in errors] == [StaleToken]
    with postgres.connect() as connection:
        assert written(connection) == [ZOMBIE.token, HEIR.token]


def test_a_zombie_that_stopped_within_a_transaction_holds_nobody_up_for_long(postgres: Postgres) -> None:
    zombie = postgres.connect()
    zombie.execute("SET idle_in_transaction_session_timeout = '200ms'")
    postgres.write(zombie, ZOMBIE)
    with postgres.connect() as connection:
        postgres.write(connection, HEIR)
    with pytest.raises(postgres._psycopg.Error):
        zombie.commit()
    with postgres.connect() as connection:
        assert written(connection) == [HEIR.token]


async def test_asynchronous_connections_are_checked_alike(postgres: Postgres) -> None:
    connection = await postgres._psycopg.AsyncConnection.connect(postgres._uri)
    async with connection:
        await postgres.fence.check_async(connection, HEIR)
    connection = await postgres._psycopg.AsyncConnection.connect(postgres._uri)
    with pytest.raises(StaleToken):
        async with connection:
            await postgres.fence.check_async(connection, ZOMBIE)
