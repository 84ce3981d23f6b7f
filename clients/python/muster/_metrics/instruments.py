"""The metrics of a worker, and the program's own instruments for them."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from muster_protos.muster.v1 import common_pb2

from muster._errors import code_name
from muster._reactions import CONNECTION_LOST, OVERLOADED

METER = "muster"
"""Name of the library, as OpenTelemetry calls the scope of its instruments."""

MOST_GROUPS = 200
"""So many groups of a process have their name as an attribute, and the others together `other`."""

MOST_TOPICS = 1_000
"""So many topics have."""

OTHER = "other"

DURATIONS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Bounds of the histograms, unless the program has a view of its own."""


class Kind(Enum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class ClientMetric:
    """One metric of a worker.

    Attributes:
        name: as the program's exporter gets it; one for Prometheus adds the unit and `_total`.
        kind: how it behaves.
        text: what it says.
        unit: as OpenTelemetry writes it; empty: a count.
        attributes: names, with the values that there can be; none: whatever the program calls its own.
        advice: what to do about it.
    """

    name: str
    kind: Kind
    text: str
    unit: str = ""
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advice: str = ""


def cause_name(kind: int) -> str:
    """A kind of cause of a rebalance as an attribute."""
    try:
        name = common_pb2.RebalanceCauseKind.Name(common_pb2.RebalanceCauseKind.ValueType(kind))
    except ValueError:
        return OTHER  # of a later version of the servers
    return name.removeprefix("REBALANCE_CAUSE_KIND_").lower()


_OWN_NAMES = {CONNECTION_LOST: "CONNECTION_LOST", OVERLOADED: "OVERLOADED"}
_KNOWN_CODES = frozenset(common_pb2.ErrorCode.values())


def code_attribute(code: int) -> str:
    """An error code as an attribute; one of a later version of the servers is `other`."""
    return _OWN_NAMES.get(code) or (code_name(code) if code in _KNOWN_CODES else OTHER)


_CODES = tuple(code_attribute(code) for code in sorted(_KNOWN_CODES) if code)
_GROUP: Mapping[str, tuple[str, ...]] = {"group": ()}
_TOPIC: Mapping[str, tuple[str, ...]] = {"group": (), "topic": ()}
FAILED, IDLE, RETURNED, NO_CLUSTER = "failed", "idle", "returned", "cluster"

OWNED = ClientMetric(
    "muster_client_partitions_owned",
    Kind.GAUGE,
    "Partitions that this process owns, at this moment.",
    attributes=_TOPIC,
    advice="The sum over the fleet below the number of partitions: work that nobody does.",
)
PARKED = ClientMetric(
    "muster_client_partitions_parked",
    Kind.GAUGE,
    "Of these: parked ones, whose work is not called.",
    attributes=_TOPIC,
    advice="`muster groups describe` says why; repair it, then `muster partitions release`.",
)
COMMITS = ClientMetric(
    "muster_client_commits", Kind.COUNTER, "Positions of partitions that were stored.", attributes=_TOPIC
)
COMMITS_REFUSED = ClientMetric(
    "muster_client_commits_refused",
    Kind.COUNTER,
    "Positions of partitions that the coordinator refused, by its answer.",
    attributes={**_TOPIC, "code": _CODES},
    advice="ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID: the partition went to another worker "
    "while this one worked on; the log of the worker says why.",
)
COMMIT_DURATION = ClientMetric(
    "muster_client_commit_duration",
    Kind.HISTOGRAM,
    "Time that `commit` took where the position was stored, repetitions included.",
    "s",
    attributes=_GROUP,
    advice="Compare muster_call_duration_seconds of the coordinator: if that is short, the network or this "
    "process is slow.",
)
REBALANCES = ClientMetric(
    "muster_client_rebalances",
    Kind.COUNTER,
    "Generations, and of incremental groups new lists, that this process got, by what made them necessary.",
    attributes={
        **_GROUP,
        "cause": tuple(cause_name(kind) for kind in sorted(common_pb2.RebalanceCauseKind.values())),
    },
    advice="`muster groups history GROUP` tells who and why.",
)
WORK_RETRIES = ClientMetric(
    "muster_client_work_retries",
    Kind.COUNTER,
    "How often the work on a partition is called again: it raised, was idle for max_idle_ms, returned, or "
    "the cluster was in its way.",
    attributes={**_TOPIC, "why": (FAILED, IDLE, RETURNED, NO_CLUSTER)},
    advice="failed: the log of the worker has the traceback, once for each place.",
)
CALLS_REPEATED = ClientMetric(
    "muster_client_calls_repeated",
    Kind.COUNTER,
    "Calls to a coordinator that did not do what they were for and are made again, by why.",
    attributes={
        **_GROUP,
        "call": ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", OTHER),
        "code": (*_OWN_NAMES.values(), *_CODES),
    },
    advice="Some belong to each take-over. Many: compare muster_calls_total of the coordinators.",
)
WITHOUT_COORDINATOR = ClientMetric(
    "muster_client_without_coordinator",
    Kind.COUNTER,
    "Time that members of this process had no coordinator that served their group.",
    "s",
    attributes=_GROUP,
    advice="Its growth is what the workers waited for. Without a failure of a server: look at the network.",
)
LOOP_BLOCKS = ClientMetric(
    "muster_client_loop_block_duration",
    Kind.HISTOGRAM,
    "Blocks of the event loop that members live in, of a tenth of a second or longer, when they are over.",
    "s",
    advice="The log of the worker says where it stood; put what blocks it into a thread.",
)

ALL = (
    OWNED,
    PARKED,
    COMMITS,
    COMMITS_REFUSED,
    COMMIT_DURATION,
    REBALANCES,
    WORK_RETRIES,
    CALLS_REPEATED,
    WITHOUT_COORDINATOR,
    LOOP_BLOCKS,
)
"""All of them, in the order of the documentation."""

Attributes = Mapping[str, str]
Reading = tuple[float, Attributes]
"""A value and what it is of."""

_OBSERVED = (OWNED, PARKED, WITHOUT_COORDINATOR)


class Instruments:
    """The instruments of the program's meter. It may be read from any thread.

    Args:
        api: the module `opentelemetry.metrics`.
        observe: what the metrics that are read, not counted, are now.
    """

    def __init__(self, api: Any, observe: Callable[[ClientMetric], Iterable[Reading]]) -> None:
        meter = api.get_meter(METER)
        self._made: dict[str, Any] = {}
        for metric in ALL:
            options: dict[str, Any] = {"unit": metric.unit or "1", "description": metric.text}
            if metric in _OBSERVED:
                options["callbacks"] = [_reader(api, metric, observe)]
            observed = "observable_" if metric in _OBSERVED else ""
            create = getattr(meter, f"create_{observed}{metric.kind.value}")
            if metric.kind is Kind.HISTOGRAM:
                self._made[metric.name] = _histogram(create, metric.name, options)
            else:
                self._made[metric.name] = create(metric.name, **options)

    def add(self, metric: ClientMetric, attributes: Attributes, amount: int = 1) -> None:
        """Counts."""
        self._made[metric.name].add(amount, attributes)

    def record(self, metric: ClientMetric, value: float, attributes: Attributes) -> None:
        """Puts a value into a histogram."""
        self._made[metric.name].record(value, attributes)


def _reader(
    api: Any, metric: ClientMetric, observe: Callable[[ClientMetric], Iterable[Reading]]
) -> Callable[[Any], list[Any]]:
    return lambda _options: [api.Observation(value, attributes) for value, attributes in observe(metric)]


def _histogram(create: Callable[..., Any], name: str, options: Mapping[str, Any]) -> Any:
    try:
        return create(name, **options, explicit_bucket_boundaries_advisory=DURATIONS_S)
    except TypeError:  # an API before 1.28 takes no advice
        return create(name, **options)


def loaded_api() -> Any:
    """The module `opentelemetry.metrics` if the program has loaded it; else None."""
    api: Any = sys.modules.get("opentelemetry.metrics")
    return api if hasattr(api, "Observation") else None  # another thread may be loading it
