"""Records of an incremental group, made by hand at the end of a log."""

from collections.abc import Iterable
from typing import Any

from kit.logs.log_builder import LogBuilder
from muster_core import cause_kind
from muster_core.incremental import causes
from muster_core.incremental.member import Member, Told
from muster_core.incremental.partitions import by_topic
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2
from muster_protos.muster.v1 import common_pb2

Numbers = Iterable[int]


class IncrementalLog:
    """Writes what an owner does to one incremental group, on topic `t`.

    Args:
        built: the log.
    """

    def __init__(self, built: LogBuilder) -> None:
        self.built = built
        self.group = built.named("i")

    def add(self, **kind: Any) -> None:
        """Writes a record."""
        self.built.add(records_pb2.Record(critical=True, **kind))

    def told(self, member: str, seq: int = 1) -> incremental_pb2.IncrementalMember:
        """What a member says; `name=static`: it is static; `~name`: it is on a stream."""
        on_session, member = member.startswith("~"), member.removeprefix("~")
        name, _, static = member.partition("=")
        return incremental_pb2.IncrementalMember(
            member_id=name,
            group_instance_id=static,
            rebalance_timeout_ms=30_000,
            topics=["t"],
            member_seq=seq,
            process_id=name.encode().ljust(16, b".")[:16] if seq else b"",
            on_session=on_session,
        )

    def subscribe(self, member: str, seq: int = 1, *, joined: bool = True) -> None:
        told = self.told(member, seq)
        self.add(
            member_subscribed=incremental_pb2.MemberSubscribed(
                group_id=self.group, member=told, joined=joined
            )
        )

    def raised(self, epoch: int, kind: cause_kind.Kind = cause_kind.JOINED) -> None:
        cause = common_pb2.RebalanceCause(kind=kind)
        self.add(epoch_raised=incremental_pb2.EpochRaised(group_id=self.group, epoch=epoch, cause=cause))

    def target(self, epoch: int, *changes: tuple[str, Numbers, Numbers]) -> None:
        """A target: of some members what they get, and what they lose."""
        message = incremental_pb2.TargetAssigned(group_id=self.group, epoch=epoch, server_assignor="uniform")
        for member_id, gets, loses in changes:
            message.changes.add(member_id=member_id, gets=_named(gets), loses=_named(loses))
        self.add(target_assigned=message)

    def step(
        self,
        member: str,
        epoch: int,
        *,
        given: Numbers = (),
        taken: Numbers = (),
        released: Numbers = (),
        waits: bool = False,
    ) -> None:
        self.add(
            member_stepped=incremental_pb2.MemberStepped(
                group_id=self.group,
                member_id=member,
                epoch=epoch,
                given=_named(given),
                taken=_named(taken),
                released=_named(released),
                waits=waits,
            )
        )

    def away(self, member: str) -> None:
        self.add(member_went_away=incremental_pb2.MemberWentAway(group_id=self.group, member_id=member))

    def moved(self, old: str, member: str, seq: int = 1) -> None:
        moved = incremental_pb2.InstanceMoved(
            group_id=self.group, old_member_id=old, member=self.told(member, seq)
        )
        self.add(instance_moved=moved)

    def removed(self, member: str, kind: cause_kind.Kind = cause_kind.LEFT, silence_ms: int = 0) -> None:
        cause = causes.by_member(kind, Member(Told(member)), self.built.now_ms, silence_ms)
        self.add(
            member_removed=incremental_pb2.MemberRemoved(group_id=self.group, member_id=member, cause=cause)
        )

    def commit(
        self, epoch: int, member: str, seq: int = 0, *, partition: int = 0, by_token: bool = False
    ) -> None:
        message = records_pb2.OffsetCommitted(
            group_id=self.group, generation=epoch, member_id=member, member_seq=seq, by_token=by_token
        )
        message.offsets.add(topic="t", partition=partition, offset=seq, leader_epoch=-1)
        self.built.add(records_pb2.Record(offset_committed=message))


def _named(numbers: Numbers) -> list[common_pb2.TopicPartitions]:
    return by_topic(("t", number) for number in numbers)


def with_incremental_group(built: LogBuilder) -> LogBuilder:
    """Adds an incremental group: partitions move, a static process is replaced, a silent member is removed.

    It ends in epoch 5, with the target of epoch 4: `a` has 0 and 1 at epoch 2, `b` has 2 and the static
    `d=s` has 3 at epoch 3.
    """
    log = IncrementalLog(built)
    log.subscribe("a")
    log.raised(1)
    log.target(1, ("a", (0, 1, 2, 3), ()))
    log.step("a", 1, given=(0, 1, 2, 3))
    log.subscribe("b")
    log.raised(2)
    log.target(2, ("a", (), (2, 3)), ("b", (2, 3), ()))
    log.step("b", 2, waits=True)
    log.step("a", 1, taken=(2, 3))
    log.step("a", 2, released=(2, 3))
    log.step("b", 2, given=(2, 3))
    log.commit(2, "a", 1)
    log.commit(1, "a", 2, partition=1, by_token=True)  # a token counts in whatever epoch
    log.subscribe("c=s")
    log.raised(3)
    log.target(3, ("b", (), (3,)), ("c", (3,), ()))
    log.step("c", 3, waits=True)
    log.step("b", 2, taken=(3,))
    log.commit(2, "b", 1, partition=3, by_token=True)  # it was told to give it back, and has not yet
    log.step("b", 3, released=(3,))
    log.step("c", 3, given=(3,))
    log.away("c")
    log.moved("c", "d=s")
    log.commit(3, "d", 1)
    log.subscribe("e", seq=0)
    log.raised(4)
    log.target(4)
    log.step("e", 4)
    built.now_ms += 45_000
    log.removed("e", cause_kind.SESSION_EXPIRED, 45_000)
    log.raised(5, cause_kind.SESSION_EXPIRED)
    return built


def begin_converted_group(built: LogBuilder) -> IncrementalLog:
    """Adds a classic group in generation 1 whose members can be incremental: `a` has 0 and 1, `b=s` has 2."""
    log, before = IncrementalLog(built), built.group
    log.group = built.group = built.named("k")
    built.generation(1, "a", "b=s")
    record = records_pb2.Record.FromString(built.entries.pop().record)
    for member in record.generation_started.members:
        member.member_seq, member.process_id = 1, member.member_id.encode().ljust(16, b".")
    built.add(record)
    built.assignment(1, a=[0, 1], b=[2])
    built.commit(1, "a", 1)
    built.group = before
    return log


def convert(log: IncrementalLog, generation: int = 1, members: Iterable[str] = ("a", "b=s")) -> None:
    """Writes a conversion."""
    message = incremental_pb2.GroupConverted(
        group_id=log.group,
        generation=generation,
        server_assignor="range",
        cause=common_pb2.RebalanceCause(kind=cause_kind.CONVERTED),
    )
    for member in members:
        told = log.told(member, 2)
        told.classic_session_ms, told.can_be_classic = 6_000, True
        message.members.append(told)
    log.add(group_converted=message)


def with_converted_group(built: LogBuilder) -> LogBuilder:
    """Adds a classic group that becomes incremental: in epoch 2 `a` has 0, and `b=s` has 1 and 2."""
    log = begin_converted_group(built)
    convert(log)
    log.subscribe("a", 2, joined=False)
    log.raised(2, cause_kind.CONVERTED)
    log.target(2, ("a", (), (1,)), ("b", (1,), ()))
    log.step("a", 1, taken=(1,))
    log.step("a", 2, released=(1,))
    log.step("b", 2, given=(1,))
    log.commit(1, "a", 2)
    log.commit(2, "b", 1)
    return built
