"""Settings of the process: its ports, its shards' logs, what it keeps of faults, and session streams."""

import socket
from pathlib import Path
from typing import Annotated

from muster_runtime import memory
from muster_runtime.addresses import Address, AddressList, ListenAddress, OneAddress
from muster_runtime.settings import Settings
from pydantic import Field, StringConstraints, model_validator
from pydantic_settings import SettingsConfigDict

from muster_coordinator.api.callers import NetworkList
from muster_coordinator.failstop.fault_folder import FaultFolder, default_folder
from muster_coordinator.shard.snapshot_pace import SnapshotPace

_DAY_MS = 86_400_000


class CoordinatorSettings(Settings):
    """Where a coordinator listens, who it is, and where metadata is.

    The lease margin, interval and limit together must be shorter than the lease that metadata gives
    (`MUSTER_METADATA_LEASE_MS`), else the coordinator stops answering between two renewals.
    """

    model_config = SettingsConfigDict(env_prefix="MUSTER_COORDINATOR_")

    listen: ListenAddress = Field(
        default=Address("127.0.0.1", 7410),
        description="Where to listen; port 0 picks a free one.",
    )
    advertise: OneAddress | None = Field(
        default=None,
        description=("Address that clients are told; unset: where it listens."),
    )
    internal_listen: ListenAddress | None = Field(
        default=None,
        description=(
            "Where to listen for internal calls, which other processes of the cluster and operators make; "
            "port 0 picks a free one. Unset: they are answered where clients connect."
        ),
    )
    internal_advertise: OneAddress | None = Field(
        default=None,
        description=(
            "Address that other processes of the cluster are told for internal calls; unset: the host of "
            "MUSTER_COORDINATOR_ADVERTISE, or where it listens for them."
        ),
    )
    internal_on_public: bool = Field(
        default=True,
        description=(
            "Whether internal calls are answered where clients connect, too, as coordinators of version 0.1 "
            "make them there; off where none of these is left. Version 0.3 never answers them there."
        ),
    )
    node_id: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9._-]+$")] = (
        Field(
            default_factory=socket.gethostname,
            description=(
                "Name of the process, unique among those that live: 1 to 255 of "
                "`A-Za-z0-9._-`; unset: the machine's name."
            ),
        )
    )
    metadata: AddressList = Field(
        default=(Address("127.0.0.1", 7420),),
        description="Addresses of the metadata instances, 1 to 100.",
    )
    trusted_proxies: NetworkList = Field(
        default=(),
        description=(
            "Networks of proxies, as `10.0.0.0/8,192.168.1.7`, whose `x-forwarded-for` says on which host a "
            "member runs, and whose quotas a call counts for; others' is ignored."
        ),
    )
    lease_margin_ms: int = Field(
        default=400,
        ge=50,
        le=10_000,
        description=(
            "How long before the end of its lease it stops answering: what clocks and stalls may cost."
        ),
    )
    lease_interval_ms: int = Field(
        default=400, ge=50, le=10_000, description="How often it renews its lease."
    )
    lease_limit_ms: int = Field(
        default=300,
        ge=20,
        le=10_000,
        description=(
            "A renewal that is not answered within this time has failed and is tried at another instance."
        ),
    )
    log_limit_ms: int = Field(
        default=2_000,
        ge=100,
        le=60_000,
        description=(
            "A step or read of a log that is not answered within this time is tried at another metadata "
            "instance; a claim has three times as long. Above MUSTER_METADATA_STEP_TIMEOUT_MS, which it "
            "cuts short else."
        ),
    )
    join_delay_ms: int = Field(
        default=300,
        ge=0,
        le=60_000,
        description=(
            "How long it must be among the live coordinators before it takes its "
            "first shard, so that several that start together share at once."
        ),
    )
    settle_ms: int = Field(
        default=5_000,
        ge=0,
        le=3_600_000,
        description=("Shards move for balance when no coordinator came or went for this long."),
    )
    moves_max: int = Field(
        default=16, ge=1, le=1_000, description="Claims and hand-overs in flight at a time."
    )
    quiet_log_ms: int = Field(
        default=10_000,
        ge=100,
        le=600_000,
        description=(
            "A shard that wrote and read nothing for this long asks the log whether it is still owned here."
        ),
    )
    drain_limit_ms: int = Field(
        default=10_000,
        ge=0,
        le=600_000,
        description=(
            "At its end, how long it waits for others to take its shards over. A "
            "container's grace period must be longer than this and `MUSTER_COORDINATOR_LINGER_MS`."
        ),
    )
    linger_ms: int = Field(
        default=1_000,
        ge=0,
        le=60_000,
        description=(
            "At its end, how long it still answers callers with the coordinator that took their shard over."
        ),
    )
    max_answer_bytes: int = Field(
        default=16 << 20,
        ge=1 << 20,
        le=64 << 20,
        description=(
            "Largest answer to OffsetFetch, DescribeGroups and ListGroups; what would be larger "
            "is refused and may be asked for in parts. Not above MUSTER_SERVER_MAX_RESPONSE_BYTES."
        ),
    )
    max_load_bytes: int | None = Field(
        default=None,
        ge=1 << 20,
        le=1 << 40,
        description=(
            "What the groups of all shards of the process may come to hold in memory by loads, as it is "
            "counted: a shard that would bring more is not served, with an alarm. Absent: three fifths of "
            "the memory that the process may have, as its control group says, above 128 MiB."
        ),
    )
    load_wait_ms: int = Field(
        default=100,
        ge=0,
        le=5_000,
        description=("How long a call waits for the load of its shard to end before it is told to retry."),
    )

    @model_validator(mode="after")
    def _ports(self) -> "CoordinatorSettings":
        name = self.variable
        if self.internal_listen is None:
            if not self.internal_on_public:
                raise ValueError(
                    f"{name('internal_on_public')}=false needs {name('internal_listen')}: nobody could make "
                    "internal calls"
                )
            if self.internal_advertise is not None:
                raise ValueError(f"{name('internal_advertise')} needs {name('internal_listen')}")
        elif self.internal_listen == self.listen and self.listen.port:
            raise ValueError(
                f"{name('internal_listen')}={self.internal_listen} is the address of {name('listen')}"
            )
        return self

    def load_bytes(self) -> int | None:
        """How much memory loads may bring groups to; None: as much as there is."""
        if self.max_load_bytes is not None:
            return self.max_load_bytes
        usable_bytes = memory.usable_bytes()
        return None if usable_bytes is None else usable_bytes * 3 // 5


class ShardLogSettings(Settings):
    """When snapshots of the logs are taken, and when their old entries are removed."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_SHARD_LOG_")

    snapshot_records: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description=(
            "Take a snapshot when a load would replay this many records, and for about as long as it reads "
            "the newest snapshot; at least 100, or 0: never."
        ),
    )
    snapshot_bytes: int = Field(
        default=32 << 20,
        ge=65_536,
        le=1 << 30,
        description="Or when a load would replay this many bytes.",
    )
    retention_ms: int = Field(
        default=7 * _DAY_MS,
        ge=0,
        le=3_660 * _DAY_MS,
        description=("Remove entries that snapshots cover and that are older than this; 0: keep them all."),
    )
    export: bool = Field(
        default=False, description=("Remove only entries of which the audit reported that it exported them.")
    )

    @model_validator(mode="after")
    def _consistent(self) -> "ShardLogSettings":
        name = self.variable
        if 0 < self.snapshot_records < 100:
            raise ValueError(f"{name('snapshot_records')}={self.snapshot_records} must be 0 or at least 100")
        if not self.snapshot_records and self.retention_ms:
            raise ValueError(
                f"{name('snapshot_records')}=0 takes no snapshots, so nothing could be removed after "
                f"{name('retention_ms')}={self.retention_ms}: set that to 0 too"
            )
        if self.export and not self.retention_ms:
            raise ValueError(
                f"{name('export')}=true waits with removing for the export, and {name('retention_ms')}=0 "
                "removes nothing: drop one of them"
            )
        return self

    def to_pace(self) -> SnapshotPace:
        """The values as the snapshot taker takes them."""
        return SnapshotPace(
            records=self.snapshot_records,
            size_bytes=self.snapshot_bytes,
            retention_ms=self.retention_ms,
            only_exported=self.export,
        )


class FaultSettings(Settings):
    """Where events are kept that made the group protocol fail, for `muster-server replay`.

    They hold what members send: ids, metadata, commits. Each file can be read by the service's user only.
    """

    model_config = SettingsConfigDict(env_prefix="MUSTER_FAULT_")

    folder: Path | None = Field(
        default=None,
        description=(
            "Folder of the files; unset: `muster-faults-UID` in the system's folder for temporary files."
        ),
    )
    max_files: int = Field(
        default=20, ge=0, le=10_000, description="Files that are kept; the oldest goes first. 0: none."
    )
    max_bytes: int = Field(
        default=1 << 20,
        ge=16_384,
        le=64 << 20,
        description="Size of one file; of an event that needs more only a part is kept.",
    )

    def to_folder(self) -> FaultFolder:
        """What keeps them."""
        return FaultFolder(self.folder or default_folder(), self.max_files, self.max_bytes)


class SessionSettings(Settings):
    """Limits and times of session streams."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_SESSION_")

    max_streams: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Session streams of the process; more are refused. Each client process "
            "has one to each coordinator that serves it."
        ),
    )
    max_members: int = Field(
        default=5_000, ge=1, le=1_000_000, description="Members on one stream; more are refused."
    )
    max_frames: int = Field(
        default=1_000, ge=1, le=100_000, description="Frames in one message of a client; more are refused."
    )
    max_open_calls: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Calls of one stream that wait for their answer; more are refused.",
    )
    max_queued_bytes: int = Field(
        default=8 << 20,
        ge=1_024,
        le=1 << 30,
        description=("What may wait for a client that does not read before its stream is cut off."),
    )
    max_total_queued_bytes: int = Field(
        default=256 << 20,
        ge=1_024,
        le=64 << 30,
        description=(
            "What may wait on all streams of the process; above it those are cut off who left most unread."
        ),
    )
    hello_timeout_ms: int = Field(
        default=10_000,
        ge=50,
        le=600_000,
        description="Time for a new stream to say Hello before it is cut off.",
    )
    write_timeout_ms: int = Field(
        default=10_000,
        ge=50,
        le=600_000,
        description="Time for a client to take a message before its stream is cut off.",
    )
    max_silence_ms: int = Field(
        default=60_000,
        ge=100,
        le=86_400_000,
        description=("A stream without a frame for this long, and for three beats, is closed."),
    )
    max_age_ms: int = Field(
        default=7_200_000,
        ge=100,
        le=_DAY_MS,
        description=(
            "Age at which a stream ends and its client opens another, so that "
            "clients spread anew; a tenth either way."
        ),
    )
    break_window_ms: int = Field(
        default=200,
        ge=0,
        le=2_000,
        description=(
            "Streams that break within this time are judged together: most of them "
            "at once is the network, not the members."
        ),
    )
    break_hold_ms: int = Field(
        default=1_000,
        ge=0,
        le=60_000,
        description=("After most streams broke, further ones are put down to the network for this long."),
    )
