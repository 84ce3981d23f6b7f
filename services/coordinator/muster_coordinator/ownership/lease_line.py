"""What a lease is renewed on: apart from the loop, so that no busy loop delays a renewal."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc

LEAVE_S = 2.0
"""An instance that has not ended the stream so long after the last message is gone: it is cancelled."""

Heard = Callable[[metadata_pb2.LeaseResponse | None], None]
"""Takes what a stream hears; None: it broke."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause in the renewing.

    Attributes:
        limit_ms: how long it lasts at most.
        over: whether it ends before; looked at after every `wake`, under the lock.
    """

    limit_ms: int
    over: Callable[[], bool]


class LeaseStream(Protocol):
    """A `Lease` stream to one metadata instance.

    Attributes:
        target: its address.
        problem: why it broke; empty while it is open.
    """

    target: str
    problem: str

    def send(self, request: metadata_pb2.LeaseRequest) -> None:
        """Sends a renewal; never waits and never fails."""

    def close(self) -> None:
        """Ends it with a message that this process lives; nothing is heard of it afterwards."""


class LeaseLine(Protocol):
    """Where the renewing takes place."""

    @property
    def lock(self) -> AbstractContextManager[Any, Any]:
        """Guards what the loop and the renewing share."""

    def start(self, steps: Iterable[Wait]) -> None:
        """Begins to carry out the steps, with the pauses that they ask for."""

    def wake(self) -> None:
        """Something changed that a pause may wait for. Called from anywhere."""

    async def ended(self) -> None:
        """Waits until the steps have come to their end."""

    def open(self, target: str, heard: Heard) -> LeaseStream:
        """A stream, of a connection of its own; `heard` is called with each answer and at its end."""


class LeaseThread:
    """The line of a real process: a thread, and blocking streams on connections of their own.

    Args:
        connect: makes a channel to a metadata instance.
    """

    def __init__(self, connect: Callable[[str], grpc.Channel]) -> None:
        self._changed = threading.Condition()
        self._connect = connect
        self._thread: threading.Thread | None = None

    @property
    def lock(self) -> AbstractContextManager[Any, Any]:
        """See `LeaseLine`."""
        return self._changed

    def start(self, steps: Iterable[Wait]) -> None:
        """See `LeaseLine`."""
        self._thread = threading.Thread(target=self._run, args=(steps,), name="lease", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """See `LeaseLine`."""
        with self._changed:
            self._changed.notify_all()

    async def ended(self) -> None:
        """See `LeaseLine`."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def open(self, target: str, heard: Heard) -> LeaseStream:
        """See `LeaseLine`."""
        return _BlockingStream(target, self._connect(target), heard)

    def _run(self, steps: Iterable[Wait]) -> None:
        for wait in steps:
            with self._changed:
                self._changed.wait_for(wait.over, wait.limit_ms / 1000)


class _BlockingStream:
    """One `Lease` stream, with a thread that reads its answers."""

    def __init__(self, target: str, channel: grpc.Channel, heard: Heard) -> None:
        self.target = target
        self.problem = ""
        self._channel = channel
        self._heard = heard
        self._requests: queue.SimpleQueue[metadata_pb2.LeaseRequest | None] = queue.SimpleQueue()
        stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
        self._closed = False
        self._patience: threading.Timer | None = None
        self._call: Any = stub.Lease(self._outgoing())
        threading.Thread(target=self._read, name="lease-answers", daemon=True).start()

    def send(self, request: metadata_pb2.LeaseRequest) -> None:
        self._requests.put(request)

    def close(self) -> None:
        # A stream that is broken off looks like a death: the instance ends it when it has read this.
        self._closed = True
        self._patience = threading.Timer(LEAVE_S, self._call.cancel)
        self._patience.daemon = True
        self._patience.start()
        self._requests.put(metadata_pb2.LeaseRequest(leave=True))
        self._requests.put(None)
        if self.problem:
            self._end()

    def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._channel.close()

    def _outgoing(self) -> Iterator[metadata_pb2.LeaseRequest]:
        return iter(self._requests.get, None)

    def _read(self) -> None:
        try:
            for answer in self._call:
                if not self._closed:
                    self._heard(answer)
            self.problem = "the stream was ended"
        except grpc.RpcError as error:
            problem: Any = error
            self.problem = f"{problem.code().name}: {problem.details()}"
        except ValueError as error:
            # Raised by grpc when the channel is closed while the call begins.
            self.problem = str(error)
        if self._closed:
            self._end()
        else:
            self._heard(None)
