"""A peer of another version: what passes through it has fields that nobody knows yet, or lacks some."""

from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import metadata_pb2, process_pb2
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2, session_pb2
from muster_runtime.rpc.channels import CHANNEL_OPTIONS
from muster_server.dev.ports import LOOPBACK

KNOWN = (peer_pb2, metadata_pb2, process_pb2, coordinator_pb2, discovery_pb2, session_pb2)
"""What a call may be of: whoever imports these modules adds them to the pool."""

UNKNOWN = (
    b"\xc0\x3e\x07"  # field 1000, a number
    b"\xca\x3e\x05later"  # field 1001, bytes
    b"\xd1\x3e\x01\x02\x03\x04\x05\x06\x07\x08"  # field 1002, eight bytes
)
"""Fields of a later version, as they stand in a message."""

_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.http2.max_ping_strikes", 0),  # clients ping it as often as a real server
]
_OWN_HEADERS = ("grpc-", "user-agent", ":")


def grow(message: Message) -> None:
    """Adds the fields to a message, as a later version may."""
    message.MergeFromString(UNKNOWN)


def every(message: Message) -> Iterator[Message]:
    """A message and every message in it, innermost first."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from every(inner)
    yield message


class OtherPeer(grpc.GenericRpcHandler):
    """Passes every call on to an address, and changes every message, in both directions; a context manager.

    Args:
        port: where it listens.
        target: `host:port` of the real process.
        change: changes one message.

    Attributes:
        passed: messages on their way there and back, by method.
    """

    def __init__(self, port: int, target: str, change: Callable[[Message], None] = grow) -> None:
        self.address = f"{LOOPBACK}:{port}"
        self.passed: dict[str, list[int]] = {}
        self._target = target
        self._change = change

    async def __aenter__(self) -> Self:
        self._channel: Any = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._server.stop(0)
        await self._channel.close()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of any method: raw bytes come and go."""
        path = details.method
        service, _, name = path.strip("/").partition("/")
        try:
            method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
        except KeyError:
            return None
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(path, method))
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(path, method))
        return grpc.unary_unary_rpc_method_handler(self._unary(path, method))

    def _changed(self, path: str, method: MethodDescriptor, raw: bytes, *, back: bool) -> bytes:
        kind = method.output_type if back else method.input_type
        message = message_factory.GetMessageClass(kind)()
        message.ParseFromString(raw)
        for one in every(message):
            self._change(one)
        self.passed.setdefault(path, [0, 0])[back] += 1
        return message.SerializeToString()

    def _unary(self, path: str, method: MethodDescriptor) -> Any:
        async def call(request: bytes, context: Any) -> bytes:
            real = self._channel.unary_unary(path)(
                self._changed(path, method, request, back=False),
                timeout=context.time_remaining(),
                metadata=_headers(context),
            )
            try:
                return self._changed(path, method, await real, back=True)
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
                raise

        return call

    def _stream(self, path: str, method: MethodDescriptor) -> Any:
        async def call(request: Any, context: Any) -> AsyncIterator[bytes]:
            async def requests() -> AsyncIterator[bytes]:
                async for raw in request:
                    yield self._changed(path, method, raw, back=False)

            if method.client_streaming:
                real: Any = self._channel.stream_stream(path)(requests(), metadata=_headers(context))
            else:
                changed = self._changed(path, method, request, back=False)
                real = self._channel.unary_stream(path)(changed, metadata=_headers(context))
            try:
                async for raw in real:
                    yield self._changed(path, method, raw, back=True)
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)

        return call


def _headers(context: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in context.invocation_metadata() if not key.startswith(_OWN_HEADERS)]


async def _pass_on(error: grpc.aio.AioRpcError, context: Any) -> None:
    trailers = tuple(
        (key, value) for key, value in error.trailing_metadata() or () if not key.startswith(_OWN_HEADERS)
    )
    status = [
        ("grpc-status-details-bin", v)
        for k, v in error.trailing_metadata() or ()
        if k.endswith("details-bin")
    ]
    await context.abort(error.code(), error.details() or "", (*trailers, *status))
