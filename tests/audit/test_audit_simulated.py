"""The audit of a log that a simulated cluster wrote under faults, in real servers."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from muster_server.dev.redis_nodes import RedisNodes
from typer.testing import CliRunner

pytest.importorskip("pyspark", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from muster_audit.command import app

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

TESTS = Path(__file__).parent.parent
SEEDS = range(6, 33)
MINUTES = 2


def simulated(folder: Path) -> Path:
    """What is left of the first seed in which silent members are removed (`simulation.dump`)."""
    for seed in SEEDS:
        run = [sys.executable, "-m", "simulation", "--seed", str(seed), "--minutes", str(MINUTES)]
        of_seed = folder / str(seed)
        done = subprocess.run(
            [*run, "--dump", str(of_seed)],
            cwd=TESTS,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if " M3 " in done.stdout:
            return of_seed
    raise AssertionError(f"no member is removed for its silence in {SEEDS}")


@pytest.mark.usefixtures("spark")
async def test_the_log_of_a_simulated_cluster_breaks_no_promise(tmp_path: Path) -> None:
    """The nodes agree, and with what clients were acknowledged and read while faults went on."""
    dump = simulated(tmp_path / "dump")
    held = sorted(dump.glob("*.resp"))
    assert [path.stem for path in held] == ["redis-1", "redis-2", "redis-3"]
    nodes = RedisNodes(tmp_path / "nodes", 3, fsync="no")
    await nodes.start()
    try:
        for node, path in zip(nodes, held, strict=True):
            load(node.port, path.read_bytes())
        command = ["check", nodes.url, "--nodes", "all", "-o", "json", "--master", "local[1]"]
        command += ["--acks", str(dump / "acks.jsonl"), "--reads", str(dump / "reads.jsonl")]
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
    finally:
        await nodes.stop()
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["compared"]
    assert told["entries"] > 100
    checked = {row["id"]: row["looked_at"] for row in told["invariants"]}
    for invariant in ("L1", "L3", "L5", "L6", "L7", "L6n", "G1", "G3", "G9", "O1", "O3", "O4", "M3"):
        assert checked[invariant] > 0, invariant


def load(port: int, commands: bytes) -> None:
    """Gives a server what a simulated node held."""
    with redis.Redis(port=port) as client:
        connection = client.connection_pool.get_connection()
        connection.send_packed_command([commands, b"*2\r\n$4\r\nECHO\r\n$3\r\nend\r\n"])
        while connection.read_response() != b"end":
            pass
