"""What a trimmed log had before its first entry: its rows that were not final, from a snapshot."""

from collections.abc import Iterator, Sequence

from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.log.snapshot import SnapshotReader, SnapshotUnusable
from muster_core.log.topics.topic_names import names_of
from muster_core.log.topics.topic_zones import zones_of
from muster_core.log.topics.topics import Topics
from muster_core.position import NOWHERE, Position
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.group_settings import is_any_set
from muster_core.state.history import GenerationEntry
from muster_core.state.published import TopicPartition
from muster_protos.muster.log.v1 import snapshot_pb2
from muster_server.verify.reader import LogUnreadableError

from muster_audit.lake.row import Interval, Place
from muster_audit.lake.tables.assignments import Assignment, claimed_partitions
from muster_audit.lake.tables.generations import Generation
from muster_audit.lake.tables.members import incremental_row, member_row
from muster_audit.lake.tables.settings import setting_row
from muster_audit.lake.tables.topics import Topic, names_as_json, weights_as_json, zones_as_json
from muster_audit.reading.sources import LogSource
from muster_audit.reading.timeline import cause_in_words


def rows_before(source: LogSource, shard: int, first: Position) -> tuple[Position, list[Interval]]:
    """The last place that a snapshot covers, and the rows that were not final there.

    Args:
        source: the logs.
        shard: number of the log.
        first: its first entry.

    Raises:
        LogUnreadableError: no snapshot covers the first entry.
    """
    for upto, read in sorted(source.snapshots(shard).items()):
        stored = read() if upto.offset + 1 >= first.offset else None
        if stored is not None:
            at_ms = source.times_ms(shard)[0]
            try:
                return upto, list(_rows(shard, shard == source.shard_count, stored.parts, upto, at_ms))
            except SnapshotUnusable as error:
                raise LogUnreadableError(f"{source.name(shard)}: {error}") from error
    raise LogUnreadableError(
        f"{source.name(shard)} begins at {first.stream_id}, and no snapshot stands for what was before"
    )


def _rows(
    shard: int, catalog: bool, parts: Sequence[bytes], upto: Position, at_ms: int
) -> Iterator[Interval]:
    state, states = Shard(shard, GroupConfig()), list[snapshot_pb2.CatalogState]()
    reader = SnapshotReader(shard, {}, 0, catalog=states.append) if catalog else state.restore()
    for part in parts:
        reader.take(part)
    covered = reader.covered
    if covered is None or not reader.complete:
        raise SnapshotUnusable(f"the snapshot up to {upto.stream_id} is not whole")
    at = Place(shard, upto, covered.milestones[-1].written_at_ms if covered.milestones else at_ms)
    if catalog:
        yield from _topics(at, Topics.of_states(states, upto, covered.hash, strict=False))
    for group in state.groups.values():
        yield from _of_group(at, group)


def _of_group(at: Place, group: Group) -> Iterator[Interval]:
    if is_any_set(group.settings):
        setting = setting_row(at, group.group_id, group.settings)
        setting.begun_before = True
        yield setting
    if group.incremental is not None:
        yield from _of_incremental(at, group.group_id, group.incremental)
    history = list(group.history)
    if history and history[-1].generation == group.generation:
        yield _generation(at, group, history)
    for member in group.members.values():
        begun, first_generation = at, group.generation
        for entry in reversed(history):
            if all(one.member_id != member.member_id for one in entry.members):
                break
            begun, first_generation = Place(at.shard, entry.position, entry.started_at_ms), entry.generation
        row = member_row(begun, group.group_id, member.to_record())
        row.first_generation, row.last_generation = first_generation, group.generation
        row.begun_before = True
        yield row
    for (topic, partition), (member_id, since) in group.owners.items():
        if topic in group.renewed_topics:
            continue  # it was deleted
        of = next((entry for entry in reversed(history) if entry.position < since), None)
        to_ms, ended_by = _ending(at, group, history, (topic, partition), member_id)
        yield Assignment(
            shard=at.shard,
            epoch=since.epoch,
            offset=since.offset,
            from_ms=(of.assigned_at_ms if of else 0) or at.at_ms,
            to_ms=to_ms,
            ended_by=ended_by,
            begun_before=True,
            group_id=group.group_id,
            topic=topic,
            partition=partition,
            member_id=member_id,
            token=since.token,
            generation=of.generation if of else group.assigned_generation,
        )


def _of_incremental(at: Place, group_id: str, group: IncrementalGroup) -> Iterator[Interval]:
    for member in group.members.values():
        row = incremental_row(at, group_id, member.told.to_record())
        row.epoch, row.offset = member.joined
        row.first_generation = row.last_generation = group.epoch
        row.target, row.begun_before = len(member.target), True
        yield row
        for (topic, partition), held in member.held.items():
            yield Assignment(
                shard=at.shard,
                epoch=held.token.epoch,
                offset=held.token.offset,
                from_ms=at.at_ms,
                begun_before=True,
                group_id=group_id,
                topic=topic,
                partition=partition,
                member_id=member.member_id,
                token=held.token.token,
                generation=max(member.epoch, 0),
                taken_ms=None if held.taken == NOWHERE else at.at_ms,
            )


def _ending(
    at: Place, group: Group, history: list[GenerationEntry], partition: TopicPartition, member_id: str
) -> tuple[int | None, str | None]:
    """When and why an ownership ended that no assignment has given to anybody else yet; None: it lasts."""
    member = group.members.get(member_id)
    if member is None:
        for cause in (group.unfinished, group.cause):
            if cause is not None and cause.member_id == member_id:
                return cause.at_ms or at.at_ms, cause_in_words(cause.kind)
        return at.at_ms, "not rejoined"
    between = group.generation > group.assigned_generation
    if between and partition not in claimed_partitions(member.to_record(), group.protocol_name):
        return (history[-1].started_at_ms if history else at.at_ms), "given up"
    return None, None


def _generation(at: Place, group: Group, history: list[GenerationEntry]) -> Generation:
    entry = history[-1]
    now = {one.member_id for one in entry.members}
    before = {one.member_id for one in history[-2].members} if len(history) > 1 else set()
    return Generation(
        shard=at.shard,
        epoch=entry.position.epoch,
        offset=entry.position.offset,
        from_ms=entry.started_at_ms,
        begun_before=True,
        group_id=group.group_id,
        generation=entry.generation,
        protocol_type=group.protocol_type,
        protocol_name=entry.protocol_name,
        leader=entry.leader,
        server_assignor="",
        members=len(now),
        joined=len(now - before),
        missing=len(before - now),
        cause=cause_in_words(entry.cause.kind),
        cause_member_id=entry.cause.member_id,
        cause_host=entry.cause.host,
        cause_reason=entry.cause.reason,
        cause_sentence=entry.cause.sentence,
        cause_at_ms=entry.cause.at_ms,
        silence_ms=entry.cause.silence_ms,
        assigned_at_ms=entry.assigned_at_ms or None,
    )


def _topics(at: Place, topics: Topics) -> Iterator[Topic]:
    for name, stored in topics.by_name.items():
        yield Topic(
            shard=at.shard,
            epoch=at.position.epoch,
            offset=at.position.offset,
            from_ms=at.at_ms,
            begun_before=True,
            topic=name,
            partitions=stored.partitions,
            incarnation=stored.incarnation,
            zones=zones_as_json(zones_of(stored.zones)),
            names=names_as_json(names_of(stored.names)),
            weights=weights_as_json(names_of(stored.names)),
        )
