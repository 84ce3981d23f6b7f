"""One of the independent Redis servers that hold the logs."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from muster_metadata.nodes import keys
from muster_metadata.nodes.addresses import at, place_of
from muster_metadata.nodes.connection import SYNCED, Argument, NodeConnection, all_written, logs_writes
from muster_metadata.nodes.entries import NodeEntry, arguments
from muster_metadata.nodes.problem import Problem, ProblemKind
from muster_metadata.nodes.reply import NodeReply, Status, plain, scripted
from muster_metadata.nodes.scripts import SCRIPTS, Script

Answer: TypeAlias = asyncio.Future[NodeReply]

_BULK_TIMEOUT_MS = 5_000
_WRITING = frozenset({"prepare", "append", "repair", "portion", "stage", "install", "renew", "snapshot"})
_MORE_KEYS = {
    "repair": ("copy",),
    "portion": ("copy",),
    "stage": ("copy",),
    "install": ("copy", "vacant"),
    "discard": ("copy",),
    "exported": ("exported",),
    "vacant": ("vacant",),
}

_OTHER_CONFIGURATION = Problem(ProblemKind.OTHER_CONFIGURATION, "the log has another configuration there")
_OTHER_NODE = Problem(ProblemKind.OTHER_NODE, "it belongs to another log, or is another node of this one")
_NOT_A_NODE = Problem(ProblemKind.NOT_A_NODE, "it has no data, and the configuration does not name it")


@dataclass(frozen=True, slots=True)
class Vetted:
    """What the other nodes said of a server, when they were asked in one of its runs.

    Attributes:
        run_id: that run; empty: they were not asked yet.
        doubted: its runs that were without an append-only file, so that what they said is not believed.
    """

    run_id: str = ""
    doubted: tuple[str, ...] = ()


class Node:
    """A server and the commands to it.

    It has three connections: `steps` for steps on logs, `tables` for leases and other tables, which no append
    may delay, and `bulk` for pages and repairs.

    Args:
        index: its number in the configured list, from 1.
        url: its address.
        reply_timeout_ms: how long a step may be unanswered before the connection is given up.
        on_connect: called with the node when steps can be sent to it (again).

    Attributes:
        place: host and port, for the administrator; without credentials.
        identity: the identity that it must have.
        member: whether the log's configuration names it at this address. Only then is it filled when empty:
            an empty server at another address may exist beside the real one.
        refusal: why it refused the last write; None: it did not.
        damage_reported_ms: when it was last said that the node has a log, or a snapshot of it, damaged: by
            shard, and whether it was a snapshot.
        vetted: what the other nodes say of earlier runs of its server; None: they were not asked, and are not
            going to be.
    """

    def __init__(
        self, index: int, url: str, reply_timeout_ms: int, on_connect: Callable[["Node"], None] | None = None
    ) -> None:
        self.index = index
        self.url = url
        self.place = place_of(url)
        self.identity = ""
        self.member = True
        self.refusal: Problem | None = None
        self.damage_reported_ms: dict[tuple[int, bool], int] = {}
        self.vetted: Vetted | None = None
        self._shard_count = 0
        self._log_keys: dict[int, tuple[str, ...]] = {}
        self.steps = NodeConnection(
            url, reply_timeout_ms, on_connect=None if on_connect is None else lambda: on_connect(self)
        )
        self.tables = NodeConnection(url, reply_timeout_ms, 8 << 20)
        self.bulk = NodeConnection(url, max(_BULK_TIMEOUT_MS, reply_timeout_ms), 256 << 20)

    async def look(self) -> None:
        """Asks again whether the server writes a file and syncs it, which can be changed while it runs.

        Without an answer nothing changes: the next connect asks again.
        """
        run_id = self.tables.run_id
        synced = await syncs(self.ask)
        reply = await self.ask("INFO", "persistence")
        for connection in (self.steps, self.tables, self.bulk):
            if connection.run_id != run_id:
                continue  # it asked when it connected
            if synced is not None:
                connection.synced = synced
            if reply.status is Status.OK:
                connection.logs_writes = logs_writes(reply.values[0])

    def start(self) -> None:
        """Starts to connect in the background."""
        for connection in (self.steps, self.tables, self.bulk):
            connection.start()

    async def stop(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(connection.stop() for connection in (self.steps, self.tables, self.bulk)))

    async def move(self, place: str) -> None:
        """Connects to the server at another address, which has replaced this one."""
        self.url, self.place, self.refusal = at(self.url, place), place, None
        await asyncio.gather(
            *(connection.move(self.url) for connection in (self.steps, self.tables, self.bulk))
        )

    def belongs_to(
        self,
        cluster_id: str,
        shard_count: int,
        node_count: int,
        configuration: int = 1,
        addresses: Sequence[str] = (),
    ) -> None:
        """Sets which node of which log it must be, which every script checks at the node.

        Args:
            cluster_id: identity of the cluster.
            shard_count: its number of shards.
            node_count: number of nodes.
            configuration: number of the log's configuration.
            addresses: of the nodes in that configuration; empty: unknown.
        """
        identity = keys.Identity(cluster_id, shard_count, self.index, node_count, configuration)
        self.identity = str(identity)
        self.member = not addresses or addresses[self.index - 1] == self.place
        self._shard_count = shard_count

    def _read(self, raw: Any) -> NodeReply:
        """Reads the answer to a script; turns NOLOG into MOVED or STRANGER if it is not the node's own."""
        reply = scripted(raw)
        if reply.status is Status.REFUSED:
            self.refusal = reply.problem
        elif reply.status is Status.NOLOG and reply.values[:1] == (b"foreign",):
            mine = keys.Identity.parse(self.identity)
            said = b"".join(part for part in reply.values[1:2] if isinstance(part, bytes))
            if mine is not None and mine.is_in_another(said.decode("utf-8", "replace")):
                return NodeReply(Status.MOVED, problem=_OTHER_CONFIGURATION)
            return NodeReply(Status.STRANGER, problem=_OTHER_NODE)
        elif reply.status is Status.NOLOG and reply.values[:1] == (b"empty",) and not self.member:
            return NodeReply(Status.STRANGER, problem=_NOT_A_NODE)
        return reply

    def _wrote(self, raw: Any) -> NodeReply:
        reply = self._read(raw)
        if reply.status is Status.OK:
            self.refusal = None
        return reply

    def _keys(self, shard: int) -> tuple[str, ...]:
        found = self._log_keys.get(shard)
        if found is None:
            names = keys.log_keys(shard, self._shard_count)
            found = self._log_keys[shard] = (names.log, names.promise, names.acknowledged, names.node)
        return found

    def _all_keys(self, shard: int) -> keys.LogKeys:
        return keys.log_keys(shard, self._shard_count)

    def _on_log(
        self,
        connection: NodeConnection,
        script: Script,
        shard: int,
        epoch: int,
        nonce: bytes,
        *rest: Argument,
        more: Sequence[str] = (),
        vote: bool = True,
    ) -> Answer:
        names = (*self._keys(shard), *more)
        if script.name in _MORE_KEYS:
            known = self._all_keys(shard)
            names += tuple(getattr(known, name) for name in _MORE_KEYS[script.name])
        decode = self._wrote if script.name in _WRITING else self._read
        run = self._voting_run(connection) if vote else ""
        return connection.send(
            decode, "EVALSHA", script.sha, len(names), *names, self.identity, epoch, nonce, *rest, run
        )

    def _voting_run(self, connection: NodeConnection) -> str:
        """The run of the server, and which runs before it promised what is in no file."""
        run, vetted = connection.run, self.vetted
        if vetted is None or not run:
            return run
        if vetted.run_id != connection.run_id:
            return f"{run} ?"
        return " ".join((run, *vetted.doubted)) if vetted.doubted else run

    def inspect(self, shard: int, *, vote: bool = True) -> Answer:
        """Reads the state of a log.

        Values: id and hash of the end, acknowledged, promised epoch, its nonce, first id, entries, floor,
        run of the promise.

        Args:
            shard: which log.
            vote: whether the answer is to count as a vote; a node that may have forgotten something then
                answers RESTARTED.
        """
        return self._on_log(self.steps, SCRIPTS["inspect"], shard, 0, b"", vote=vote)

    def prepare(
        self,
        shard: int,
        epoch: int,
        nonce: bytes,
        tag: bytes = b"",
        *,
        above: int | None = None,
        vote: bool = True,
    ) -> Answer:
        """Raises the promise.

        Values: id and hash of the end, acknowledged position, run of the promise, hash of the entry at the
        acknowledged position; empty: it is not there.

        Args:
            shard: which log.
            epoch: of the claim.
            nonce: of the claim.
            tag: of the attempt at it; empty: any.
            above: refuse if a Claim of this nonce is in the log above this epoch; None: do not check.
            vote: whether the answer is to count as a vote.
        """
        rest = (tag, "" if above is None else above)
        return self._on_log(self.steps, SCRIPTS["prepare"], shard, epoch, nonce, *rest, vote=vote)

    def append(
        self,
        shard: int,
        epoch: int,
        nonce: bytes,
        batch: Sequence[Argument],
        floor: int = 0,
        *,
        frees: bool = False,
    ) -> Answer:
        """Writes a batch.

        Args:
            shard: which log.
            epoch: of the claim.
            nonce: of the claim.
            batch: id and hash of the exact end, acknowledged position, entries.
            floor: that the writer knows.
            frees: whether it may use the reserve of a node that is out of memory.
        """
        rest = (*batch[:3], floor, "frees" if frees else "", *batch[3:])
        return self._on_log(self.steps, SCRIPTS["append"], shard, epoch, nonce, *rest)

    def raise_floor(self, shard: int, epoch: int, nonce: bytes, floor: int) -> Answer:
        """Raises the floor: no write without it, no promise up to it. Values: id and hash of the end."""
        return self._on_log(self.steps, SCRIPTS["raise"], shard, epoch, nonce, floor)

    def lower(self, shard: int, epoch: int, nonce: bytes, floor: int) -> Answer:
        """Lowers the promise to this claim, if it is not above the floor of a majority of the others.

        Values: id and hash of the end.
        """
        return self._on_log(self.steps, SCRIPTS["lower"], shard, epoch, nonce, floor)

    def note(self, shard: int) -> Answer:
        """Stores the run of the server, by which a restart is detected."""
        return self._on_log(self.steps, SCRIPTS["note"], shard, 0, b"")

    def readmit(
        self, shard: int, epoch: int, nonce: bytes, having: Sequence[bytes | str], floor: int, run: str
    ) -> Answer:
        """Lets the node vote in a run if it has an entry (id and hash; empty: whatever it has)."""
        rest = (*having, floor, run)
        return self._on_log(self.steps, SCRIPTS["readmit"], shard, epoch, nonce, *rest, vote=False)

    def vacant(self, shard: int, mark: bytes) -> Answer:
        """Leaves a mark where a log is gone. Values of NOLOG: why, and the mark that is there."""
        return self._on_log(self.steps, SCRIPTS["vacant"], shard, 0, b"", mark)

    def repair(
        self, shard: int, epoch: int, nonce: bytes, ends: Sequence[bytes | str], entries: Sequence[NodeEntry]
    ) -> Answer:
        """Cuts the log and writes entries; `ends` are the exact end and the cut, id and hash of each.

        UNFIT: the entries do not fit after the last id of the log's stream; its copy must end at the cut.
        """
        rest = (*ends, *arguments(entries))
        return self._on_log(self.bulk, SCRIPTS["repair"], shard, epoch, nonce, *rest, vote=False)

    def portion(
        self, shard: int, epoch: int, nonce: bytes, ends: Sequence[bytes | str], max_bytes: int
    ) -> Answer:
        """Copies a part of what `repair` leaves; `ends` as there. Values: id and hash of the copy's end."""
        rest = (*ends, max_bytes)
        return self._on_log(self.bulk, SCRIPTS["portion"], shard, epoch, nonce, *rest, vote=False)

    def check(self, shard: int, epoch: int, nonce: bytes) -> Answer:
        """Confirms that the promise is still this one. Values: id and hash of the end, floor."""
        return self._on_log(self.steps, SCRIPTS["check"], shard, epoch, nonce)

    def acknowledge(self, shard: int, epoch: int, nonce: bytes, id_: str, hash_: bytes) -> Answer:
        """Stores the acknowledged position."""
        return self._on_log(self.steps, SCRIPTS["acknowledge"], shard, epoch, nonce, id_, hash_)

    def keep(
        self, shard: int, epoch: int, nonce: bytes, upto: str, field: str, data: bytes, marker: str = ""
    ) -> Answer:
        """Stores a field of a snapshot, never changing a stored one; `marker` is given for a copy."""
        names = self._all_keys(shard)
        more = (names.snapshot(upto), names.snapshots)
        rest = (upto, field, data, marker)
        return self._on_log(self.bulk, SCRIPTS["snapshot"], shard, epoch, nonce, *rest, more=more)

    def mark(
        self, shard: int, epoch: int, nonce: bytes, upto: str, marker: str, marker_hash: bytes, previous: str
    ) -> Answer:
        """Stores which snapshot counts; removes all but it and the previous one."""
        names = self._all_keys(shard)
        more = (names.snapshot(upto), names.snapshots)
        rest = (upto, marker, marker_hash, previous, names.snapshot(""))
        return self._on_log(self.bulk, SCRIPTS["mark"], shard, epoch, nonce, *rest, more=more)

    def trim(
        self, shard: int, epoch: int, nonce: bytes, before: str, marker: str, marker_hash: bytes, covered: str
    ) -> Answer:
        """Removes entries before a position that a whole snapshot covers; needs a later marker."""
        more = (self._all_keys(shard).snapshot(covered),)
        rest = (before, marker, marker_hash, covered)
        return self._on_log(self.bulk, SCRIPTS["trim"], shard, epoch, nonce, *rest, more=more)

    def hashes(self, shard: int, upto: str, count: int) -> Answer:
        """Values: id and hash of entries at or before a position, the latest first."""
        return self._on_log(self.bulk, SCRIPTS["hashes"], shard, 0, b"", upto, count)

    def stage(
        self,
        shard: int,
        epoch: int,
        nonce: bytes,
        after: Sequence[bytes | str],
        entries: Sequence[NodeEntry],
        *,
        gone: bool = False,
    ) -> Answer:
        """Adds entries to the copy of a log; with `gone` only while the log itself is gone."""
        rest = (*after, "gone" if gone else "", *arguments(entries))
        return self._on_log(self.bulk, SCRIPTS["stage"], shard, epoch, nonce, *rest)

    def install(self, shard: int, epoch: int, nonce: bytes, *rest: bytes | str | int) -> Answer:
        """Puts the copy in the place of the log, together with the promise."""
        rest = (*rest, self.bulk.run)
        return self._on_log(self.bulk, SCRIPTS["install"], shard, epoch, nonce, *rest, vote=False)

    def discard(self, shard: int, id_: str, hash_: bytes) -> Answer:
        """Removes the copy if it has this end; another one is another instance's."""
        return self._on_log(self.bulk, SCRIPTS["discard"], shard, 0, b"", id_, hash_)

    def copy_end(self, shard: int) -> Answer:
        """The last entry of the copy, as XREVRANGE answers it."""
        return self.bulk.send(plain, "XREVRANGE", self._all_keys(shard).copy, "+", "-", "COUNT", 1)

    def copied(self, shard: int, id_: str) -> Answer:
        """The entry of the copy at an id, as XRANGE answers it."""
        return self.bulk.send(plain, "XRANGE", self._all_keys(shard).copy, id_, id_)

    def exported(self, shard: int, id_: str, hash_: bytes) -> Answer:
        """Stores how far a log was exported; the node must have that entry."""
        return self._on_log(self.bulk, SCRIPTS["exported"], shard, 0, b"", id_, hash_)

    def page(self, shard: int, first: str, last: str, count: int) -> Answer:
        """Entries between two ids, as XRANGE answers them."""
        return self.bulk.send(plain, "XRANGE", self._keys(shard)[0], first, last, "COUNT", count)

    def entries(self, shard: int, first: str, count: int, max_bytes: int, last: str = "+") -> Answer:
        """Entries between two ids, as XRANGE answers them, until they have `max_bytes` or more.

        That takes the node three times as long as `page`.
        """
        script = SCRIPTS["entries"]
        return self._on_log(self.bulk, script, shard, 0, b"", first, count, max_bytes, last, vote=False)

    def snapshots(self, shard: int) -> Answer:
        """The list of snapshots: what each covers and its marker, as HGETALL answers it."""
        return self.bulk.send(plain, "HGETALL", self._all_keys(shard).snapshots)

    def snapshot_field(self, shard: int, upto: str, field: str) -> Answer:
        """A field of a snapshot, or nothing."""
        return self.bulk.send(plain, "HGET", self._all_keys(shard).snapshot(upto), field)

    def how_far_exported(self, shard: int) -> Answer:
        """The id up to which a log was exported, or nothing."""
        return self.bulk.send(plain, "GET", self._all_keys(shard).exported)

    def table(self, script: str, names: Sequence[str], *rest: bytes | str | int) -> Answer:
        """Runs a script on the tables."""
        decode = self._wrote if script in _WRITING else self._read
        return self.tables.send(decode, "EVALSHA", SCRIPTS[script].sha, len(names), *names, *rest)

    def tell(self, key: str, rest: Sequence[str | int], events: Iterable[tuple[int, bytes]]) -> Answer:
        """Keeps events of the audit trail, each with when it came, Unix time in ms.

        `rest`: `refill` or nothing, most events, oldest time to keep.
        """
        script = SCRIPTS["tell"].sha
        timed: list[int | bytes] = [part for event in events for part in event]
        return self.bulk.send(self._read, "EVALSHA", script, 2, key, keys.NODE, self.identity, *rest, *timed)

    def told(self, key: str, after: str, most: int) -> Answer:
        """Reads events of the audit trail. Values: the entries of the stream after an id."""
        script = SCRIPTS["told"].sha
        return self.bulk.send(self._read, "EVALSHA", script, 2, key, keys.NODE, self.identity, after, most)

    def ask(self, *command: bytes | str | int) -> Answer:
        """Sends a plain command on the tables' connection. Values: one, the answer."""
        return self.tables.send(plain, *command)


async def syncs(ask: Callable[..., Answer]) -> bool | None:
    """Whether a server syncs each write to a file that has all before it; None: it did not answer.

    A server whose settings may not be read counts as one that does not.
    """
    for name, wanted in SYNCED.items():
        reply = await ask("CONFIG", "GET", name)
        if reply.silent and reply.status is not Status.BROKEN:
            return None
        if reply.status is not Status.OK or reply.values[0] != [name.encode(), wanted]:
            return False
    reply = await ask("INFO", "persistence")
    if reply.silent and reply.status is not Status.BROKEN:
        return None
    return reply.status is Status.OK and all_written(reply.values[0])
