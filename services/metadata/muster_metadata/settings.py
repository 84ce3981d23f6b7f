"""Settings of the metadata service."""

from muster_runtime.settings import Settings
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from muster_metadata.nodes.addresses import split_urls

LEASE_MAX_MS = 60_000


class MetadataSettings(Settings):
    """Where the log is, where to listen, and how long to wait.

    The lease must be at least three polls and more than two renewals long, and longer than a probe; a claim,
    and the delay before a node is rebuilt, at least two steps. All instances should have the same values.
    """

    model_config = SettingsConfigDict(env_prefix="MUSTER_METADATA_")

    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379"),
        description=(
            "1, 3 or 5 independent servers, all of the log's nodes in the order in "
            "which they were made: `redis://user:password@a:6379,b:6379,c:6379`, "
            "or `rediss://` for TLS."
        ),
    )
    listen: str = Field("127.0.0.1:7420", description="Where to listen, host:port; port 0 picks a free one.")
    advertise: str = Field(
        "",
        description=(
            "Address that other services reach this instance at, host:port; unset: where it listens."
        ),
    )
    lease_ms: int = Field(
        2_000,
        ge=300,
        le=LEASE_MAX_MS,
        description=("Silence after which a coordinator is dead and others may take its shards."),
    )
    poll_ms: int = Field(
        100,
        ge=10,
        le=5_000,
        description=(
            "Time between two reads of the tables of a node: how fast instances learn of each other's news."
        ),
    )
    renew_timeout_ms: int = Field(250, ge=10, le=10_000, description="Longest time of a renewal of a lease.")
    probe_timeout_ms: int = Field(
        300,
        ge=10,
        le=5_000,
        description=(
            "How long the address of a coordinator whose stream broke may stay "
            "silent before it counts as dead."
        ),
    )
    step_timeout_ms: int = Field(
        1_000,
        ge=50,
        le=30_000,
        description=("After this time a step without a majority has an unknown outcome and is repeated."),
    )
    claim_timeout_ms: int = Field(
        5_000,
        ge=100,
        le=120_000,
        description="After this time a claim has an unknown outcome and is repeated.",
    )
    change_timeout_ms: int = Field(
        5_000,
        ge=100,
        le=120_000,
        description="After this time a change of a topic is answered as not available.",
    )
    rebuild_delay_ms: int = Field(
        2_000,
        ge=100,
        le=600_000,
        description=(
            "How long a node must have been seen without its data before it is "
            "rebuilt: until then a claimant may count on a promise that it lost."
        ),
    )

    catalog_snapshot_records: int = Field(
        2_000,
        ge=0,
        le=1_000_000,
        description=(
            "Take a snapshot of the catalog's log when a load would replay this many records; at least 100, "
            "or 0: never, and then nothing of it is removed."
        ),
    )
    catalog_export: bool = Field(
        False,
        description=(
            "Remove only entries of the catalog's log of which the audit reported that it exported them."
        ),
    )

    trail_events: int = Field(
        10_000,
        ge=100,
        le=100_000,
        description=(
            "How many events of the audit trail the log keeps of what was done, and how many of what was "
            "refused or failed."
        ),
    )
    trail_days: int = Field(
        90, ge=1, le=3_650, description="For how many days the log keeps the audit trail."
    )

    readers_max_bytes: int = Field(
        256 << 20,
        ge=64 << 20,
        le=64 << 30,
        description=(
            "What the process has in memory, of logs and the audit trail, for those who read them; one host "
            "has half of it at most. Who finds no room for 10 s is answered RESOURCE_EXHAUSTED."
        ),
    )

    @field_validator("redis_url")
    @classmethod
    def _nodes(cls, value: SecretStr) -> SecretStr:
        split_urls(value.get_secret_value())
        return value

    @field_validator("catalog_snapshot_records")
    @classmethod
    def _snapshot_records(cls, value: int) -> int:
        if 0 < value < 100:
            raise ValueError("must be 0 or at least 100")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "MetadataSettings":
        name = self.variable
        if self.lease_ms < 3 * self.poll_ms:
            raise ValueError(
                f"{name('lease_ms')}={self.lease_ms} must be at least three times "
                f"{name('poll_ms')}={self.poll_ms}"
            )
        if self.lease_ms <= 2 * self.renew_timeout_ms:
            raise ValueError(
                f"{name('lease_ms')}={self.lease_ms} must be more than twice "
                f"{name('renew_timeout_ms')}={self.renew_timeout_ms}: a lease outlives a failed renewal"
            )
        if self.probe_timeout_ms >= self.lease_ms:
            raise ValueError(f"{name('probe_timeout_ms')} must be below {name('lease_ms')}={self.lease_ms}")
        if self.claim_timeout_ms < 2 * self.step_timeout_ms:
            raise ValueError(
                f"{name('claim_timeout_ms')}={self.claim_timeout_ms} must be at least twice "
                f"{name('step_timeout_ms')}={self.step_timeout_ms}: a claim takes several steps"
            )
        if self.rebuild_delay_ms < 2 * self.step_timeout_ms:
            raise ValueError(
                f"{name('rebuild_delay_ms')}={self.rebuild_delay_ms} must be at least twice "
                f"{name('step_timeout_ms')}={self.step_timeout_ms}: a claimant may count on a lost promise"
            )
        return self
