"""Large requests that are worked on are bounded for a process and a caller (docs/safety.md, LIM-58)."""

import resource
from pathlib import Path

import pytest
from muster_runtime import memory
from muster_runtime.rpc.quotas.work import LARGE_BYTES, WorkInHand
from muster_runtime.rpc.refusals import ResourceExhausted

MIB = 1 << 20


def test_a_caller_may_have_half_of_it_and_all_callers_all() -> None:
    work = WorkInHand(16 * MIB)
    taken = [work.begin("a", 4 * MIB) for _ in range(2)]
    with pytest.raises(ResourceExhausted, match="8,388,608 of them of this caller") as refused:
        work.begin("a", LARGE_BYTES)
    assert refused.value.retry_after_ms
    for who in ("b", "c"):
        work.begin(who, 4 * MIB)
    with pytest.raises(ResourceExhausted):
        work.begin("d", LARGE_BYTES)
    for size_bytes in taken:
        work.end("a", size_bytes)
    assert work.begin("a", 8 * MIB) == 8 * MIB


def test_small_requests_do_not_count_and_one_alone_is_always_taken() -> None:
    work = WorkInHand(MIB)
    assert work.begin("a", 4 * MIB) == 4 * MIB
    for _ in range(100):
        assert work.begin("a", LARGE_BYTES - 1) == 0
    work.end("a", 0)
    with pytest.raises(ResourceExhausted):
        work.begin("b", LARGE_BYTES)
    work.end("a", 4 * MIB)
    assert work.begin("b", 2 * MIB)


@pytest.mark.parametrize(
    ("memory_bytes", "most_bytes"),
    [(128 * MIB, 16 * MIB), (1 << 30, 64 * MIB), (1 << 40, 256 * MIB), (None, 256 * MIB)],
)
def test_how_much_follows_from_the_memory(
    memory_bytes: int | None, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "limit_bytes", lambda: memory_bytes)
    work = WorkInHand()
    work.begin("a", most_bytes // 2)
    work.begin("b", most_bytes // 2)
    with pytest.raises(ResourceExhausted):
        work.begin("c", LARGE_BYTES)


def test_a_limit_of_data_is_one_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIM-51."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 * MIB, resource.RLIM_INFINITY))
    assert memory.limit_bytes(tmp_path, tmp_path / "none") == 300 * MIB
