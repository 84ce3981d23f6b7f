"""The same job on a standalone cluster: a master, two workers, their executors, all real processes."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.logs.log_builder import healthy
from kit.logs.log_nodes import empty, nodes_with

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

import pyspark
from muster_audit.spark.java import find_java_home
from muster_server.dev.ports import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]
PATIENCE_S = 300


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Address of a master with two workers, and the environment to use it with."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home(os.environ, tmp_path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    port, web = free_ports(2)
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)],
        *[[f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", master]] * 2,
    ]
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    logs = [tmp_path / f"process-{number}.log" for number in range(len(commands))]
    processes = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as file:
                processes.append(
                    subprocess.Popen([program, *command], env=environment, stdout=file, stderr=file)
                )
        deadline = time.monotonic() + PATIENCE_S
        while logs[0].read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, [log.read_text() for log in logs]
            assert all(process.poll() is None for process in processes)
            time.sleep(0.2)
        yield master, environment
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def test_two_workers_share_an_audit(cluster: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    master, environment = cluster
    logs = {shard: healthy(empty(shard, 6)) for shard in range(6)}
    logs[4].generation(7, "z")
    async with nodes_with(tmp_path / "nodes", logs, count=3) as nodes:
        done = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable, "-m", "muster_audit", "check", nodes.url, "--nodes", "all",
                "--master", master, "-o", "json", "--spark-log", str(tmp_path / "driver.log"),
            ],
            env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert [(row["invariant"], row["log"]) for row in told["violations"]] == [("G1", "shard 4")]
    assert (told["logs"], told["entries"], told["compared"]) == (7, 6 * 22 + 2, True)
    executors = set(re.findall(r"app-[^/\s]+/\d+", (tmp_path / "process-0.log").read_text()))
    assert len(executors) == 2
