"""What the nodes of the log hold, as nobody in the cluster can see it: all of them, at once, at any time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from muster_protos.muster.log.v1 import records_pb2
from simulation.redis_node import RedisNode
from simulation.redis_store import Id, Store, Stream, id_of
from simulation.violations import Violations
from simulation.world import EPOCH_S

LogKey = bytes
Place = tuple[LogKey, Id, bytes]
"""An entry: its log, its id and its hash."""

STAMP_MAX_S = 100.0
"""By how much a stamp may be off: a clock is trusted within a minute, and a record may wait for the log."""

_HASH = 5
_RECORD = 1


def log_key(shard: int) -> LogKey:
    """The key of a shard's log."""
    return b"muster:{%d}:log" % shard


@dataclass(slots=True)
class Seen:
    """An entry that some node had at some time.

    Attributes:
        record: what it says.
        first_s: when the first node had it.
        majority_s: when a majority had it for the first time; None: never.
    """

    record: records_pb2.Record
    first_s: float
    majority_s: float | None = None


class Ledger:
    """Follows every change at every node.

    Attributes:
        entries: everything that was ever written, by place.
        acknowledged: of each log the last place that metadata called stored, to a writer.
        claims: of each log, epoch → when its Claim was on a majority.
        commits: places of each commit, by the id in its metadata.
        generations: places of the start of each generation.
        assignments: places of each assignment.
        began: every start of a generation.
        initialised: whether the logs were made; from then on none is made by a write.
        claimants: session of the process that claimed an epoch of a log.
        departed: told of every record that a member is gone, when the first node has it.
    """

    def __init__(self, violations: Violations) -> None:
        self.nodes: Sequence[RedisNode] = ()
        self.entries: dict[Place, Seen] = {}
        self.acknowledged: dict[LogKey, tuple[Id, bytes]] = {}
        self.claims: dict[LogKey, dict[int, float]] = {}
        self.commits: dict[str, list[Place]] = {}
        self.generations: dict[tuple[str, int], list[Place]] = {}
        self.assignments: dict[tuple[str, int], list[Place]] = {}
        self.departed: Callable[[Place, records_pb2.Record], None] | None = None
        self.began: list[tuple[Place, records_pb2.GenerationStarted]] = []
        self.claimants: dict[tuple[LogKey, int], str] = {}
        self.initialised = False
        self._became: dict[tuple[str, str], list[Place]] = {}
        self._chain: dict[LogKey, dict[Id, bytes]] = {}
        self._violations = violations

    # --- changes

    def written(self, node: RedisNode, name: bytes, arguments: Sequence[bytes]) -> None:
        """A node is about to carry a change out."""
        key = arguments[0]
        if name == b"XADD":
            if key.endswith(b":log"):
                self._violations.expect(
                    "L8",
                    key in node.store.keys or not self.initialised,
                    f"{node.name} makes the log {key!r} by a write; only `init` does",
                )
                self._added(node, key, id_of(arguments[1], 0), arguments[2:])
        elif name == b"XDEL":
            for text in arguments[1:]:
                self._removed(node, key, id_of(text, 0))
        elif name == b"XTRIM" and key.endswith(b":log"):
            self._trimmed(node, key, id_of(arguments[-1], 0))
        elif name == b"RENAME" and arguments[1].endswith(b":log"):
            self._replaced(node, key, arguments[1])
        elif name in (b"DEL", b"UNLINK"):
            for gone in arguments:
                if gone.endswith(b":log") and gone in node.store.keys:
                    self._violations.expect("L8", False, f"{gone!r} is deleted at {node.name}")

    def _added(self, node: RedisNode, key: LogKey, id_: Id, fields: Sequence[bytes]) -> None:
        place = (key, id_, fields[_HASH])
        seen = self.entries.get(place)
        if seen is None:
            seen = self.entries[place] = Seen(
                records_pb2.Record.FromString(fields[_RECORD]), node.world.now_s
            )
            self._index(place, seen.record)
            self._check_stamp(node, place, seen)
        if seen.majority_s is None and self._elsewhere(node, place) + 1 > len(self.nodes) // 2:
            self._on_majority(place, seen, node.world.now_s)

    def _check_stamp(self, node: RedisNode, place: Place, seen: Seen) -> None:
        """Whoever writes with a wall clock far away stamps with the time of the log's nodes instead."""
        off_s = seen.record.written_at_ms / 1000 - EPOCH_S - node.world.now_s
        self._violations.expect(
            "C1",
            not seen.record.written_at_ms or abs(off_s) < STAMP_MAX_S,
            f"{place[1]} of {place[0]!r}, a {seen.record.WhichOneof('kind')}, is stamped {off_s:.0f} s off "
            "the time of the log's nodes",
        )

    def _on_majority(self, place: Place, seen: Seen, now_s: float) -> None:
        seen.majority_s = now_s
        if seen.record.HasField("claim"):
            self.claims.setdefault(place[0], {}).setdefault(place[1][0], now_s)

    def _index(self, place: Place, record: records_pb2.Record) -> None:
        kind = record.WhichOneof("kind")
        if kind == "offset_committed":
            for offset in record.offset_committed.offsets:
                self.commits.setdefault(offset.metadata, []).append(place)
        elif kind == "generation_started":
            started = record.generation_started
            self.generations.setdefault((started.group_id, started.generation), []).append(place)
            self.began.append((place, started))
        elif kind == "assignment_committed":
            committed = record.assignment_committed
            self.assignments.setdefault((committed.group_id, committed.generation), []).append(place)
        elif kind == "epoch_raised":
            raised = record.epoch_raised
            self.generations.setdefault((raised.group_id, raised.epoch), []).append(place)
        elif kind == "group_converted":
            self._became.setdefault((record.group_converted.group_id, "incremental"), []).append(place)
        elif kind == "group_reverted":
            self._became.setdefault((record.group_reverted.group_id, "classic"), []).append(place)
        elif kind in ("member_left", "member_removed") and self.departed is not None:
            self.departed(place, record)
        elif kind == "claim":
            self.claimants[place[0], place[1][0]] = record.claim.session

    def _removed(self, node: RedisNode, key: LogKey, id_: Id) -> None:
        acknowledged = self._chain.get(key, {}).get(id_)
        stream = node.store.keys.get(key)
        if acknowledged is None or not isinstance(stream, Stream) or id_ not in stream.entries:
            return
        self._violations.expect(
            "L5",
            stream.entries[id_][_HASH] != acknowledged,
            f"{node.name} cuts the acknowledged entry {id_} of {key!r}",
        )

    def _trimmed(self, node: RedisNode, key: LogKey, before: Id) -> None:
        """Only what an acknowledged snapshot covers may go, and only while a majority has its copies."""
        self._violations.expect(
            "L9",
            any(
                self._covered(key, seen.record.snapshot) >= before
                for place, seen in self.entries.items()
                if place[0] == key and seen.record.HasField("snapshot") and self.on_chain(place)
            ),
            f"{node.name} cuts {key!r} before {before}, which no snapshot on a majority covers",
        )

    def _covered(self, key: LogKey, snapshot: records_pb2.Snapshot) -> Id:
        """Where a log may begin because of a snapshot; `(0, 0)`: no majority has a copy."""
        id_ = (snapshot.upto.epoch, snapshot.upto.offset)
        copy = key.replace(b":log", b":snapshot:%d-%d" % id_)
        copies = sum(copy in node.store.keys for node in self.nodes)
        return id_ if copies * 2 > len(self.nodes) else (0, 0)

    def _replaced(self, node: RedisNode, source: bytes, key: LogKey) -> None:
        old, new = node.store.keys.get(key), node.store.keys.get(source)
        if not isinstance(new, Stream):
            return
        chain = self._chain.get(key, {})
        first = new.ids[0] if new.ids else (0, 0)
        if isinstance(old, Stream):
            for id_, fields in old.entries.items():
                if id_ >= first and chain.get(id_) == fields[_HASH]:
                    kept = new.entries.get(id_)
                    self._violations.expect(
                        "L5",
                        kept is not None and kept[_HASH] == fields[_HASH],
                        f"{node.name} loses the acknowledged entry {id_} of {key!r} in a rebuilt log",
                    )
        for id_, fields in new.entries.items():
            self._added(node, key, id_, fields)

    # --- questions

    def has(self, store: Store, place: Place) -> bool:
        """Whether the keys of a node hold an entry."""
        stream = store.keys.get(place[0])
        if not isinstance(stream, Stream):
            return False
        fields = stream.entries.get(place[1])
        return fields is not None and fields[_HASH] == place[2]

    def _elsewhere(self, node: RedisNode, place: Place) -> int:
        return sum(self.has(other.store, place) for other in self.nodes if other is not node)

    def holders(self, place: Place) -> int:
        """How many nodes have an entry now."""
        return sum(self.has(node.store, place) for node in self.nodes)

    def stored(self, places: Iterable[Place]) -> list[Place]:
        """Those that were on a majority at some time."""
        return [place for place in places if self.entries[place].majority_s is not None]

    def became(self, group_id: str, kind: str) -> list[Place]:
        """The records that were on a majority and made a group with members one of a kind."""
        return self.stored(self._became.get((group_id, kind), ()))

    def on_chain(self, place: Place) -> bool:
        """Whether an entry stands at or below what was acknowledged."""
        return self._chain.get(place[0], {}).get(place[1]) == place[2]

    def history(self, key: LogKey) -> list[tuple[Id, records_pb2.Record]]:
        """All that was ever acknowledged of a log, in order: also what was trimmed since."""
        chain = sorted(self._chain.get(key, {}).items())
        return [(id_, self.entries[key, id_, hash_].record) for id_, hash_ in chain]

    def chain(self, key: LogKey) -> dict[Id, bytes]:
        """What was acknowledged of a log: id → hash."""
        return self._chain.get(key, {})

    # --- acknowledgements

    def acknowledge(self, key: LogKey, id_: Id, hash_: bytes, what: str) -> None:
        """Metadata told a writer that a majority has the log up to there."""
        place = (key, id_, hash_)
        seen = self.entries.get(place)
        self._violations.expect(
            "L5",
            seen is not None and seen.majority_s is not None,
            f"{what} up to {id_} of {key!r} was acknowledged, which no majority ever had",
        )
        chain = self._chain.setdefault(key, {})
        last = self.acknowledged.get(key)
        if last is not None and id_ <= last[0]:
            self._violations.expect(
                "L5",
                chain.get(id_) == hash_,
                f"{what} acknowledged {id_} of {key!r}, which is not of the log",
            )
            return
        self.acknowledged[key] = (id_, hash_)
        stream = self._any_with(place)
        if stream is None:
            chain[id_] = hash_
            return
        new: dict[Id, bytes] = {}
        low = last[0] if last is not None else (0, 0)
        for member in stream.between(low, id_):
            new[member] = stream.entries[member][_HASH]
        if last is not None and stream.ids and stream.ids[0] <= last[0]:
            self._violations.expect(
                "L5",
                new.get(last[0]) == last[1],
                f"{what} up to {id_} of {key!r} stands on a log without the acknowledged entry {last[0]}",
            )
        chain.update(new)

    def _any_with(self, place: Place) -> Stream | None:
        for node in self.nodes:
            stream = node.store.keys.get(place[0])
            if isinstance(stream, Stream) and self.has(node.store, place):
                return stream
        return None
