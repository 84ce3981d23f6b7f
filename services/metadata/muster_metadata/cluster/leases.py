"""Coordinators' leases: rows of the table, and an observer that times them on its own clock. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from muster_core.position import Position
from muster_protos.muster.v1 import discovery_pb2

from muster_metadata.cluster.stored_values import stored_number, stored_text

LIVE = discovery_pb2.COORDINATOR_STATE_LIVE
DRAINING = discovery_pb2.COORDINATOR_STATE_DRAINING
DEAD = discovery_pb2.COORDINATOR_STATE_DEAD

_READ_MS = 500


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """What the nodes store of one coordinator.

    Attributes:
        node_id: its name.
        session: identity of the process.
        run: number of the process among those of this name; a later one supersedes.
        counter: grows with each renewal.
        host: where clients connect to.
        port: TCP port there.
        version: version of its software.
        draining: it hands its shards over.
        released: it gave the lease up.
        dead: its process was found dead after the renewal with this counter.
        serving: pairs of shard and epoch that it has loaded.
        features: names of the features that it knows.
        lease_ms: the lease time by which it counts its own deadline; 0: unknown.
        catalog: offset in the catalog's log up to which it has applied changes; -1: unknown.
        catalog_epoch: the epoch at that offset; 0: unknown.
        internal_host: where other processes of the cluster connect to; empty: where clients do.
        internal_port: TCP port there; 0: that of clients.
    """

    node_id: str
    session: str
    run: int
    counter: int
    host: str = ""
    port: int = 0
    version: str = ""
    draining: bool = False
    released: bool = False
    dead: bool = False
    serving: tuple[tuple[int, int], ...] = ()
    features: tuple[str, ...] = ()
    lease_ms: int = 0
    catalog: int = -1
    catalog_epoch: int = 0
    internal_host: str = ""
    internal_port: int = 0

    def to_json(self) -> str:
        """As the table stores it."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    @lru_cache(maxsize=64)  # Several nodes have the same row, and are read again and again.
    def from_json(cls, text: bytes) -> "LeaseRow":
        """Reads a row as the table stores it. An empty list may have become an object in Lua.

        Raises:
            ValueError: it is no row.
        """
        try:
            fields = json.loads(text)
            known = {name: fields[name] for name in cls.__slots__ if name in fields}
            serving = known.pop("serving", None) or ()
            features = known.pop("features", None) or ()
            row = cls(
                **known,
                serving=tuple((stored_number(shard), stored_number(epoch)) for shard, epoch in serving),
                features=tuple(map(stored_text, features)),
            )
            return replace(
                row,
                run=stored_number(row.run),
                counter=stored_number(row.counter),
                host=stored_text(row.host),
                port=stored_number(row.port, most=65_535),
                version=stored_text(row.version),
                node_id=stored_text(row.node_id),
                session=stored_text(row.session),
                draining=bool(row.draining),
                released=bool(row.released),
                dead=bool(row.dead),
                lease_ms=stored_number(row.lease_ms),
                catalog=stored_number(row.catalog, least=-1),
                catalog_epoch=stored_number(row.catalog_epoch),
                internal_host=stored_text(row.internal_host),
                internal_port=stored_number(row.internal_port, most=65_535),
            )
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError("not a lease row") from error


def newest(tables: Iterable[Mapping[str, LeaseRow]]) -> dict[str, LeaseRow]:
    """The highest row of each coordinator, with a death mark if any table has one for it."""
    best: dict[str, LeaseRow] = {}
    for table in tables:
        for name, row in table.items():
            known = best.get(name)
            if known is None or (row.run, row.counter, row.dead) > (known.run, known.counter, known.dead):
                best[name] = row
    return best


def merged(tables: Sequence[Mapping[str, LeaseRow]], majority: int) -> dict[str, LeaseRow]:
    """The highest row of each coordinator among a majority of the nodes.

    A death mark counts if a majority has one for that run: the mark of a single node may be older than the
    row of another one, since the process may have renewed after it (docs/safety.md, OWN-30).

    Args:
        tables: one for each node that was read.
        majority: how many nodes are a majority of all.
    """
    best = newest(tables)
    marks = Counter(
        name for table in tables for name, row in table.items() if row.dead and row.run == best[name].run
    )
    return {name: replace(row, dead=row.dead and marks[name] >= majority) for name, row in best.items()}


@dataclass(slots=True)
class _Observed:
    row: LeaseRow
    changed_ms: int
    silent: bool = False
    written_ms: int = -1 << 62


@dataclass(slots=True)
class LeaseObserver:
    """Times the counters on its own clock, and so knows which coordinators live.

    A coordinator is dead after a lease time without a change of its counter, or when it is marked. After a
    failed read, or a pause of this process, every row starts a new lease time: an outage of the log must not
    cost every coordinator its shards.

    A change is dated to when it was seen, which is after its renewal was sent; silence is dated to when the
    reads that show it were *sent*. So a coordinator is declared dead a lease time after its last good renewal
    was sent at the earliest, however slow the reads are; the holder's own deadline is a margin before that.
    The lease time is this instance's or the holder's, whichever is longer.

    Attributes:
        lease_ms: time for which a lease is good.
    """

    lease_ms: int
    _rows: dict[str, _Observed] = field(default_factory=dict)
    _last_ms: int = 0
    _as_of_ms: int = 0
    _failed: bool = False

    def read_failed(self) -> None:
        """Notes that no majority of the nodes answered."""
        self._failed = True

    def observe(self, rows: Mapping[str, LeaseRow], as_of_ms: int, now_ms: int) -> None:
        """Takes in what a majority of the nodes stores.

        Args:
            rows: the highest row of each coordinator.
            as_of_ms: when the reads were sent: what a majority had stored by then is in the rows.
            now_ms: the current time.
        """
        restart = self._failed or now_ms - self._last_ms > self.lease_ms // 2
        self._failed, self._last_ms, self._as_of_ms = False, now_ms, as_of_ms
        for name, seen in tuple(self._rows.items()):
            if name not in rows:
                self._miss(name, seen, as_of_ms, now_ms, restart=restart)
        for name, row in rows.items():
            self._see(name, row, as_of_ms, now_ms, restart=restart)

    def _miss(self, name: str, seen: _Observed, as_of_ms: int, now_ms: int, *, restart: bool) -> None:
        """Handles a row that has disappeared: it was removed after its end, or lost with a node's data.

        In the second case the holder of the lease goes on answering, so the loss counts as silence only.
        """
        if seen.silent or seen.row.released:
            patience_ms = _READ_MS  # a read that was under way when the row was written does not have it
        else:
            patience_ms = max(self.lease_ms, seen.row.lease_ms)
            if restart:
                seen.changed_ms = now_ms
        if as_of_ms - max(seen.changed_ms, seen.written_ms) >= patience_ms:
            del self._rows[name]

    def put(self, row: LeaseRow, now_ms: int) -> None:
        """Takes in a row that this instance has written, before the next read shows it."""
        known = self._rows.get(row.node_id)
        if known is None or (row.run, row.counter, row.dead) >= (
            known.row.run, known.row.counter, known.row.dead,
        ):  # fmt: skip
            self._see(row.node_id, row, now_ms, now_ms, restart=False)
            self._rows[row.node_id].written_ms = now_ms

    def _see(self, name: str, row: LeaseRow, as_of_ms: int, now_ms: int, *, restart: bool) -> None:
        known = self._rows.get(name)
        if known is None or (row.session, row.run, row.counter) != (
            known.row.session, known.row.run, known.row.counter,
        ):  # fmt: skip
            # A read that was under way when this instance wrote says nothing. Otherwise a lower counter is a
            # change too: it only delays.
            if (
                known is not None
                and (row.run, row.counter) < (known.row.run, known.row.counter)
                and as_of_ms - known.written_ms < _READ_MS
            ):
                return
            self._rows[name] = _Observed(row, now_ms)
            return
        known.row = replace(row, dead=row.dead or known.row.dead)
        if known.silent:
            return
        if restart:
            known.changed_ms = now_ms
        elif as_of_ms - known.changed_ms >= max(self.lease_ms, row.lease_ms):
            known.silent = True

    def rows(self) -> Sequence[tuple[LeaseRow, "discovery_pb2.CoordinatorState.ValueType"]]:
        """Every coordinator that has not given its lease up, by name, with its state."""
        return [
            (seen.row, DEAD if seen.silent or seen.row.dead else DRAINING if seen.row.draining else LIVE)
            for _, seen in sorted(self._rows.items())
            if not seen.row.released
        ]

    def read_since(self, now_ms: int) -> bool:
        """Whether a majority of the nodes was read by commands that were sent after a boot time."""
        return not self._failed and self._as_of_ms > now_ms

    def lagging(self, place: Position) -> list[str]:
        """Names of coordinators that may answer clients and have not applied the catalog up to a place.

        One that was found dead counts until its lease has run out: only then has it stopped by its own clock.
        """
        return [
            name
            for name, seen in self._rows.items()
            if seen.row.catalog >= 0
            and Position(seen.row.catalog_epoch or place.epoch, seen.row.catalog) < place
            and not seen.silent
            and not seen.row.released
        ]

    def stale(self, now_ms: int, after_ms: int) -> list[LeaseRow]:
        """Rows of processes that ended long ago and may be removed from the table."""
        return [
            seen.row
            for seen in self._rows.values()
            if (seen.silent or seen.row.dead or seen.row.released) and now_ms - seen.changed_ms >= after_ms
        ]
