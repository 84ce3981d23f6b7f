"""Settings of the quotas."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, PrivateAttr
from pydantic_settings import SettingsConfigDict

from muster_runtime.rpc._files import RenewedFiles
from muster_runtime.rpc.quotas.rules import parse
from muster_runtime.settings import Settings, SettingsError

MIB = 1 << 20
_MOST = 1_000_000_000


class QuotaSettings(Settings):
    """What callers of the public services may ask for, at each process by itself; 0: as much as they like.

    A caller is its identity, or its host where it proves none (of IPv6 the /64 network). Above a quota it is
    answered RESOURCE_EXHAUSTED with the time after which to try again. Calls, bytes, commits and partitions
    may be asked for, and calls given up, for five seconds at once, groups and topics for a hundred.
    """

    model_config = SettingsConfigDict(env_prefix="MUSTER_QUOTA_")

    connections: int = Field(
        default=5_000, ge=0, le=_MOST, description="Connections of a caller with open calls."
    )
    streams: int = Field(default=5_000, ge=0, le=_MOST, description="Session streams of a caller.")
    open_calls: int = Field(
        default=10_000,
        ge=0,
        le=_MOST,
        description="Open calls of a caller, parked ones and streams included.",
    )
    calls_per_s: int = Field(
        default=20_000,
        ge=0,
        le=_MOST,
        description="Calls of a caller a second, unary ones and those on session streams.",
    )
    frames_per_s: int = Field(
        default=20_000,
        ge=0,
        le=_MOST,
        description=(
            "Other frames of session streams of a caller a second: beats, attachings, detachings. Above it "
            "its streams are read more slowly."
        ),
    )
    bytes_per_s: int = Field(
        default=64 * MIB, ge=0, le=1 << 40, description="Bytes of its requests a second."
    )
    commits_per_s: int = Field(
        default=10_000, ge=0, le=_MOST, description="OffsetCommit calls of a caller a second."
    )
    partitions_per_s: int = Field(
        default=200_000,
        ge=0,
        le=_MOST,
        description=(
            "Partitions a second that calls of a caller name, with topics, members and groups; "
            "those with ten or fewer count as calls alone."
        ),
    )
    new_groups_per_s: int = Field(
        default=50, ge=0, le=_MOST, description="Groups that a caller begins a second, by a join or a commit."
    )
    total_groups: int = Field(
        default=100_000,
        ge=0,
        le=_MOST,
        description=(
            "Groups of a caller that the process has, by who began them; one that was loaded counts for its "
            "first member."
        ),
    )
    total_members: int = Field(
        default=100_000,
        ge=0,
        le=_MOST,
        description="Members of those groups of a caller together, whoever they are.",
    )
    total_partitions: int = Field(
        default=1_000_000,
        ge=0,
        le=_MOST,
        description="Partitions with a committed offset in those groups of a caller together.",
    )
    topic_changes_per_s: int = Field(
        default=10,
        ge=0,
        le=_MOST,
        description="Topics that a caller creates, alters or deletes a second.",
    )
    resets_per_s: int = Field(
        default=200,
        ge=0,
        le=_MOST,
        description=(
            "Calls that a caller gives up a second before they are answered; above it a connection that gave "
            "up a hundred is ended."
        ),
    )
    connection_calls_per_s: int = Field(
        default=5_000, ge=0, le=_MOST, description="Calls of one connection a second."
    )
    connection_bytes_per_s: int = Field(
        default=32 * MIB, ge=0, le=1 << 40, description="Bytes of the requests of one connection a second."
    )
    connection_partitions_per_s: int = Field(
        default=50_000,
        ge=0,
        le=_MOST,
        description="Partitions a second that calls on one connection name, counted as `PARTITIONS_PER_S`.",
    )
    work_bytes: int | None = Field(
        default=None,
        ge=8 * MIB,
        le=1 << 40,
        description=(
            "Bytes of requests of 64 KiB or more that the process works on at a time, with those that wait "
            "for the log or are parked; half of them may be of one caller. Absent: a sixteenth of the memory "
            "that the process may have, 16 to 256 MiB."
        ),
    )
    file: Path | None = Field(
        default=None,
        description=(
            "File (TOML) with other quotas for some callers, and with quotas for groups by prefix. It may be "
            "changed while the process runs; one that cannot be used changes nothing."
        ),
    )

    _files: RenewedFiles | None = PrivateAttr(default=None)

    def model_post_init(self, _: object) -> None:
        """Prepares to read the file; it is not read yet."""
        if self.file is not None:
            self._files = RenewedFiles("quota_rules", {self.variable("file"): self.file}, self._check)

    def content(self) -> bytes:
        """What the file holds, as it was last when it could be used; empty: there is none.

        Raises:
            SettingsError: it cannot be used, and never could.
        """
        return b"" if self._files is None else next(iter(self._files.read().values()))

    def _check(self, content: Mapping[str, bytes]) -> None:
        ((variable, text),) = content.items()
        try:
            parse(text)
        except ValueError as error:
            raise SettingsError([f"{variable}={str(self.file)!r}: {error}"]) from None
