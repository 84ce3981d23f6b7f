"""The examples of docs/sinks.md do what they say."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from muster.sinks import FencingMiddleware, StaleToken
from muster_server.dev.redis_nodes import RedisNode
from sinks.sinks_owners import HEIR, ZOMBIE

pytestmark = pytest.mark.cluster
PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"


@pytest.fixture(scope="module")
def examples() -> Any:
    """Everything that the blocks define."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        names.setdefault("store_fence", names["fence"])
    return SimpleNamespace(**names)


def test_the_database_refuses_a_zombie_and_keeps_nothing_of_it(examples: Any, tmp_path: Path) -> None:
    examples.store.__globals__["fence"] = examples.store_fence
    connection = examples.open_database(tmp_path / "data.db")
    for owner in (ZOMBIE, HEIR):
        examples.store(connection, owner, ["a", "b"])
    with pytest.raises(StaleToken):
        examples.store(connection, ZOMBIE, ["late"])
    assert connection.execute("SELECT name FROM items").fetchall() == [("a",), ("b",)] * 2
    connection.close()


async def test_redis_refuses_a_zombie(examples: Any, tmp_path: Path) -> None:
    examples.count.__globals__["fence"] = examples.fence
    node = RedisNode(tmp_path)
    await node.start()
    with redis.Redis.from_url(node.url) as client:
        assert [examples.count(client, owner, "word") for owner in (ZOMBIE, HEIR)] == [1, 2]
        with pytest.raises(StaleToken):
            examples.count(client, ZOMBIE, "word")
    await node.stop()


def test_the_service_is_behind_the_fence(examples: Any) -> None:
    assert isinstance(examples.app, FencingMiddleware)
