"""The one table from the calls of the public services to the rights that they need."""

from collections.abc import Mapping
from typing import NamedTuple

from muster_runtime.rpc.access.verbs import Kind, Verb


class Need(NamedTuple):
    """The right that a call needs in each group or topic that it names, or in the cluster."""

    verb: Verb
    kind: Kind

    @property
    def refusal(self) -> str:
        """What a caller is told who does not have it."""
        what = "the cluster" if self.kind is Kind.CLUSTER else f"this {self.kind}"
        return f"no rule allows the caller `{self.verb}` of {what} (`muster access check` explains)"


EACH_FRAME = None
"""A stream whose calls each need what the unary ones need; the stream itself needs nothing."""

_COORDINATOR = "muster.v1.GroupCoordinatorService"
_DISCOVERY = "muster.v1.CoordinatorDiscoveryService"

NEEDS: Mapping[str, Need | None] = {
    f"{_COORDINATOR}/JoinGroup": Need(Verb.JOIN, Kind.GROUP),
    f"{_COORDINATOR}/SyncGroup": Need(Verb.JOIN, Kind.GROUP),
    f"{_COORDINATOR}/Heartbeat": Need(Verb.JOIN, Kind.GROUP),
    f"{_COORDINATOR}/LeaveGroup": Need(Verb.JOIN, Kind.GROUP),
    f"{_COORDINATOR}/OffsetCommit": Need(Verb.COMMIT, Kind.GROUP),
    f"{_COORDINATOR}/OffsetFetch": Need(Verb.READ, Kind.GROUP),
    f"{_COORDINATOR}/OffsetDelete": Need(Verb.ADMIN, Kind.GROUP),
    f"{_COORDINATOR}/DescribeGroups": Need(Verb.DESCRIBE, Kind.GROUP),
    f"{_COORDINATOR}/ListGroups": Need(Verb.DESCRIBE, Kind.GROUP),
    f"{_COORDINATOR}/DeleteGroups": Need(Verb.ADMIN, Kind.GROUP),
    f"{_COORDINATOR}/GroupHistory": Need(Verb.DESCRIBE, Kind.GROUP),
    f"{_COORDINATOR}/ReleaseGroup": Need(Verb.ADMIN, Kind.GROUP),
    f"{_COORDINATOR}/AlterGroupSettings": Need(Verb.ADMIN, Kind.GROUP),
    f"{_COORDINATOR}/ConvertGroup": Need(Verb.ADMIN, Kind.GROUP),
    f"{_COORDINATOR}/ConsumerGroupHeartbeat": Need(Verb.JOIN, Kind.GROUP),
    f"{_COORDINATOR}/ConsumerGroupDescribe": Need(Verb.DESCRIBE, Kind.GROUP),
    "muster.v1.GroupSessionService/Session": EACH_FRAME,
    f"{_DISCOVERY}/FindCoordinator": Need(Verb.DESCRIBE, Kind.GROUP),
    f"{_DISCOVERY}/DescribeCluster": Need(Verb.DESCRIBE, Kind.CLUSTER),
    f"{_DISCOVERY}/WatchCluster": Need(Verb.DESCRIBE, Kind.CLUSTER),
    f"{_DISCOVERY}/ListTopics": Need(Verb.DESCRIBE, Kind.TOPIC),
    f"{_DISCOVERY}/CreateTopic": Need(Verb.CREATE, Kind.TOPIC),
    f"{_DISCOVERY}/AlterTopic": Need(Verb.ALTER, Kind.TOPIC),
    f"{_DISCOVERY}/AlterPartitions": Need(Verb.ALTER, Kind.TOPIC),
    f"{_DISCOVERY}/DeleteTopic": Need(Verb.DELETE, Kind.TOPIC),
    "muster.v1.QuotaService/DescribeQuotas": Need(Verb.ADMIN, Kind.CLUSTER),
}
"""By `service/method`. A call that is about offsets of topics needs `describe` of these besides."""


def need_of(service: str, method: str) -> Need:
    """What a call needs.

    Raises:
        KeyError: it is no public call, or a stream.
    """
    need = NEEDS[f"{service}/{method}"]
    if need is None:
        raise KeyError(f"{service}/{method} is a stream")
    return need
