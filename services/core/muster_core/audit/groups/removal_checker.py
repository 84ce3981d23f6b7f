"""G17: what the log says of partitions that were removed from the catalog."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from muster_protos.limits import topic_of
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2

from muster_core.audit.invariants import Findings
from muster_core.incremental.partitions import named_in
from muster_core.log.record_run import COMMIT, RecordRun
from muster_core.log.topics.topic_names import removed_in
from muster_core.log.topics.topics import Topics
from muster_core.position import Position
from muster_core.state.published import TopicPartition, partitions_in, partitions_of

_NOTED = "partitions_removed"


class Catalog(NamedTuple):
    """What the catalog says of removals.

    Attributes:
        topics: its topics.
        restored_ms: when its log was last set back by a restore, and may have lost a removal; 0: never.
    """

    topics: Topics
    restored_ms: int


class RemovalChecker:
    """Follows which partitions were removed, and looks for what is given or committed of them later.

    Args:
        findings: where the results go.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._removed: set[TopicPartition] = set()
        self._noted_ms: dict[TopicPartition, int] = {}

    def begin_with(self, removed: Mapping[str, Iterable[int]], position: Position) -> None:
        """Takes over what the oldest snapshot of a trimmed log says, by topic, which the log noted before."""
        known = {(topic, number) for topic, numbers in removed.items() for number in numbers}
        if noted := sorted(self._removed - known):
            text = f"the records note that {noted[:5]} were removed, and the snapshot does not know it"
            self._findings.broke("G12", position, text)
        self._removed |= known

    @property
    def noted(self) -> frozenset[TopicPartition]:
        """What was noted as removed, and is by now."""
        return frozenset(self._removed)

    def check_catalog(
        self,
        catalog: Catalog,
        incarnations: Mapping[str, int],
        seen: Position,
        position: Position,
    ) -> None:
        """Checks that the catalog has each removal that was noted: a number is used once in a topic.

        Args:
            catalog: read after the log.
            incarnations: which topics the log is about, by name, as far as it says.
            seen: up to where deletions of topics were carried out: later topics are others than those noted.
            position: the end of the log.
        """
        wrong = [
            f"{name}/{number}"
            for name, number in sorted(self._removed)
            if self._noted_ms.get((name, number), 0) >= catalog.restored_ms
            and (topic := catalog.topics.by_name.get(name)) is not None
            and topic.incarnation == incarnations.get(name, min(topic.incarnation, seen.offset))
            and number not in removed_in(topic.names)
        ]
        text = f"{wrong[:5]} are noted as removed, and the catalog did not remove them"
        self._findings.expect("G17", not wrong, position, text)

    def add_run(self, run: RecordRun) -> None:
        """Takes the next records."""
        self._findings.checked["G17"] += len(run)
        if not self._removed and _NOTED not in run.kinds:
            return
        commits = self._may_commit_in_one(run)
        for index, kind in enumerate(run.kinds):
            if kind == COMMIT:
                if commits:
                    self._commit(run.position(index), records_pb2.Record.FromString(run.datas[index]))
            elif kind == _NOTED:
                record = run.others[index]
                named = list(partitions_of(record.partitions_removed.topics))
                self._removed.update(named)
                self._noted_ms.update(dict.fromkeys(named, record.written_at_ms))
            elif kind == "topics_seen":
                deleted = frozenset(run.others[index].topics_seen.topics)
                self._removed = {partition for partition in self._removed if partition[0] not in deleted}
            elif kind == "assignment_committed":
                self._assignment(run.position(index), run.others[index].assignment_committed)
            elif kind == "member_stepped":
                self._step(run.position(index), run.others[index].member_stepped)

    def _may_commit_in_one(self, run: RecordRun) -> bool:
        """Whether a commit may be about a removed partition; nearly always none is."""
        noted = [run.others[index] for index, kind in enumerate(run.kinds) if kind == _NOTED]
        topics = {topic for topic, _ in self._removed}
        topics |= {entry.topic for record in noted for entry in record.partitions_removed.topics}
        return not topics.isdisjoint(map(topic_of, set(run.commits.topics)))

    def _commit(self, position: Position, record: records_pb2.Record) -> None:
        commit = record.offset_committed
        wrong = [
            f"{entry.topic}/{entry.partition}"
            for entry in commit.offsets
            if (topic_of(entry.topic), entry.partition) in self._removed
        ]
        if wrong:
            self._broke(position, f"group {commit.group_id!r} commits in {wrong[:5]}")

    def _assignment(self, position: Position, message: records_pb2.AssignmentCommitted) -> None:
        wrong = [
            f"{row.member_id} is given {topic}/{number}"
            for row in message.members
            for topic, number in partitions_in(row.assignment)
            if (topic, number) in self._removed
        ]
        if wrong:
            self._broke(position, f"group {message.group_id!r}, generation {message.generation}: {wrong[:5]}")

    def _step(self, position: Position, message: incremental_pb2.MemberStepped) -> None:
        wrong = sorted(self._removed.intersection(named_in(message.given)))
        if wrong:
            self._broke(position, f"group {message.group_id!r}: {message.member_id} is given {wrong[:5]}")

    def _broke(self, position: Position, text: str) -> None:
        self._findings.broke("G17", position, f"{text}, which was removed before")
