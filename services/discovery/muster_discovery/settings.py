"""Settings of discovery."""

from muster_runtime.addresses import Address, AddressList, ListenAddress, OneAddress
from muster_runtime.settings import Settings
from pydantic import Field
from pydantic_settings import SettingsConfigDict


class DiscoverySettings(Settings):
    """Where discovery listens, whom it asks, and its limits."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_DISCOVERY_")

    listen: ListenAddress = Field(
        default=Address("0.0.0.0", 7400),  # noqa: S104  clients are elsewhere
        description="Where to listen; port 0 picks a free one.",
    )
    advertise: OneAddress | None = Field(
        default=None, description="Address for clients, host:port; unset: where it listens."
    )
    metadata: AddressList = Field(
        default=(Address("127.0.0.1", 7420),),
        description="Addresses of the metadata instances, 1 to 100.",
    )
    max_watchers: int = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description="Open WatchCluster calls; more are refused.",
    )
    topic_attempt_timeout_ms: int = Field(
        default=3_000,
        ge=100,
        le=60_000,
        description=("Time for one metadata instance to change a topic before the next one is asked."),
    )
    stop_grace_ms: int = Field(
        default=1_000,
        ge=0,
        le=600_000,
        description="Time for open calls to end when the process stops.",
    )
