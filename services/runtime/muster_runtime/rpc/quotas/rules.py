"""The file of exceptions: other quotas for some callers, and quotas of groups by prefix.

[[quota]]
caller = "spiffe://prod/batch/"     # identities or hosts that begin with this
calls_per_s = 500

[[quota]]
groups = "batch-"                   # groups whose ids begin with this, together, whoever calls
commits_per_s = 100
"""

import tomllib

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from muster_runtime.rpc._problems import problems_of

_RULES_MAX = 1_000
_Number = Field(default=None, ge=0, le=1 << 40)


class Rule(BaseModel):
    """A quota for some callers, or for the groups of a prefix; what is absent is not changed, 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    caller: str | None = Field(default=None, max_length=512)
    groups: str | None = Field(default=None, max_length=255)
    connections: int | None = _Number
    streams: int | None = _Number
    open_calls: int | None = _Number
    calls_per_s: int | None = _Number
    frames_per_s: int | None = _Number
    bytes_per_s: int | None = _Number
    commits_per_s: int | None = _Number
    partitions_per_s: int | None = _Number
    new_groups_per_s: int | None = _Number
    total_groups: int | None = _Number
    total_members: int | None = _Number
    total_partitions: int | None = _Number
    topic_changes_per_s: int | None = _Number
    resets_per_s: int | None = _Number
    connection_calls_per_s: int | None = _Number
    connection_bytes_per_s: int | None = _Number
    connection_partitions_per_s: int | None = _Number

    @model_validator(mode="after")
    def _consistent(self) -> "Rule":
        if (self.caller is None) == (self.groups is None):
            raise ValueError("name either `caller` or `groups`")
        others = self.limits().keys() - OF_GROUPS if self.groups is not None else set[str]()
        if others:
            raise ValueError(f"groups have no quota of {', '.join(sorted(others))}")
        return self

    def limits(self) -> dict[str, int]:
        """What it sets, by the names of the settings."""
        return self.model_dump(exclude={"caller", "groups"}, exclude_none=True)


OF_GROUPS = frozenset(
    {
        "calls_per_s",
        "bytes_per_s",
        "commits_per_s",
        "partitions_per_s",
        "new_groups_per_s",
        "total_groups",
        "total_members",
        "total_partitions",
    }
)
"""The quotas that a prefix of groups may have."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    quota: list[Rule] = Field(default=[], max_length=_RULES_MAX)


def parse(text: bytes) -> tuple[Rule, ...]:
    """The rules in the text of a file.

    Raises:
        ValueError: it is not what it has to be; says where.
    """
    try:
        return tuple(_File.model_validate(tomllib.loads(text.decode("utf-8"))).quota)
    except ValidationError as error:
        raise ValueError("; ".join(problems_of(error, "quota"))) from None
