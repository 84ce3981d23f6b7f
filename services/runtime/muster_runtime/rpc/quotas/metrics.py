"""The quotas of a server, in numbers."""

from collections.abc import Sequence

from muster_runtime.rpc.quotas.party import Quota
from muster_runtime.rpc.quotas.quotas import Quotas
from muster_runtime.telemetry import Kind, Metric, Sample, Source

_ROLE = {"role": ("discovery", "coordinator")}

QUOTA_REFUSALS = Metric(
    "muster_quota_refusals",
    Kind.COUNTER,
    "Calls that were refused because of a quota, by the name of its setting.",
    labels={**_ROLE, "quota": tuple(quota.value for quota in Quota)},
    advice="`muster quotas` shows whose: mend that client, or give it another quota in MUSTER_QUOTA_FILE.",
)
QUOTA_CALLERS = Metric(
    "muster_quota_callers",
    Kind.GAUGE,
    "Callers that the process counts: identities, or hosts without one, that called in the last seconds.",
    labels=_ROLE,
)

ALL = (QUOTA_REFUSALS, QUOTA_CALLERS)
"""All of them."""


class QuotaSource(Source):
    """Reads the quotas of one server.

    Args:
        quotas: the quotas.
        role: whose server it is.
    """

    metrics: Sequence[Metric] = ALL

    def __init__(self, quotas: Quotas, role: str) -> None:
        self._quotas = quotas
        self._role = role

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        callers = sum(not party.is_groups for party in self._quotas.parties())
        return [
            Sample(QUOTA_CALLERS, callers, (self._role,)),
            *(
                Sample(QUOTA_REFUSALS, number, (self._role, quota.value))
                for quota, number in self._quotas.refusals.items()
            ),
        ]
