"""Records of an incremental group that is a classic one again, made by hand at the end of a log."""

from collections.abc import Iterable

from kit.logs.incremental_log import IncrementalLog
from kit.logs.log_builder import LogBuilder
from muster_core import cause_kind
from muster_core.position import Position
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2


class RevertedLog(IncrementalLog):
    """An incremental group whose members can be classic, and the classic one that it becomes.

    In epoch 2 `a` has 0 and 1, of which 1 is to go to `b=s`, which has 2.

    Args:
        built: the log.
        raw: who can only be in an incremental group.
    """

    def __init__(self, built: LogBuilder, raw: str = "") -> None:
        super().__init__(built)
        self.group = built.named("r")
        self.given = self._begin(raw)

    def _begin(self, raw: str) -> Position:
        given = self.built.end
        for member, number in (("a", 1), ("b=s", 2)):
            told = self.told(member)
            told.can_be_classic = member != raw
            self.add(
                member_subscribed=incremental_pb2.MemberSubscribed(
                    group_id=self.group, member=told, joined=True
                )
            )
            self.raised(number)
            if number == 1:
                self.target(1, ("a", (0, 1), ()))
                self.step("a", 1, given=(0, 1))
                given = self.built.end
        self.target(2, ("a", (), (1,)), ("b", (1, 2), ()))
        self.step("b", 2, given=(2,), waits=True)
        self.step("a", 1, taken=(1,))
        self.commit(1, "a", 1, by_token=True)
        return given

    def revert(self, generation: int = 2, members: Iterable[str] = ("a", "b=s")) -> None:
        """Writes that it is classic again."""
        message = records_pb2.GroupReverted(
            group_id=self.group,
            generation=generation,
            cause=common_pb2.RebalanceCause(kind=cause_kind.CONVERTED),
        )
        for member in members:
            told = self.told(member)
            message.members.add(
                member_id=told.member_id,
                group_instance_id=told.group_instance_id,
                session_timeout_ms=6_000,
                rebalance_timeout_ms=told.rebalance_timeout_ms,
                member_seq=1,
                process_id=told.process_id,
            )
        self.add(group_reverted=message)

    def generation(self, number: int, *members: str) -> None:
        """A generation of the classic group."""
        before, self.built.group = self.built.group, self.group
        self.built.generation(number, *members, cause=common_pb2.RebalanceCause(kind=cause_kind.CONVERTED))
        self.built.group = before

    def keep(self, number: int, member: str, partition: int, since: Position) -> None:
        """An assignment that gives one partition, under the token that it has, and the others nothing."""
        record = records_pb2.Record()
        committed = record.assignment_committed
        committed.group_id, committed.generation, committed.leader = self.group, number, "a"
        assignment = common_pb2.Assignment(version=1)
        assignment.partitions.add(topic="t", partitions=[partition])
        for name in ("a", "b"):
            row = committed.members.add(member_id=name)
            if name == member:
                row.assignment = assignment.SerializeToString()
                row.kept_tokens.add(topic="t", partition=partition, position=since.to_proto())
        self.built.add(record)


def with_reverted_group(built: LogBuilder) -> LogBuilder:
    """Adds an incremental group that is classic again: `a` keeps 1, which it was to give back."""
    log = RevertedLog(built)
    log.revert()
    log.commit(1, "a", 2, partition=1, by_token=True)
    log.generation(3, "a", "b=s")
    log.commit(1, "a", 3, partition=0, by_token=True)
    log.keep(3, "a", 1, log.given)
    log.commit(3, "a", 4, partition=1)
    return built
