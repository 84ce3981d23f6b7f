"""G16: what the records of groups say by themselves, whatever was before them."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from muster_protos.muster.log.v1 import records_pb2

from muster_core import cause_kind
from muster_core.audit.groups.form_parts import (
    KINDS,
    OF_A_REMOVAL,
    PROCESS_BYTES,
    wrong_in_cause,
    wrong_in_member,
    wrong_in_names,
    wrong_in_partitions,
    wrong_in_record,
    wrong_in_settings,
)
from muster_core.audit.groups.incremental.forms import CHECKS as OF_INCREMENTAL_GROUPS
from muster_core.audit.invariants import Findings
from muster_core.log.commits import Commits
from muster_core.log.record_run import COMMIT, RecordRun

_PLAIN_KINDS = KINDS - {cause_kind.UNSPECIFIED}
"""Kinds of causes that a generation may have."""


def check_forms(run: RecordRun, findings: Findings) -> None:
    """Checks that records say only what a coordinator writes; see `wrong_in_generation` for generations."""
    findings.checked["G16"] += len(run)
    if run.commits and _looks_wrong(run.commits):
        for index, data in enumerate(run.datas):
            if run.kinds[index] == COMMIT:
                _report(run, index, _commit(records_pb2.Record.FromString(data)), findings)
    kinds = run.kinds
    for index, record in run.others.items():
        check = _CHECKS.get(kinds[index])
        if check is not None:
            _report(run, index, check(record), findings)


def _report(run: RecordRun, index: int, problems: Iterator[str], findings: Findings) -> None:
    problem = next(problems, "")
    if problem:
        kind = run.kinds[index].replace("_", " ")
        findings.broke("G16", run.position(index), f"no coordinator writes this {kind}: {problem}")


# --- commits: a log consists of little else, so what is right is found by column


def _looks_wrong(commits: Commits) -> bool:
    """Whether one of the commits may say what no coordinator writes."""
    return (
        not _have_ids(commits)
        or min(commits.written_at_ms) < 0
        or min(commits.expire_at_ms) < 0
        or (commits.counts is not None and (min(commits.counts) < 1 or _twice(commits, commits.counts)))
        or not all(commits.topics)
        or min(commits.offsets) < 0
        or min(commits.leader_epochs) < -1
    )


def _have_ids(commits: Commits) -> bool:
    """Whether groups have ids, but for that of commits from outside (conformance GV-03)."""
    if all(commits.group_ids):
        return True
    return not any(
        member_id
        for group_id, member_id in zip(commits.group_ids, commits.member_ids, strict=True)
        if not group_id
    )


def _twice(commits: Commits, counts: Sequence[int]) -> bool:
    """Whether a commit names a partition more than once."""
    begin = 0
    for count in counts:
        end = begin + count
        if count > 1 and len(set(commits.partitions[begin:end])) < count:  # else they differ in any topic
            named = zip(commits.topics[begin:end], commits.partitions[begin:end], strict=True)
            if len(set(named)) < count:
                return True
        begin = end
    return False


def _commit(record: records_pb2.Record) -> Iterator[str]:
    commit = record.offset_committed
    yield from wrong_in_record(record, commit.group_id, may_be_nameless=not commit.member_id)
    if not commit.offsets:
        yield "it commits nothing"
    if commit.expire_at_ms < 0:
        yield f"it expires at {commit.expire_at_ms} ms"
    named = [(entry.topic, entry.partition) for entry in commit.offsets]
    if len(set(named)) < len(named):
        yield "a partition twice"
    for entry in commit.offsets:
        if not entry.topic:
            yield "a topic without a name"
        if entry.offset < 0:
            yield f"offset {entry.offset}"
        if entry.leader_epoch < -1:
            yield f"leader epoch {entry.leader_epoch}"


# --- other records


def is_plain(record: records_pb2.Record, started: records_pb2.GenerationStarted) -> bool:
    """Whether the form of a generation is right where the records of its members are."""
    cause = started.cause
    if cause.silence_ms or cause.kind not in _PLAIN_KINDS:
        return False
    if started.server_assignor:
        return False
    return bool(started.protocol_type and started.group_id) and record.written_at_ms >= 0


def wrong_in_generation(record: records_pb2.Record, rows: Iterable[records_pb2.Member]) -> str:
    """What is wrong with the form of a generation, by these of its members; empty: nothing."""
    return next(_generation_started(record, rows), "")


def _generation_started(record: records_pb2.Record, rows: Iterable[records_pb2.Member]) -> Iterator[str]:
    started = record.generation_started
    yield from wrong_in_record(record, started.group_id)
    yield from wrong_in_cause(started.cause, KINDS)
    if started.members and not started.protocol_type:
        yield "members without a type of protocol"
    if started.server_assignor:  # no version of the coordinator assigns in classic groups
        yield f"assignor {started.server_assignor!r} of the coordinator"
    if not started.members and started.protocol_name:
        yield f"protocol {started.protocol_name!r} of no members"
    for member in rows:
        yield from wrong_in_member(member)


def _assignment_committed(record: records_pb2.Record) -> Iterator[str]:
    committed = record.assignment_committed
    yield from wrong_in_record(record, committed.group_id)
    members = [row.member_id for row in committed.members]
    if len(set(members)) < len(members):
        yield "a member twice"
    for row in committed.members:
        kept = [(token.topic, token.partition) for token in row.kept_tokens]
        if len(set(kept)) < len(kept):
            yield f"{row.member_id} keeps a partition twice"


def _member_left(record: records_pb2.Record) -> Iterator[str]:
    left = record.member_left
    yield from wrong_in_record(record, left.group_id)
    yield from wrong_in_cause(left.cause, OF_A_REMOVAL)


def _member_replaced(record: records_pb2.Record) -> Iterator[str]:
    replaced = record.member_replaced
    yield from wrong_in_record(record, replaced.group_id)
    if replaced.HasField("cause"):
        yield from wrong_in_cause(replaced.cause, frozenset((cause_kind.STATIC_REPLACED,)))
    yield from wrong_in_member(replaced.member)


def _group_tombstone(record: records_pb2.Record) -> Iterator[str]:
    yield from wrong_in_record(record, record.group_tombstone.group_id, may_be_nameless=True)


def _offset_tombstone(record: records_pb2.Record) -> Iterator[str]:
    tombstone = record.offset_tombstone
    yield from wrong_in_record(record, tombstone.group_id, may_be_nameless=True)
    yield from wrong_in_partitions(tombstone.topics)


def _topics_seen(record: records_pb2.Record) -> Iterator[str]:
    seen = record.topics_seen
    yield from wrong_in_names("topics", seen.topics)
    yield from wrong_in_names("incarnations", [one.name for one in seen.incarnations])


def _partitions_removed(record: records_pb2.Record) -> Iterator[str]:
    yield from wrong_in_partitions(record.partitions_removed.topics)


def _settings_altered(record: records_pb2.Record) -> Iterator[str]:
    message = record.group_settings_altered
    yield from wrong_in_record(record, message.group_id)
    if not record.critical:
        yield "it is not critical"
    yield from wrong_in_settings(message.settings)


def _reverted(record: records_pb2.Record) -> Iterator[str]:
    message = record.group_reverted
    yield from wrong_in_record(record, message.group_id)
    if not record.critical:
        yield "it is not critical"
    yield from wrong_in_cause(message.cause, frozenset({cause_kind.CONVERTED}))
    yield from wrong_in_names("members", [member.member_id for member in message.members])
    if message.generation < 1 or not message.members:
        yield f"epoch {message.generation} with {len(message.members)} members"
    for member in message.members:
        if member.protocols:
            yield f"{member.member_id} says what it supports"
        if not member.member_seq or len(member.process_id) != PROCESS_BYTES:
            yield f"{member.member_id} names no join, or no process"
        if member.session_timeout_ms < 1 or member.rebalance_timeout_ms < 1:
            yield f"{member.member_id} has no time"


_CHECKS: dict[str, Callable[[records_pb2.Record], Iterator[str]]] = {
    "assignment_committed": _assignment_committed,
    "member_left": _member_left,
    "member_replaced": _member_replaced,
    "group_settings_altered": _settings_altered,
    "group_reverted": _reverted,
    "group_tombstone": _group_tombstone,
    "offset_tombstone": _offset_tombstone,
    "topics_seen": _topics_seen,
    "partitions_removed": _partitions_removed,
    **OF_INCREMENTAL_GROUPS,
}
