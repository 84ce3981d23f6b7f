"""Each internal call that there is, at each port of a real cluster, with what a worker has to show."""

import importlib
import pkgutil
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kit.certificates import SERVER, WORKER, Certificates, uri
from kit.issuer import Issuer
from kit.tokens import token_settings
from muster_protos.muster.internal import v1 as internal
from muster_runtime.rpc.trust.inside import TOKEN_HEADER, InternalSettings
from muster_server.dev.cluster import DevCluster
from muster_server.dev.ports import LOOPBACK

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]

Method = tuple[str, bool]
"""Its path, and whether it answers with a stream."""


def internal_methods() -> Iterator[Method]:
    """All methods of the package, by the descriptors of its files."""
    for module in pkgutil.iter_modules(internal.__path__):
        if module.name.endswith("_pb2"):
            file: Any = importlib.import_module(f"{internal.__name__}.{module.name}")
            for service in file.DESCRIPTOR.services_by_name.values():
                for method in service.methods:
                    yield f"/{service.full_name}/{method.name}", method.server_streaming


async def services_at(channel: grpc.aio.Channel, metadata: Any) -> set[str]:
    """The services of a port, as reflection tells who may know them."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(metadata=metadata, timeout=60)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = (await call.read()).list_services_response.service
    call.cancel()
    return {service.name for service in listed}


async def answer(channel: grpc.aio.Channel, method: Method, metadata: Any) -> grpc.StatusCode | None:
    """How a call with an empty request is answered; None: a stream goes on, or has an answer."""
    path, streams = method
    # One request or many are the same on the wire; it ends what it sends after the first.
    call: Any = channel.unary_stream(path) if streams else channel.unary_unary(path)
    try:
        if streams:
            await anext(aiter(call(b"", metadata=metadata, timeout=5)))
        else:
            await call(b"", metadata=metadata, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    except StopAsyncIteration:
        return grpc.StatusCode.OK
    return None


REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize("known_by", ["certificate", "token"])
async def test_a_worker_makes_no_internal_call_at_any_port(known_by: str, tmp_path: Path) -> None:
    """Whatever it shows: its certificate and its own token, also in the place of the cluster's.

    The cluster's own processes are answered each of them, or the test would say nothing.
    """
    certificates, issuer = Certificates(tmp_path / "certificates"), Issuer()
    certificates.issue_with_uris()
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set())
    settings = {**certificates.settings, **issuer.settings, "MUSTER_IDENTITY_TOKEN_JWKS_FILE": str(keys)}
    of_a_worker: list[tuple[str, str]] = [("authorization", f"Bearer {issuer.token('worker')}")]
    of_a_process: list[tuple[str, str]] = []
    if known_by == "certificate":
        settings["MUSTER_INTERNAL_PEERS"] = uri(SERVER)
    else:
        inside = token_settings(tmp_path)
        settings.update(inside)
        file = Path(inside["MUSTER_INTERNAL_TOKEN_FILE"])
        of_a_process.append((TOKEN_HEADER, InternalSettings(token_file=file).tokens()[0]))
    forged = [*of_a_worker, (TOKEN_HEADER, issuer.token("worker"))]
    methods = list(internal_methods())
    assert len(methods) > 10

    answered: set[str] = set()
    async with DevCluster(tmp_path / "cluster", coordinators=1, settings=settings) as cluster:
        ((_, port),) = cluster.internal_ports.items()
        inside_ports = [cluster.metadata[0].address, f"{LOOPBACK}:{port}"]
        for address in [*inside_ports, cluster.discovery.address, cluster.coordinators[0].address]:
            async with (
                grpc.aio.secure_channel(address, certificates.credentials(WORKER)) as worker,
                grpc.aio.secure_channel(address, certificates.credentials(SERVER)) as process,
            ):
                there = await services_at(process, of_a_process)
                for method in methods:
                    path, _ = method
                    is_there = path.split("/")[1] in there
                    for shown in ([], of_a_worker, forged):
                        code = await answer(worker, method, shown)
                        expected = REFUSALS if is_there else (grpc.StatusCode.UNIMPLEMENTED,)
                        assert code in expected, (address, path, shown, code)
                    if is_there:
                        code = await answer(process, method, of_a_process)
                        assert code not in (*REFUSALS, grpc.StatusCode.UNIMPLEMENTED), (address, path, code)
                        answered.add(path)
                if address in inside_ports:
                    assert not [name for name in there if "muster.v1" in name]
    assert answered == {path for path, _ in methods}
