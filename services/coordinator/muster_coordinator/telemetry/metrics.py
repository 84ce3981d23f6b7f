"""Every metric of a coordinator."""

from muster_core.protocol.room import Limit
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
)
from muster_runtime.telemetry import Kind, Metric
from muster_runtime.telemetry.metric import LONG_SECONDS, SHORT_SECONDS

from muster_coordinator.session.attachments import MAX_MEMBERS
from muster_coordinator.session.sessions import MAX_STREAMS
from muster_coordinator.shard.phase import Phase

CALL_NAMES = {
    coordinator_pb2.JoinGroupResponse: "JoinGroup",
    coordinator_pb2.SyncGroupResponse: "SyncGroup",
    coordinator_pb2.HeartbeatResponse: "Heartbeat",
    coordinator_pb2.LeaveGroupResponse: "LeaveGroup",
    coordinator_pb2.OffsetCommitResponse: "OffsetCommit",
    coordinator_pb2.OffsetFetchResponse: "OffsetFetch",
    coordinator_pb2.OffsetDeleteResponse: "OffsetDelete",
    coordinator_pb2.DescribeGroupsResponse: "DescribeGroups",
    coordinator_pb2.ListGroupsResponse: "ListGroups",
    coordinator_pb2.DeleteGroupsResponse: "DeleteGroups",
    coordinator_pb2.GroupHistoryResponse: "GroupHistory",
    coordinator_pb2.ReleaseGroupResponse: "ReleaseGroup",
    group_settings_pb2.AlterGroupSettingsResponse: "AlterGroupSettings",
    group_conversion_pb2.ConvertGroupResponse: "ConvertGroup",
    incremental_pb2.ConsumerGroupHeartbeatResponse: "ConsumerGroupHeartbeat",
    incremental_pb2.ConsumerGroupDescribeResponse: "ConsumerGroupDescribe",
}
"""Calls of the group protocol by the type of their answer."""

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling")
"""Of groups of both kinds; the last two are of incremental ones."""
STEPS = tuple(field.name for field in metadata_pb2.LogCall.DESCRIPTOR.oneofs_by_name["step"].fields)
JOIN, SYNC, WHOLE = "join", "sync", "whole"
LIMITS = (*(limit.value for limit in Limit), MAX_STREAMS, MAX_MEMBERS)
NO_ASSIGNMENT, INTERRUPTED = "no_assignment", "interrupted"
NOT_REJOINED = "not_rejoined"

HEARTBEAT = CALL_NAMES[coordinator_pb2.HeartbeatResponse]
_CALLS = tuple(CALL_NAMES.values())
_OF_THE_CATALOG = ("TOPIC_ALREADY_EXISTS", "INVALID_PARTITIONS", "POLICY_VIOLATION")
_CODES = tuple(
    code
    for name in common_pb2.ErrorCode.DESCRIPTOR.values_by_name
    if (code := name.removeprefix("ERROR_CODE_")) not in _OF_THE_CATALOG
)
_CAUSES = tuple(
    name.removeprefix("REBALANCE_CAUSE_KIND_").lower()
    for name in common_pb2.RebalanceCauseKind.DESCRIPTOR.values_by_name
)
PHASES = {phase: phase.name.lower() for phase in Phase if phase is not Phase.GONE}
"""Phases of a shard as labels."""
SUSPENDED = "suspended"
"""The label of a shard that is loaded and answers nobody."""


def code_name(code: int) -> str:
    """An error code as a label."""
    return common_pb2.ErrorCode.Name(common_pb2.ErrorCode.ValueType(code)).removeprefix("ERROR_CODE_")


def cause_name(kind: int) -> str:
    """A kind of cause as a label."""
    name = common_pb2.RebalanceCauseKind.Name(common_pb2.RebalanceCauseKind.ValueType(kind))
    return name.removeprefix("REBALANCE_CAUSE_KIND_").lower()


# --- groups

GROUPS = Metric(
    "muster_groups",
    Kind.GAUGE,
    "Groups of this coordinator's shards, by state.",
    labels={"state": STATES},
    advice="Many that are neither Stable nor Empty for long: see muster_rebalance_oldest_seconds.",
)
GROUPS_OF_A_SHARD = Metric(
    "muster_groups_largest_shard",
    Kind.GAUGE,
    "Groups of the shard that has most of them.",
    advice="Near MUSTER_GROUP_MAX_GROUPS_PER_SHARD: who would make another group there is told to try again.",
)
HELD = Metric(
    "muster_groups_held",
    Kind.GAUGE,
    "What the groups of this coordinator's shards hold in memory, as it is counted.",
    "bytes",
    advice="Near MUSTER_GROUP_MAX_BYTES: new groups, members and offsets are told to try again.",
)
HELD_BY_A_SHARD = Metric(
    "muster_groups_held_largest_shard",
    Kind.GAUGE,
    "The same of the shard whose groups hold most.",
    "bytes",
    advice="Near MUSTER_GROUP_MAX_BYTES_PER_SHARD: what would add to it is told to try again.",
)
REFUSALS = Metric(
    "muster_limit_refusals",
    Kind.COUNTER,
    "What was refused because a limit of the process or of a shard was reached, by the name of its setting.",
    labels={"limit": LIMITS},
    advice="Find out who makes it grow (`muster groups list`), or raise the setting; docs/failures.md.",
)
UNPROVEN = Metric(
    "muster_member_secrets_wrong",
    Kind.COUNTER,
    "Calls in the name of a member that did not bring its secret, answered as if nobody had the member id.",
    advice="Somebody tries ids of members, or a program of your own loses its secret: the line "
    "`member_secret_wrong` of the log names group, member and address.",
)
GROUPS_QUARANTINED = Metric(
    "muster_groups_quarantined",
    Kind.GAUGE,
    "Groups that are refused because serving them made the coordinator fail twice.",
    advice="The line `group_quarantined` of the log names group, event and file; docs/failures.md.",
)
CORE_FAILURES = Metric(
    "muster_core_failures",
    Kind.COUNTER,
    "How often the group protocol failed in a way that it did not foresee, and a shard was loaded again.",
    advice="An error in Muster: report it with the file that the line `core_failed` of the log names.",
)
MEMBERS = Metric(
    "muster_members",
    Kind.GAUGE,
    "Members of groups.",
    labels={"kind": ("dynamic", "static")},
    advice="A fall without a deploy: look at muster_members_left_total for the cause.",
)
MEMBERS_PENDING = Metric(
    "muster_members_pending",
    Kind.GAUGE,
    "Member ids that were given out and did not join yet.",
    advice="Many: clients ask for an id and go away, as a flood of joins does.",
)
PARTITIONS_ASSIGNED = Metric(
    "muster_partitions_assigned",
    Kind.GAUGE,
    "Partitions that a member owns by an assignment that the server can read.",
    advice="Below the number of partitions of the topics: work that nobody does.",
)
PARTITIONS_COMMITTED = Metric(
    "muster_partitions_committed", Kind.GAUGE, "Partitions of groups that have a committed offset."
)
CALLS_PARKED = Metric(
    "muster_calls_parked",
    Kind.GAUGE,
    "Calls that wait for others: joins for the end of the join phase, syncs for the leader, commits for "
    "the log.",
    labels={"call": _CALLS},
    advice="Joins and syncs: a rebalance runs. Commits: the log is slow, see "
    "muster_log_step_duration_seconds.",
)

# --- rebalances

REBALANCES = Metric(
    "muster_rebalances",
    Kind.COUNTER,
    "Generations that were begun, by what made it necessary.",
    labels={"cause": _CAUSES},
    advice="`muster groups history GROUP` tells who and why. session_expired, disconnected: members die or "
    "hang. member_joined without a deploy: they come and go. rebalance_timeout: they work too long between "
    "polls.",
)
REBALANCE_FAILURES = Metric(
    "muster_rebalance_failures",
    Kind.COUNTER,
    "Generations that never got an assignment: another one followed first, or the shard was given up.",
    labels={"reason": (NO_ASSIGNMENT, INTERRUPTED)},
    advice="no_assignment: the leader died or cannot assign; look at its log. interrupted: the next owner "
    "goes on.",
)
REBALANCE_DURATION = Metric(
    "muster_rebalance_duration",
    Kind.HISTOGRAM,
    "How long rebalances took: until all had joined, from then to the stored assignment, and as a whole.",
    "seconds",
    labels={"phase": (JOIN, SYNC, WHOLE)},
    bounds=LONG_SECONDS,
    advice="join: a member is late, at most its rebalance time-out. sync: the leader is slow to assign.",
)
REBALANCE_OLDEST = Metric(
    "muster_rebalance_oldest",
    Kind.GAUGE,
    "Age of the oldest rebalance that still runs; 0: none does.",
    "seconds",
    advice="Above the longest rebalance time-out: `muster groups list` shows the group; its members do not "
    "come back.",
)
MEMBERS_JOINED = Metric(
    "muster_members_joined", Kind.COUNTER, "Members that came into a generation for the first time."
)
MEMBERS_LEFT = Metric(
    "muster_members_left",
    Kind.COUNTER,
    "Members that went, by why.",
    labels={"cause": (*_CAUSES, NOT_REJOINED)},
    advice="session_expired and disconnected are expiries. not_rejoined: it did not come back in time when "
    "the group rebalanced.",
)
OFFSETS_COMMITTED = Metric("muster_offsets_committed", Kind.COUNTER, "Offsets that were stored.")
OFFSETS_REMOVED = Metric(
    "muster_offsets_removed",
    Kind.COUNTER,
    "Offsets that expired, or went with their topic or by an operator.",
)
PARTITIONS_PARKED = Metric(
    "muster_partitions_parked",
    Kind.COUNTER,
    "Partitions whose work was given up: it is not called until somebody releases them.",
    advice="`muster groups describe` says which, and why.",
)

# --- single groups

_OF_A_GROUP: dict[str, tuple[str, ...]] = {"group": ()}
GROUP_MEMBERS = Metric("muster_group_members", Kind.GAUGE, "Members of a group.", labels=_OF_A_GROUP)
GROUP_PARTITIONS = Metric(
    "muster_group_partitions_assigned",
    Kind.GAUGE,
    "Partitions that members of the group own.",
    labels=_OF_A_GROUP,
    advice="Below the number of partitions of its topics: work that nobody does.",
)
GROUP_GENERATION = Metric(
    "muster_group_generation",
    Kind.GAUGE,
    "Number of the group's generation: grows by one with each rebalance.",
    labels=_OF_A_GROUP,
    advice="`muster groups history GROUP` tells why.",
)
GROUP_LAST_COMMIT_AGE = Metric(
    "muster_group_last_commit_age",
    Kind.GAUGE,
    "How long ago the group committed last, in any partition, or parked one; of `other`, how long ago that "
    "group did which has not for longest.",
    "seconds",
    labels=_OF_A_GROUP,
    advice="It grows while there is work to do: `muster groups describe GROUP`, and the log of the workers.",
)
GROUP_LAG = Metric(
    "muster_group_lag",
    Kind.GAUGE,
    "What is left to do: the ends that were reported (`p.report`) less what was committed, over all "
    "partitions. Absent where none was.",
    labels=_OF_A_GROUP,
    advice="Grows for long: add workers, by hand or with KEDA. `muster groups describe GROUP` says where.",
)
BY_GROUP = (GROUP_MEMBERS, GROUP_PARTITIONS, GROUP_GENERATION, GROUP_LAST_COMMIT_AGE, GROUP_LAG)
"""Those with the label `group`."""

# --- calls

CALLS = Metric(
    "muster_calls",
    Kind.COUNTER,
    "Answered calls of the group protocol, unary and on streams, by error code.",
    labels={"call": _CALLS, "code": _CODES},
    advice="NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS: shards move. COORDINATOR_NOT_AVAILABLE for "
    "long: the lease or the log is lost. FENCED_INSTANCE_ID: two processes with one instance id.",
)
CALL_DURATION = Metric(
    "muster_call_duration",
    Kind.HISTOGRAM,
    "Time from a call to its answer; joins and syncs are parked on purpose. Heartbeats are answered in the "
    "turn of the loop in which they are read: muster_loop_lag_seconds says how late that is.",
    "seconds",
    labels={"call": tuple(name for name in _CALLS if name != HEARTBEAT)},
    bounds=(*SHORT_SECONDS, 30.0, 60.0, 300.0),
    advice="OffsetCommit, OffsetFetch: see muster_log_step_duration_seconds.",
)
BEATS = Metric(
    "muster_beats", Kind.COUNTER, "Beats of session streams; each is for all members on its stream."
)
SESSION_STREAMS = Metric("muster_session_streams", Kind.GAUGE, "Open session streams.")
SESSION_STREAMS_OF_A_SHARD = Metric(
    "muster_session_streams_largest_shard",
    Kind.GAUGE,
    "Session streams with members of the shard that has most such streams.",
)
SESSION_UNREAD = Metric(
    "muster_session_unread",
    Kind.GAUGE,
    "What waits on session streams because clients have not read it.",
    "bytes",
    advice="Near MUSTER_SESSION_MAX_TOTAL_QUEUED_BYTES: clients that leave most unread are cut off.",
)
SESSION_MEMBERS = Metric(
    "muster_session_members", Kind.GAUGE, "Members on session streams; the others make heartbeat calls."
)

# --- shards, log, lease

SHARDS = Metric(
    "muster_shards",
    Kind.GAUGE,
    "Shards in this process, by phase; `suspended` ones are loaded and answer nobody until the lease is "
    "sure again.",
    labels={"phase": (*PHASES.values(), SUSPENDED)},
    advice="failed: its log must not be served, docs/failures.md says what to do. suspended: see "
    "muster_lease_margin_seconds.",
)
SHARD_LOAD_DURATION = Metric(
    "muster_shard_load_duration",
    Kind.HISTOGRAM,
    "How long loads of shards took, from the claim to the first answer.",
    "seconds",
    bounds=LONG_SECONDS,
    advice="Above 1 s: logs are long, see MUSTER_SHARD_LOG_…; or metadata is slow.",
)
SHARD_RECORDS_LOADED = Metric(
    "muster_shard_records_loaded", Kind.COUNTER, "Records that loads replayed, after their snapshots."
)
LOG_STEP_DURATION = Metric(
    "muster_log_step_duration",
    Kind.HISTOGRAM,
    "Time until the outcome of a step on a log was known here: repetitions included.",
    "seconds",
    labels={"step": STEPS},
    bounds=(*SHORT_SECONDS, 30.0, 60.0),
    advice="append is what a commit waits for. Compare muster_log_quorum_duration_seconds of metadata: if "
    "that is short, metadata or the way to it is busy; if not, Redis is, see "
    "muster_redis_reply_duration_seconds.",
)
LOG_RECORDS = Metric("muster_log_records_written", Kind.COUNTER, "Records that were acknowledged.")
LOG_BYTES = Metric("muster_log_written", Kind.COUNTER, "Bytes of the steps that wrote them.", "bytes")
LOG_REPEATS = Metric(
    "muster_log_steps_repeated",
    Kind.COUNTER,
    "Steps that were sent again because their outcome was not known or refused for now.",
    advice="More than now and then: no majority of Redis answers in time; see docs/failures.md.",
)
LOG_STREAMS_LOST = Metric(
    "muster_log_streams_lost",
    Kind.COUNTER,
    "How often the stream to metadata broke, or was given up for another instance.",
    advice="Without a restart of metadata: its instance hangs, or the network does.",
)
LEASE_MARGIN = Metric(
    "muster_lease_margin",
    Kind.GAUGE,
    "How long the lease is good from now on if it is not renewed; 0: it is not held, and nobody is answered.",
    "seconds",
    advice="Normal is above 1 s. Near 0: metadata or Redis is slow, or this process starves.",
)
LEASE_LAPSES = Metric(
    "muster_lease_lapses",
    Kind.COUNTER,
    "How often the lease ran out before it was renewed.",
    advice="Each one stopped all answers of this coordinator until it was renewed.",
)
LEASE_FAILURES = Metric(
    "muster_lease_renewals_failed",
    Kind.COUNTER,
    "Renewals that were not confirmed in time; the next one is tried at once.",
    advice="One now and then costs nothing. Many: see muster_lease_lapses_total.",
)

ALL = (
    GROUPS,
    GROUPS_OF_A_SHARD,
    HELD,
    HELD_BY_A_SHARD,
    REFUSALS,
    UNPROVEN,
    GROUPS_QUARANTINED,
    CORE_FAILURES,
    MEMBERS,
    MEMBERS_PENDING,
    PARTITIONS_ASSIGNED,
    PARTITIONS_COMMITTED,
    CALLS_PARKED,
    REBALANCES,
    REBALANCE_FAILURES,
    REBALANCE_DURATION,
    REBALANCE_OLDEST,
    MEMBERS_JOINED,
    MEMBERS_LEFT,
    OFFSETS_COMMITTED,
    OFFSETS_REMOVED,
    PARTITIONS_PARKED,
    *BY_GROUP,
    CALLS,
    CALL_DURATION,
    BEATS,
    SESSION_STREAMS,
    SESSION_STREAMS_OF_A_SHARD,
    SESSION_UNREAD,
    SESSION_MEMBERS,
    SHARDS,
    SHARD_LOAD_DURATION,
    SHARD_RECORDS_LOADED,
    LOG_STEP_DURATION,
    LOG_RECORDS,
    LOG_BYTES,
    LOG_REPEATS,
    LOG_STREAMS_LOST,
    LEASE_MARGIN,
    LEASE_LAPSES,
    LEASE_FAILURES,
)
"""All of them, in the order of the documentation."""
