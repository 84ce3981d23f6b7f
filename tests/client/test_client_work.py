"""Work that fails, hangs or returns, and work of every shape."""

import asyncio
import functools
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import muster
import pytest
from client.client_scripted import ScriptedCluster, commit_answer
from client.work_fleet import fleet
from kit.waiting import until, until_equal
from muster import TopicPartition
from muster._work.marks import Marks
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

pytestmark = pytest.mark.cluster

QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 20}


async def _async_work(p: muster.Partition) -> None:
    await p.commit((await p.committed() or 0) + 1)
    await p.ending()


def _decorated(work: Callable[[muster.Partition], Awaitable[None]]) -> Callable[[muster.Partition], object]:
    def call(p: muster.Partition) -> object:
        assert p.number >= 0
        return work(p)

    return call


class _Callable:
    async def __call__(self, p: muster.Partition) -> None:
        await _async_work(p)


class _ReturnsACoroutine:
    def __call__(self, p: muster.Partition) -> object:
        return _async_work(p)


class _Awaitable:
    def __init__(self, p: muster.Partition) -> None:
        self._partition = p

    def __await__(self) -> Any:
        return _async_work(self._partition).__await__()


async def _with(_: str, p: muster.Partition) -> None:
    await _async_work(p)


@pytest.mark.parametrize(
    "work",
    [
        _async_work,
        _decorated(_async_work),
        lambda p: _async_work(p),
        functools.partial(_with, "x"),
        functools.partial(lambda _, p: _async_work(p), "x"),
        _Callable(),
        _ReturnsACoroutine(),
        _Awaitable,
    ],
    ids=["async", "decorated", "lambda", "partial", "partial-lambda", "callable", "returns", "awaitable"],
)
async def test_whatever_can_be_awaited_is_awaited(cluster: ScriptedCluster, work: Any) -> None:
    a = cluster.coordinators[0]
    async with fleet(cluster, work):
        await until_equal(lambda: a.offsets, {("t", n): 1 for n in range(3)})


async def test_what_turned_out_to_be_async_is_cancelled_and_gets_a_partition(
    cluster: ScriptedCluster,
) -> None:
    got: list[object] = []

    async def work(p: muster.Partition) -> None:
        got.append((isinstance(p, muster.Partition), isinstance(p, muster.BlockingPartition), p.number))
        try:
            await asyncio.Event().wait()
        finally:
            got.append(p.is_ending)

    async with fleet(cluster, lambda p: work(p)):
        await until_equal(lambda: sorted(map(str, got)), [f"(True, False, {n})" for n in range(3)])
    assert got[3:] == [True, True, True]


async def test_a_blocking_partition_on_the_event_loop_says_so(cluster: ScriptedCluster) -> None:
    """It would wait for itself."""
    loop = asyncio.get_running_loop()
    said: list[str] = []

    def work(p: muster.BlockingPartition) -> None:
        def call() -> None:
            try:
                p.commit(1)
            except RuntimeError as error:
                said.append(str(error))

        loop.call_soon_threadsafe(call)
        p.wait_ending()

    async with fleet(cluster, work):
        await until_equal(lambda: len(said), 3)
    assert "was called on the event loop; use an `async def` as work" in said[0]


async def _never(_: muster.Partition) -> None:
    raise AssertionError("it is not called")


def _generator(_: muster.Partition) -> Any:
    yield


async def _async_generator(_: muster.Partition) -> Any:
    yield


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"work": 42}, "work: must be a function that gets a partition, not 42"),
        ({"work": "main"}, "work: must be a function that gets a partition, not 'main'"),
        ({"work": _generator}, "is a generator, whose body would never run"),
        ({"work": _async_generator}, "is a generator, whose body would never run"),
        ({"work": lambda: None}, "must take one argument, the partition"),
        ({"group": ["g"]}, r"group_id: must be text, not \['g'\]"),
        ({"group": None}, "group_id: must be text, not None"),
        ({"topic": ["t"]}, r"topic: must be text, not \['t'\]"),
        ({"partitions": "3"}, "partitions: must be a number or a list of names, not '3'"),
        ({"partitions": [3]}, "partitions: must be text, not 3"),
        ({"partitions": []}, "partitions: name at least one partition"),
        ({"partitions": ["a", "a"]}, "partitions: .a. is given more than once"),
        ({"partitions": 1.5}, "partitions: must be a number or a list of names, not 1.5"),
        ({"client_id": 5}, "client_id: must be text, not 5"),
        ({"assignors": "range"}, r"assignors: must be a list, such as \['range'\]"),
        ({"on_error": "ignore"}, 'on_error: must be "retry", "park" or "exit" or a function, not \'ignore\''),
        ({"on_return": "retry"}, 'on_return: must be "restart", "done" or "park", not \'retry\''),
        ({"max_idle_ms": -1}, "max_idle_ms: -1 is not between 100 and"),
        ({"retry_attempts": 0}, "retry_attempts: 0 is not between 1 and"),
        ({"drain_timeout_ms": "1s"}, "drain_timeout_ms: must be a whole number, not '1s'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_use_fails_at_once_with_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"work": _never, "group": "g", "topic": "t", "partitions": 1, **arguments}
    with pytest.raises(muster.SettingsError, match=sentence):
        muster.run(given.pop("work"), servers="127.0.0.1:1", **given)


@pytest.mark.parametrize(
    ("position", "sentence"),
    [
        (("5",), "offset of t-0 must be a whole number, not '5'"),
        ((5.5,), "offset of t-0 must be a whole number, not 5.5"),
        ((True,), "offset of t-0 must be a whole number, not True"),
        ((-1,), "offset of t-0 is -1, it must be 0 or more"),
        ((1, b"x"), "metadata of t-0 must be text, not b'x'"),
    ],
    ids=str,
)
async def test_a_wrong_commit_fails_at_once_with_a_sentence(
    cluster: ScriptedCluster, position: tuple[Any, ...], sentence: str
) -> None:
    said: list[str] = []

    async def work(p: muster.Partition) -> None:
        if p.number == 0:
            try:
                await p.commit(*position)
            except (TypeError, ValueError) as error:
                said.append(str(error))
        await p.ending()

    async with fleet(cluster, work):
        await until_equal(lambda: said, [sentence])
    assert cluster.coordinators[0].requests("OffsetCommit") == []


def failing(attempts: dict[int, list[int]], until_attempt: int = 10**9) -> Any:
    """Work of which partition 1 raises, and the others count."""

    async def work(p: muster.Partition) -> None:
        attempts.setdefault(p.number, []).append(p.generation)
        if p.number == 1 and len(attempts[1]) < until_attempt:
            raise KeyError(f"attempt {len(attempts[1])}")
        await p.ending()

    return work


async def test_a_failure_is_tried_again_and_the_others_go_on(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: dict[int, list[int]] = {}
    async with fleet(cluster, failing(attempts, until_attempt=4), **QUICK):
        await until_equal(lambda: len(attempts.get(1, ())), 4)
        await cluster.coordinators[0].until("Heartbeat", 3)
        assert {n: len(a) for n, a in attempts.items()} == {0: 1, 1: 4, 2: 1}
    records = [r for r in caplog.records if "failed" in r.getMessage()]
    assert [r.getMessage().partition(", next")[0] for r in records] == [
        f"work on t-1 failed (attempt {n} of 10)" for n in (1, 2, 3)
    ]
    assert [r.getMessage().rpartition(": ")[2] for r in records] == [f"'attempt {n}'" for n in (1, 2, 3)]
    assert [bool(r.exc_info) for r in records] == [True, False, False], "one traceback"


async def test_after_some_attempts_the_partition_is_parked_and_stays_so_over_rebalances(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: dict[int, list[int]] = {}
    a = cluster.coordinators[0]
    async with fleet(cluster, failing(attempts), retry_attempts=3, **QUICK):
        await until(
            lambda: "UTC: attempt 3: KeyError: 'attempt 3'; `muster partitions release`" in caplog.text
        )
        assert attempts == {0: [1], 1: [1, 1, 1], 2: [1]}
        a.script["Heartbeat"].append(
            coordinator_pb2.HeartbeatResponse(
                error_code=common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, shard_epoch=1
            )
        )
        await until_equal(lambda: attempts, {0: [1, 2], 1: [1, 1, 1], 2: [1, 2]})
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 3)
        assert len(attempts[1]) == 3


async def test_the_time_of_a_row_of_failures_is_limited_too(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: dict[int, list[int]] = {}
    async with fleet(cluster, failing(attempts), retry_attempts=1_000_000, retry_for_ms=200, **QUICK):
        await until(lambda: "t-1 is parked" in caplog.text)
    assert len(attempts[1]) > 2


async def test_progress_begins_a_new_row(cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A commit of another position ends a row; one of the same position does not."""
    starts = {0: 0, 1: 0, 2: 0}

    async def work(p: muster.Partition) -> None:
        starts[p.number] += 1
        if p.number == 0:
            await p.commit(starts[0])
        elif p.number == 1:
            await p.commit(7)
        raise ValueError("a bad line")

    async with fleet(cluster, work, retry_attempts=3, **QUICK):
        await until(lambda: starts[0] > 9)
        await until(lambda: "t-1 is parked" in caplog.text and "t-2 is parked" in caplog.text)
        assert (starts[1], starts[2]) == (3, 3)
    assert "t-0 is parked" not in caplog.text


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_a_function_decides(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    asked: list[tuple[int, str, int]] = []

    def decide(p: muster.Partition, error: BaseException, attempt: int) -> Any:
        asked.append((p.number, str(error), attempt))
        return "park" if attempt == 2 else "retry"

    async def decide_later(p: muster.Partition, error: BaseException, attempt: int) -> Any:
        return decide(p, error, attempt)

    attempts: dict[int, list[int]] = {}
    async with fleet(cluster, failing(attempts), on_error=decide_later if is_async else decide, **QUICK):
        await until(lambda: "UTC: attempt 2" in caplog.text)
    assert asked == [(1, "'attempt 1'", 1), (1, "'attempt 2'", 2)]


@pytest.mark.parametrize("decision", ["exit", "ignore"])
async def test_a_decision_can_end_the_program_and_nonsense_does(
    cluster: ScriptedCluster, decision: Any
) -> None:
    with pytest.raises(muster.WorkFailed) as caught:
        async with fleet(cluster, failing({}), on_error=lambda *_: decision):
            await asyncio.sleep(60)
    cause = caught.value.__cause__
    if decision == "exit":
        assert isinstance(cause, KeyError)
    else:
        assert str(cause) == ('on_error: the function must return "retry", "park" or "exit", not \'ignore\'')
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1


async def test_a_commit_that_fails_though_the_partition_is_owned_does_not_end_the_work_for_good(
    cluster: ScriptedCluster,
) -> None:
    starts: list[int] = []

    async def work(p: muster.Partition) -> None:
        starts.append(p.number)
        if starts.count(1) < 3 and p.number == 1:
            raise muster.CommitFailed([muster.TopicPartition("elsewhere", 0)], "it is of another group")
        await p.ending()

    async with fleet(cluster, work, **QUICK):
        await until_equal(lambda: starts.count(1), 3)


async def test_work_that_returns_is_said_once(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    a = cluster.coordinators[0]
    calls: list[int] = []

    async def work(p: muster.Partition) -> None:
        calls.append(p.number)

    async with fleet(cluster, work):
        await until_equal(lambda: caplog.text.count("returned; the partition stays owned and idle"), 3)
        a.script["Heartbeat"].append(
            coordinator_pb2.HeartbeatResponse(
                error_code=common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, shard_epoch=1
            )
        )
        await until_equal(lambda: len(calls), 6)
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 2)
    assert caplog.text.count("returned; the partition stays owned and idle") == 3


async def test_work_that_returns_is_called_again_or_parked(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    a = cluster.coordinators[0]

    def step(p: muster.BlockingPartition) -> None:
        p.commit((p.committed() or 0) + 1)

    async with fleet(cluster, step, on_return="restart", retry_backoff_ms=60_000):
        await until(lambda: all(a.offsets.get(("t", n), 0) >= 5 for n in range(3)))
    async with fleet(cluster, step, on_return="park"):
        await until_equal(lambda: caplog.text.count("UTC: the work returned; `muster"), 3)


async def test_idle_work_is_stopped_with_its_stack_and_called_again(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[int] = []
    cancelled: list[int] = []

    async def hangs_here(p: muster.Partition) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(p.number)
            raise

    async def work(p: muster.Partition) -> None:
        starts.append(p.number)
        if p.number == 1 and starts.count(1) == 1:
            await hangs_here(p)
        while True:
            p.alive()
            await asyncio.sleep(0.01)

    async with fleet(cluster, work, max_idle_ms=1_000, **QUICK):
        await until_equal(lambda: starts.count(1), 2)
        assert (cancelled, starts.count(0), starts.count(2)) == ([1], 1, 1)
    assert (
        "work on t-1 neither commits nor calls alive() for max_idle_ms (1000) and is stopped" in caplog.text
    )
    assert "in hangs_here\n" in caplog.text
    assert "work on t-1 failed (attempt 1 of 10)" in caplog.text


async def test_a_thread_that_looks_is_stopped_and_one_that_does_not_makes_the_member_leave(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[int] = []
    release = threading.Event()

    def stands_here() -> None:
        release.wait(60)

    def work(p: muster.BlockingPartition) -> None:
        starts.append(p.number)
        if p.number == 0 and starts.count(0) > 1:
            stands_here()
        while not p.wait_ending(0.01):
            if p.number:
                p.alive()

    began_s = time.monotonic()
    with pytest.raises(muster.WorkFailed, match="WorkIdle") as caught:
        async with fleet(cluster, work, max_idle_ms=500, **QUICK):
            await asyncio.sleep(60)
    assert time.monotonic() - began_s < 50
    assert caught.value.partition == muster.TopicPartition("t", 0)
    assert isinstance(caught.value.__cause__, muster.WorkIdle)
    assert "work on t-0 is stuck; the process leaves the group, so that others go on" in caplog.text
    assert "in stands_here\n" in caplog.text
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1
    release.set()


async def test_work_that_waits_for_the_cluster_is_not_idle(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    a = cluster.coordinators[0]
    answered = asyncio.Event()

    async def late(request: Any) -> Any:
        await answered.wait()
        return a.commit(request)

    a.script["OffsetCommit"].append(late)
    committed: list[int] = []

    async def work(p: muster.Partition) -> None:
        if p.number == 0:
            await p.commit(1)
            committed.append(1)
        while True:
            p.alive()
            await asyncio.sleep(0.01)

    async with fleet(cluster, work, max_idle_ms=200, **QUICK):
        await a.until("OffsetCommit")
        await asyncio.sleep(1)  # that nothing happens can only be seen by waiting
        assert committed == []
        answered.set()
        await until_equal(lambda: committed, [1])
    assert "max_idle_ms" not in caplog.text


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_a_pause_lasts_over_rebalances(cluster: ScriptedCluster, blocking: bool) -> None:
    a = cluster.coordinators[0]
    first: dict[int, Any] = {}
    done: list[tuple[int, int]] = []

    async def work(p: muster.Partition) -> None:
        if p.number not in first:
            first[p.number] = p
            if p.number == 1:
                p.pause()
        await p.resumed()
        done.append((p.number, p.generation))
        await p.ending()

    def in_thread(p: muster.BlockingPartition) -> None:
        if p.number not in first:
            first[p.number] = p
            if p.number == 1:
                p.pause()
                assert p.is_paused
        if p.wait_resumed():
            done.append((p.number, p.generation))
            p.wait_ending()

    async with fleet(cluster, in_thread if blocking else work, max_idle_ms=60_000):
        await until_equal(lambda: sorted(done), [(0, 1), (2, 1)])
        a.script["Heartbeat"].append(
            coordinator_pb2.HeartbeatResponse(
                error_code=common_pb2.ERROR_CODE_REBALANCE_IN_PROGRESS, shard_epoch=1
            )
        )
        await until_equal(lambda: sorted(done), [(0, 1), (0, 2), (2, 1), (2, 2)])
        assert first[1].is_paused
        await asyncio.get_running_loop().run_in_executor(None, first[1].resume) if blocking else first[
            1
        ].resume()
        await until(lambda: (1, 2) in done)


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_a_drain_has_a_limit_and_says_what_it_cut_off(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture, blocking: bool
) -> None:
    started: list[int] = []
    release = threading.Event()

    async def work(p: muster.Partition) -> None:
        started.append(p.number)
        while p.number == 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                started.append(-1)
        await p.ending()

    def in_thread(p: muster.BlockingPartition) -> None:
        started.append(p.number)
        if p.number == 2:
            release.wait(60)
        p.wait_ending()

    async with fleet(cluster, in_thread if blocking else work, drain_timeout_ms=300):
        await until_equal(lambda: sorted(started), [0, 1, 2])
        began_s = time.monotonic()
    assert 0.3 <= time.monotonic() - began_s < 50
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert [line.splitlines()[0] for line in said] == [
        "work on t-2 did not end within drain_timeout_ms (300) and is cut off; it stands at"
    ]
    assert ("in in_thread" if blocking else "in work") in said[0]
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1
    release.set()


def test_what_is_left_over_when_the_loop_is_gone_cannot_commit() -> None:
    """A thread that was cut off goes on: its commits fail as those of a lost partition."""
    loop = asyncio.new_event_loop()
    loop.close()
    blocking = object.__new__(muster.BlockingPartition)
    blocking.__dict__.update(
        topic="t", number=0, _loop=loop, _partition=_Committing(), _stop=threading.Event()
    )
    with pytest.raises(muster.CommitFailed, match="the program has stopped"):
        blocking.commit(1)


class _Committing:
    async def commit(self, _offset: int, _metadata: str) -> None:
        raise AssertionError("there is no loop for it")


async def test_a_released_partition_is_tried_again_and_another_version_frees_it(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    a = cluster.coordinators[0]
    caplog.set_level(logging.INFO, "muster")
    attempts: dict[int, list[int]] = {}
    async with fleet(cluster, failing(attempts), retry_attempts=2, version="1", **QUICK):
        await until(lambda: ("parked/t", 1) in a.offsets and "t-1 is parked since" in caplog.text)
        assert set(json.loads(a.metadata["parked/t", 1])) == {"reason", "member_id", "version"}
        async with muster.Cluster(cluster.address) as connection:
            await connection.release_partitions("g", [TopicPartition("t", 1)])
        await until_equal(lambda: len(attempts[1]), 4)
        assert "t-1 was released; its work is called again" in caplog.text
        await until(lambda: ("parked/t", 1) in a.offsets)
    async with fleet(cluster, failing(attempts, until_attempt=1), version="2"):
        await until_equal(lambda: len(attempts[1]), 5)
        assert ("parked/t", 1) not in a.offsets
    assert "t-1 was parked by another version: attempt 2: KeyError: 'attempt 4'" in caplog.text


async def test_what_the_log_does_not_take_is_parked_in_the_process(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    a = cluster.coordinators[0]
    refused = common_pb2.ERROR_CODE_OFFSET_METADATA_TOO_LARGE
    a.script["OffsetCommit"].append(lambda request: commit_answer(request, refused))
    attempts: dict[int, list[int]] = {}
    async with fleet(cluster, failing(attempts), on_error="park"):
        await until(lambda: "its work is not called any more in this process" in caplog.text)
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 2)
    assert attempts == {0: [1], 1: [1], 2: [1]}
    assert "that t-1 is parked cannot be stored" in caplog.text


@pytest.mark.parametrize("text", ["[" * 4_000, "[1]", ""], ids=["deep", "a-list", "empty"])
async def test_a_mark_that_nobody_of_ours_wrote_is_said_and_obeyed_until_it_is_released(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """Whoever may commit can write one, with any offset as its time."""
    a = cluster.coordinators[0]
    a.offsets["parked/t", 1], a.metadata["parked/t", 1] = 1 << 62, text
    async with fleet(cluster, _async_work):
        await until(lambda: f"t-1 is parked since {1 << 62} ms" in caplog.text)
        async with muster.Cluster(cluster.address) as connection:
            await connection.release_partitions("g", [TopicPartition("t", 1)])
        await until_equal(lambda: a.offsets, {("t", n): 1 for n in range(3)})


async def test_what_fails_beside_the_work_ends_the_program_and_leaves_no_partition_without_work(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise OSError("no more files")

    monkeypatch.setattr(Marks, "of", fails)
    with pytest.raises(muster.WorkFailed, match="OSError: no more files"):
        async with fleet(cluster, _async_work):
            await asyncio.sleep(60)
    assert "cannot be worked on" in caplog.text
    assert cluster.coordinators[0].requests("LeaveGroup")


async def test_who_stops_while_it_reads_what_is_parked_leaves_no_task(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SES-46: the coordinator may never answer, and what is read is for nobody any more."""
    reads = asyncio.Event()

    async def never(*_: object) -> dict[TopicPartition, muster.Committed]:
        reads.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(muster.Member, "committed", never)
    async with fleet(cluster, _async_work):
        await reads.wait()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "muster-marks"])


async def test_a_blocked_event_loop_is_named_with_where_it_stands(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def blocks_here() -> None:
        time.sleep(1)

    async def work(p: muster.Partition) -> None:
        if p.number == 1:
            blocks_here()  # what an async function must not do
        await p.ending()

    async with fleet(cluster, work, loop_block_warn_ms=300):
        await until(lambda: "the event loop was blocked for" in caplog.text)
    said = [r.getMessage() for r in caplog.records if "event loop has been blocked" in r.getMessage()]
    assert said  # a longer block is said again
    assert "in blocks_here\n" in said[0]
