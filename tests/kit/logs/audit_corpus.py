"""The corpus that the audit is judged by: logs with one damage each, a shard for each, on real nodes.

What a server refuses to hold (ids that do not grow) stands in an export. Clean logs must not be accused; each
damage must be found by the promise that names it; `muster verify` must find the same in what both can read.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from kit.logs.damaged_catalogs import CATALOG_DAMAGES, healthy_catalog
from kit.logs.damaged_fronts import FORGED_FRONTS
from kit.logs.damaged_logs import DAMAGES, fits_a_stream, rechain
from kit.logs.forged_members import members_that_may_be
from kit.logs.forged_records import seen_of_the_catalog
from kit.logs.incremental_log import with_incremental_group
from kit.logs.log_builder import LogBuilder, healthy, page_of
from kit.logs.log_nodes import CLUSTER, empty, nodes_with, store
from kit.logs.marked_logs import MARKED, UPTO, Change, Hurt, as_it_is, marked, parts_of, stored, trimmed
from muster_audit.check import CheckOptions, Result, check
from muster_audit.promises import ALL
from muster_audit.reading.exported import Beginning, ShardExport, mark
from muster_core.audit.anchor import Anchor, End
from muster_core.audit.stored_snapshots import StoredSnapshot
from muster_core.log.snapshot import digest_of, part_hash
from muster_core.position import NOWHERE, Position
from muster_core.shard import Shard
from muster_metadata.cluster.owners import OwnerRow
from muster_metadata.nodes.keys import OWNERS, LogKeys, log_keys
from muster_protos.muster.log.v1 import records_pb2
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.verify.anchors import Anchoring, as_text
from muster_server.verify.verifier import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEAN = "–"
NO_BEGINNING = Beginning(NOWHERE, StoredSnapshot([], b""))
"""For exports of logs whose beginning is damaged, as they are."""


class Read(NamedTuple):
    """What a client read of partition 0 of topic `t`; it had asked after so many acknowledgements.

    `group_id` is how the group's name begins.
    """

    offset: int
    acknowledged: int
    group_id: str = "g"


@dataclass(slots=True)
class Case:
    """One log of the corpus.

    Attributes:
        name: what is wrong with it.
        invariant: the promise that must be found broken; `–`: none.
        make: damages a healthy log.
        hurt: damages what the nodes hold of it, afterwards.
        catalog: it is some records at the end of the catalog's log.
        acks: acknowledgements that were noted of it, a millisecond after each other.
        reads: what was read of it, at which of these milliseconds.
        anchor: where an earlier audit saw it end, before the nodes' data were damaged; None: none did.
    """

    name: str
    invariant: str
    make: Callable[[LogBuilder], None] = lambda _: None
    hurt: Callable[[RedisNodes, int, int, LogBuilder], None] = lambda *_: None
    catalog: bool = False
    acks: tuple[Position, ...] = ()
    reads: tuple[Read, ...] = ()
    anchor: Callable[[LogBuilder], End] | None = None


@dataclass(slots=True)
class Verdicts:
    """What was found: names of cases → promises that were found broken."""

    cases: dict[str, Case]
    audit: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    verify: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unreadable_for_verify: set[str] = field(default_factory=set)

    @property
    def missed(self) -> list[str]:
        """Damages that were not caught by the promise that names them."""
        return [
            f"{case.invariant} does not catch: {name}"
            for name, case in self.cases.items()
            if case.invariant != CLEAN and case.invariant not in self.audit[name]
        ]

    @property
    def accused(self) -> list[str]:
        """Clean logs that were found broken."""
        return [
            f"{name} is accused: {', '.join(sorted(self.audit[name]))}"
            for name, case in self.cases.items()
            if case.invariant == CLEAN and self.audit[name]
        ]

    @property
    def disagreements(self) -> list[str]:
        """Logs in which the audit and `muster verify` found different promises broken."""
        return [
            f"{name}: the audit finds {sorted(self.audit[name])}, verify {sorted(self.verify[name])}"
            for name in self.cases
            if name not in self.unreadable_for_verify and self.audit[name] != self.verify[name]
        ]

    @property
    def uncovered(self) -> list[str]:
        """Promises that no log of the corpus breaks."""
        return sorted(set(ALL) - {case.invariant for case in self.cases.values()})


def _another_offset(state: Shard) -> None:
    offsets = next(iter(state.groups.values())).offsets
    partition, found = next(iter(offsets))
    offsets.put(partition, found._replace(offset=found.offset + 1))


def _a_member_less(state: Shard) -> None:
    next(iter(state.groups.values())).members.clear()


def _another_token(state: Shard) -> None:
    for group in state.groups.values():
        if group.incremental is not None:
            member = group.incremental.members["a"]
            held = {name: since._replace(token=Position(1, 3)) for name, since in member.held.items()}
            group.incremental.put(replace(member, held=held))


def _snapshot_of_both_kinds(change: Change = as_it_is) -> Callable[[LogBuilder], None]:
    """Adds an incremental group, and the marker of a snapshot after it."""

    def make(built: LogBuilder) -> None:
        marked(change, len(with_incremental_group(built).entries) - 1, groups=2)(built)

    return make


def _rewritten_before_the_snapshot(built: LogBuilder) -> None:
    marked()(built)
    record = records_pb2.Record.FromString(built.entries[5].record)
    record.offset_committed.offsets[0].offset = 99
    built.change(5, record=record.SerializeToString())
    rechain(built, 5)


def _one_bit_of_the_hashes(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    stored()(nodes, shard, shards, built)
    key = log_keys(shard, shards).snapshot(built.entries[UPTO].position.stream_id)
    for node in nodes:
        with redis.Redis(port=node.port) as connection:
            hashes = bytearray(connection.hget(key, "hashes") or b"")
            hashes[0] ^= 1
            connection.hset(key, "hashes", bytes(hashes))


def _without_beginning(*indexes: int) -> Hurt:
    """Takes the first entries from some nodes."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
        for index in indexes:
            store(nodes[index], shard, shards, built.entries[5:], built.end)

    return hurt


def _acknowledged_earlier(*gone: int) -> Hurt:
    """Lowers the acknowledged position by five entries on all nodes, and takes some entries after it."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
        left = [entry for index, entry in enumerate(built.entries) if index - len(built.entries) not in gone]
        for node in nodes:
            store(node, shard, shards, left, built.entries[-6].position)

    return hurt


def _nothing(*_: object) -> None:
    """Leaves no word of what was taken."""


def _end_at(index: int, **other: bytes) -> Callable[[LogBuilder], End]:
    """An anchor at an entry, as it is or with another hash."""

    def end(built: LogBuilder) -> End:
        entry = built.entries[index]
        return End(entry.position, other.get("hash", entry.hash))

    return end


def _rotten_after_the_acknowledged(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    built.change(-2, record=built.entries[-2].record + b"\x08\x01")
    _acknowledged_earlier()(nodes, shard, shards, built)


def _another_end_of_the_claim(*indexes: int, nonce: bytes | None = None) -> Hurt:
    """Writes the last entry anew on some nodes, where it is not known to be acknowledged."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
        other = LogBuilder(entries=list(built.entries))
        last = built.entries[-1]
        other.change(-1, record=last.record + b"\x08\x01", nonce=nonce or last.nonce)
        rechain(other, len(other.entries) - 1)
        for index, node in enumerate(nodes):
            entries = other.entries if index in indexes else built.entries
            store(node, shard, shards, entries, built.entries[-2].position)

    return hurt


def _a_hole_at_the_acknowledged(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    for node in nodes:
        store(node, shard, shards, built.entries, built.entries[-3].position)
    with redis.Redis(port=nodes[2].port) as connection:
        connection.xdel(log_keys(shard, shards).log, built.entries[-3].position.stream_id)


def _two_claims_of_one_epoch(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    """Leaves the ends of two claimants that died, of one epoch, which restarts made forget their promises."""
    end = built.end
    for index, node in enumerate(nodes):
        other = LogBuilder(entries=list(built.entries), shard=shard, shard_count=shards)
        if index < 2:
            other.claim(f"coordinator-{index}", epoch=built.epoch + 1)
            other.change(-1, nonce=bytes([index]) * 16)
            rechain(other, len(other.entries) - 1)
            other.commit(-1, "", index)
        store(node, shard, shards, other.entries, end)


def _rolled_back(witness: Callable[[LogKeys, LogBuilder, Any], None], left: int = -3) -> Hurt:
    """Takes the last entries and all word of them from all nodes, but for one key on one node."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
        for node in nodes:
            store(node, shard, shards, built.entries[:left], built.entries[left - 1].position)
        with redis.Redis(port=nodes[1].port) as connection:
            witness(log_keys(shard, shards), built, connection)

    return hurt


def _an_export(keys: LogKeys, built: LogBuilder, connection: Any) -> None:
    connection.set(keys.exported, built.end.stream_id)


def _a_listed_snapshot(keys: LogKeys, built: LogBuilder, connection: Any) -> None:
    connection.hset(keys.snapshots, built.entries[3].position.stream_id, built.end.stream_id)


def _an_owner(keys: LogKeys, built: LogBuilder, connection: Any) -> None:
    row = OwnerRow(built.epoch, "coordinator-2", "session")
    connection.hset(OWNERS, str(built.shard), row.to_json())


def _changed(field: Callable[[LogKeys], str], **values: str | bytes) -> Hurt:
    """Changes fields of a key on one node."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, _: LogBuilder) -> None:
        with redis.Redis(port=nodes[1].port) as connection:
            connection.hset(field(log_keys(shard, shards)), mapping=dict(values))

    return hurt


def _promise(keys: LogKeys) -> str:
    return keys.promise


def _snapshots(keys: LogKeys) -> str:
    return keys.snapshots


def _stored_before(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    """Stores the snapshot that was taken before the log was rewritten."""
    stored()(nodes, shard, shards, _marked_log(shard, shards))


def _marked_log(shard: int, shards: int) -> LogBuilder:
    built = healthy(empty(shard, shards))
    marked()(built)
    return built


def _stored_of_another_hash(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    """Stores a snapshot whose header names another hash, and a marker of it."""
    other = _marked_log(shard, shards)
    other.change(UPTO, hash=bytes(32))
    digest = digest_of(part_hash(part) for part in parts_of(other, as_it_is))
    del built.entries[-1]
    marked(digest=digest)(built)
    for node in nodes:
        store(node, shard, shards, built.entries, built.end)
    stored()(nodes, shard, shards, other)


def _a_rotten_copy(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    stored()(nodes, shard, shards, built)
    with redis.Redis(port=nodes[2].port) as connection:
        connection.hset(log_keys(shard, shards).snapshot(built.entries[UPTO].position.stream_id), "1", b"rot")


def _an_entry_differs_on_one_node(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    copy = LogBuilder(entries=list(built.entries))
    copy.change(6, record=copy.entries[6].record + b"\x08\x01")
    store(nodes[1], shard, shards, copy.entries, built.end)


def _a_hole_in_one_node(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    store(nodes[2], shard, shards, built.entries[:6] + built.entries[7:], built.end)


def _the_end_is_on_a_minority(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    for node in (nodes[0], nodes[1]):
        store(node, shard, shards, built.entries[:-2], built.end)


def _more_of_the_catalog_than_there_is(built: LogBuilder) -> None:
    seen_of_the_catalog(built, 99, epoch=9)


def _with_fields(*names: str) -> Hurt:
    """Gives an entry other fields than an entry has, with what was in them."""

    def hurt(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
        key = log_keys(shard, shards).log
        for node in nodes:
            with redis.Redis(port=node.port) as connection:
                entries: Any = connection.xrange(key)
                connection.delete(key)
                for index, (id_, fields) in enumerate(entries):
                    values = [*fields.values(), b"more"]
                    changed = dict(zip(names, values, strict=False)) if index == UPTO - 1 else fields
                    connection.xadd(key, changed, id=id_)

    return hurt


def _set_to_expire(field: Callable[[LogKeys], str]) -> Hurt:
    def hurt(nodes: RedisNodes, shard: int, shards: int, _: LogBuilder) -> None:
        with redis.Redis(port=nodes[1].port) as connection:
            connection.expire(field(log_keys(shard, shards)), 86_400)

    return hurt


def _log(keys: LogKeys) -> str:
    return keys.log


def _a_node_lags_behind(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    store(nodes[1], shard, shards, built.entries[:8], built.entries[7].position)


def _more_than_was_acknowledged(nodes: RedisNodes, shard: int, shards: int, built: LogBuilder) -> None:
    end = built.end
    built.generation(7, "z")
    store(nodes[0], shard, shards, built.entries, end)


_ACKS = (Position(1, 6), Position(2, 12))
"""Two commits of the healthy log, of offsets 1 and 2; later on they expire."""

_ACKED_MS = 1_700_000_010_000


def cases() -> list[Case]:
    """All logs, clean ones first."""
    return [
        Case("a healthy log", CLEAN, acks=(Position(1, 5), Position(2, 22))),
        Case("a snapshot", CLEAN, marked(), stored()),
        Case("a trimmed log with its snapshot", CLEAN, marked(), trimmed(UPTO - 1)),
        Case("a node lags behind", CLEAN, hurt=_a_node_lags_behind),
        Case("more than was acknowledged", CLEAN, hurt=_more_than_was_acknowledged),
        Case(
            "reads of what was committed",
            CLEAN,
            acks=_ACKS,
            reads=(Read(-1, 0), Read(1, 0), Read(1, 1), Read(2, 1), Read(2, 2), Read(-1, 2)),
        ),
        *(Case(damage.name, damage.invariant, damage.make) for damage in DAMAGES if damage.invariant != "E3"),
        Case("a record of an older epoch after a claim", "E3", _older_epoch),
        Case("an entry differs on one node", "L6n", hurt=_an_entry_differs_on_one_node),
        Case("a hole in one node", "L6n", hurt=_a_hole_in_one_node),
        Case("the end is on a minority", "L5", hurt=_the_end_is_on_a_minority),
        Case("a snapshot with another offset", "O2", marked(_another_offset), stored(_another_offset)),
        Case("a snapshot without a member", "G12", marked(_a_member_less), stored(_a_member_less)),
        Case("an incremental group", CLEAN, _snapshot_of_both_kinds(), stored(last=MARKED)),
        Case(
            "a snapshot with another token",
            "I7",
            _snapshot_of_both_kinds(_another_token),
            stored(_another_token, MARKED),
        ),
        *(Case(front.name, front.invariant, front.make, front.hurt) for front in FORGED_FRONTS),
        Case("a rotten copy of a snapshot", "L9", marked(), _a_rotten_copy),
        Case("the beginning is on a minority", "L5", hurt=_without_beginning(0, 1)),
        Case("one node lacks the beginning", "L9", hurt=_without_beginning(2)),
        Case("one bit of the hashes of a snapshot", "L9", marked(), _one_bit_of_the_hashes),
        Case("a marker with another hash", "L9", marked(hash=bytes(32))),
        Case("a marker with another number of groups", "L9", marked(groups=2), stored()),
        Case("an offset rewritten before a snapshot", "L9", _rewritten_before_the_snapshot, _stored_before),
        Case("an offset rewritten before a lost snapshot", "L9", _rewritten_before_the_snapshot),
        Case("a snapshot of another hash", "L9", marked(), _stored_of_another_hash),
        Case("a listed snapshot without a marker", "L9", hurt=_changed(_snapshots, **{"1-5": "1-6"})),
        Case("a listed snapshot of no place", "L6n", hurt=_changed(_snapshots, nonsense="1-6")),
        Case("rotten after the acknowledged", "L6", hurt=_rotten_after_the_acknowledged),
        Case("a hole after the acknowledged", "L1", hurt=_acknowledged_earlier(-3)),
        Case("another end of one claim on a majority", "L6n", hurt=_another_end_of_the_claim(0, 1)),
        Case("another end with another nonce", "L6n", hurt=_another_end_of_the_claim(2, nonce=b"n" * 16)),
        Case("the acknowledged entry is missing before later ones", "L6n", hurt=_a_hole_at_the_acknowledged),
        Case("ends of two claims of one epoch", CLEAN, hurt=_two_claims_of_one_epoch),
        Case("acknowledged later than a node knows", CLEAN, hurt=_acknowledged_earlier()),
        Case("rolled back before its export", "L5", hurt=_rolled_back(_an_export)),
        Case("rolled back before a snapshot", "L5", hurt=_rolled_back(_a_listed_snapshot)),
        Case("rolled back before a claim", "L5", hurt=_rolled_back(_an_owner, 9)),
        Case("members that get an identity and a secret", CLEAN, members_that_may_be),
        Case("an anchor at the end", CLEAN, anchor=_end_at(-1)),
        Case("an anchor in the middle", CLEAN, anchor=_end_at(4)),
        Case("an anchor in the trimmed part", CLEAN, marked(), trimmed(UPTO - 1), anchor=_end_at(3)),
        Case("everything rolled back", "L12", hurt=_rolled_back(_nothing), anchor=_end_at(-1)),
        Case("everything written anew", "L12", anchor=_end_at(-1, hash=bytes(32))),
        Case(
            "trimmed after it was written anew",
            "L12",
            marked(),
            trimmed(UPTO - 1),
            anchor=_end_at(UPTO, hash=bytes(32)),
        ),
        Case("trimmed beyond what covers it", "L12", hurt=_without_beginning(0, 1, 2), anchor=_end_at(3)),
        Case("a removal that is in the catalog", CLEAN, _removal_of_a_region(1)),
        Case("a removal that is not in the catalog", "G17", _removal_of_a_region(0)),
        Case("more of the catalog was seen than there is", "L5", _more_of_the_catalog_than_there_is),
        Case("a topic in the log of a shard", "L10", _a_topic),
        Case("the fields of an entry in another order", "L10", hurt=_with_fields("h", "n", "r")),
        Case("the fields of an entry under other names", "L10", hurt=_with_fields("s", "n", "h")),
        Case("a field of an entry more", "L10", hurt=_with_fields("r", "n", "h", "x")),
        Case("a log that is set to expire", "L6n", hurt=_set_to_expire(_log)),
        Case("a promise that is set to expire", "L6n", hurt=_set_to_expire(_promise)),
        Case("a promise below the log", "L11", hurt=_changed(_promise, epoch="1")),
        Case("a promise to another claim", "L11", hurt=_changed(_promise, nonce="another claim")),
        Case("an acknowledged entry that the log does not have", "L5", acks=(Position(1, 20),)),
        Case("an acknowledgement beyond the end", "E2", acks=(Position(2, 99),)),
        Case("a read that misses what was acknowledged", "O1", acks=_ACKS, reads=(Read(1, acknowledged=2),)),
        Case("a read of what nobody committed", "O1", acks=_ACKS, reads=(Read(77, acknowledged=0),)),
        Case(
            "nothing is read though something was acknowledged",
            "O1",
            _progress_of_another_group,
            acks=(Position(2, 23),),
            reads=(Read(-1, acknowledged=1, group_id="x"),),
        ),
        *(Case(name, invariant, make, catalog=True) for name, (invariant, make) in CATALOG_DAMAGES.items()),
    ]


def _progress_of_another_group(built: LogBuilder) -> None:
    message = records_pb2.OffsetCommitted(group_id=built.named("x"), generation=-1)
    message.offsets.add(topic="t", partition=0, offset=5)
    built.add(records_pb2.Record(offset_committed=message))


def _a_topic(built: LogBuilder) -> None:
    built.add(records_pb2.Record(topic_stored=records_pb2.TopicStored(name="orders", partitions=4)))


def _removal_of_a_region(number: int) -> Callable[[LogBuilder], None]:
    """Notes that a partition was removed; of its topic the catalog removed number 1 alone."""

    def make(built: LogBuilder) -> None:
        seen_of_the_catalog(built, 15, epoch=1)
        removed = records_pb2.PartitionsRemoved()
        removed.topics.add(topic="regions", partitions=[number])
        built.add(records_pb2.Record(critical=True, partitions_removed=removed))

    return make


def _older_epoch(built: LogBuilder) -> None:
    message = records_pb2.OffsetCommitted(group_id=built.named("x"), generation=-1)
    message.offsets.add(topic="t", partition=0, offset=1)
    built.add(records_pb2.Record(offset_committed=message), epoch=1)


def judge(spark: "SparkSession", folder: Path) -> tuple[Verdicts, Result]:
    """Runs the audit and `muster verify` over the corpus; gives the verdicts, and the audit of the nodes."""
    return asyncio.run(_judge(spark, folder))


async def _judge(spark: "SparkSession", folder: Path) -> tuple[Verdicts, Result]:
    verdicts = Verdicts({case.name: case for case in cases()})
    on_nodes, in_export = _split(verdicts)
    shards = len(on_nodes)
    logs = {}
    for shard, case in enumerate(on_nodes):
        logs[shard] = healthy(empty(shard, shards))
        case.make(logs[shard])
    catalog, of_catalog = _catalog(verdicts, shards)

    def name(shard: int, position: Position) -> str:
        return on_nodes[shard].name if shard < shards else of_catalog[position]

    async with nodes_with(folder / "nodes", logs, count=3) as nodes:
        for node in nodes:
            store(node, shards, shards, catalog.entries, catalog.end)
        ends = {
            shard: case.anchor(logs[shard]) for shard, case in enumerate(on_nodes) if case.anchor is not None
        }
        for shard, case in enumerate(on_nodes):
            case.hurt(nodes, shard, shards, logs[shard])
        acks = folder / "acks.jsonl"
        acks.write_text(
            "".join(
                json.dumps({"shard": shard, "epoch": place.epoch, "offset": place.offset, "at_ms": at_ms})
                + "\n"
                for shard, case in enumerate(on_nodes)
                for at_ms, place in enumerate(case.acks, _ACKED_MS)
            )
        )
        reads = folder / "reads.jsonl"
        reads.write_text(
            "".join(
                json.dumps(
                    {
                        "shard": shard,
                        "group_id": logs[shard].named(read.group_id),
                        "topic": "t",
                        "partition": 0,
                        "offset": read.offset,
                        "began_at_ms": _ACKED_MS + read.acknowledged,
                    }
                )
                + "\n"
                for shard, case in enumerate(on_nodes)
                for read in case.reads
            )
        )
        anchoring = Anchoring(str(folder / "anchor.json"))
        (folder / "anchor.json").write_bytes(as_text(Anchor(CLUSTER, 0, ends), None))
        options = CheckOptions(
            all_nodes=True, acknowledgements=acks, reads=reads, tasks=4, anchoring=anchoring
        )
        result = await asyncio.to_thread(check, spark, nodes.url, options, folder / "report" / "tables")
        report = verify(nodes.url, anchoring=anchoring)
    for violation in result.violations:
        place = Position(violation.epoch, violation.offset)
        verdicts.audit[name(violation.shard, place)].add(violation.invariant)
    for evidence in report.evidence:
        shard = shards if evidence.log == "catalog" else int(evidence.log.split()[1])
        verdicts.verify[name(shard, evidence.violation.position)].add(evidence.violation.invariant)
    export = folder / "export"
    mark(export, records_pb2.Genesis(cluster_id=CLUSTER, shard_count=len(in_export)))
    for shard, case in enumerate(in_export):
        built = healthy(empty(shard, len(in_export)))
        case.make(built)
        ShardExport(export, shard).write([page_of(built.entries)], lambda: NO_BEGINNING)
    exported = await asyncio.to_thread(check, spark, str(export), CheckOptions(tasks=2), folder / "tables")
    for violation in exported.violations:
        verdicts.audit[in_export[violation.shard].name].add(violation.invariant)
    return verdicts, result


def _catalog(verdicts: Verdicts, shards: int) -> tuple[LogBuilder, dict[Position, str]]:
    """A catalog with all of its damages, one after the other, and the case that each entry is of."""
    built = healthy_catalog(empty(shards, shards))
    names: dict[Position, str] = {}
    for case in verdicts.cases.values():
        if case.catalog:
            before = len(built.entries)
            case.make(built)
            names.update((entry.position, case.name) for entry in built.entries[before:])
    return built, names


def _split(verdicts: Verdicts) -> tuple[list[Case], list[Case]]:
    """Cases that nodes can hold, and those that stand in an export; notes what verify cannot know."""
    on_nodes: list[Case] = []
    in_export: list[Case] = []
    for case in verdicts.cases.values():
        if case.catalog:
            continue
        built = healthy(empty(0, 2))
        case.make(built)
        (on_nodes if fits_a_stream(built) else in_export).append(case)
        if (case.acks or case.reads) and case.invariant != CLEAN:
            verdicts.unreadable_for_verify.add(case.name)
    verdicts.unreadable_for_verify.update(case.name for case in in_export)
    return on_nodes, in_export


def table(verdicts: Verdicts) -> str:
    """Invariant × corpus: what names each damage, and what else was found in it."""
    width = max(map(len, verdicts.cases))
    lines = [f"{'log':{width}}  named by  found"]
    for name, case in verdicts.cases.items():
        found = verdicts.audit[name]
        good = (case.invariant in found) if case.invariant != CLEAN else not found
        others = " ".join(sorted(found - {case.invariant}))
        mark_ = "✓" if good else "✗"
        shown = "" if case.invariant == CLEAN else case.invariant if good else f"not {case.invariant}"
        lines.append(f"{name:{width}}  {case.invariant:8}  {mark_} {shown} {others}".rstrip())
    damaged = [case for case in verdicts.cases.values() if case.invariant != CLEAN]
    lines.append(
        f"{len(damaged)} damaged logs, {len(verdicts.missed)} missed; "
        f"{len(verdicts.cases) - len(damaged)} clean logs, {len(verdicts.accused)} accused; "
        f"{len(ALL) - len(verdicts.uncovered)} of {len(ALL)} promises covered; "
        f"{len(verdicts.disagreements)} disagreements with muster verify"
    )
    return "\n".join(lines)
