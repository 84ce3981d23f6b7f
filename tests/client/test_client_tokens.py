"""The client's side of tokens: the file, where it is sent, and what follows when a server refuses it."""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc.aio
import muster
import pytest
from kit.tokens import write_token
from kit.waiting import stand_still, until
from muster import Cluster, ClusterUnavailable, RequestRefused, SettingsError, TokenFile
from muster._blocked.stand_in import StandIn, Ward
from muster._clock import boot_ms
from muster._session import token
from muster._session.channels import ChannelPool, in_process
from muster._session.token import LONGEST, RenewedToken
from muster._session.transport import Vitals
from muster._standing.life import Life
from muster._standing.seat import Caller, Seat
from muster_protos.muster.v1 import coordinator_pb2, coordinator_pb2_grpc, discovery_pb2, discovery_pb2_grpc


@dataclass
class Asking:
    """A server that takes some tokens, and notes all that it was shown."""

    takes: set[str]
    shown: list[str | None] = field(default_factory=list)

    async def let_in(self, context: Any) -> None:
        shown = dict(context.invocation_metadata()).get("authorization")
        self.shown.append(shown)
        if shown is None or shown.removeprefix("Bearer ") not in self.takes:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")


class Discovery(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    def __init__(self, asking: Asking) -> None:
        self.asking = asking

    async def ListTopics(self, request: object, context: object) -> discovery_pb2.ListTopicsResponse:
        await self.asking.let_in(context)
        return discovery_pb2.ListTopicsResponse()


class Coordinator(coordinator_pb2_grpc.GroupCoordinatorServiceServicer):
    def __init__(self, asking: Asking) -> None:
        self.asking = asking

    async def Heartbeat(self, request: object, context: object) -> coordinator_pb2.HeartbeatResponse:
        await self.asking.let_in(context)
        return coordinator_pb2.HeartbeatResponse(shard_epoch=7)


@contextlib.asynccontextmanager
async def served(asking: Asking) -> AsyncIterator[str]:
    server = grpc.aio.server()
    discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server(Discovery(asking), server)
    coordinator_pb2_grpc.add_GroupCoordinatorServiceServicer_to_server(Coordinator(asking), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    write_token(path, "first")
    return path


# The file


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "must hold one token"),
        (b" \n", "must hold one token"),
        (b"a b", "must hold one token"),
        (b"a\nb", "must hold one token"),
        ("tökén".encode(), "must hold one token"),
        (b"x" * (LONGEST + 1), "at most 16,384 visible ASCII characters"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_no_token_is_explained(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=problem) as caught:
        Cluster(token_file=TokenFile(path, plain_text=True))
    assert "MUSTER_TOKEN_FILE" in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_longest_token_is_taken(file: Path) -> None:
    write_token(file, "x" * LONGEST)
    assert TokenFile(file).read() == "x" * LONGEST


@pytest.mark.parametrize("wrong", ["", 7, b"token"])
def test_what_is_no_path_is_refused(wrong: Any) -> None:
    with pytest.raises(SettingsError, match="token_file: must be the path of a file"):
        Cluster(token_file=wrong)


def test_a_token_does_not_go_over_plain_text_unless_allowed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in (file, TokenFile(file)):
        with pytest.raises(SettingsError, match="token_file: the token would be sent over plain text"):
            Cluster(token_file=given)
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(file))
    with pytest.raises(SettingsError, match="MUSTER_TOKEN_PLAIN_TEXT=true"):
        Cluster()
    monkeypatch.setenv("MUSTER_TOKEN_PLAIN_TEXT", "perhaps")
    with pytest.raises(SettingsError, match="must be true or false, not 'perhaps'"):
        Cluster()
    monkeypatch.setenv("MUSTER_TOKEN_PLAIN_TEXT", "TRUE")
    assert TokenFile.from_environment() == TokenFile(str(file), plain_text=True)
    assert Cluster()._channels.proof() == (("authorization", "Bearer first"),)
    assert Cluster(connect=lambda address: grpc.aio.insecure_channel(address))._channels.proof() == ()
    with pytest.raises(SettingsError, match="is not used with `connect`"):
        Cluster(token_file=file, connect=lambda address: grpc.aio.insecure_channel(address))


def test_a_renewed_file_is_read_and_a_bad_one_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [boot_ms()]
    monkeypatch.setattr(token, "boot_ms", lambda: now[0])
    renewed = RenewedToken(TokenFile(file))
    write_token(file, "second")
    assert renewed.current() == "first", "it is looked at once a second"
    now[0] += token.LOOK_MS
    assert renewed.current() == "second"
    changes: list[Callable[[], None]] = [file.unlink, lambda: write_token(file, "two tokens")]
    for change in changes:
        change()
        for _ in range(2):
            now[0] += token.LOOK_MS
            assert renewed.current() == "second"
    warned = [line.message for line in caplog.records if line.levelno == logging.WARNING]
    assert [("cannot be read" in text, "must hold one" in text) for text in warned] == [
        (True, False),
        (False, True),
    ]
    write_token(file, "third")
    assert renewed.current(now=True) == "third"


# What a server does not take


def shown_by(address: str, file: Path, timeout_ms: int = 60_000) -> Cluster:
    return Cluster(address, timeout_ms=timeout_ms, token_file=TokenFile(file, plain_text=True))


async def test_a_token_that_was_never_taken_ends_the_call_at_once(file: Path) -> None:
    asking = Asking(takes={"other"})
    async with served(asking) as address, shown_by(address, file) as cluster:
        with pytest.raises(RequestRefused) as caught:
            await cluster.topics()
    assert caught.value.status == "UNAUTHENTICATED"
    assert str(caught.value) == (
        "ListTopics was refused: the token has expired (token_file, MUSTER_TOKEN_FILE)"
    )
    assert asking.shown == ["Bearer first"]


async def test_who_shows_nothing_is_told_what_to_show() -> None:
    async with served(Asking(takes=set())) as address, Cluster(address) as cluster:
        with pytest.raises(RequestRefused) as caught:
            await cluster.topics()
    assert str(caught.value) == (
        "ListTopics was refused: the token has expired; name a token with token_file or MUSTER_TOKEN_FILE, "
        "or a client certificate"
    )


async def test_a_token_that_was_renewed_meanwhile_is_shown_at_once(file: Path) -> None:
    """Also if it was looked for less than a second ago, and none of them has ever been taken."""
    asking = Asking(takes={"second"})
    async with served(asking) as address, shown_by(address, file) as cluster:
        write_token(file, "second")
        assert await cluster.topics() == []
    assert asking.shown == ["Bearer first", "Bearer second"]


async def test_a_token_that_is_renewed_late_is_waited_for(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asking = Asking(takes={"first"})
    async with served(asking) as address:
        async with shown_by(address, file) as cluster:
            assert await cluster.topics() == []
            asking.takes = {"second"}
            listing = asyncio.create_task(cluster.topics())
            await until(lambda: asking.shown.count("Bearer first") > 3, "some attempts")
            write_token(file, "second")
            assert await listing == []
        warned = [line.message for line in caplog.records if "does not take the token" in line.message]
        assert len(warned) == 1
        assert str(file) in warned[0]
        assert "the token has expired" in warned[0]

        asking.takes = {"second"}
        async with shown_by(address, file, timeout_ms=500) as cluster:
            assert await cluster.topics() == []
            asking.takes = set()
            with pytest.raises(ClusterUnavailable, match="UNAUTHENTICATED: the token has expired"):
                await cluster.topics()


# While the loop is blocked


@dataclass
class Route:
    """The part of a route that a thread reads."""

    address: str
    shard_epoch: int = 7


def test_the_thread_that_stands_in_shows_the_token_too(file: Path) -> None:
    asking = Asking(takes={"first", "second"})
    answered: list[int] = []

    async def serve(ready: list[str], done: Any) -> None:
        async with served(asking) as address:
            ready.append(address)
            await asyncio.to_thread(done.wait)

    async def block(address: str) -> None:
        pool = ChannelPool(token=TokenFile(file, plain_text=True))
        stands_in, life = StandIn(pool), Life(45_000, 700)
        vitals = Vitals(Caller("g"), Seat("m", 3), interval_ms=100, timeout_ms=1_000, beat_interval_ms=100)
        ward = Ward(vitals, Route(address), life, 60_000)
        life.renew(boot_ms())
        stands_in.add(ward)
        ends_ms = boot_ms() + 60_000
        while len(asking.shown) < 3 and boot_ms() < ends_ms:
            stand_still(0.1)  # this is what it is about
        write_token(file, "second")
        while "Bearer second" not in asking.shown and boot_ms() < ends_ms:
            stand_still(0.1)
        answered.append(life.remaining_ms(boot_ms()))
        stands_in.remove(ward)
        await pool.close()

    done, ready = threading.Event(), list[str]()
    thread = threading.Thread(target=lambda: asyncio.run(serve(ready, done)))
    thread.start()
    try:
        while not ready:
            time.sleep(0.01)
        asyncio.run(block(ready[0]))
    finally:
        done.set()
        thread.join()
    assert set(asking.shown) == {"Bearer first", "Bearer second"}
    assert answered[0] > 0, "what the thread heard counts"


def test_the_token_is_given_in_every_way_that_a_cluster_is_named(file: Path) -> None:
    """And would go over plain text in each of them."""
    given = os.fspath(file)

    async def work(_: muster.Partition) -> None: ...

    async def lead() -> None:
        async with muster.lead("name", servers="127.0.0.1:1", token_file=given):
            pass

    async def led() -> None:
        await muster.alead(cast(Any, work), name="name", servers="127.0.0.1:1", token_file=given)

    ways: list[Any] = [
        lambda: muster.run(work, group="g", topic="t", servers="127.0.0.1:1", token_file=given),
        lambda: muster.owner_of("t", 0, group="g", servers="127.0.0.1:1", token_file=given),
        lambda: asyncio.run(lead()),
        lambda: asyncio.run(led()),
    ]
    for way in ways:
        with pytest.raises(SettingsError, match="token_file: the token would be"):
            way()


def test_what_does_not_leave_the_process_needs_no_tls(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is tested with `muster.testing` may have the environment of the real one."""
    monkeypatch.setenv("MUSTER_TOKEN_FILE", str(file))
    with in_process(grpc.aio.insecure_channel):
        assert Cluster().servers == ("localhost:7400",)
