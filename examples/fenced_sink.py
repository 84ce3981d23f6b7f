"""A worker whose SQLite database refuses it once another one owns the partition: no row is written twice."""

import asyncio
import sqlite3

import muster
from muster.sinks import SqlFence

FENCE = SqlFence("sqlite")


def open_database(path: str) -> sqlite3.Connection:
    """The database, with its tables."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(FENCE.create_table)
    connection.execute("CREATE TABLE IF NOT EXISTS pages (number INTEGER, position INTEGER)")
    return connection


def next_position(connection: sqlite3.Connection, number: int) -> int:
    """Where to go on: the database knows what is in it."""
    row = connection.execute("SELECT max(position) FROM pages WHERE number = ?", (number,)).fetchone()
    return 0 if row[0] is None else int(row[0]) + 1


def store(connection: sqlite3.Connection, p: muster.Partition, position: int) -> None:
    """Writes a row, unless another worker owns the partition by now.

    Raises:
        StaleToken: it does, and nothing was written.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        FENCE.check(connection, p)
        connection.execute("INSERT INTO pages VALUES (?, ?)", (p.number, position))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


class Crawler:
    """The work, with its database."""

    def __init__(self, path: str) -> None:
        self.connection: sqlite3.Connection = open_database(path)

    async def __call__(self, p: muster.Partition) -> None:
        """Called for each partition that this process owns."""
        position = next_position(self.connection, p.number)
        while True:
            await asyncio.sleep(0.5)  # the real work goes here
            store(self.connection, p, position)
            position += 1
            await p.commit(position)  # for `muster groups`; the database has the truth


if __name__ == "__main__":
    muster.run(Crawler("pages.db"), group="crawlers", topic="sites", partitions=12)
