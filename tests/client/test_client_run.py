"""`run` and `arun`: work on what is owned, stop it when it is not."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import muster
import pytest
from client.client_scripted import TOKEN, Coordinator, ScriptedCluster, commit_answer
from kit.waiting import killed, until, until_equal
from muster import TopicPartition, _backoff
from muster._cluster import discovery as _discovery
from muster._work.runner import WorkRunner
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
FAST: muster.MemberSettings = {"heartbeat_interval_ms": 30, "session_timeout_ms": 10_000}


async def running(
    scripted: ScriptedCluster, work: Any, stop: asyncio.Event, **settings: Any
) -> "asyncio.Task[None]":
    return asyncio.create_task(
        muster.arun(
            work,
            group="g",
            topic="t",
            partitions=3,
            servers=scripted.address,
            stop=stop,
            **{**FAST, **settings},
        )
    )


async def test_each_partition_has_a_task_until_the_program_stops(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    a.offsets["t", 1] = 41
    stop = asyncio.Event()
    seen: dict[int, tuple[int | None, str, int]] = {}
    ended: list[tuple[int, bool]] = []

    async def work(p: muster.Partition) -> None:
        seen[p.number] = (await p.committed(), p.token, p.generation)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append((p.number, p.is_ending))
            await p.commit(100 + p.number, "last words")

    task = await running(cluster, work, stop)
    await until_equal(lambda: len(seen), 3)
    stop.set()
    await task
    assert seen == {0: (None, TOKEN, 1), 1: (41, TOKEN, 1), 2: (None, TOKEN, 1)}
    assert sorted(ended) == [(0, True), (1, True), (2, True)]
    assert a.offsets == {("t", n): 100 + n for n in range(3)}
    order = [name for name, _ in a.seen if name in ("OffsetCommit", "LeaveGroup")]
    assert order[-1] == "LeaveGroup"
    assert order.count("LeaveGroup") == 1


async def test_a_failure_stops_everything_and_names_the_partition(cluster: ScriptedCluster) -> None:
    cancelled = []

    async def work(p: muster.Partition) -> None:
        if p.number == 1:
            raise KeyError("no such site")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(p.number)
            raise

    task = await running(cluster, work, asyncio.Event(), on_error="exit")
    with pytest.raises(muster.WorkFailed, match="partition 1 of topic 't' failed: KeyError") as caught:
        await asyncio.wait_for(task, 60)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.partition == TopicPartition("t", 1)
    assert sorted(cancelled) == [0, 2]
    assert cluster.coordinators[0].requests("LeaveGroup")[0].members[0].reason == "the work failed"


async def test_work_that_returns_leaves_its_partition_owned(cluster: ScriptedCluster) -> None:
    stop = asyncio.Event()
    done: list[int] = []

    async def work(p: muster.Partition) -> None:
        done.append(p.number)

    task = await running(cluster, work, stop)
    await cluster.coordinators[0].until("Heartbeat", 3)
    assert sorted(done) == [0, 1, 2]
    assert cluster.coordinators[0].requests("LeaveGroup") == []
    stop.set()
    await task


async def test_a_commit_that_came_too_late_is_no_failure_of_the_program(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    stop = asyncio.Event()
    starts: list[int] = []

    async def work(p: muster.Partition) -> None:
        starts.append(p.generation)
        if p.number == 0 and p.generation == 1:
            await p.commit(1)
        await asyncio.Event().wait()

    a.script["OffsetCommit"].append(lambda r: commit_answer(r, common_pb2.ERROR_CODE_ILLEGAL_GENERATION))
    task = await running(cluster, work, stop)
    await until_equal(lambda: starts.count(2), 3)
    stop.set()
    await task


async def test_one_partition_never_has_two_workers(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    stop, release = asyncio.Event(), asyncio.Event()
    active: dict[int, int] = {}
    most: list[int] = []
    starts: list[int] = []

    async def work(p: muster.Partition) -> None:
        active[p.number] = active.get(p.number, 0) + 1
        most.append(active[p.number])
        starts.append(p.generation)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
            active[p.number] -= 1
            raise

    task = await running(cluster, work, stop)
    await until_equal(lambda: len(starts), 3)
    lost = coordinator_pb2.HeartbeatResponse(
        error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, shard_epoch=1
    )
    a.script["Heartbeat"].append(lost)
    await a.until("SyncGroup", 2)
    await a.until("Heartbeat", len(a.requests("Heartbeat")) + 2)
    assert starts == [1, 1, 1]
    release.set()
    await until_equal(lambda: starts.count(2), 3)
    stop.set()
    await task
    assert max(most) == 1


async def test_work_that_never_began_does_not_hide_work_that_still_ends(cluster: ScriptedCluster) -> None:
    """Lost, assigned, lost and assigned again: the work of the second ownership was waiting for the first."""
    a = cluster.coordinators[0]
    stop, release = asyncio.Event(), asyncio.Event()
    active = 0
    most: list[int] = []
    starts: list[int] = []

    async def work(p: muster.Partition) -> None:
        nonlocal active
        active += 1
        most.append(active)
        starts.append(p.generation)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
            active -= 1
            raise

    cluster.topics["t"] = 1
    task = asyncio.create_task(
        muster.arun(work, group="g", topic="t", partitions=1, servers=cluster.address, stop=stop, **FAST)
    )
    await until_equal(lambda: starts, [1])
    lost = coordinator_pb2.HeartbeatResponse(
        error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID, shard_epoch=1
    )
    for rejoins in (2, 3):
        a.script["Heartbeat"].append(lost)
        await a.until("SyncGroup", rejoins)
        await a.until("Heartbeat", len(a.requests("Heartbeat")) + 2)
    assert starts == [1]
    stop.set()
    await asyncio.sleep(0.05)
    assert not task.done(), "it is still at work"
    release.set()
    await task
    assert max(most) == 1


@pytest.mark.parametrize(("asked", "has"), [(None, 3), (2, 3), (5, 5)])
async def test_the_number_of_partitions_is_a_minimum(
    cluster: ScriptedCluster, asked: int | None, has: int
) -> None:
    stop = asyncio.Event()
    got: list[int] = []

    async def work(p: muster.Partition) -> None:
        got.append(p.number)

    task = asyncio.create_task(
        muster.arun(work, group="g", topic="t", partitions=asked, servers=cluster.address, stop=stop, **FAST)
    )
    await until_equal(lambda: sorted(got), list(range(has)))
    assert cluster.topics == {"t": has}
    stop.set()
    await task


async def test_whoever_asks_for_fewer_meanwhile_takes_what_another_made(cluster: ScriptedCluster) -> None:
    created = discovery_pb2.CreateTopicResponse(
        error_code=common_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS,
        topic=discovery_pb2.Topic(name="t", partitions=3),
    )
    cluster.script["CreateTopic"].append(created)
    cluster.topics = {"t": 9}
    async with muster.Cluster(cluster.address) as connection:
        assert (await connection.ensure_topic("t", 7)).partitions == 9
        cluster.script["CreateTopic"].append(created)
        assert (await connection.ensure_topic("t", 10)).partitions == 10
        assert await connection.ensure_topic("t") == muster.Topic("t", 10)
        with pytest.raises(muster.TopicError, match="there is no topic 'other'"):
            await connection.ensure_topic("other")


async def test_without_a_number_it_waits_for_the_topic_and_says_so(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    stop = asyncio.Event()
    got: list[int] = []

    async def work(p: muster.Partition) -> None:
        got.append(p.number)

    task = asyncio.create_task(
        muster.arun(work, group="g", topic="later", servers=cluster.address, stop=stop, **FAST)
    )
    said = "there is no topic 'later': waiting for `muster topics create later PARTITIONS`"
    await until(lambda: any(said in line for line in caplog.messages))
    cluster.topics["later"] = 2
    await until_equal(lambda: sorted(got), [0, 1])
    stop.set()
    await task


async def test_who_waits_for_a_topic_can_be_stopped(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(
        muster.arun(lambda p: None, group="g", topic="later", servers=cluster.address, stop=stop)
    )
    await until(lambda: any("there is no topic 'later'" in line for line in caplog.messages))
    stop.set()
    await asyncio.wait_for(task, 60)


async def test_an_absent_topic_is_created(cluster: ScriptedCluster) -> None:
    stop = asyncio.Event()
    got: list[int] = []

    async def work(p: muster.Partition) -> None:
        got.append(p.number)

    task = asyncio.create_task(
        muster.arun(work, group="g", topic="new", partitions=5, servers=cluster.address, stop=stop, **FAST)
    )
    await until_equal(lambda: sorted(got), [0, 1, 2, 3, 4])
    assert cluster.topics["new"] == 5
    stop.set()
    await task


async def test_blocking_work_runs_in_threads_and_is_asked_to_stop(cluster: ScriptedCluster) -> None:
    stop = asyncio.Event()
    threads: dict[int, str] = {}

    def work(p: muster.BlockingPartition) -> None:
        position = p.committed() or 10
        threads[p.number] = threading.current_thread().name
        while not p.wait_ending(0.01):
            position = 20
            p.commit(position)
        p.commit(position + 10)

    task = await running(cluster, work, stop)
    await until(lambda: cluster.coordinators[0].offsets == {("t", n): 20 for n in range(3)})
    stop.set()
    await task
    assert cluster.coordinators[0].offsets == {("t", n): 30 for n in range(3)}
    assert threads == {n: f"muster-work-t-{n}" for n in range(3)}


async def test_a_failing_thread_is_surfaced(cluster: ScriptedCluster) -> None:
    def work(p: muster.BlockingPartition) -> None:
        if p.number == 2:
            raise ValueError("bad line")
        p.wait_ending()

    task = await running(cluster, work, asyncio.Event(), on_error="exit")
    with pytest.raises(muster.WorkFailed, match=r"partition 2 .* ValueError: bad line"):
        await asyncio.wait_for(task, 60)


async def _leaves_in_a_task(_: muster.Partition) -> None:
    sys.exit(7)


def _leaves_in_a_thread(_: muster.BlockingPartition) -> None:
    sys.exit(7)


@pytest.mark.parametrize("work", [_leaves_in_a_task, _leaves_in_a_thread])
async def test_work_that_calls_exit_ends_the_program_in_order(cluster: ScriptedCluster, work: Any) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(SystemExit, match="7"):
            await muster.arun(
                work, group="g", topic="t", partitions=3, servers=cluster.address, stop=None, **FAST
            )
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1


async def test_a_life_that_ends_before_its_work_begins_is_no_failure() -> None:
    async def work(_: muster.Partition) -> None:
        raise AssertionError("it is not owned")

    member = muster.Member(muster.Cluster("127.0.0.1:1"), group_id="g", topics="t")
    runner = WorkRunner(work)
    runner.start(member, (TopicPartition("t", 0),))
    await until_equal(lambda: [t for t in asyncio.all_tasks() if "muster-job" in t.get_name()], [])
    await runner.end_and_wait()
    assert runner.failure is None


async def test_cancelling_arun_leaves_the_group(cluster: ScriptedCluster) -> None:
    async def work(p: muster.Partition) -> None:
        await asyncio.Event().wait()

    task = await running(cluster, work, asyncio.Event())
    await cluster.coordinators[0].until("Heartbeat")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(cluster.coordinators[0].requests("LeaveGroup")) == 1


def test_settings_are_checked_before_anything_is_sent() -> None:
    with pytest.raises(muster.SettingsError, match="heartbeat_interval_ms"):
        muster.run(lambda p: None, group="g", topic="t", partitions=1, heartbeat_interval_ms=60_000)
    with pytest.raises(muster.SettingsError, match="partitions: 0"):
        muster.run(lambda p: None, group="g", topic="t", partitions=0)
    with pytest.raises(muster.SettingsError, match="group_id"):
        muster.run(lambda p: None, group="", topic="t", partitions=1)


@pytest.mark.parametrize("example", ["worker.py", "blocking_worker.py"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["sigint", "sigterm"])
async def test_the_examples_stop_cleanly(
    cluster: ScriptedCluster, example: str, number: signal.Signals
) -> None:
    a = cluster.coordinators[0]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / example),
        env={**os.environ, "MUSTER_SERVERS": cluster.address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await a.until("OffsetCommit")
        process.send_signal(number)
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        await killed(process)
    assert (process.returncode, err.decode()) == (0, "")
    assert out.decode().count("on from 0 with token") == 12
    assert len(a.requests("LeaveGroup")) == 1
    assert cluster.topics["sites"] == 12


async def test_a_last_commit_of_work_that_outlives_its_member_is_no_failure(
    cluster: ScriptedCluster,
) -> None:
    ending, release = threading.Event(), threading.Event()
    started, refused = list[int](), list[BaseException]()

    def work(p: muster.BlockingPartition) -> None:
        started.append(p.number)
        p.wait_ending()
        ending.set()
        release.wait(60)
        try:
            p.commit(7)
        except muster.MusterError as error:
            refused.append(error)
            raise

    stop = asyncio.Event()
    task = await running(cluster, work, stop, session_timeout_ms=1_000, drain_timeout_ms=100)
    await until_equal(lambda: len(started), 3)
    await cluster.stop()
    await until(ending.is_set, "the partitions are lost")
    stop.set()
    await asyncio.wait_for(task, 60)
    release.set()
    await until_equal(lambda: [type(error) for error in refused], [muster.CommitFailed] * 3)


FORKED = """
import asyncio, os, sys, muster

def in_a_child(what):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        what()
    except muster.MusterError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0)

def connect():
    asyncio.run(work())

async def work(inside=lambda: None):
    async with muster.Cluster(sys.argv[1]) as cluster:
        await cluster.topics()
        return inside()

print(in_a_child(connect), flush=True)
print(asyncio.run(work(lambda: in_a_child(muster.Cluster))), flush=True)
print(in_a_child(connect), flush=True)
for _ in range(7):
    connect()
    print(in_a_child(connect), flush=True)
"""


async def test_a_process_forked_from_a_connected_one_is_refused_before_it_harms_its_parent(
    cluster: ScriptedCluster,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FORKED, cluster.address), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    before, refused, during, *after = out.decode().splitlines()
    assert "forked from one that was connected" in refused
    assert (before, during, after) == ("0", "3", ["0"] * 8)


CHILDREN = """
import gc, multiprocessing, os, signal, sys, muster

children = multiprocessing.get_context("fork")

def work(p):
    if p.number:
        p.wait_ending()
        return
    codes = set()
    for n in range(20):
        ended, waiting = children.Process(target=gc.collect), children.Process(target=signal.pause)
        for child in (ended, waiting):
            child.start()
        waiting.terminate()
        for child in (ended, waiting):
            child.join(30)
        codes.add((ended.exitcode, waiting.exitcode))
        if codes != {(0, -15)} or p.is_ending:
            break
        p.commit(n + 1)
    print(codes, p.is_ending, flush=True)
    waiting.kill()
    os.kill(os.getpid(), signal.SIGTERM)
    p.wait_ending()

muster.run(work, group="g", topic="t", partitions=3, servers=sys.argv[1])
print("stopped in order", flush=True)
"""


async def test_children_are_stopped_without_their_worker(cluster: ScriptedCluster) -> None:
    """As those of a `multiprocessing.Pool`, which is ended with SIGTERM to each of them."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILDREN, cluster.address), env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
    assert out.decode().splitlines() == ["{(0, -15)} False", "stopped in order"]
    assert process.returncode == 0


@pytest.mark.parametrize(("before", "after"), [(None, "0"), ("1", "1")])
def test_grpc_does_nothing_at_forks_unless_a_program_wants_it(before: str | None, after: str) -> None:
    """What it does there lets children crash that never use it. It reads that when it is imported."""
    name = "GRPC_ENABLE_FORK_SUPPORT"
    environment = {key: value for key, value in os.environ.items() if key != name}
    environment |= {} if before is None else {name: before}
    program = f"import muster, os, sys; print('grpc' in sys.modules, os.environ[{name!r}]); muster.Cluster"
    found = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    assert found.stdout.decode().split() == ["False", after]


RETURNING = """
import asyncio, os, signal, sys, muster

async def work(p):
    if p.number:
        await asyncio.Event().wait()
    codes = []
    for how in ("return", "raise", "await", "commit"):
        child = os.fork()
        if not child and how == "return":
            return
        if not child and how == "raise":
            raise ValueError("in the child")
        if not child and how == "await":
            await asyncio.sleep(0)
            await asyncio.Event().wait()
        if not child:
            await p.commit(1_000)
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            await asyncio.sleep(0.01)
        codes.append(os.waitstatus_to_exitcode(ended[1]))
        await p.commit(len(codes))
    print(codes, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()

muster.run(work, group="g", topic="t", partitions=3, servers=sys.argv[1])
print("stopped in order", flush=True)
"""


async def test_a_child_that_comes_back_to_the_loop_of_its_parent_ends(cluster: ScriptedCluster) -> None:
    """It would take the parent's sockets out of what that waits for: no signal would stop the worker."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RETURNING, cluster.address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, said = await asyncio.wait_for(process.communicate(), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert out.decode().splitlines() == ["[70, 70, 70, 70]", "stopped in order"]
    assert said.decode().count("came back to that loop") == 4


async def test_the_raw_member_needs_no_client(cluster: ScriptedCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / "raw_member.py"),
        *("--servers", cluster.address, "--beats", "2", "--interval", "0.01", "--topic", "t"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert out.decode().splitlines() == [
        "joined as m-1, generation 1, leader m-1",
        f"owns t-0, t-1, t-2 with token {TOKEN}",
        "heartbeat: ERROR_CODE_NONE",
        "heartbeat: ERROR_CODE_NONE",
        "left",
    ]


def test_nobody_there_is_said_in_one_sentence() -> None:
    started = time.monotonic()

    async def ask() -> None:
        async with muster.Cluster("127.0.0.1:1", timeout_ms=300) as nobody:
            await nobody.topics()

    with pytest.raises(muster.ClusterUnavailable, match=r"127\.0\.0\.1:1 answered within 0.3 s.*muster dev"):
        asyncio.run(ask())
    assert time.monotonic() - started < 20


async def test_a_worker_waits_for_a_cluster_and_says_what_happens(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each event: waiting, coordinator, assignment with its cause, and leaving."""
    monkeypatch.setattr(_backoff, "WORTH_A_LINE_MS", 1)
    caplog.set_level(logging.INFO, "muster")
    late = ScriptedCluster([Coordinator("a")])
    await late.start()  # to have its address
    await late.stop()
    stop = asyncio.Event()

    async def work(p: muster.Partition) -> None:
        if p.number == 2:
            stop.set()

    fleet = asyncio.create_task(
        muster.arun(work, group="g", topic="t", partitions=3, servers=late.address, session=False, stop=stop)
    )
    await until(lambda: f"none of the servers {late.address} answers" in caplog.text, "that it waits")
    await late.start()
    try:
        await fleet
    finally:
        await late.stop()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert said == [
        f"group 'g': its coordinator is 127.0.0.1:{late.coordinators[0].port}",
        "group 'g': takes part as a classic member: the cluster has no incremental groups",
        "group 'g': joined as m-1, generation 1",
        "group 'g': m-1 has t 0-2 in generation 1",
        "group 'g': m-1 has left: the program stopped",
    ]


async def test_a_server_that_hangs_is_named_after_two_seconds_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes the connection and says nothing: an attempt alone lasts longer than that."""
    monkeypatch.setattr(_backoff, "WORTH_A_LINE_MS", 50)
    monkeypatch.setattr(_discovery, "ATTEMPT_TIMEOUT_MS", 600_000)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        address = f"127.0.0.1:{hung.getsockname()[1]}"
        async with muster.Cluster(address) as connection:
            asking = asyncio.create_task(connection.topics())
            finding = asyncio.create_task(connection.link("g").locate())
            try:
                lines = f"none of the servers {address} answers (it has", "'g' yet (discovery has not"
                await until(lambda: all(line in caplog.text for line in lines), "both say so")
                await until(lambda: caplog.text.count("none of the servers") >= 3, "it is said now and then")
            finally:
                for task in (asking, finding):
                    task.cancel()
                await asyncio.wait((asking, finding))


STUBBORN = """
import muster
def work(p):
    print("working", flush=True)
    while True:
        p.wait_ending(None)
muster.run(work, group="g", topic="t", partitions=3)
"""


async def test_a_second_signal_does_not_wait(cluster: ScriptedCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        STUBBORN,
        env={**os.environ, "MUSTER_SERVERS": cluster.address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        await asyncio.wait_for(process.stdout.readline(), 60)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.5)
        process.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        await killed(process)
    assert err.decode().rstrip().endswith("KeyboardInterrupt")


WITHOUT_UNIX = """
import asyncio, os, signal, sys, time
import grpc.aio, google.protobuf.message, logging.handlers, subprocess, threading

monotonic_ns, getpid, kill = time.monotonic_ns, os.getpid, os.kill
for name in ("clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME"):
    if hasattr(time, name):
        delattr(time, name)
for name in ("fork", "register_at_fork", "getuid", "geteuid", "uname", "killpg", "setsid", "getpgid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
signal.signal(signal.SIGINT, signal.default_int_handler)

def lacking(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = lacking
asyncio.SelectorEventLoop.remove_signal_handler = lacking
import muster, muster.assignors, muster.sinks

for name in muster.__all__:
    getattr(muster, name)

async def work(p):
    await p.commit(1)
    if p.number == 0:
        kill(getpid(), signal.SIGINT)
    await asyncio.Event().wait()

muster.run(work, group="g", topic="t", partitions=3)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("ended in order")
"""


async def test_the_client_needs_nothing_that_windows_lacks(cluster: ScriptedCluster) -> None:
    """No Windows is at hand: what Python does not have there is taken away."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WITHOUT_UNIX,
        env={**os.environ, "MUSTER_SERVERS": cluster.address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        await killed(process)
    assert (process.returncode, out.decode().strip()) == (0, "ended in order"), err.decode()
    assert cluster.coordinators[0].requests("LeaveGroup")


EARLY = """
import asyncio, os, signal, muster

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

def run(main, begin=asyncio.run):
    os.kill(os.getpid(), signal.SIGINT)
    return begin(main)

asyncio.run = run
muster.run(lambda p: None, group="g", topic="t", partitions=1, servers="127.0.0.1:1")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("ended in order")
"""


async def test_a_signal_before_the_loop_runs_ends_the_program_in_order() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", EARLY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out.decode().strip()) == (0, "ended in order"), err.decode()
    assert "Traceback" not in err.decode()


async def test_who_is_cancelled_twice_is_in_no_group_any_more(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    go = asyncio.Event()
    began, ending = asyncio.Event(), asyncio.Event()

    async def work(p: muster.Partition) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go.wait()

    task = await running(cluster, work, asyncio.Event())
    await asyncio.wait_for(began.wait(), 60)
    task.cancel()
    await asyncio.wait_for(ending.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    async with asyncio.timeout(20):
        await a.until("LeaveGroup")
