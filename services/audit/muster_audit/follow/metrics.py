"""The metrics of `muster-audit follow`, as a text file that Prometheus' node exporter collects."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from muster_audit.follow.checkpoint import Checkpoint
from muster_audit.promises import ALL

# A series more for each counter, and no query asks for it.
disable_created_metrics()


@dataclass(frozen=True, slots=True)
class Round:
    """One round over all logs.

    Attributes:
        reached: whether the log could be read.
        at_seconds: when the last round that could ended, since the Unix epoch.
        lags: entries that are acknowledged and not checked yet, by log.
    """

    reached: bool
    at_seconds: float
    lags: Mapping[str, int]


def metrics_text(checkpoint: Checkpoint, last: Round, names: Mapping[int, str]) -> str:
    """The metrics in Prometheus' text format.

    Args:
        checkpoint: how far the logs were checked.
        last: what the last round met.
        names: what the logs are called, by number.
    """
    registry = CollectorRegistry()
    Gauge("muster_audit_up", "1: the last round read the log; 0: not.", registry=registry).set(last.reached)
    Gauge(
        "muster_audit_last_round_timestamp_seconds",
        "When the last round that read the log ended.",
        registry=registry,
    ).set(last.at_seconds)
    entries = Counter(
        "muster_audit_entries_checked", "Entries checked, each once.", ["log"], registry=registry
    )
    for number, log in sorted(checkpoint.logs.items()):
        entries.labels(names[number]).inc(log.entries)
    lags = Gauge(
        "muster_audit_lag_entries",
        "Acknowledged entries that are not checked yet.",
        ["log"],
        registry=registry,
    )
    for name, lag in last.lags.items():
        lags.labels(name).set(lag)
    violations = Counter(
        "muster_audit_violations", "How often a promise was broken.", ["invariant"], registry=registry
    )
    for invariant in ALL:
        violations.labels(invariant).inc(checkpoint.broken[invariant])
    return generate_latest(registry).decode()
