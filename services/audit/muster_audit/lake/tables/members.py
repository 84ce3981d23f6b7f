"""Members of groups: who was there, from when to when, and why they went."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from muster_protos.muster.log.v1 import incremental_pb2, records_pb2

from muster_audit.lake.row import Interval, Place
from muster_audit.lake.tracker import Take, Tracker
from muster_audit.reading.timeline import cause_in_words


@dataclass(slots=True, kw_only=True)
class Member(Interval):
    """A member of a group, from the first generation that knows it; of an incremental group from its join.

    It ends with the cause for which it was removed (`member left`, `session expired`, …), with its new
    process (`static replaced`), with a generation that it is no part of (`not rejoined`) or with the group
    (`group gone`).
    """

    table: ClassVar[str] = "members"

    group_id: Annotated[str, "The group."]
    member_id: Annotated[str, "Its id."]
    group_instance_id: Annotated[str, "Its static id; empty: it is dynamic."]
    client_id: Annotated[str, "Its client id, as it gave it."]
    host: Annotated[str, "Its address, as the coordinator saw it."]
    session_timeout_ms: Annotated[
        int, "Its session timeout, ms; in an incremental group the one that it asked for, 0: the server's."
    ]
    rebalance_timeout_ms: Annotated[int, "Its rebalance timeout, ms."]
    disconnect_grace_ms: Annotated[
        int,
        "How long it may stay away after its stream broke, ms; 0: not at all. In an incremental group as "
        "long as it asked for, 0: as long as the server says.",
    ]
    first_generation: Annotated[
        int, "The first generation, or epoch of an incremental group, that it was in; 0: none yet."
    ]
    last_generation: Annotated[int, "The last one."]
    reason: Annotated[str, "Its own words when it left; empty: none."] = ""
    client_version: Annotated[
        str | None,
        "Library that it used in its last generation, with its version; empty: it did not say, null: an "
        "earlier version of the lake wrote the row, here and below.",
    ] = None
    identity: Annotated[
        str | None, "Identity that it belonged to in its last generation; empty: to nobody."
    ] = None
    secret_hash: Annotated[
        str | None,
        "Hash of its secret in its last generation, in hexadecimal, which opens nothing; empty: it had none.",
    ] = None
    weight: Annotated[
        int | None, "How much it could do beside the other members of its group, as it said last; from 1."
    ] = None
    target: Annotated[
        int | None,
        "How many partitions the last target of an incremental group gives it; null: the group is classic.",
    ] = None


class Members(Tracker[Member]):
    """Follows members.

    Attributes:
        joined: how many members the last generation had that the group did not have before.
        missing: how many members the group had that were no part of it.
    """

    row = Member

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Member]] = {}
        self.joined = self.missing = 0

    @property
    def takes(self) -> Mapping[str, Take[Member]]:
        """What it does with which kind of record."""
        return {
            "generation_started": self._generation_started,
            "member_left": self._member_left,
            "member_replaced": self._member_replaced,
            "group_tombstone": self._group_tombstone,
            "member_subscribed": self._subscribed,
            "epoch_raised": self._epoch_raised,
            "instance_moved": self._instance_moved,
            "member_removed": self._member_left,
            "group_converted": self._converted,
            "group_reverted": self._reverted,
        }

    def resume(self, row: Member) -> None:
        """Takes back a row that was not final."""
        self._groups.setdefault(row.group_id, {})[row.member_id] = row

    def running(self) -> Iterator[Member]:
        """The members that are there."""
        for members in self._groups.values():
            yield from members.values()

    def _generation_started(self, at: Place, message: records_pb2.GenerationStarted) -> Iterator[Member]:
        before, after = self._groups.get(message.group_id, {}), dict[str, Member]()
        for one in message.members:
            known = before.pop(one.member_id) if one.member_id in before else None
            row = after[one.member_id] = known or member_row(at, message.group_id, one)
            row.first_generation = row.first_generation or message.generation
            row.last_generation = message.generation
            _note(row, one)
        self._groups[message.group_id] = after
        self.joined = sum(row.first_generation == message.generation for row in after.values())
        self.missing = len(before)
        for row in before.values():
            yield row.end(at, "not rejoined")

    def _member_left(
        self, at: Place, message: records_pb2.MemberLeft | incremental_pb2.MemberRemoved
    ) -> Iterator[Member]:
        row = self._groups.get(message.group_id, {}).pop(message.member_id, None)
        if row is not None:
            row.reason = message.cause.reason
            yield row.end(at, cause_in_words(message.cause.kind))

    def _member_replaced(self, at: Place, message: records_pb2.MemberReplaced) -> Iterator[Member]:
        members = self._groups.setdefault(message.group_id, {})
        row = members.pop(message.old_member_id, None)
        if row is not None:
            yield row.end(at, "static replaced")
        new = members[message.member.member_id] = member_row(at, message.group_id, message.member)
        new.first_generation = new.last_generation = message.generation

    def _subscribed(self, at: Place, message: incremental_pb2.MemberSubscribed) -> Iterator[Member]:
        members, told = self._groups.setdefault(message.group_id, {}), message.member
        row = members.get(told.member_id)
        if row is None:
            members[told.member_id] = incremental_row(at, message.group_id, told)
        else:
            _note_told(row, told)
        yield from ()

    def _epoch_raised(self, _: Place, message: incremental_pb2.EpochRaised) -> Iterator[Member]:
        rows = self._groups.get(message.group_id, {}).values()
        for row in rows:
            row.first_generation = row.first_generation or message.epoch
            row.last_generation = message.epoch
        self.joined, self.missing = sum(row.first_generation == message.epoch for row in rows), 0
        yield from ()

    def _instance_moved(self, at: Place, message: incremental_pb2.InstanceMoved) -> Iterator[Member]:
        members, new = self._groups.setdefault(message.group_id, {}), message.member.member_id
        target = members[message.old_member_id].target if message.old_member_id in members else 0
        ended = [members.pop(one) for one in {message.old_member_id, new} if one in members]
        for row in ended:
            yield row.end(at, "static replaced")
        members[new] = incremental_row(at, message.group_id, message.member)
        members[new].target = target

    def _converted(self, _: Place, message: incremental_pb2.GroupConverted) -> Iterator[Member]:
        """From here on members have the times that they asked for."""
        members = self._groups.get(message.group_id, {})
        for told in message.members:
            if (row := members.get(told.member_id)) is not None:
                _note_told(row, told)
        yield from ()

    def _reverted(self, _: Place, message: records_pb2.GroupReverted) -> Iterator[Member]:
        """From here on members have the times that the record says, as in any classic group."""
        members = self._groups.get(message.group_id, {})
        for one in message.members:
            if (row := members.get(one.member_id)) is not None:
                row.session_timeout_ms = one.session_timeout_ms
                row.disconnect_grace_ms = one.disconnect_grace_ms
                row.target = None
        yield from ()

    def of(self, group_id: str) -> Mapping[str, Member]:
        """The members of a group, by id."""
        return self._groups.get(group_id, {})

    def _group_tombstone(self, at: Place, message: records_pb2.GroupTombstone) -> Iterator[Member]:
        for row in self._groups.pop(message.group_id, {}).values():
            yield row.end(at, "group gone")


def _note(row: Member, member: records_pb2.Member) -> None:
    """Notes what may be another thing in a later record of the same member."""
    row.client_version, row.identity = member.client_version, member.identity
    row.secret_hash, row.weight = member.secret_hash.hex(), member.weight or 1


def _note_told(row: Member, told: incremental_pb2.IncrementalMember) -> None:
    row.client_version, row.identity = told.client_version, told.identity
    row.secret_hash = told.secret_hash.hex()
    row.session_timeout_ms, row.disconnect_grace_ms = told.session_timeout_ms, told.disconnect_grace_ms
    row.weight = told.weight or 1


def incremental_row(at: Place, group_id: str, told: incremental_pb2.IncrementalMember) -> Member:
    """The row of a member of an incremental group that comes with a record, without its epochs."""
    row = Member(
        shard=at.shard,
        epoch=at.position.epoch,
        offset=at.position.offset,
        from_ms=at.at_ms,
        group_id=group_id,
        member_id=told.member_id,
        group_instance_id=told.group_instance_id,
        client_id=told.client_id,
        host=told.host,
        session_timeout_ms=0,
        rebalance_timeout_ms=told.rebalance_timeout_ms,
        disconnect_grace_ms=0,
        first_generation=0,
        last_generation=0,
        target=0,
    )
    _note_told(row, told)
    return row


def member_row(at: Place, group_id: str, member: records_pb2.Member) -> Member:
    """The row of a member that comes with a record, without its generations."""
    row = Member(
        shard=at.shard,
        epoch=at.position.epoch,
        offset=at.position.offset,
        from_ms=at.at_ms,
        group_id=group_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        disconnect_grace_ms=member.disconnect_grace_ms,
        first_generation=0,
        last_generation=0,
    )
    _note(row, member)
    return row
