"""What `muster-audit executor` makes of what Spark says to a pod."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from muster_audit.command import app
from muster_audit.spark.executor import NotAnExecutor, command
from typer.testing import CliRunner

pytestmark = pytest.mark.spark

SAID = {
    "SPARK_DRIVER_URL": "spark://driver@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "2",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "audit-exec-2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_10": "-Dlast",
    "SPARK_JAVA_OPT_9": "-Dfirst",
    "PATH": "/bin",
}


def test_options_stand_in_the_order_of_their_numbers() -> None:
    words = command(SAID, Path("/jre"), Path("/jars"))
    assert words[:7] == ["/jre/bin/java", "-Dfirst", "-Dlast", "-Xms1024m", "-Xmx1024m", "-cp", "/jars/*"]
    assert words[7].endswith("KubernetesExecutorBackend")
    pairs = dict(zip(words[8::2], words[9::2], strict=True))
    assert pairs["--driver-url"] == SAID["SPARK_DRIVER_URL"]
    assert pairs["--podName"] == "audit-exec-2"
    assert pairs["--hostname"] == "10.0.0.2"


@pytest.mark.parametrize("missing", ["SPARK_EXECUTOR_MEMORY", "SPARK_EXECUTOR_POD_NAME"])
def test_missing_variable_is_named(missing: str) -> None:
    with pytest.raises(NotAnExecutor, match=missing):
        command({**SAID, missing: ""}, Path("/jre"), Path("/jars"))


def test_started_by_hand_it_says_so() -> None:
    done = CliRunner().invoke(app, ["executor"], env=dict.fromkeys(SAID.keys() - {"PATH"}))
    assert done.exit_code == 2
    assert "only Spark starts executors" in done.output
