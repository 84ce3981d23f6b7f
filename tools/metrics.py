"""Writes the tables of docs/metrics.md from the code and from alerts/muster.yaml.

./x metrics            write them
./x metrics --check    only say whether they are as they should be
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from muster._metrics import instruments as client
from muster_coordinator.telemetry import metrics as coordinator
from muster_discovery import metrics as discovery
from muster_metadata import metrics as metadata
from muster_runtime.cluster.metrics import ViewSource
from muster_runtime.rpc.access.metrics import AccessSource
from muster_runtime.rpc.quotas import metrics as quotas
from muster_runtime.rpc.trust.expiry import CertificateWatch
from muster_runtime.telemetry import Metric
from muster_runtime.telemetry.process import (
    ALARMS_TOLD,
    COLLECT_TIMEOUTS,
    LOOP_LAG,
    TELEMETRY_DROPPED,
    build_info,
)
from muster_runtime.telemetry.rpcs import RpcMetrics

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"
ALERTS = ROOT / "alerts" / "muster.yaml"

PROCESS: Sequence[Metric] = (
    build_info("", ""),
    LOOP_LAG,
    ALARMS_TOLD,
    *RpcMetrics.metrics,
    *CertificateWatch.metrics,
    TELEMETRY_DROPPED,
    COLLECT_TIMEOUTS,
)
"""What every process tells."""
SECTIONS: dict[str, Sequence[Metric]] = {
    "process": PROCESS,
    "view": ViewSource.metrics,
    "access": AccessSource.metrics,
    "quotas": quotas.ALL,
    "coordinator": coordinator.ALL,
    "metadata": metadata.ALL,
    "discovery": discovery.ALL,
}
"""All metrics, by the table that they stand in."""
_SHOWN_VALUES = 16


def metrics_table(metrics: Iterable[Metric]) -> str:
    """One row for each metric."""
    lines = ["| metric | kind | says | what to do |", "|---|---|---|---|"]
    for metric in metrics:
        labels = "".join(f"<br>`{name}`: {_values(values)}" for name, values in metric.labels.items())
        says, advice = _cell(metric.text) + labels, _cell(metric.advice) or "–"
        lines.append(f"| `{metric.name}` | {metric.kind.value} | {says} | {advice} |")
    return "\n".join(lines)


def _values(values: Sequence[str]) -> str:
    known = [value for value in values if value]
    if not known:
        return "…"
    if len(known) > _SHOWN_VALUES:
        return "the names in the protocol"
    return ", ".join(known)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def client_table(metrics: Iterable[client.ClientMetric]) -> str:
    """One row for each metric of a worker, with the names that Prometheus gets."""
    lines = ["| metric | kind | says | what to do |", "|---|---|---|---|"]
    for metric in metrics:
        unit = {"s": "_seconds", "": ""}[metric.unit]
        total = "_total" if metric.kind is client.Kind.COUNTER else ""
        attributes = "".join(f"<br>`{name}`: {_values(values)}" for name, values in metric.attributes.items())
        says, advice = _cell(metric.text) + attributes, _cell(metric.advice) or "–"
        lines.append(f"| `{metric.name}{unit}{total}` | {metric.kind.value} | {says} | {advice} |")
    return "\n".join(lines)


def rules(file: Path = ALERTS) -> list[dict[str, Any]]:
    """Every alert rule."""
    document = yaml.safe_load(file.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def alerts_table(rules: Iterable[dict[str, Any]]) -> str:
    """One row for each alert."""
    lines = ["| alert | severity | when | means | what to do |", "|---|---|---|---|---|"]
    for rule in rules:
        notes = rule["annotations"]
        after = f", for {rule['for']}" if "for" in rule else ""
        lines.append(
            f"| `{rule['alert']}` | {rule['labels']['severity']} | `{_cell(rule['expr'])}`{after} "
            f"| {_cell(notes['meaning'])} | {_cell(notes['action'])} |"
        )
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """The page with its tables made anew, between their marks."""
    tables = {name: metrics_table(metrics) for name, metrics in SECTIONS.items()}
    tables["client"] = client_table(client.ALL)
    tables["alerts"] = alerts_table(rules())
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise SystemExit(f"{PAGE.name}: the marks {begin} and {end} are missing")
        made = f"{begin}\n{table}\n{end}"
        page = made.join(pattern.split(page))
    return page


def main() -> int:
    """Entry point of `./x metrics`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if it would change")
    options = parser.parse_args()
    page = PAGE.read_text()
    made = with_tables(page)
    if made == page:
        return 0
    if options.check:
        print("docs/metrics.md is not what the code says; run ./x metrics", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    print("docs/metrics.md written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
