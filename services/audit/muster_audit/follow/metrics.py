"""The metrics of `muster-audit follow`, as a text file that Prometheus' node exporter collects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster_audit.follow.checkpoint import Checkpoint
from muster_audit.promises import ALL


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
    broken = checkpoint.broken
    entries = ((f'{{log="{names[n]}"}}', log.entries) for n, log in sorted(checkpoint.logs.items()))
    lines = [
        *_metric("up", "gauge", "1: the last round read the log; 0: not.", [("", int(last.reached))]),
        *_metric(
            "last_round_timestamp_seconds",
            "gauge",
            "When the last round that read the log ended.",
            [("", f"{last.at_seconds:.3f}")],
        ),
        *_metric("entries_checked_total", "counter", "Entries checked, each once.", entries),
        *_metric(
            "lag_entries",
            "gauge",
            "Acknowledged entries that are not checked yet.",
            ((f'{{log="{name}"}}', lag) for name, lag in last.lags.items()),
        ),
        *_metric(
            "violations_total",
            "counter",
            "How often a promise was broken.",
            ((f'{{invariant="{id_}"}}', broken[id_]) for id_ in ALL),
        ),
    ]
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, object]]) -> list[str]:
    full = f"muster_audit_{name}"
    rows = [f"{full}{labels} {value}" for labels, value in samples]
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *rows]
