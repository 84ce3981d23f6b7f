"""Limits and times of the group protocol, with Kafka's defaults where Kafka has one."""

from dataclasses import dataclass
from typing import Literal

OFFSET_METADATA_MAX_BYTES = 65_536
"""The most that `GroupConfig.offset_metadata_max_bytes` may be set to: an audit accuses nobody of less."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What an operator may set. All times in ms.

    Attributes:
        min_session_timeout_ms: lowest session timeout a member may ask for.
        max_session_timeout_ms: highest one.
        initial_rebalance_delay_ms: how long an empty group gathers members first (KIP-134).
        max_groups: groups of all shards of the process.
        max_groups_per_shard: groups of one shard.
        max_new_groups_per_shard: groups of one shard that had no generation yet and no commit.
        max_bytes: what the groups of all shards of the process may hold in memory, as it is counted.
        max_bytes_per_shard: as `max_bytes`, of one shard.
        max_size: members per group (KIP-389).
        max_group_bytes: ids and protocol lists of all members of a group, which one record holds: while nodes
            take that, all others wait.
        max_partitions: partitions that a group's published assignments give in a generation.
        max_topics: different topics that the members of an incremental group name.
        max_kept_tokens: partitions of a generation that keep their tokens because members never gave them up;
            those above get new ones.
        max_offsets: partitions of a group with a committed offset.
        max_offset_bytes: what the committed offsets of a group hold in memory, as it is counted.
        commit_max_bytes: what a commit may take in the log.
        require_member_secrets: whether nobody joins without a secret; counts once the feature is enabled.
        max_pending_members: member ids given out and not yet used, per group (KIP-394).
        unused_id_timeout_ms: how long a member id that was given out may be used, at most; a session time-out
            that is shorter ends it before.
        new_member_join_timeout_ms: how long a new member may be parked in its first JoinGroup.
        offset_metadata_max_bytes: length of the metadata string of a commit, in UTF-8.
        offsets_retention_ms: how long offsets outlive the last member of their group (KIP-211).
        retention_check_interval_ms: how often expired offsets are looked for.
        append_timeout_ms: how long a call waits for its records to be stored before it is answered
            COORDINATOR_NOT_AVAILABLE; the records may still land.
        incremental_session_timeout_ms: session of members of incremental groups.
        incremental_disconnect_grace_ms: how long one on a session stream may stay away when that breaks.
        incremental_heartbeat_interval_ms: how often they are to send a heartbeat.
        incremental_assignment_interval_ms: pause between assignments of an incremental group; 0: none; -1:
            20 to 500 ms in a group with members on session streams, as fast as changes come, else none.
        incremental_assignment_wait_ms: how long a heartbeat waits for an assignment that is computed aside
            before it is answered by the earlier target.
        convert: when classic groups become incremental while members work: `never`, `auto` or `always`.
        convert_after_ms: with `auto`, how long after the last join.
        history_length: generations that a group remembers; 0: none.
        history_moves: moves of partitions that a generation of the history lists.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_groups: int = 200_000
    max_groups_per_shard: int = 50_000
    max_new_groups_per_shard: int = 1_000
    max_bytes: int = 1 << 30
    max_bytes_per_shard: int = 512 << 20
    max_size: int = 5_000
    max_group_bytes: int = 2 * 1_048_576
    max_partitions: int = 200_000
    max_topics: int = 10_000
    max_kept_tokens: int = 20_000
    max_offsets: int = 500_000
    max_offset_bytes: int = 256 << 20
    commit_max_bytes: int = 2 << 20
    require_member_secrets: bool = False
    max_pending_members: int = 1_000
    unused_id_timeout_ms: int = 60_000
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    retention_check_interval_ms: int = 600_000
    append_timeout_ms: int = 5_000
    incremental_session_timeout_ms: int = 45_000
    incremental_disconnect_grace_ms: int = 3_000
    incremental_heartbeat_interval_ms: int = 5_000
    incremental_assignment_interval_ms: int = -1
    incremental_assignment_wait_ms: int = 5_000
    convert: Literal["never", "auto", "always"] = "never"
    convert_after_ms: int = 300_000
    history_length: int = 100
    history_moves: int = 1_000
