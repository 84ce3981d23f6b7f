"""The demo's store: guarded by the token, and exact over repetitions."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from muster_server.demo.text import InputError, count_words, read_lines
from muster_server.demo.workload import FULL, StaleTokenError, Store, collect, spread_lines
from muster_server.dev.redis_nodes import RedisNode

pytestmark = pytest.mark.cluster

OLD, NEW = "0000000001-0000000000000009", "0000000001-0000000000000010"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RedisNode]:
    node = RedisNode(tmp_path / "workload")
    await node.start()
    yield node
    await node.stop()


@pytest.fixture
async def store(node: RedisNode) -> AsyncIterator[Store]:
    store = Store(node.url)
    yield store
    await store.close()


async def test_a_lower_token_is_refused_and_writes_nothing(node: RedisNode, store: Store) -> None:
    assert await store.apply(0, OLD, 0, 5, {"a": 1}) == 5
    assert await store.apply(0, NEW, 5, 5, {}) == 5
    with pytest.raises(StaleTokenError):
        await store.apply(0, OLD, 5, 9, {"a": 100})
    assert collect(node.url, 1) == Counter(a=1)
    assert await store.guard(0) == (NEW, 5, 1)


async def test_a_repeated_batch_counts_once(node: RedisNode, store: Store) -> None:
    await store.apply(0, OLD, 0, 5, {"a": 2, "b": 1})
    assert await store.apply(0, NEW, 0, 5, {"a": 2, "b": 1}) == 5
    assert await store.apply(0, NEW, 2, 7, {"a": 9}) == 5
    assert collect(node.url, 1) == Counter(a=2, b=1)


async def test_lines_are_spread_and_read_back(node: RedisNode, store: Store) -> None:
    lines = [f"line {number}" for number in range(10)]
    assert spread_lines(node.url, lines, 3) == [4, 3, 3]
    assert await store.size(0) == 4
    assert await store.read(0, 1, 2) == ["line 3", "line 6"]
    assert await store.allowed(4) == 0
    await store.allow(FULL // 2)
    assert await store.allowed(4) == 2


def test_words() -> None:
    assert count_words(["Don't panic, PANIC!", "42"]) == Counter({"don": 1, "t": 1, "panic": 2, "42": 1})


def test_text_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a.any").write_text("one two\n\n--\nthree")
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    assert read_lines(tmp_path, 10) == ["one two", "three"]
    with pytest.raises(InputError, match="no such folder"):
        read_lines(tmp_path / "absent", 10)
    (tmp_path / "a.any").unlink()
    with pytest.raises(InputError, match="no text"):
        read_lines(tmp_path, 10)


def test_a_file_that_vanishes_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "b.txt").write_text("four")
    (tmp_path / "z.txt").write_text("five")
    assert read_lines(tmp_path, 10) == ["five", "four"]


def test_there_is_text_in_the_environment() -> None:
    assert sum(map(len, read_lines(None, 200_000))) >= 200_000
