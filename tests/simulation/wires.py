"""What a real process is given in place of gRPC and of the thread of its lease."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import grpc
from muster_coordinator.ownership.lease_line import LEAVE_S, Heard, LeaseStream, Wait
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_runtime.rpc.channels import CHANNEL_OPTIONS
from simulation.grpc_channel import Call, Channel
from simulation.grpc_server import Server
from simulation.processes import Handle, Process, VirtualLoop


class SimulatedWire:
    """See `muster_runtime.rpc.wire.Wire`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def channel(self, target: str, credentials: Any, options: Any) -> grpc.aio.Channel:
        """A channel over the simulated network."""
        assert credentials is None
        return cast(grpc.aio.Channel, Channel(self._process, self._process.loop, target, options))

    def server(self, options: Any) -> grpc.aio.Server:
        """A server on it."""
        return cast(grpc.aio.Server, Server(self._process, options))


class SimulatedLeaseLine:
    """See `muster_coordinator.ownership.lease_line.LeaseLine`: a loop of its own in the same process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._loop = process.another_loop()
        self._steps: Iterator[Wait] = iter(())
        self._wait: Wait | None = None
        self._timer: Handle | None = None
        self._over: asyncio.Future[None] = process.loop.create_future()
        self._woken = False

    @property
    def lock(self) -> AbstractContextManager[Any, Any]:
        """A turn of a loop is never interrupted."""
        return nullcontext()

    def start(self, steps: Iterable[Wait]) -> None:
        """See `LeaseLine`."""
        self._steps = iter(steps)
        self._loop.post(self._step)

    def wake(self) -> None:
        """See `LeaseLine`."""
        if not self._woken:
            self._woken = True
            self._loop.post(self._look)

    async def ended(self) -> None:
        """See `LeaseLine`."""
        await asyncio.shield(self._over)

    def open(self, target: str, heard: Heard) -> LeaseStream:
        """See `LeaseLine`."""
        return _SimulatedLeaseStream(self._process, self._loop, target, heard)

    def _look(self) -> None:
        self._woken = False
        if self._wait is not None and self._wait.over():
            self._step()

    def _step(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while True:
            self._wait = next(self._steps, None)
            if self._wait is None:
                self._process.loop.post(self._finish)
                return
            if not self._wait.over():
                break
        self._timer = self._loop.call_later(self._wait.limit_ms / 1000, self._step)

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


class _SimulatedLeaseStream:
    def __init__(self, process: Process, loop: VirtualLoop, target: str, heard: Heard) -> None:
        self.target = target
        self.problem = ""
        self._heard = heard
        self._process = process
        self._channel = Channel(process, loop, target, CHANNEL_OPTIONS)
        stub: Any = metadata_pb2_grpc.MetadataServiceStub(cast(grpc.aio.Channel, self._channel))
        self._call: Call = stub.Lease()
        self._closed = False
        self._reader = loop.create_task(self._read())

    def send(self, request: metadata_pb2.LeaseRequest) -> None:
        self._process.watch.renewal_sent(self._process, request)
        if not self._call.done():
            self._call.send_soon(request)

    def close(self) -> None:
        self._closed = True
        if not self._call.done():
            self._call.send_soon(metadata_pb2.LeaseRequest(leave=True))
        # The wait for it would hold the renewing up.
        self._channel.loop.create_task(self._leave())

    async def _leave(self) -> None:
        await asyncio.wait([self._reader], timeout=LEAVE_S)
        self._reader.cancel()
        self._call.cancel()
        await self._channel.close()

    async def _read(self) -> None:
        try:
            while (answer := await self._call.read()) is not grpc.aio.EOF:
                if not self._closed:
                    self._process.watch.renewal_answered(self._process, answer)
                    self._heard(answer)
            self.problem = "the stream was ended"
        except grpc.aio.AioRpcError as error:
            self.problem = f"{error.code().name}: {error.details()}"
        if not self._closed:
            self._heard(None)
