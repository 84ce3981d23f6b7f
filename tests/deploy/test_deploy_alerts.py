"""The rules of alerts/muster.yaml, as Prometheus itself reads them."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RULES = HERE.parent.parent / "alerts" / "muster.yaml"
PROMTOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="needs promtool, which comes with Prometheus (Debian: apt install prometheus)"
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROMTOOL), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_say_what_they_should() -> None:
    done = promtool("test", "rules", HERE / "alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            "min(sum by (instance, role) (muster_log_nodes{state=",
            "(sum by (instance, role) (muster_log_nodes{state=",
        ),
        ("min(muster_shards_unowned{", "max(muster_shards_unowned{"),
        ("increase(muster_core_failures_total[15m])", "increase(muster_core_failures_total[1h])"),
        ("sum(muster_groups_quarantined)", "max(muster_groups_quarantined)"),
    ],
)
def test_a_rule_that_is_changed_is_noticed(right: str, wrong: str, tmp_path: Path) -> None:
    text = RULES.read_text("utf-8")
    assert text.count(right) == 1
    (tmp_path / "muster.yaml").write_text(text.replace(right, wrong), "utf-8")
    tests = (HERE / "alerts.yaml").read_text("utf-8").replace("../../alerts/muster.yaml", "muster.yaml")
    (tmp_path / "tests.yaml").write_text(tests, "utf-8")
    assert promtool("test", "rules", tmp_path / "tests.yaml").returncode == 1
