import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from muster_server.child_process import ChildError
from muster_server.dev.redis_nodes import RedisNode, RedisNodes

pytestmark = pytest.mark.cluster


def client(node: RedisNode) -> redis.Redis:
    return redis.Redis(port=node.port, socket_timeout=5)


async def test_data_survives_sigkill_and_the_port_stays(tmp_path: Path) -> None:
    node = RedisNode(tmp_path / "redis-1", fsync="always")
    await node.start()
    with client(node) as connection:
        connection.set("key", "value")
    await node.kill()
    assert not node.answers()

    again = RedisNode(tmp_path / "redis-1")
    assert again.port == node.port
    await again.start()
    with client(again) as connection:
        assert connection.get("key") == b"value"
    await again.stop()


async def test_the_configuration_keeps_data(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 1, fsync="always")
    await nodes.start()
    with client(nodes[0]) as connection:
        for name, value in {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            "bind": "127.0.0.1",
        }.items():
            assert connection.config_get(name) == {name: value}
    await nodes.stop()
    assert nodes[0].process.returncode == 0


async def test_nodes_rewrite_their_files_at_different_sizes(tmp_path: Path) -> None:
    """They grow alike, and each stands for a moment at the end of a rewrite."""
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    sizes = list[int]()
    for node in nodes:
        with client(node) as connection:
            sizes.append(int(connection.config_get("auto-aof-rewrite-min-size")["auto-aof-rewrite-min-size"]))
    await nodes.stop()
    assert sizes == [64 << 20, 90 << 20, 116 << 20]


async def test_a_paused_node_does_not_answer_and_comes_back(tmp_path: Path) -> None:
    nodes = RedisNodes(tmp_path, 3)
    await nodes.start()
    assert nodes.url.count(",") == 2
    assert len({node.port for node in nodes}) == 3
    nodes[1].pause()
    assert not nodes[1].answers()
    assert nodes[0].answers()
    nodes[1].resume()
    assert nodes[1].answers()
    await nodes.stop()
    assert not any(node.process.running for node in nodes)


@pytest.mark.parametrize("count", [0, 2, 4, 7])
def test_only_odd_small_quorums(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="1, 3 or 5"):
        RedisNodes(tmp_path, count)


async def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    first = RedisNode(tmp_path / "redis-1")
    await first.start()
    second = RedisNode(tmp_path / "redis-2", port=first.port)
    second.spawn()
    with pytest.raises(ChildError, match=r"(?s)redis-2 ended with code 1 .*in use"):
        # `ready` would be answered by the first one
        await second.process.wait_until(lambda: False, 10.0)
    await first.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
def test_no_orphan_survives_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import asyncio, json, sys, time\n"
        "from pathlib import Path\n"
        "from muster_server.dev.redis_nodes import RedisNodes\n"
        f"nodes = RedisNodes(Path({str(tmp_path)!r}), 1)\n"
        "asyncio.run(nodes.start())\n"
        "print(json.dumps(nodes[0].process.pid), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = json.loads(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]
    except FileNotFoundError:
        return False
