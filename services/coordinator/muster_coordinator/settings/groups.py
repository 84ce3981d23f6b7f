"""Settings of the group protocol."""

from typing import Literal

from muster_core.config import OFFSET_METADATA_MAX_BYTES, GroupConfig
from muster_core.record_bounds import APPEND_MAX_BYTES, GROUP_MAX_BYTES
from muster_runtime import memory
from muster_runtime.settings import Settings
from pydantic import Field
from pydantic_settings import SettingsConfigDict

_DEFAULTS = GroupConfig()
_DAY_MS = 86_400_000


class GroupSettings(Settings):
    """Limits and times of the group protocol; preset as Kafka's brokers are, where they have them."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_GROUP_")

    min_session_timeout_ms: int = Field(
        default=_DEFAULTS.min_session_timeout_ms,
        ge=1,
        le=_DAY_MS,
        description="Lowest session time-out that a member may ask for.",
    )
    max_session_timeout_ms: int = Field(
        default=_DEFAULTS.max_session_timeout_ms,
        ge=1,
        le=_DAY_MS,
        description="Highest session time-out that a member may ask for.",
    )
    initial_rebalance_delay_ms: int = Field(
        default=_DEFAULTS.initial_rebalance_delay_ms,
        ge=0,
        le=3_600_000,
        description=("How long an empty group gathers members before its first generation (KIP-134)."),
    )
    max_groups: int = Field(
        default=_DEFAULTS.max_groups,
        ge=1,
        le=100_000_000,
        description=(
            "Groups of all shards of the process, those with nothing but offsets included; who would make "
            "more is told to try again."
        ),
    )
    max_groups_per_shard: int = Field(
        default=_DEFAULTS.max_groups_per_shard,
        ge=1,
        le=100_000_000,
        description="Groups of one shard; who would make more is told to try again.",
    )
    max_new_groups_per_shard: int = Field(
        default=_DEFAULTS.max_new_groups_per_shard,
        ge=1,
        le=1_000_000,
        description=(
            "Groups of one shard that had no generation and no commit yet; for another one the oldest goes "
            "that has only given ids out."
        ),
    )
    max_bytes: int | None = Field(
        default=None,
        ge=1 << 20,
        le=1 << 40,
        description=(
            "What the groups of all shards of the process may hold in memory, as it is counted: members, "
            "offsets, assignments, history; what would add to it is told to try again. Absent: two fifths of "
            "what the process may have in memory above 128 MiB, as its control group says; 1 GiB at most."
        ),
    )
    max_bytes_per_shard: int | None = Field(
        default=None,
        ge=1 << 20,
        le=1 << 40,
        description=(
            "The same of one shard; absent: a quarter of that memory, and 512 MiB at most. Members of a "
            "generation may go a quarter above both, so that groups that are there can rebalance."
        ),
    )
    max_size: int = Field(
        default=_DEFAULTS.max_size,
        ge=1,
        le=1_000_000,
        description="Members of a group; more are refused (KIP-389).",
    )
    max_group_bytes: int = Field(
        default=_DEFAULTS.max_group_bytes,
        ge=65_536,
        le=GROUP_MAX_BYTES,
        description=(
            "Ids and protocol lists of all members of a group together, as one record has them at each "
            "rebalance; more are refused, but for who is in a group that has more already. While the log "
            "takes such a record all others wait, for some 5 ms for each MiB."
        ),
    )
    require_member_secrets: bool = Field(
        default=_DEFAULTS.require_member_secrets,
        description=(
            "Refuses who joins without a secret: clients of version 0.1, and foreign ones that do not make "
            "any. Counts once the feature `member-secrets` is enabled; who has joined before stays until it "
            "joins again."
        ),
    )
    max_partitions: int = Field(
        default=_DEFAULTS.max_partitions,
        ge=1,
        le=10_000_000,
        description=(
            "Partitions that the leader of a group may give in one generation, where assignments are the "
            "published ones; the coordinator looks at each while others wait."
        ),
    )
    max_topics: int = Field(
        default=_DEFAULTS.max_topics,
        ge=1,
        le=1_000_000,
        description=(
            "Different topics that the members of an incremental group may name, and a twentieth of what "
            "their lists may have together; the coordinator looks at each while others wait."
        ),
    )
    max_kept_tokens: int = Field(
        default=_DEFAULTS.max_kept_tokens,
        ge=0,
        le=10_000_000,
        description=(
            "Partitions of a generation that keep their fencing tokens because their members never gave them "
            "up; those above get new ones."
        ),
    )
    max_offsets: int = Field(
        default=_DEFAULTS.max_offsets,
        ge=1,
        le=100_000_000,
        description="Partitions of a group with a committed offset; a commit that brings more is refused.",
    )
    max_offset_bytes: int = Field(
        default=_DEFAULTS.max_offset_bytes,
        ge=65_536,
        le=1 << 40,
        description=(
            "What the committed offsets of a group may hold in memory, as it is counted, metadata strings "
            "included; a commit that adds to it is refused."
        ),
    )
    commit_max_bytes: int = Field(
        default=_DEFAULTS.commit_max_bytes,
        ge=65_536,
        le=APPEND_MAX_BYTES,
        description=(
            "What a commit may take in the log: for each partition the name of its topic, its metadata "
            "string and about 48 bytes. A larger one is refused with INVALID_COMMIT_OFFSET_SIZE, as all "
            "groups wait while the log takes it; the Python library sends several."
        ),
    )
    max_pending_members: int = Field(
        default=_DEFAULTS.max_pending_members,
        ge=1,
        le=1_000_000,
        description=(
            "Member ids of a group that were given out and not used yet (KIP-394); for another one the "
            "oldest goes."
        ),
    )
    unused_id_timeout_ms: int = Field(
        default=_DEFAULTS.unused_id_timeout_ms,
        ge=1_000,
        le=_DAY_MS,
        description=(
            "How long a member id that was given out may be used (KIP-394); a shorter session time-out ends "
            "it before."
        ),
    )
    new_member_join_timeout_ms: int = Field(
        default=_DEFAULTS.new_member_join_timeout_ms,
        ge=1_000,
        le=_DAY_MS,
        description=("How long a new member may be parked in its first JoinGroup before it is forgotten."),
    )
    offset_metadata_max_bytes: int = Field(
        default=_DEFAULTS.offset_metadata_max_bytes,
        ge=0,
        le=OFFSET_METADATA_MAX_BYTES,
        description="Length of the metadata string of a commit, in UTF-8.",
    )
    offsets_retention_ms: int = Field(
        default=_DEFAULTS.offsets_retention_ms,
        ge=1_000,
        le=3_660 * _DAY_MS,
        description="How long offsets outlive the last member of their group (KIP-211).",
    )
    retention_check_interval_ms: int = Field(
        default=_DEFAULTS.retention_check_interval_ms,
        ge=100,
        le=_DAY_MS,
        description="How often expired offsets are looked for.",
    )
    append_timeout_ms: int = Field(
        default=_DEFAULTS.append_timeout_ms,
        ge=100,
        le=600_000,
        description=("How long a call waits for its records to be stored before it is told to retry."),
    )
    assignment_interval_ms: int = Field(
        default=_DEFAULTS.incremental_assignment_interval_ms,
        ge=-1,
        le=_DAY_MS,
        description=(
            "Pause between assignments of an incremental group; 0: none. -1: none, unless the group has "
            "members on session streams: there the first change is served at once, and the pause doubles "
            "from 20 ms to 500 while changes keep coming."
        ),
    )
    convert: Literal["never", "auto", "always"] = Field(
        default=_DEFAULTS.convert,
        description=(
            "When classic groups become incremental while their members work: `never`; `auto`: when all "
            "members can be incremental, are on session streams, and none joined for `convert_after_ms`; "
            "`always`: without that wait. With `auto` a client that can only be classic makes the group "
            "classic again when it joins, if all members can be that; else it is refused."
        ),
    )
    convert_after_ms: int = Field(
        default=_DEFAULTS.convert_after_ms,
        ge=1_000,
        le=_DAY_MS,
        description="How long after the last join a classic group is converted, where `convert` is `auto`.",
    )
    history_length: int = Field(
        default=_DEFAULTS.history_length,
        ge=1,
        le=10_000,
        description="Generations that a group remembers, for `muster groups history`.",
    )
    history_moves: int = Field(
        default=_DEFAULTS.history_moves,
        ge=0,
        le=100_000,
        description="Moves of partitions that one generation of the history lists.",
    )

    def to_config(self) -> GroupConfig:
        """The values as the core takes them."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values["incremental_assignment_interval_ms"] = values.pop("assignment_interval_ms")
        usable_bytes = memory.usable_bytes()
        share_bytes = _DEFAULTS.max_bytes if usable_bytes is None else usable_bytes * 2 // 5
        if self.max_bytes is None:
            values["max_bytes"] = min(_DEFAULTS.max_bytes, share_bytes)
        if self.max_bytes_per_shard is None:
            values["max_bytes_per_shard"] = min(_DEFAULTS.max_bytes_per_shard, share_bytes // 2)
        return GroupConfig(**values)
