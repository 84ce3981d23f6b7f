"""What goes into a shard and what comes out: values, no I/O.

The driver hands an event and the time to `Shard.handle` and carries out the effects. It must call
again with `Tick` at `Effects.next_deadline_ms`, or earlier.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
    session_pb2,
)

from muster_core.catalog import Catalog
from muster_core.features import Feature
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.targets.target import Changes, Question
from muster_core.position import Position

GroupRequest: TypeAlias = (
    coordinator_pb2.JoinGroupRequest
    | coordinator_pb2.SyncGroupRequest
    | coordinator_pb2.HeartbeatRequest
    | coordinator_pb2.LeaveGroupRequest
    | coordinator_pb2.OffsetCommitRequest
    | coordinator_pb2.OffsetFetchRequest
    | coordinator_pb2.OffsetDeleteRequest
    | coordinator_pb2.DescribeGroupsRequest
    | coordinator_pb2.ListGroupsRequest
    | coordinator_pb2.DeleteGroupsRequest
    | coordinator_pb2.GroupHistoryRequest
    | coordinator_pb2.ReleaseGroupRequest
    | group_settings_pb2.AlterGroupSettingsRequest
    | group_conversion_pb2.ConvertGroupRequest
    | incremental_pb2.ConsumerGroupHeartbeatRequest
    | incremental_pb2.ConsumerGroupDescribeRequest
)
"""A call of the group protocol. Those that name several groups name only groups of the shard."""

GroupResponse: TypeAlias = (
    coordinator_pb2.JoinGroupResponse
    | coordinator_pb2.SyncGroupResponse
    | coordinator_pb2.HeartbeatResponse
    | coordinator_pb2.LeaveGroupResponse
    | coordinator_pb2.OffsetCommitResponse
    | coordinator_pb2.OffsetFetchResponse
    | coordinator_pb2.OffsetDeleteResponse
    | coordinator_pb2.DescribeGroupsResponse
    | coordinator_pb2.ListGroupsResponse
    | coordinator_pb2.DeleteGroupsResponse
    | coordinator_pb2.GroupHistoryResponse
    | coordinator_pb2.ReleaseGroupResponse
    | group_settings_pb2.AlterGroupSettingsResponse
    | group_conversion_pb2.ConvertGroupResponse
    | incremental_pb2.ConsumerGroupHeartbeatResponse
    | incremental_pb2.ConsumerGroupDescribeResponse
)
"""The answer to a call, of the matching type."""


def groups_of(request: GroupRequest) -> list[str]:
    """The groups that a call names, in its order; none: it is about all of them."""
    match request:
        case coordinator_pb2.OffsetFetchRequest():
            return [group.group_id for group in request.groups]
        case (
            coordinator_pb2.DescribeGroupsRequest()
            | coordinator_pb2.DeleteGroupsRequest()
            | incremental_pb2.ConsumerGroupDescribeRequest()
        ):
            return list(request.group_ids)
        case coordinator_pb2.ListGroupsRequest():
            return []
        case _:
            return [request.group_id]


def group_of(request: GroupRequest) -> str:
    """The group of a call that is about one; empty: it may name several."""
    group_id: str = getattr(request, "group_id", "")
    return group_id


class StreamPlace(NamedTuple):
    """Where a member of an incremental group is when it makes a call on a session stream.

    Attributes:
        stream_id: chosen by the driver, from 1, never used again for another stream.
        connection: the client's number of it, within the member's join.
        knows_unsure: as in `Attach`.
    """

    stream_id: int
    connection: int
    knows_unsure: bool = False


class MemberRange(NamedTuple):
    """Some of a group's members, by their ids.

    Attributes:
        after: those with greater ids.
        limit: so many of them, at most; where they have much, as many as take as long to show.
        of: an incremental group as it was, to be shown in place of what it is; None: as it is.
    """

    after: str
    limit: int
    of: IncrementalGroup | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A call.

    Attributes:
        call_id: chosen by the driver, not used by another open call of the shard.
        message: the call. It must have passed the limits of the public API.
        host: address of the caller.
        draw: random text of the driver's, 1 to 64 characters, from which a new member's id is made when
            the call brings no `request_id` of its own.
        identity: name of the caller's identity; empty: it proved none.
        is_operator: of a LeaveGroup: whether the caller may put members of others out; None: nobody says who
            may.
        place: of a heartbeat of a member of an incremental group: the stream that it came by; None: by none.
        shown: of a call that describes groups: which of their members are; None: all. Of GroupHistory: how
            many members the generations have, one generation at least, and before which position they are.
    """

    call_id: int
    message: GroupRequest
    host: str = ""
    draw: str = ""
    identity: str = ""
    is_operator: bool | None = None
    place: StreamPlace | None = None
    shown: MemberRange | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller is gone: its parked call must not be answered any more."""

    call_id: int


@dataclass(frozen=True, slots=True)
class AppendDone:
    """The records of an append are on a majority.

    There is no event for a failure: an append is repeated until it is done, or the shard is unloaded.

    Attributes:
        append_id: as in the effect.
        position: place of its first record; the others follow it.
    """

    append_id: int
    position: Position


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """The owner's own lease deadline has come: parked calls end, state and appends stay."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The lease was renewed and the claim is still the last one: every member gets a full session again."""


@dataclass(frozen=True, slots=True)
class Unload:
    """The shard is given up: parked calls are answered NOT_COORDINATOR, all else is dropped.

    Attributes:
        successor: the new owner if it is known.
    """

    successor: common_pb2.Coordinator | None = None


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The catalog has changed.

    Attributes:
        topics: names that were created, deleted or got another number of partitions.
        deleted: those of them that were deleted, as far as the catalog does not say it.
        catalog: the topics now; None: not known.
        carried_out: up to where in the catalog's log deletions count as carried out in a shard whose log
            says nothing of it; 0: up to where the catalog is.
    """

    topics: frozenset[str]
    deleted: frozenset[str] = frozenset()
    catalog: Catalog | None = None
    carried_out: int = 0

    def weighed_since(self, before: Catalog) -> frozenset[str]:
        """Topics whose partitions have other weights or zones than in an earlier catalog."""
        return self.catalog.weighed_otherwise(before) if self.catalog is not None else frozenset()


@dataclass(frozen=True, slots=True)
class FeaturesEnabled:
    """The cluster has enabled more features.

    Attributes:
        features: all that are enabled now.
    """

    features: frozenset[Feature]


@dataclass(frozen=True, slots=True)
class Attach:
    """A member comes onto a session stream. Answered by a push of `AttachResult`.

    Attributes:
        stream_id: chosen by the driver, never used again for another stream.
        request: who.
        knows_unsure: the client of the stream lives on when it hears that its coordinator is not sure.
        identity: name of the identity of the stream's client; empty: it proved none.
        host: address of the stream's client; empty: not known.
    """

    stream_id: int
    request: session_pb2.Attach
    knows_unsure: bool = False
    identity: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Detach:
    """A member goes off a session stream."""

    stream_id: int
    request: session_pb2.Detach


@dataclass(frozen=True, slots=True)
class Beat:
    """All members of the shard that are on the stream are alive.

    Attributes:
        stream_id: which.
        number: of the beat on its stream, from 1.
        acknowledged: number of the newest beat whose acknowledgement the client has read; 0: none.
    """

    stream_id: int
    number: int = 0
    acknowledged: int = 0


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """A session stream has ended.

    Attributes:
        stream_id: which.
        suspect: False when the server ended it, or when most streams broke at once: then it is no sign
            that the members are gone, and their sessions run on as they are.
        ago_ms: how long ago it ended: breaks are gathered for a while, to see whether most streams broke.
    """

    stream_id: int
    suspect: bool = True
    ago_ms: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """What `Assign` asked for was computed, or could not be.

    Attributes:
        group_id: the group.
        number: as in the effect.
        changes: what changes for members; None: there is no result, and nobody tries again but the shard.
    """

    group_id: str
    number: int
    changes: Changes | None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What `Resolve` asked for was found, or could not be.

    Attributes:
        group_id: the group.
        number: as in the effect.
        topics: names that each expression matches; None: there is no result.
    """

    group_id: str
    number: int
    topics: Mapping[str, frozenset[str]] | None


Event: TypeAlias = (
    Request
    | Cancelled
    | AppendDone
    | Tick
    | Suspend
    | Resume
    | Unload
    | TopicsChanged
    | FeaturesEnabled
    | Attach
    | Detach
    | Beat
    | StreamBroken
    | Assigned
    | Resolved
)


class Reply(NamedTuple):
    """The one answer to a call."""

    call_id: int
    message: GroupResponse


@dataclass(frozen=True, slots=True)
class Append:
    """Records to be stored, all or nothing, in the order in which appends come out of the shard.

    Attributes:
        append_id: of its `AppendDone`.
        records: what to store.
        encoded: the bytes of each of them.
        joined: the next append is stored together with it, all or nothing, and carried out by itself.
    """

    append_id: int
    records: tuple[records_pb2.Record, ...]
    encoded: tuple[bytes, ...]
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Push:
    """News for a session stream."""

    stream_id: int
    message: (
        session_pb2.AttachResult
        | session_pb2.RebalanceStarted
        | session_pb2.Fenced
        | session_pb2.CoordinatorMoved
        | session_pb2.MemberNews
        | session_pb2.GroupChanged
    )


@dataclass(frozen=True, slots=True)
class Assign:
    """An assignment to be computed aside; `Assigned` brings it.

    Attributes:
        group_id: the group.
        number: which of its pieces of work; the same one twice in no life of the shard.
        server_assignor: name of the assignor.
        question: what it is asked.
    """

    group_id: str
    number: int
    server_assignor: str
    question: Question


@dataclass(frozen=True, slots=True)
class Resolve:
    """Expressions that are to be matched with the names of topics aside; `Resolved` brings what was found.

    Attributes:
        group_id: the group.
        number: which of its pieces of work.
        expressions: the expressions.
        names: the names.
    """

    group_id: str
    number: int
    expressions: tuple[str, ...]
    names: tuple[str, ...]


Work: TypeAlias = Assign | Resolve
"""What takes too long for a turn. It may be dropped; then it is answered without a result, or the shard
ends."""


@dataclass(init=False, slots=True)
class Effects:
    """What the driver has to do after an event.

    Attributes:
        replies: answers to calls; several may share a message, so none is changed.
        appends: what to store, in order; several may be open at once.
        pushes: news for session streams, in order, after the replies.
        work: what is to be computed aside; only where the room says that somebody does.
        next_deadline_ms: boot time at which `Tick` is due; None: nothing is waiting. Where that is now, calls
            wait for others that come in the same turn of the driver's loop.
    """

    replies: list[Reply]
    appends: list[Append]
    pushes: list[Push]
    work: list[Work]
    next_deadline_ms: int | None

    def __init__(self) -> None:  # by hand, since each event has one: no factory is called for a field
        self.replies = []
        self.appends = []
        self.pushes = []
        self.work = []
        self.next_deadline_ms = None
