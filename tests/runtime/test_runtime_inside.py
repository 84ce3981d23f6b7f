"""The token that calls between processes of a cluster present, on real servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc, process_pb2, process_pb2_grpc
from muster_runtime.logs import SELDOM_S, Seldom
from muster_runtime.rpc.channels import CHANNEL_OPTIONS, open_channel
from muster_runtime.rpc.server import PortUse, RpcServer, ServerSettings
from muster_runtime.rpc.trust import inside
from muster_runtime.rpc.trust.inside import InternalSettings
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import SettingsError, load
from structlog.testing import capture_logs

OURS, THEIRS, NEXT = "a" * 32, "b" * 40, "c" * 256


def trusting(folder: Path, *tokens: str, required: bool = True, name: str = "tokens") -> Trust:
    file = folder / name
    file.write_text("\n".join(tokens) + "\n")
    return Trust(TlsSettings(), InternalSettings(token_file=file, token_required=required))


@asynccontextmanager
async def serving(trust: Trust | None) -> AsyncIterator[str]:
    server = RpcServer(ServerSettings(), trust)
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def ask(address: str, trust: Trust | None) -> str:
    """Makes an internal call; returns why it was refused, or nothing."""
    async with open_channel(address, trust) as channel:
        stub: Any = process_pb2_grpc.ProcessServiceStub(channel)
        try:
            await stub.DescribeProcess(process_pb2.DescribeProcessRequest(), timeout=60)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return ""


@pytest.mark.cluster
async def test_internal_calls_need_a_token_of_the_cluster(tmp_path: Path) -> None:
    ours = trusting(tmp_path, OURS)
    async with serving(ours) as address:
        assert await ask(address, ours) == ""
        assert await ask(address, trusting(tmp_path, THEIRS, name="theirs")) == (
            "UNAUTHENTICATED: muster.internal.v1.ProcessService/DescribeProcess is for processes of the "
            "cluster: the call has a token that is not of this cluster (MUSTER_INTERNAL_TOKEN_FILE)"
        )
        assert "the call has no token of the cluster" in await ask(address, None)


@pytest.mark.cluster
async def test_health_needs_no_token(tmp_path: Path) -> None:
    async with serving(trusting(tmp_path, OURS)) as address, open_channel(address) as channel:
        call: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await call(b"", timeout=60)


@pytest.mark.cluster
async def test_a_thread_presents_it_too(tmp_path: Path) -> None:
    ours = trusting(tmp_path, OURS)
    async with serving(ours) as address:
        with ours.blocking_channel(address, CHANNEL_OPTIONS) as channel:
            stub: Any = process_pb2_grpc.ProcessServiceStub(channel)
            answer = await asyncio.to_thread(
                stub.DescribeProcess, process_pb2.DescribeProcessRequest(), timeout=60
            )
        assert answer.version


@pytest.mark.cluster
async def test_tokens_are_replaced_without_an_interruption(tmp_path: Path) -> None:
    """Accepted first, then presented, then the old one goes; nobody is started anew."""
    one = trusting(tmp_path, OURS, name="one")
    other = trusting(tmp_path, OURS, name="other")
    async with serving(one) as first, serving(other) as second:

        async def all_reach_each_other() -> bool:
            return [await ask(first, other), await ask(second, one)] == ["", ""]

        for tokens in ([OURS, NEXT], [NEXT, OURS], [NEXT]):
            for name in ("one", "other"):
                (tmp_path / name).write_text("\n".join(tokens))
                assert await all_reach_each_other()
        assert "is not of this cluster" in await ask(first, trusting(tmp_path, OURS, name="old"))


@pytest.mark.cluster
async def test_nothing_but_health_answers_who_shows_no_token_at_the_port_inside(tmp_path: Path) -> None:
    """Reflection is a stream: strangers who open thousands would leave no call to the cluster's processes."""
    ours = trusting(tmp_path, OURS)
    server = RpcServer(ServerSettings(), ours, use=PortUse.INTERNAL)
    address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"

    async def reflected(trust: Trust | None) -> int:
        async with open_channel(address, trust) as channel:
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = stub.ServerReflectionInfo(timeout=60)
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            return len((await call.read()).list_services_response.service)

    assert await reflected(ours) > 1
    with pytest.raises(grpc.aio.AioRpcError, match="the call has no token of the cluster"):
        await reflected(None)
    async with open_channel(address) as channel:
        health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", timeout=60)
    await server.stop(0)


class Leasing(metadata_pb2_grpc.MetadataServiceServicer):
    """Answers what it hears on a stream that has no end."""

    async def Lease(self, _: Any, context: Any) -> None:  # type: ignore[override]  # the stubs know no servicers that are async
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(metadata_pb2.LeaseResponse(number=request.number))


@pytest.mark.cluster
async def test_a_stream_lasts_no_longer_than_the_token_that_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who has stolen one goes on after it was replaced."""
    monkeypatch.setattr(inside, "LOOK_S", 0.05)
    stolen = trusting(tmp_path, OURS, name="stolen")
    server = RpcServer(ServerSettings(), trusting(tmp_path, OURS))
    server.add(metadata_pb2_grpc.add_MetadataServiceServicer_to_server, Leasing())
    port = await server.start("127.0.0.1:0")
    async with open_channel(f"127.0.0.1:{port}", stolen) as channel:
        stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
        stream = stub.Lease(timeout=60)

        async def answered(number: int) -> bool:
            await stream.write(metadata_pb2.LeaseRequest(number=number))
            answer: metadata_pb2.LeaseResponse = await stream.read()
            return answer.number == number

        assert await answered(1)
        with capture_logs() as lines:
            trusting(tmp_path, NEXT, OURS)
            await until(lambda: "internal_tokens_renewed" in [line["event"] for line in lines], "it was read")
        assert await answered(2)
        trusting(tmp_path, NEXT)
        with pytest.raises(grpc.aio.AioRpcError, match="is replaced") as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await server.stop(0)


@pytest.mark.cluster
async def test_a_cluster_is_given_tokens_while_it_runs(tmp_path: Path) -> None:
    """Where they are not required yet, a call without one is accepted; one with a wrong one is not."""
    async with serving(trusting(tmp_path, OURS, required=False)) as address, serving(None) as without:
        assert await ask(address, None) == ""
        assert "is not of this cluster" in await ask(address, trusting(tmp_path, THEIRS, name="theirs"))
        assert await ask(without, trusting(tmp_path, OURS)) == ""


@pytest.mark.cluster
async def test_refused_calls_are_logged_and_do_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(inside, "Seldom", lambda: Seldom(lambda: now_s[0]))
    async with serving(trusting(tmp_path, OURS)) as address:
        with capture_logs() as lines:
            for _ in range(5):
                await ask(address, None)
            now_s[0] += SELDOM_S
            await ask(address, None)
    first, second = [line for line in lines if line["event"] == "internal_call_refused"]
    assert (first["refused"], second["refused"]) == (1, 5)
    assert first["method"] == "muster.internal.v1.ProcessService/DescribeProcess"
    assert first["peer"].startswith("ipv4:127.0.0.1:")
    assert OURS not in str(lines)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "holds 0 tokens, not 1 to 4"),
        ("\n".join([OURS] * 5), "holds 5 tokens, not 1 to 4"),
        ("a" * 31, "token 1 has 31 characters, not 32 to 256"),
        (f"{OURS}\n{'a' * 257}", "token 2 has 257 characters, not 32 to 256"),
        ("ä" * 20, "token 1 has characters other than visible ASCII"),
    ],
)
def test_a_file_that_holds_no_tokens_is_refused(
    content: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens"
    file.write_text(content)
    monkeypatch.setenv("MUSTER_INTERNAL_TOKEN_FILE", str(file))
    with pytest.raises(SettingsError) as caught:
        Trust.load()
    assert problem in str(caught.value)
    assert "MUSTER_INTERNAL_TOKEN_FILE" in str(caught.value)
    assert content == "" or content.split()[0] not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = load(InternalSettings, token_file=tmp_path / "absent")
    with pytest.raises(SettingsError, match=r"MUSTER_INTERNAL_TOKEN_FILE=.*cannot be read"):
        settings.tokens()


def test_what_was_read_counts_while_the_file_is_not_whole(tmp_path: Path) -> None:
    trust = trusting(tmp_path, OURS)
    assert trust.internal.tokens() == (OURS,)
    with capture_logs() as lines:
        (tmp_path / "tokens").write_text("short")
        assert trust.internal.tokens() == (OURS,)
        assert trust.internal.tokens() == (OURS,)
    assert [line["event"] for line in lines] == ["internal_tokens_not_used"]
    (tmp_path / "tokens").write_text(NEXT)
    assert trust.internal.tokens() == (NEXT,)
