"""The fence of Redis, on a real server: a zombie is refused, and nothing of its command is carried out."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from muster.sinks import RedisFence, StaleToken
from muster_server.dev.redis_nodes import RedisNode
from sinks.sinks_owners import HEIR, ZOMBIE, owner

pytestmark = pytest.mark.cluster


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    node = RedisNode(tmp_path)
    await node.start()
    yield node.url
    await node.stop()


async def test_a_zombie_is_refused_and_nothing_of_its_command_is_carried_out(url: str) -> None:
    fence = RedisFence()
    with redis.Redis.from_url(url) as client:
        assert fence.call(client, ZOMBIE, "HSET", "counts", "a", 1, keys=["counts"]) == 1
        assert fence.call(client, HEIR, "HINCRBY", "counts", "a", 2) == 3
        with pytest.raises(StaleToken) as caught:
            fence.call(client, ZOMBIE, "HSET", "counts", "a", 100)
        assert (caught.value.resource, caught.value.highest) == ("crawlers/sites/3", HEIR.token)
        assert client.hgetall("counts") == {b"a": b"3"}
        assert fence.call(client, owner(1, 1, number=4), "GET", "counts2") is None
        assert client.get("muster:fence:crawlers/sites/3") == HEIR.token.encode()


async def test_an_asynchronous_client_is_served_alike_and_other_errors_are_its_own(url: str) -> None:
    fence = RedisFence("app:")
    client: Any = redis.asyncio.Redis.from_url(url)
    await fence.call_async(client, HEIR, "SET", "x", "1")
    with pytest.raises(StaleToken):
        await fence.call_async(client, ZOMBIE, "SET", "x", "2")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await fence.call_async(client, HEIR, "LPUSH", "x", "3")
    assert await client.get("x") == b"1"
    await client.aclose()


async def test_the_function_does_what_the_script_does(url: str) -> None:
    fence = RedisFence()
    with redis.Redis.from_url(url) as client:
        client.function_load(fence.function_code)
        key = fence.key(HEIR)
        assert client.fcall("muster_fenced", 2, key, "x", HEIR.token, "SET", "x", "1") == b"OK"
        with pytest.raises(redis.ResponseError, match=f"STALETOKEN {HEIR.token}"):
            client.fcall("muster_fenced", 2, key, "x", ZOMBIE.token, "SET", "x", "2")
        assert client.get("x") == b"1"
