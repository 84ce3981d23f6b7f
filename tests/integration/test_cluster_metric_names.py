"""Alerts and dashboards ask for what a running service tells, with labels and values that there are."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.scrape import scrape
from kit.waiting import until
from muster_audit.follow.checkpoint import Checkpoint
from muster_audit.follow.metrics import Round, metrics_text
from muster_audit.promises import ALL as INVARIANTS
from muster_coordinator.telemetry import metrics as coordinator
from muster_discovery import metrics as discovery
from muster_metadata import metrics as metadata
from muster_runtime.cluster.metrics import ViewSource
from muster_runtime.rpc.access.metrics import AccessSource
from muster_runtime.rpc.quotas import metrics as quotas
from muster_runtime.rpc.trust.expiry import CertificateWatch
from muster_runtime.telemetry import Metric
from muster_runtime.telemetry.process import (
    ALARM_EVENTS,
    ALARMS_TOLD,
    COLLECT_TIMEOUTS,
    LOOP_LAG,
    TELEMETRY_DROPPED,
    build_info,
)
from muster_runtime.telemetry.rpcs import RpcMetrics
from muster_server.child_process import ChildProcess

ROOT = Path(__file__).resolve().parents[2]
METRICS: tuple[Metric, ...] = (
    build_info("", ""),
    LOOP_LAG,
    ALARMS_TOLD,
    TELEMETRY_DROPPED,
    COLLECT_TIMEOUTS,
    *RpcMetrics.metrics,
    *CertificateWatch.metrics,
    *ViewSource.metrics,
    *AccessSource.metrics,
    *quotas.ALL,
    *coordinator.ALL,
    *metadata.ALL,
    *discovery.ALL,
)
OF_SCRAPING = {"instance", "job"}
NAME = re.compile(r"\b((?:muster|process|python)_[a-z_]+)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
ENDS = ("_bucket", "_sum", "_count")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "alerts" / "muster.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboards() -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in sorted((ROOT / "dashboards").glob("*.json"))}


def expressions() -> Iterator[tuple[str, str]]:
    """Everything that is asked of Prometheus, and where it stands."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for name, board in dashboards().items():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{name}: {variable['name']}", variable["query"]["query"]
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']}", target["expr"]


EXPRESSIONS = list(expressions())


@pytest.fixture(scope="module")
def of_the_audit() -> set[str]:
    """What `muster-audit follow` writes."""
    text = metrics_text(Checkpoint(), Round(True, 0.0, {}), {})
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


@pytest.mark.cluster
async def test_every_name_is_told_by_a_running_service(tmp_path: Path, of_the_audit: set[str]) -> None:
    ready = tmp_path / "ready"
    options = ["--ready-file", str(ready), "--data", str(tmp_path / "data")]
    process = ChildProcess(
        "all",
        [sys.executable, "-m", "muster_server", "--roles", "all", *options],
        tmp_path / "log",
        environment={
            "MUSTER_TELEMETRY_PROMETHEUS_LISTEN": "127.0.0.1:0",
            "MUSTER_METADATA_LISTEN": "127.0.0.1:0",
            "MUSTER_DISCOVERY_LISTEN": "127.0.0.1:0",
            "MUSTER_COORDINATOR_LISTEN": "127.0.0.1:0",
        },
        removed=("MUSTER_",),
    )
    process.start()
    try:
        ports = await until(lambda: json.loads(ready.read_text()) if ready.exists() else None, "it serves")
        told = await scrape(ports["metrics"])
    finally:
        await process.kill()
    names = told.names
    asked = {name for _, text in EXPRESSIONS for name, _ in NAME.findall(text)}
    assert len(asked) > 40
    assert asked - names - of_the_audit == set()
    defined = {metric.name + end for metric in METRICS for end in _ends(metric)}
    assert {name for name in names if name.startswith("muster_")} == defined


def _ends(metric: Metric) -> tuple[str, ...]:
    return ENDS if metric.bounds else ("",)


@pytest.mark.parametrize(("place", "text"), EXPRESSIONS, ids=[place for place, _ in EXPRESSIONS])
def test_labels_and_their_values_exist(place: str, text: str) -> None:
    assert text.count("(") == text.count(")"), place
    metrics = {metric.name + end: metric for metric in METRICS for end in _ends(metric)}
    known = {"le", *OF_SCRAPING, "invariant"}
    for name, matchers in NAME.findall(text):
        metric = metrics.get(name)
        if metric is None:
            continue  # of a client library or the audit
        known |= set(metric.labels)
        for label, operator, value in MATCHER.findall(matchers):
            if label in OF_SCRAPING:
                continue
            assert label in metric.labels, f"{name} has no label {label}"
            wanted = value.split("|") if operator in ("=~", "!~") else [value]
            assert set(wanted) <= set(metric.labels[label]), f"{name}: {label} has no value {wanted}"
    for group in GROUPING.findall(text):
        assert {label.strip() for label in group.split(",") if label.strip()} <= known, place


def test_every_metric_is_on_a_dashboard_or_in_an_alert() -> None:
    asked = {
        name.removesuffix(end) for _, text in EXPRESSIONS for name, _ in NAME.findall(text) for end in ENDS
    }
    asked |= {name for _, text in EXPRESSIONS for name, _ in NAME.findall(text)}
    assert {metric.name for metric in METRICS} - asked == set()


def test_alerts_say_what_they_mean_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert all(rule["annotations"][key].strip() for key in ("summary", "meaning", "action")), rule[
            "alert"
        ]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_dashboards_have_their_panels_side_by_side() -> None:
    for name, board in dashboards().items():
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        assert len(set(places)) == len(places), name
        assert len({panel["id"] for panel in board["panels"]}) == len(places), name
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"]), name


def test_what_compose_starts_for_telemetry_fits_together() -> None:
    """No image is pulled here: names and places are compared, and that Prometheus asks every process."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    told = {
        name
        for name, service in services.items()
        if "MUSTER_TELEMETRY_PROMETHEUS_LISTEN" in service.get("environment", ())
    }
    folder = ROOT / "dashboards" / "compose"
    prometheus = yaml.safe_load((folder / "prometheus.yaml").read_text())
    (job,) = prometheus["scrape_configs"]
    assert set(job["static_configs"][0]["targets"]) == {f"{name}:9464" for name in told}
    assert len(told) == 7
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
    collector = yaml.safe_load((folder / "collector.yaml").read_text())
    assert collector["exporters"]["otlp"]["endpoint"].split(":")[0] in services
    uids = {
        source["uid"]
        for source in yaml.safe_load((folder / "grafana-datasources.yaml").read_text())["datasources"]
    }
    assert uids == {"prometheus", "jaeger"}


def test_every_alarm_of_the_code_has_its_name_in_the_metric() -> None:
    files = (ROOT / "services").rglob("*.py")
    told = {name for file in files for name in re.findall(r'\balarm\(\s*"(\w+)"', file.read_text())}
    assert told == set(ALARM_EVENTS)


def test_each_promise_of_the_audit_has_its_number_of_violations() -> None:
    text = metrics_text(Checkpoint(), Round(True, 0.0, {}), {})
    counted = re.findall(r'^muster_audit_violations_total{invariant="(\w+)"', text, re.MULTILINE)
    assert counted == list(INVARIANTS)
