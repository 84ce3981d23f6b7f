"""A worker whose sink notices two owners at a time, and refuses a token below the highest it has seen.

`python fenced_worker.py SERVERS GROUP PARTITIONS SINK NAME ASSIGNORS`: the topic has the group's name, SINK
is a file, and ASSIGNORS are joined by commas, `-` for those that `muster.run` has, `incremental` for the
coordinator's in an incremental group, `incremental-unary` for that without streams, `auto` for either kind.
PARTITIONS is `-` where the catalog says how many there are. More settings of the member may follow, as JSON.
SIGTERM ends it.
"""

import asyncio
import json
import sqlite3
import sys
import threading

import muster

TABLES = """
CREATE TABLE IF NOT EXISTS holder (partition INTEGER PRIMARY KEY, worker TEXT NOT NULL, token TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS highest (partition INTEGER PRIMARY KEY, token TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS starts (partition INTEGER, worker TEXT, token TEXT);
CREATE TABLE IF NOT EXISTS done (partition INTEGER PRIMARY KEY, position INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS wrong (partition INTEGER, worker TEXT, what TEXT);
"""


class Sink:
    """Tables that all workers share; each method is one transaction."""

    def __init__(self, path: str, worker: str = "") -> None:
        self._path = path
        self._worker = worker
        self._of_thread = threading.local()
        self._db.executescript(TABLES)

    @property
    def _db(self) -> sqlite3.Connection:
        """Kept by each thread: to open it takes longer than all that is done in it."""
        db: sqlite3.Connection | None = getattr(self._of_thread, "db", None)
        if db is None:
            db = self._of_thread.db = sqlite3.connect(self._path, timeout=60, isolation_level="IMMEDIATE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")  # the machine does not fail, and disks are slow
        return db

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self._db.execute(query).fetchall()

    def begin(self, partition: int, token: str) -> None:
        with self._db as db:
            other = db.execute(
                "SELECT worker, token FROM holder WHERE partition = ?", (partition,)
            ).fetchone()
            if other is not None:
                self._wrong(db, partition, f"begins with {token} while {other} works")
            db.execute("INSERT OR REPLACE INTO holder VALUES (?, ?, ?)", (partition, self._worker, token))
            db.execute("INSERT INTO starts VALUES (?, ?, ?)", (partition, self._worker, token))
            self._fence(db, partition, token)

    def write(self, partition: int, token: str) -> None:
        with self._db as db:
            self._fence(db, partition, token)

    def resume(self, partition: int, position: int) -> None:
        """Work goes on from a position, which is never below one that was committed."""
        with self._db as db:
            done = db.execute("SELECT position FROM done WHERE partition = ?", (partition,)).fetchone()
            if done is not None and position < done[0]:
                self._wrong(db, partition, f"goes on from {position} after {done[0]} was committed")

    def committed(self, partition: int, position: int) -> None:
        with self._db as db:
            db.execute("INSERT OR REPLACE INTO done VALUES (?, ?)", (partition, position))

    def killed(self, worker: str) -> None:
        """A worker was killed: it works on nothing."""
        with self._db as db:
            db.execute("DELETE FROM holder WHERE worker = ?", (worker,))

    def end(self, partition: int, token: str) -> None:
        with self._db as db:
            db.execute("DELETE FROM holder WHERE partition = ? AND token = ?", (partition, token))

    def _fence(self, db: sqlite3.Connection, partition: int, token: str) -> None:
        highest = db.execute("SELECT token FROM highest WHERE partition = ?", (partition,)).fetchone()
        if highest is not None and token < highest[0]:
            self._wrong(db, partition, f"writes with {token} after {highest[0]}")
        else:
            db.execute("INSERT OR REPLACE INTO highest VALUES (?, ?)", (partition, token))

    def _wrong(self, db: sqlite3.Connection, partition: int, what: str) -> None:
        db.execute("INSERT INTO wrong VALUES (?, ?, ?)", (partition, self._worker, what))


def main(
    servers: str, group: str, partitions: str, path: str, name: str, assignors: str, more: str = "{}"
) -> None:
    sink = Sink(path, name)
    settings: muster.MemberSettings = {
        "client_id": name,
        "session_timeout_ms": 60_000,
        "disconnect_grace_ms": 30_000,
    }
    if assignors.startswith("incremental"):
        settings["protocol"] = "incremental"
        settings["session"] = assignors != "incremental-unary"
        settings["heartbeat_interval_ms"] = 500
    elif assignors == "auto":
        settings["protocol"] = "auto"
    elif assignors != "-":
        settings["assignors"] = assignors.split(",")
    settings.update(json.loads(more))

    async def work(partition: muster.Partition) -> None:
        sink.begin(partition.number, partition.token)
        try:
            position = await partition.committed() or 0
            sink.resume(partition.number, position)
            while True:
                sink.write(partition.number, partition.token)
                position += 1
                await partition.commit(position)
                sink.committed(partition.number, position)
                await asyncio.sleep(0.3)
        finally:
            sink.end(partition.number, partition.token)

    muster.run(
        work,
        group=group,
        topic=group,
        partitions=None if partitions == "-" else int(partitions),
        servers=servers,
        **settings,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
