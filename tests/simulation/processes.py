"""Simulated processes: each has event loops of its own, a clock of its own, and can be stopped and killed."""

import asyncio
import collections
import contextvars
import itertools
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from simulation.network import End, Network, Place
from simulation.world import EPOCH_S, World

T = TypeVar("T")

_hashes = itertools.count()


def number_from(numbers: "itertools.count[int]") -> None:
    """Begins to number futures and tasks anew."""
    global _hashes
    _hashes = numbers


class _Future(asyncio.Future[Any]):
    """Hashed by a number, so that sets of futures have the same order in every run."""

    _number = -1

    def __hash__(self) -> int:
        if self._number < 0:
            self._number = next(_hashes)
        return self._number


class _Task(asyncio.Task[Any]):
    _number = -1

    __hash__ = _Future.__hash__


class Handle:
    """A callback that waits, and can be dropped: what asyncio calls a handle, or a timer's."""

    __slots__ = ("arguments", "callback", "context", "dropped", "when_s")

    def __init__(
        self,
        when_s: float,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.when_s = when_s
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.when_s


class _Running:
    """Which loop runs. Telling asyncio costs a system call, so it is told of changes only."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def enter(self, loop: "VirtualLoop | None") -> None:
        if loop is not self.loop:
            self.loop = loop
            events._set_running_loop(loop)


_running = _Running()


@contextmanager
def taking_turns() -> Iterator[None]:
    """While simulated loops run: asyncio finds out which one does without a system call."""

    def running() -> Any:
        if _running.loop is None:
            raise RuntimeError("no running event loop")
        return _running.loop

    replaced: list[tuple[Any, str, Any]] = [
        (events, "_get_running_loop", lambda: _running.loop),
        (events, "get_running_loop", running),
        (asyncio, "get_running_loop", running),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        _running.enter(None)
        for module, name, value in before:
            setattr(module, name, value)


class Watch(Protocol):
    """Looks at the messages of processes; `notes` are kept for each open call of a server."""

    def notes(self) -> Any:
        """Notes of a new call."""

    def received(self, process: "Process", notes: Any, message: Any) -> None:
        """A server takes a message."""

    def sent(self, process: "Process", notes: Any, message: Any) -> None:
        """A server builds a message."""

    def client_received(self, process: "Process", message: Any) -> None:
        """A client takes a message."""

    def adopted(self, process: "Process") -> None:
        """The member of a worker takes an assignment."""

    def renewal_sent(self, process: "Process", request: Any) -> None:
        """A coordinator sends a renewal of its lease."""

    def renewal_answered(self, process: "Process", answer: Any) -> None:
        """It takes the answer."""


class Process:
    """One process on a machine of its own.

    Args:
        world: time.
        network: connects it.
        name: for people.
        host: its address.
        rate: seconds of its clock per second of virtual time.
        unforeseen: told of errors that nobody caught.
        watch: looks at its messages.

    Attributes:
        clock_was_set: whether its wall clock was ever set; then what it stamped before tells no time.
        after_turn: called after each turn of its loops.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        host: str,
        rate: float,
        unforeseen: Callable[[str, dict[str, Any]], None],
        watch: Watch,
    ) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.place = Place(host, self)
        self.rate = rate
        self.alive = True
        self.stopped = False
        self.unforeseen = unforeseen
        self.watch = watch
        self._offset_s = world.random.uniform(1_000, 100_000)
        self._wall_error_s = self._usual_error_s = world.random.uniform(-5, 5)
        self.clock_was_set = False
        self._set_at_s = 0.0
        self.after_turn: Callable[[], None] | None = None
        self._asleep_since_s: float | None = None
        self._slept_s = 0.0
        self._waiting: list[VirtualLoop] = []
        self._ports = itertools.count(40_000)
        self.loops: list[VirtualLoop] = []
        self.loop = self.another_loop()

    def boot_s(self) -> float:
        """See `world.Clock`."""
        return self._offset_s + self.world.now_s * self.rate

    def timers_s(self) -> float:
        """What its timers go by: a clock that stands still while its machine sleeps."""
        asleep_s = 0.0 if self._asleep_since_s is None else self.boot_s() - self._asleep_since_s
        return self.boot_s() - self._slept_s - asleep_s

    def wall_s(self) -> float:
        """See `world.Clock`."""
        return EPOCH_S + self._wall_error_s + self.world.now_s * self.rate

    def until_s(self, boot_s: float) -> float:
        """Virtual time at which its clock shows that."""
        return (boot_s - self._offset_s) / self.rate

    def when_s(self, wall_s: float) -> float | None:
        """Virtual time at which its wall clock showed that; None: not since it was set last."""
        at_s = (wall_s - EPOCH_S - self._wall_error_s) / self.rate
        return at_s if at_s >= self._set_at_s else None

    def set_clock(self, error_s: float | None) -> None:
        """Sets its wall clock to so much off the true time; None: as it was at first."""
        self.clock_was_set = True
        self._set_at_s = self.world.now_s
        self._wall_error_s = self._usual_error_s if error_s is None else error_s

    def another_loop(self) -> "VirtualLoop":
        """A loop on a thread of its own."""
        loop = VirtualLoop(self)  # type: ignore[abstract]  # nobody calls the rest
        self.loops.append(loop)
        return loop

    def run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begins a coroutine on its main loop."""
        return self.loop.create_task(work)

    def stop(self) -> None:
        """SIGSTOP."""
        if not self.stopped:
            self.stopped = True
            self.network.frozen(self.place)

    def sleep(self) -> None:
        """Its machine goes to sleep; `resume` wakes it."""
        self._asleep_since_s = self.boot_s()
        self.stop()

    def resume(self) -> None:
        """SIGCONT: what came meanwhile is there at once."""
        if self._asleep_since_s is not None:
            self._slept_s += self.boot_s() - self._asleep_since_s
            self._asleep_since_s = None
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for loop in waiting:
            loop.go_on()

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more; its connections end."""
        self.alive = False
        # Nothing of it may run when its tasks are freed, which would be in the midst of another process.
        self.remains = [(loop, asyncio.all_tasks(loop)) for loop in self.loops]
        self.network.gone(self.place)

    def waits(self, loop: "VirtualLoop") -> None:
        """A loop has something to do when the process goes on."""
        self._waiting.append(loop)


class VirtualLoop(asyncio.AbstractEventLoop):
    """What asyncio needs of a loop, on virtual time."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self._ready: collections.deque[Handle] = collections.deque()
        self._awake = False

    # --- turns

    def wake(self) -> None:
        """Makes it run a turn soon."""
        if not self._awake:
            self._awake = True
            self.world.soon(self._turn)

    def _turn(self) -> None:
        process = self.process
        if not process.alive:
            return
        if process.stopped:
            process.waits(self)
            return
        _running.enter(self)
        self.world.clock = process
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.dropped:
                try:
                    if handle.context is None:
                        handle.callback(*handle.arguments)
                    else:
                        handle.context.run(handle.callback, *handle.arguments)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"in {handle.callback}", "exception": error})
        if process.after_turn is not None:
            process.after_turn()
        self.world.clock = None
        self._awake = False
        if ready:
            self.wake()

    def go_on(self) -> None:
        """The process was stopped in its way."""
        self._awake = False
        self.wake()

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Hands something to it from outside."""
        if self.process.alive:
            self.call_soon(callback, *arguments)

    # --- asyncio's interface, with those parameters that are used: mypy says `override` of each

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *arguments: Any, context: contextvars.Context | None = None
    ) -> "Handle":
        handle = Handle(0.0, callback, arguments, context)
        self._ready.append(handle)
        if not self._awake:
            self.wake()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *arguments: Any, context: Any = None
    ) -> "Handle":
        return self.call_at(self.time() + delay, callback, *arguments, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *arguments: Any, context: Any = None
    ) -> "Handle":
        handle = Handle(when, callback, arguments, context)
        self._wait_for(handle)
        return handle

    def _wait_for(self, handle: "Handle") -> None:
        due_s = self.process.boot_s() + handle.when_s - self.time()
        self.world.at(self.process.until_s(due_s) + 1e-9, self._due, handle)

    def _due(self, handle: "Handle") -> None:
        if handle.dropped or not self.process.alive:
            return
        if handle.when_s > self.time():  # its machine slept meanwhile
            self._wait_for(handle)
            return
        self._ready.append(handle)
        self.wake()

    def time(self) -> float:
        return self.process.timers_s()

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[T]":
        return _Task(coro, loop=self, name=name or "task", context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(0.001, _fail, future, error)
        else:
            self.call_later(0.001, _succeed, future, result)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple["ByteTransport", asyncio.Protocol]:
        connected = self.create_future()
        transport = ByteTransport(self, protocol_factory())
        attempt = self.process.network.connect(
            self.process.place, f"{host}:{port}", transport, lambda problem: _connected(connected, problem)
        )
        try:
            await connected
        except asyncio.CancelledError:
            attempt.give_up()
            raise
        transport.begin(attempt.end)
        return transport, transport.protocol

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.process.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.alive:
            self.process.unforeseen(self.process.name, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def _succeed(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _connected(future: "asyncio.Future[None]", problem: OSError | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(problem)


class ByteTransport(asyncio.Transport):
    """A socket, as asyncio's streams see it."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self._end: End | None = None
        self._closing = False

    def begin(self, end: End | None) -> None:
        """The connection stands."""
        assert end is not None
        self._end = end
        self.protocol.connection_made(self)

    def received(self, data: Any) -> None:
        """See `network.Owner`."""
        self.loop.post(self._data, data)

    def lost(self, _reason: str) -> None:
        """See `network.Owner`."""
        self.loop.post(self._lost)

    def _data(self, data: bytes) -> None:
        if not self._closing:
            self.protocol.data_received(data)

    def _lost(self) -> None:
        if not self._closing:
            self._closing = True
            self.protocol.connection_lost(ConnectionResetError("the peer closed the connection"))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing and self._end is not None:
            self._end.send(bytes(data), len(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self._end is not None:
                self._end.close()
            self.loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_reading(self) -> bool:
        return True

    def can_write_eof(self) -> bool:
        return False
