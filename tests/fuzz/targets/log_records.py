"""Any records in a shard's log: loaded or refused, and many at once make the state that each alone makes.

A load raises nothing but what it declares. What is decoded, encoded and decoded again says the same. The
state of a log that was loaded survives a snapshot, where the log does not contradict itself.
"""

from typing import Any

from google.protobuf.message import DecodeError
from kit.lives.drawn_messages import DrawnMessages
from kit.logs.core_audit import broken_in
from kit.logs.snapshots import pictures, through_snapshot
from muster_coordinator.log.log_image import LoadFailed, LogImage
from muster_core.audit.invariants import Violation
from muster_core.config import GroupConfig
from muster_core.log.application import UnknownCriticalRecord
from muster_core.log.chain import BEFORE_GENESIS, chain_hash
from muster_core.log.record_run import RecordRun
from muster_core.log.replay import LogDamaged
from muster_core.log.snapshot import SnapshotUnusable
from muster_core.position import GENESIS, Position
from muster_core.shard import Shard
from muster_core.state.group_state import IllegalTransition
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.log.v1 import records_pb2

from fuzz.draw import Draw
from fuzz.target import Broken

LONGEST_BYTES = 4_096
CONFIG = GroupConfig(history_length=4, history_moves=2)

GROUPS = ("g", "g", "g", "h", "")
KINDS = (
    *("generation_started", "assignment_committed", "offset_committed", "member_left", "member_replaced"),
    *("generation_started", "assignment_committed", "offset_committed", "group_tombstone"),
    *("offset_tombstone", "topics_seen", "partitions_removed", "handoff", "snapshot"),
    *("member_subscribed", "epoch_raised", "target_assigned", "member_stepped", "member_subscribed"),
    *("group_settings_altered", "group_reverted"),
    *("member_went_away", "instance_moved", "member_removed", "member_stepped", "expression_resolved"),
    "moves_held",
)
MEMBERS = ("m1", "m2", "m3", "m4")
EXPRESSIONS = ("t.*", "u|v")
INSTANCES = {"m1": "", "m2": "i", "m3": "j", "m4": "i"}
_RUN_KINDS_ONCE = ("claim", "genesis")


def play(data: bytes) -> None:
    source = Draw(data)
    if source.random() < 0.25:
        _raw(source)
        return
    messages = DrawnMessages(source)
    datas = [_GENESIS]
    while not source.over and len(datas) < 60:
        datas.append(_record(source, messages))
    _load(datas)


def _raw(source: Draw) -> None:
    """Bytes that are hardly records: the quick way to decode many says what each alone says."""
    datas: list[bytes] = []
    while not source.over and len(datas) < 20:
        if source.random() < 0.5:
            datas.append(source.take(source.randrange(80)))
        else:
            datas.append(DrawnMessages(source).changed(_commit(source)))
    if not datas:
        return
    try:
        alone = [records_pb2.Record.FromString(data) for data in datas]
    except DecodeError:
        alone = None
    try:
        run = RecordRun(Position(1, 5), datas)
        listed = list(run.in_order_by_partition())
        times_ms = run.times_ms()
    except DecodeError:
        if alone is not None:
            raise Broken("many at once cannot be decoded that each alone can") from None
        return
    if alone is None:
        raise Broken("many at once can be decoded of which one alone cannot")
    for record in alone:
        again = records_pb2.Record.FromString(record.SerializeToString(deterministic=True))
        if again != record:
            raise Broken("a record says something else once it is encoded again")
    expected = [(record.WhichOneof("kind") or "") for record in alone]
    if run.kinds != expected or times_ms != [record.written_at_ms for record in alone]:
        raise Broken(f"many at once are {run.kinds}, each alone is {expected}")
    rows = [row for _, part in listed if isinstance(part, list) for row in part]
    commits = [record.offset_committed for record in alone if record.HasField("offset_committed")]
    told = [
        (commit.group_id, commit.member_id, commit.member_seq, (one.topic, one.partition), one.offset)
        for commit in commits
        for one in commit.offsets
    ]
    if [(*row[:4], row[4][0]) for row in rows] != told:
        raise Broken("commits that are decoded together say something else")


def _load(datas: list[bytes]) -> None:
    image, failed = LogImage(0, CONFIG), False
    try:
        image.take(_run(datas))
    except (LogDamaged, LoadFailed):
        failed = True
    shard, damaged = Shard(0, CONFIG), False
    try:
        for index, data in enumerate(datas):
            record = records_pb2.Record.FromString(data)
            damaged = damaged or (index > 0 and record.WhichOneof("kind") in _RUN_KINDS_ONCE)
            shard.replay(GENESIS.after(index), record)
    except (DecodeError, UnknownCriticalRecord, IllegalTransition, KeyError, ValueError):
        if not failed:
            raise
        return
    if failed and damaged:
        return
    if failed:
        raise Broken("a log cannot be loaded at once whose records can be replayed")
    if pictures(image.core) != pictures(shard) and not any(map(_commits_nothing, datas)):
        raise Broken("many records at once make another state than each alone")
    try:
        again = through_snapshot(shard, GENESIS.after(len(datas) - 1), CONFIG)
    except SnapshotUnusable:
        if not _contradictions(datas):
            raise
        return
    if pictures(again) != pictures(shard) and not _contradictions(datas):
        raise Broken("a snapshot makes another state")


def _commits_nothing(data: bytes) -> bool:
    """Whether a record is a commit of nothing, which no coordinator writes (G16).

    Of commits that are decoded together, one each is taken for granted where there are as many offsets.
    """
    record = records_pb2.Record.FromString(data)
    return record.HasField("offset_committed") and not record.offset_committed.offsets


def _contradictions(datas: list[bytes]) -> list[Violation]:
    """What `muster verify` says of the log."""
    log = [(GENESIS.after(index), records_pb2.Record.FromString(data)) for index, data in enumerate(datas)]
    return broken_in(log[1:], CONFIG)


def _record(source: Draw, messages: DrawnMessages) -> bytes:
    if source.random() < 0.1:
        return source.take(source.randrange(60))
    record = records_pb2.Record(written_at_ms=source.randrange(1_000), critical=source.random() < 0.2)
    kind = source.choice(KINDS)
    part = getattr(record, kind)
    part.SetInParent()
    part.MergeFrom(messages.message(type(part)))
    if hasattr(part, "group_id"):
        part.group_id = source.choice(GROUPS)
    if kind == "generation_started":
        part.generation = source.randrange(1, 6)
    for entry in getattr(part, "members", ()):
        entry.member_id = source.choice(MEMBERS)
        if kind == "generation_started":
            entry.group_instance_id = INSTANCES[entry.member_id]
    for name in ("member_id", "old_member_id", "leader"):
        if hasattr(part, name):
            setattr(part, name, source.choice(MEMBERS))
    _make_incremental(source, kind, part)
    if kind == "member_replaced":
        part.member.member_id = source.choice(("m2", "m4"))
        part.member.group_instance_id = "i"
    return record.SerializeToString(deterministic=True)


def _make_incremental(source: Draw, kind: str, part: Any) -> None:
    """Makes a record of an incremental group name members, epochs and expressions that there may be."""
    if kind in ("member_subscribed", "instance_moved"):
        part.member.member_id = source.choice(MEMBERS)
        part.member.group_instance_id = INSTANCES[part.member.member_id]
        part.member.topic_regex = source.choice((*EXPRESSIONS, ""))
    if kind == "moves_held":
        part.began_ms, part.until_ms = 0, source.choice((0, 50, 5_000))
    if kind == "expression_resolved":
        part.expression = source.choice(EXPRESSIONS)
    if kind in ("epoch_raised", "target_assigned", "member_stepped"):
        part.epoch = source.randrange(1, 6)
    for change in getattr(part, "changes", ()):
        change.member_id = source.choice(MEMBERS)


def _commit(source: Draw) -> bytes:
    commit = records_pb2.OffsetCommitted(
        group_id="g", member_id=source.choice(MEMBERS), generation=source.randrange(3), member_seq=1
    )
    for _ in range(source.choice((1, 1, 1, 0, 2))):
        commit.offsets.add(topic=source.choice(("t", "")), partition=source.randrange(3), offset=5)
    return records_pb2.Record(
        written_at_ms=source.randrange(300), offset_committed=commit
    ).SerializeToString()


def _run(datas: list[bytes]) -> bytes:
    run = metadata_pb2.EntryRun(epoch=GENESIS.epoch, first_offset=GENESIS.offset, records=datas)
    nonce, end, hashes = bytes(16), BEFORE_GENESIS, []
    for index, data in enumerate(datas):
        end = chain_hash(end, GENESIS.after(index), nonce, data)
        hashes.append(end)
    run.nonces, run.hashes = nonce * len(datas), b"".join(hashes)
    return run.SerializeToString()


_GENESIS = records_pb2.Record(genesis=records_pb2.Genesis(cluster_id="c", shard_count=1)).SerializeToString()
