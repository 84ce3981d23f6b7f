"""What a port of a process shows to a stranger: TLS, its certificate, and which calls it answers."""

import asyncio
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from muster_protos.muster.internal.v1 import process_pb2, process_pb2_grpc
from muster_protos.muster.v1 import coordinator_pb2, coordinator_pb2_grpc, discovery_pb2, discovery_pb2_grpc
from muster_runtime.addresses import parse_address
from muster_runtime.rpc.trust.expiry import DAY_S, Validity
from muster_runtime.rpc.trust.tls import TlsSettings

from muster_server.doctor.findings import CheckResult, Finding
from muster_server.roles import COORDINATOR, DISCOVERY

ANSWER_S = 3.0
"""Time for each answer."""

_CLOSED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_NO_SUCH_CALL = grpc.StatusCode.UNIMPLEMENTED


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the cluster.

    Attributes:
        role: of its process.
        address: `host:port`.
        public: whether clients connect there.
        internal: whether the cluster's processes make their calls there.
        lets_in: whether its process says that it asks nobody who makes internal calls there.
    """

    role: str
    address: str
    public: bool
    internal: bool
    lets_in: bool = False

    def __str__(self) -> str:
        return f"{self.role} {self.address}"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a port showed to a stranger, who has the CA's certificate and nothing else.

    Attributes:
        port: which one.
        reached: whether anything listens there.
        tls: whether it speaks TLS.
        validity: of its certificate; None: it showed none.
        internal_call: how it answered an internal call; None: by the end of the connection.
        public_call: how it answered a call of clients; None: the same way, or none was made.
        called: whether calls were made: TLS needs the certificate of the authority for that.
    """

    port: Port
    reached: bool
    tls: bool = False
    validity: Validity | None = None
    internal_call: grpc.StatusCode | None = None
    public_call: grpc.StatusCode | None = None
    called: bool = True


async def look_at(port: Port, tls: TlsSettings) -> Shown:
    """Connects to a port as a stranger does: with no certificate and no token."""
    address = parse_address(port.address)
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.close()
    except (OSError, TimeoutError):
        return Shown(port, reached=False)
    validity = await _certificate(address.host, address.port)
    speaks_tls = validity is not None
    credentials: grpc.ChannelCredentials | None = None
    if speaks_tls:
        if tls.ca_file is None or not await _is_trusted(address.host, address.port, tls.ca_file):
            return Shown(port, True, speaks_tls, validity, called=False)
        credentials = grpc.ssl_channel_credentials(tls.ca_file.read_bytes())
    channel = (
        grpc.aio.insecure_channel(port.address)
        if credentials is None
        else grpc.aio.secure_channel(port.address, credentials)
    )
    async with channel:
        process: Any = process_pb2_grpc.ProcessServiceStub(channel)
        inside = await _code(process.DescribeProcess, process_pb2.DescribeProcessRequest())
        outside = await _public_call(port, channel)
    return Shown(port, True, speaks_tls, validity, inside, outside)


async def _certificate(host: str, port: int) -> Validity | None:
    """Of the certificate of a port; None: it does not speak TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is looked at, not trusted
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return None
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return Validity.of(x509.load_der_x509_certificate(shown)) if shown else None


async def _is_trusted(host: str, port: int, ca_file: Path) -> bool:
    """Whether the authority vouches for a port: one that does not also ends a stranger's connection."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        context.set_alpn_protocols(["h2"])
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _public_call(port: Port, channel: grpc.aio.Channel) -> grpc.StatusCode | None:
    if not port.public:
        return None
    if port.role == DISCOVERY:
        discovery: Any = discovery_pb2_grpc.CoordinatorDiscoveryServiceStub(channel)
        return await _code(discovery.DescribeCluster, discovery_pb2.DescribeClusterRequest())
    group: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
    return await _code(group.ListGroups, coordinator_pb2.ListGroupsRequest(limit=1))


async def _code(call: Any, request: Any) -> grpc.StatusCode | None:
    """How a call was answered; None: the connection ended, as where a handshake is refused."""
    try:
        await call(request, timeout=ANSWER_S)
    except grpc.aio.AioRpcError as error:
        return None if error.code() is grpc.StatusCode.UNAVAILABLE else error.code()
    return grpc.StatusCode.OK


def judge_ports(shown: Sequence[Shown], now_s: float | None = None) -> Iterator[Finding]:
    """Judges what ports showed to a stranger.

    Args:
        shown: of each port.
        now_s: Unix time; now if absent.
    """
    now_s = time.time() if now_s is None else now_s
    for one in shown:
        if not one.reached:
            yield Finding(
                "tls", str(one.port), CheckResult.SKIPPED, "it is not reached from here",
                "run this where the processes of the cluster run, such as in a metadata container",
            )  # fmt: skip
            continue
        yield from _judge_tls(one, now_s)
        if not one.called:
            yield Finding(
                "identity", str(one.port), CheckResult.SKIPPED, "its certificate cannot be checked from here",
                "MUSTER_TLS_CA_FILE must name its authority, and the certificate this address",
            )  # fmt: skip
            continue
        yield _judge_internal(one)
        if one.port.public:
            yield _judge_public(one)


def _judge_tls(one: Shown, now_s: float) -> Iterator[Finding]:
    if not one.tls:
        yield Finding(
            "tls", str(one.port), CheckResult.FAILED,
            "it speaks plain text: who listens on the network reads it, tokens included",
            "set MUSTER_TLS_CERT_FILE, MUSTER_TLS_KEY_FILE and MUSTER_TLS_CA_FILE for all processes",
        )  # fmt: skip
        return
    yield Finding("tls", str(one.port), CheckResult.OK, "it speaks TLS")
    if one.validity is None:
        return
    days = one.validity.left_s(now_s) / DAY_S
    result = (
        CheckResult.FAILED if one.validity.is_overdue(now_s)
        else CheckResult.WARNING if one.validity.is_due(now_s)
        else CheckResult.OK
    )  # fmt: skip
    detail = f"its certificate ends in {days:.1f} days" if days > 0 else "its certificate has ended"
    yield Finding(
        "certificates", str(one.port), result, detail,
        "renew the files; processes read them again without a restart",
    )  # fmt: skip


def _judge_internal(one: Shown) -> Finding:
    where, code = str(one.port), one.internal_call
    if code is grpc.StatusCode.OK and (one.port.internal or one.port.role == COORDINATOR):
        return Finding(
            "internal calls", where, CheckResult.FAILED,
            "it answers internal calls to anybody who reaches it",
            "set MUSTER_INTERNAL_TOKEN_FILE, or MUSTER_INTERNAL_PEERS, for all processes: docs/security.md",
        )  # fmt: skip
    if code is grpc.StatusCode.OK:
        return Finding(
            "internal calls", where, CheckResult.WARNING,
            "it tells anybody its version and which calls are held to rights",
            "set MUSTER_INTERNAL_TOKEN_FILE, or MUSTER_INTERNAL_PEERS, for all processes: docs/security.md",
        )  # fmt: skip
    if one.port.lets_in:  # what refused the stranger was the handshake
        return Finding(
            "internal calls", where,
            CheckResult.WARNING if one.port.role == DISCOVERY else CheckResult.FAILED,
            "it answers internal calls to whoever has a certificate of its authority, such as a worker",
            "set MUSTER_INTERNAL_PEERS, or MUSTER_INTERNAL_TOKEN_FILE, for all processes: docs/security.md",
        )  # fmt: skip
    if one.port.public and one.port.role == COORDINATOR and code in _CLOSED:
        return Finding(
            "internal calls", where, CheckResult.WARNING,
            "internal calls are answered where clients connect, to who may make them",
            "set MUSTER_COORDINATOR_INTERNAL_LISTEN and MUSTER_COORDINATOR_INTERNAL_ON_PUBLIC=false",
        )  # fmt: skip
    if not _is_refusal(code, one):
        return Finding(
            "internal calls", where, CheckResult.SKIPPED, _SAYS_NOTHING.format(_name(code)), _AGAIN
        )
    return Finding("internal calls", where, CheckResult.OK, "a stranger's internal call is refused")


def _judge_public(one: Shown) -> Finding:
    if one.public_call is grpc.StatusCode.OK:
        return Finding(
            "identity", str(one.port), CheckResult.WARNING, "it answers callers who prove nothing",
            "set MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE, or MUSTER_IDENTITY_REQUIRED: docs/access.md",
        )  # fmt: skip
    if one.public_call is _NO_SUCH_CALL or not _is_refusal(one.public_call, one):
        return Finding(
            "identity",
            str(one.port),
            CheckResult.SKIPPED,
            _SAYS_NOTHING.format(_name(one.public_call)),
            _AGAIN,
        )
    return Finding("identity", str(one.port), CheckResult.OK, "a caller who proves nothing is refused")


def _is_refusal(code: grpc.StatusCode | None, one: Shown) -> bool:
    """Whether an answer shows that strangers are refused: without TLS the end of a connection does not."""
    return one.tls if code is None else code in _CLOSED or code is _NO_SUCH_CALL


def _name(code: grpc.StatusCode | None) -> str:
    return (grpc.StatusCode.UNAVAILABLE if code is None else code).name


_SAYS_NOTHING = "a caller who proves nothing was answered {}, which says nothing of it"
_AGAIN = "run this again; the process's log says more"
