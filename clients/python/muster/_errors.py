"""Everything the client raises. Each error says what happened, to what, and what to do next."""

from collections.abc import Iterable

from muster_protos.muster.v1 import common_pb2

from muster._values import TopicPartition


class MusterError(Exception):
    """Base of all errors of this package."""


class SettingsError(MusterError, ValueError):
    """A setting is outside its limits; nothing was sent.

    Attributes:
        field: name of the setting.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ClusterUnavailable(MusterError):
    """No server answered in time. The outcome of a change that was asked for is not known."""


class RequestRefused(MusterError):
    """A server refused a request before the group protocol handled it (bad value, no permission, ...).

    Attributes:
        status: name of the gRPC status, e.g. `INVALID_ARGUMENT`.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class TopicError(MusterError):
    """Something is wrong with a topic.

    Attributes:
        topic: its name.
    """

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class GroupError(MusterError):
    """The coordinator answered with an error that the client cannot repair.

    Attributes:
        group_id: the group.
        code: name of the error code, e.g. `GROUP_MAX_SIZE_REACHED`.
    """

    def __init__(self, group_id: str, code: str, message: str) -> None:
        super().__init__(message)
        self.group_id = group_id
        self.code = code


class FencedInstance(GroupError):
    """Another process took over the static member's `group_instance_id`; this one must stop."""


class CommitFailed(MusterError):
    """The member does not (or no longer) own the partitions, so the commit was not accepted.

    Their new owner goes on from what was committed before. If the connection was lost while the commit was
    in flight, it may still have been stored.

    Attributes:
        partitions: those of the commit's partitions that are not owned.
    """

    def __init__(self, partitions: Iterable[TopicPartition], why: str) -> None:
        self.partitions: tuple[TopicPartition, ...] = tuple(partitions)
        names = ", ".join(map(str, self.partitions))
        super().__init__(f"commit of {names} failed: {why}; stop working on them, the new owner goes on")


class CommitRejected(MusterError):
    """The offset or metadata of a commit is not acceptable; the partition is still owned.

    Attributes:
        partition: the partition.
        code: name of the error code, e.g. `OFFSET_METADATA_TOO_LARGE`.
    """

    def __init__(self, partition: TopicPartition, code: str, message: str) -> None:
        super().__init__(f"commit of {partition} was rejected: {message}")
        self.partition = partition
        self.code = code


class AssignorFailed(MusterError):
    """An assignor raised, or returned something that is not an assignment.

    Attributes:
        assignor: its name.
    """

    def __init__(self, assignor: str, why: str) -> None:
        super().__init__(f"assignor {assignor!r} failed: {why}")
        self.assignor = assignor


class CallbackFailed(MusterError):
    """A callback of the member raised; its exception is the cause of this one.

    Attributes:
        callback: its name, e.g. `on_partitions_assigned`.
    """

    def __init__(self, callback: str) -> None:
        super().__init__(f"{callback} raised, so the member has stopped; see the exception above")
        self.callback = callback


class WorkFailed(MusterError):
    """The work on a partition raised; its exception is the cause of this one.

    Attributes:
        partition: the partition.
    """

    def __init__(self, partition: TopicPartition, error: BaseException) -> None:
        super().__init__(
            f"the work on partition {partition.number} of topic {partition.topic!r} failed: "
            f"{type(error).__name__}: {error}"
        )
        self.partition = partition


class WorkIdle(MusterError):
    """The work on a partition showed no sign of life for `max_idle_ms`, and was stopped.

    Attributes:
        partition: the partition.
    """

    def __init__(self, partition: TopicPartition, max_idle_ms: int) -> None:
        super().__init__(f"it neither committed nor called alive() for {max_idle_ms} ms")
        self.partition = partition


class LeadershipLost(MusterError):
    """The leadership was lost before its work had ended; another process may lead by now.

    Attributes:
        name: name of the leadership.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"leadership {name!r} was lost before its work had ended; another process may lead")
        self.name = name


class MemberClosed(MusterError):
    """The member has been closed, or was not started, or was started twice."""


def code_name(code: int) -> str:
    """Name of an error code without its prefix, e.g. `FENCED_INSTANCE_ID`."""
    try:
        name = common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code))
    except ValueError:
        return f"ERROR_{code}"
    return name.removeprefix("ERROR_CODE_")


_ADVICE: dict[int, str] = {
    common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL: "the members of a group need an "
    "assignor in common; compare their `assignors`; an incremental group takes protocol='auto' alone, "
    "which is the default",
    common_pb2.ERROR_CODE_INVALID_GROUP_ID: "use another group id",
    common_pb2.ERROR_CODE_INVALID_SESSION_TIMEOUT: "change session_timeout_ms, or the server's limits "
    "(MUSTER_GROUP_MIN_SESSION_TIMEOUT_MS, MUSTER_GROUP_MAX_SESSION_TIMEOUT_MS)",
    common_pb2.ERROR_CODE_GROUP_MAX_SIZE_REACHED: "stop members, or raise the server's limit "
    "(MUSTER_GROUP_MAX_SIZE)",
    common_pb2.ERROR_CODE_FENCED_INSTANCE_ID: "another process uses the same group_instance_id; "
    "stop one of them",
    common_pb2.ERROR_CODE_GROUP_AUTHORIZATION_FAILED: "ask an operator for the permission",
    common_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR: "the server's log has the details; start the member again",
    common_pb2.ERROR_CODE_NON_EMPTY_GROUP: "stop its members first",
    common_pb2.ERROR_CODE_GROUP_QUARANTINED: "`muster doctor` names the failure; `muster groups release` "
    "tries again",
    common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND: "`muster groups list` shows those that exist",
}


def group_error(group_id: str, code: int, message: str) -> GroupError:
    """The exception for an error code that no retry can mend."""
    name = code_name(code)
    detail = f": {message}" if message else ""
    advice = f"; {_ADVICE[code]}" if code in _ADVICE else ""
    kind = FencedInstance if code == common_pb2.ERROR_CODE_FENCED_INSTANCE_ID else GroupError
    return kind(group_id, name, f"group {group_id!r}: {name}{detail}{advice}")
