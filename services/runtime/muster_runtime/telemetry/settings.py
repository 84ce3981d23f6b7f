"""Settings of telemetry."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from muster_runtime.addresses import ListenAddress
from muster_runtime.settings import Settings


class TelemetrySettings(Settings):
    """Where metrics and traces of a process go. Without an address nothing is counted."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_TELEMETRY_")

    prometheus_listen: ListenAddress | None = Field(
        default=None,
        description="Where `/metrics` is served for Prometheus, host:port, e.g. 0.0.0.0:9464; plain HTTP. "
        "Port 0 picks one.",
    )
    otlp_endpoint: str = Field(
        default="",
        description="Collector that metrics and traces are sent to by OTLP over gRPC, http://host:port or "
        "https://host:port.",
    )
    otlp_ca_file: Path | None = Field(
        default=None, description="Certificates that an https collector is checked against, PEM."
    )
    otlp_headers: SecretStr = Field(
        default=SecretStr(""), description="Headers for the collector, key=value,key=value."
    )
    otlp_metrics: bool = Field(
        default=True, description="Whether the collector gets metrics too; false: only traces."
    )
    otlp_interval_ms: int = Field(
        default=15_000,
        ge=100,
        le=600_000,
        description="Time in ms between two sendings of metrics. 100 to 600,000.",
    )
    otlp_timeout_ms: int = Field(
        default=5_000,
        ge=100,
        le=60_000,
        description="Time in ms that the collector gets for what it is sent; then it is dropped and counted.",
    )
    trace_ratio: float = Field(
        default=0.1,
        ge=0.0,
        le=1.0,
        description="Share of calls that are traced when their caller does not say; 0 to 1. Rebalances are "
        "traced always, unless it is 0: then nothing is.",
    )
    max_waiting_spans: int = Field(
        default=4_096,
        ge=512,
        le=100_000,
        description="Ended spans that wait to be sent; more are dropped and counted. 512 to 100,000.",
    )
    max_groups: int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="Groups that a coordinator's metrics tell by their names, in the label `group`; the "
        "others are `other` together. 0: no metric has that label. 0 to 10,000.",
    )
    collect_timeout_ms: int = Field(
        default=1_000,
        ge=10,
        le=60_000,
        description="Time in ms that a scrape waits for the event loop; then it gets the numbers of before.",
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _url(cls, value: str) -> str:
        scheme, separator, rest = value.partition("://")
        if value and (not separator or scheme not in ("http", "https") or not rest.strip("/")):
            raise ValueError("must be http://host:port or https://host:port")
        return value

    @model_validator(mode="after")
    def _encrypted(self) -> "TelemetrySettings":
        if self.otlp_ca_file is not None and not self.otlp_endpoint.startswith("https://"):
            raise ValueError(
                "MUSTER_TELEMETRY_OTLP_CA_FILE needs a MUSTER_TELEMETRY_OTLP_ENDPOINT of https://"
            )
        return self

    @property
    def metrics(self) -> bool:
        """Whether anything is counted."""
        return self.prometheus_listen is not None or bool(self.otlp_endpoint)

    @property
    def traces(self) -> bool:
        """Whether anything is traced."""
        return bool(self.otlp_endpoint) and self.trace_ratio > 0
