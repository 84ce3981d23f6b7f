"""What a process tells of identities and rights, in numbers."""

from collections.abc import Sequence
from typing import Protocol

from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.verbs import Verb
from muster_runtime.telemetry import Kind, Metric, Sample, Source

_ROLE = {"role": ("discovery", "coordinator")}

RULES = Metric(
    "muster_access_rules",
    Kind.GAUGE,
    "Rules of the file of rights that are in force; 0: there is no file, and everybody may do everything.",
    labels=_ROLE,
)
OUTDATED = Metric(
    "muster_access_file_outdated",
    Kind.GAUGE,
    "1 while the file of rights cannot be used as it is; an earlier version of it is in force.",
    labels=_ROLE,
    advice="`access_rules_not_used` in the log says what is wrong with it; so does `muster access check`.",
)
REFUSED = Metric(
    "muster_access_refused",
    Kind.COUNTER,
    "Calls, or groups and topics of calls, that were refused because no rule allows them.",
    labels={**_ROLE, "verb": tuple(verb.value for verb in Verb)},
    advice="A worker that is new, or was renamed, may lack a rule: `muster access check` explains.",
)
UNAUTHENTICATED = Metric(
    "muster_calls_unauthenticated",
    Kind.COUNTER,
    "Calls of public services that were refused because their caller proved no identity, showed a token that "
    "does not count, or one that cannot be checked yet.",
    labels=_ROLE,
    advice="`call_unauthenticated` in the log says why, with an address. Many at once: no token is renewed, "
    "or keys of their issuer were not fetched (`token_keys_not_fetched`).",
)
KEYS_OUTDATED = Metric(
    "muster_token_keys_outdated",
    Kind.GAUGE,
    "1 while the keys of tokens cannot be read or fetched anew: the last ones count on, taken back or not.",
    labels=_ROLE,
    advice="`token_keys_not_fetched` or `token_keys_not_used` in the log says why.",
)


class Port(Protocol):
    """What serves the public calls of a process, as `RpcServer` does."""

    @property
    def access(self) -> Access:
        """Its rights."""

    @property
    def unauthenticated(self) -> int:
        """How many calls were refused because of who made them."""

    @property
    def keys_outdated(self) -> bool:
        """Whether tokens are checked with keys whose newer ones could not be had."""


class AccessSource(Source):
    """The numbers of who calls a process, and of its rights.

    Args:
        port: where the calls come in.
        role: whose they are.
    """

    metrics: Sequence[Metric] = (RULES, OUTDATED, REFUSED, UNAUTHENTICATED, KEYS_OUTDATED)

    def __init__(self, port: Port, role: str) -> None:
        self._port = port
        self._role = role

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        access, role = self._port.access, self._role
        return [
            Sample(RULES, len(access), (role,)),
            Sample(OUTDATED, 0 if access.is_current else 1, (role,)),
            Sample(UNAUTHENTICATED, self._port.unauthenticated, (role,)),
            Sample(KEYS_OUTDATED, int(self._port.keys_outdated), (role,)),
            *(Sample(REFUSED, count, (role, verb.value)) for verb, count in access.refused.items()),
        ]
