"""Shows operators the quotas of a process, and who uses them."""

from collections.abc import Mapping
from heapq import nsmallest
from itertools import chain
from typing import Any

from muster_protos.muster.v1 import quotas_pb2, quotas_pb2_grpc

from muster_runtime.addresses import host_in_peer
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.calls import need_of
from muster_runtime.rpc.identity import current_identity
from muster_runtime.rpc.quotas.party import Party, Quota
from muster_runtime.rpc.quotas.quotas import Quotas
from muster_runtime.rpc.refusals import InvalidArgument, PermissionDenied, Violation

_SERVICE = "muster.v1.QuotaService"
_LISTED = 100
LISTED_MAX = 1_000
_SORTED_AT_ONCE = 2_000
_TURN_S = 0.002


class QuotaServicer(quotas_pb2_grpc.QuotaServiceServicer):
    """Implements `muster.v1.QuotaService`.

    Args:
        quotas: of the server.
        access: what callers may do.
    """

    def __init__(self, quotas: Quotas, access: Access) -> None:
        self._quotas = quotas
        self._access = access

    async def DescribeQuotas(
        self, request: quotas_pb2.DescribeQuotasRequest, context: Any
    ) -> quotas_pb2.DescribeQuotasResponse:
        """Those who were refused last, and those who ask most."""
        need = need_of(_SERVICE, "DescribeQuotas")
        where = host_in_peer(context.peer())
        if not self._access.allows(current_identity().name, need.verb, need.kind, where=where):
            raise PermissionDenied(need.refusal)
        if request.limit > LISTED_MAX:
            raise InvalidArgument([Violation("limit", f"must be at most {LISTED_MAX:,}")])
        share = LoopShare()
        parties = list(self._quotas.parties())
        answer = quotas_pb2.DescribeQuotasResponse(known=sum(not party.is_groups for party in parties))
        first: list[Party] = []
        for begin in range(0, len(parties), _SORTED_AT_ONCE):
            some = parties[begin : begin + _SORTED_AT_ONCE]
            first = nsmallest(request.limit or _LISTED, chain(first, some), key=_place)
            await share.rest()
        for name, limit in self._quotas.limits.items():
            answer.defaults.add(quota=name, limit=limit)
        for party in first:
            caller = answer.callers.add(name=party.name, is_groups=party.is_groups)
            _describe(caller, party, self._quotas.totals_of(party))
            if share.taken_s > _TURN_S:
                await share.rest()
        return answer


def _place(party: Party) -> tuple[bool, float, int]:
    """Where it stands in the list."""
    return not party.is_groups, -(party.refused_at_s or 0), -party.taken[Quota.CALLS]


def _describe(
    caller: quotas_pb2.DescribeQuotasResponse.Caller, party: Party, totals: Mapping[Quota, int]
) -> None:
    if party.refused_at_s is not None:
        caller.refused_ago_ms = max(0, round((party.now_s() - party.refused_at_s) * 1_000))
    in_use = {
        Quota.CONNECTIONS: party.connections,
        Quota.STREAMS: party.streams,
        Quota.OPEN_CALLS: party.open_calls,
        **totals,
        **(party.rates or party.taken),
    }
    for quota in Quota:
        if quota.value in party.limits:
            caller.uses.add(
                quota=quota.value,
                limit=party.limits[quota.value],
                used=in_use.get(quota, 0),
                refused=party.refusals.get(quota, 0),
            )
