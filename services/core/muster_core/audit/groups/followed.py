"""What the records of a log so far say of one group."""

from dataclasses import dataclass, field

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.groups.incremental.state import GroupState
from muster_core.audit.groups.kept_tokens import Given
from muster_core.audit.groups.silence import OtherTimeout
from muster_core.position import NOWHERE, Position
from muster_core.state.group import CONSUMER
from muster_core.state.published import read_subscription


@dataclass(slots=True)
class FollowedMember:
    """One member of a classic group; `heard_ms`: when it was last heard of, None: not known."""

    record: records_pb2.Member
    heard_ms: int | None = None
    commit_seq: int = 0


@dataclass(slots=True)
class FollowedGroup:
    """One group.

    `incremental`: as a group of the other kind, None: it is a classic one. `reverted`: it is classic again,
    and has no assignment since. `members_are_right`: nothing was wrong with the members' records in the
    generation, and they are as they were then, or fewer. `is_over`: a member left its generation, so that it
    gets no assignment any more.
    """

    generation: int = 0
    assignment: records_pb2.AssignmentCommitted | None = None
    protocol_type: str = ""
    protocol_name: str = ""
    leader: str = ""
    members: dict[str, FollowedMember] = field(default_factory=dict)
    members_are_right: bool = False
    gone: set[str] = field(default_factory=set)
    seqs_of_strangers: dict[str, int] = field(default_factory=dict)
    given: Given | None = field(default_factory=Given)
    born_after: Position = NOWHERE
    met_in_the_middle: bool = False
    removal: OtherTimeout | None = None
    incremental: GroupState | None = None
    reverted: bool = False
    is_over: bool = False

    def wants(self, topic: str) -> bool:
        """Whether a member may be using a topic's offsets."""
        if self.incremental is not None:
            return any(self.incremental.wants(member, topic) for member in self.incremental.members.values())
        if not self.members:
            return False
        if self.protocol_type != CONSUMER or self.assignment is None:
            return True
        for member in self.members.values():
            rows = member.record.protocols
            metadata = next((row.metadata for row in rows if row.name == self.protocol_name), b"")
            subscription = read_subscription(metadata)
            if subscription is None or topic in subscription.topics:
                return True
        return False

    def forget_times(self) -> None:
        """A new owner has come: its clock does not compare with the last one's."""
        self.removal = None
        for member in self.members.values():
            member.heard_ms = None
        for row in self.incremental.members.values() if self.incremental is not None else ():
            row.heard_ms = row.taken_ms = None
