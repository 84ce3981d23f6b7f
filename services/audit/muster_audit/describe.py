"""What a group looked like at a time, from the log or from an export of it."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from muster_core.audit.log_checker import LogChecker
from muster_core.audit.nonce_spans import NonceSpans, NoncesUnclear
from muster_core.audit.nonces import NonceBook, NonceSet
from muster_core.config import GroupConfig
from muster_core.log.record_run import RecordRun
from muster_core.position import NOWHERE, Position
from muster_core.shard import Shard
from muster_core.sharding import shard_of
from muster_core.state.group import Group
from muster_protos.muster.log.v1 import records_pb2
from muster_server.verify.reader import PAGE_ENTRIES, LogUnreadableError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster_audit.reading.sources import LogSource


@dataclass(frozen=True, slots=True)
class Then:
    """A group at a time.

    Attributes:
        shard: the shard it is in.
        position: the last record of the shard that was written by then.
        written_at_ms: when it was.
        group: its state; None: there was no such group.
    """

    shard: int
    position: Position
    written_at_ms: int
    group: Group | None


class _Enough(Exception):
    """The next record was written after the time that was asked for."""


def describe_at(source: LogSource, group_id: str, at_ms: int) -> Then:
    """Replays the group's shard up to a time.

    Args:
        source: the log or an export of it.
        group_id: the group.
        at_ms: wall clock, ms since the Unix epoch; records count up to the first later one.

    Raises:
        LogUnreadableError: the log is broken before that time, or its beginning is missing.
    """
    with suppress(NoncesUnclear):
        return _replayed(source, group_id, at_ms, NonceSpans())
    return _replayed(source, group_id, at_ms, NonceSet())  # as `muster verify`, which needs no Arrow either


def _replayed(source: LogSource, group_id: str, at_ms: int, nonces: NonceBook) -> Then:
    shard = shard_of(group_id, source.shard_count)
    state = Shard(shard, GroupConfig())
    position, written_at_ms = NOWHERE, 0

    def follow(run: RecordRun) -> None:
        nonlocal position, written_at_ms
        for index, (kind, data) in enumerate(zip(run.kinds, run.datas, strict=True)):
            record = records_pb2.Record.FromString(data)
            if record.written_at_ms > at_ms and kind != "genesis":
                raise _Enough
            position, written_at_ms = run.position(index), record.written_at_ms
            state.replay_as(kind, position, record)

    checker = LogChecker(shard, cluster=source.genesis, nonces=nonces, groups=False, follow=follow)
    try:
        node = source.best_node(shard)
        for page in source.pages(shard, node, source.acknowledged(shard), PAGE_ENTRIES):
            checker.add_page(page)
            if checker.begins_trimmed:
                raise LogUnreadableError(
                    f"{source.name(shard)} begins at {page.first.stream_id}, its beginning was trimmed: "
                    "ask the folder of an export"
                )
    except _Enough:
        pass
    checker.check_nonces()
    for violation in checker.findings.violations:
        if violation.position <= position:
            raise LogUnreadableError(
                f"{source.name(shard)} is broken at {violation.position.stream_id}: {violation.detail}"
            )
    return Then(shard, position, written_at_ms, state.groups.get(group_id))


def parse_time(text: str) -> int:
    """A time as ms since the Unix epoch.

    Args:
        text: such as `2026-11-21T10:00:00`, in UTC unless it names a zone; or the number itself.

    Raises:
        ValueError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--at {text!r}: give a time such as 2026-11-21T10:00:00Z, or ms since the Unix epoch"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def as_dict(then: Then, group_id: str) -> dict[str, object]:
    """A group at a time, for programs."""
    group = then.group
    described: dict[str, object] = {
        "group_id": group_id,
        "shard": then.shard,
        "as_of": {"position": then.position.stream_id, "written_at_ms": then.written_at_ms},
        "found": group is not None,
    }
    if group is None:
        return described
    return described | {
        "state": group.state.name,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader,
        "cause": group.cause.sentence if group.cause is not None else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": sorted(
                    f"{topic}/{number}"
                    for (topic, number), (owner, _) in group.owners.items()
                    if owner == member.member_id
                ),
            }
            for member in group.members.values()
        ],
        "offsets": {f"{topic}/{number}": found.offset for (topic, number), found in sorted(group.offsets)},
    }


def show_then(then: Then, group_id: str, console: Console) -> None:
    """A group at a time, for people."""
    moment = datetime.fromtimestamp(then.written_at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    as_of = f"as of {then.position.stream_id} of shard {then.shard}, written {moment}"
    group = then.group
    if group is None:
        console.print(f"There was no group {group_id!r}, {as_of}.", markup=False, highlight=False)
        return
    console.print(
        f"Group {group_id!r}: {group.state.name.lower().replace('_', ' ')}, generation {group.generation}, "
        f"{len(group.members)} members, {len(group.offsets)} offsets, {as_of}.",
        markup=False,
        highlight=False,
    )
    if group.cause is not None:
        console.print(group.cause.sentence, markup=False, highlight=False)
    table = Table()
    for column in ("member", "instance", "host", "partitions"):
        table.add_column(column)
    for member in group.members.values():
        owned = [
            f"{t}/{n}" for (t, n), (owner, _) in sorted(group.owners.items()) if owner == member.member_id
        ]
        leader = " (leader)" if member.member_id == group.leader else ""
        table.add_row(
            Text(member.member_id + leader),
            Text(member.group_instance_id),
            Text(member.host),
            ", ".join(owned),
        )
    if group.members:
        console.print(table)
    for (topic, number), found in sorted(group.offsets):
        console.print(f"{topic}/{number}: {found.offset}", markup=False, highlight=False)
