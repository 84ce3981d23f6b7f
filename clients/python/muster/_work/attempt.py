"""One call of the user's function, in a task or in a thread."""

import asyncio
import contextlib
import inspect
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType
from typing import Any, Protocol, cast

from muster._clock import current


class InThread(Protocol):
    """What a call of the work gets in a thread."""

    @property
    def is_ending(self) -> bool:
        """Whether the call is to end."""
        ...

    def end(self) -> None:
        """Asks the call to end."""

    def turn_async(self) -> None:
        """Becomes what it was made from: the work has turned out to be async."""


class Subject(Protocol):
    """What the work is about, and gets on the event loop: an owned partition or a leadership."""

    @property
    def is_ending(self) -> bool:
        """Whether the work is to end."""
        ...

    def end(self) -> None:
        """Marks it as ending."""

    def for_thread(self, loop: asyncio.AbstractEventLoop) -> InThread:
        """What the work gets in a thread."""
        ...


class Attempt:
    """Calls the work once.

    An `async def` is called on the event loop. Anything else is called in a thread; when it returns something
    awaitable (a lambda or a decorator around an `async def` does), that is awaited on the loop.

    Args:
        work: the user's function.
        subject: what it gets.
        name: of the task or thread.

    Attributes:
        task: ends with the call.
        error: what the work raised; None: nothing, or it has not ended.
    """

    def __init__(self, work: Callable[[Any], object], subject: Subject, name: str) -> None:
        self._work = work
        self._subject = subject
        self._name = name
        self._thread: threading.Thread | None = None
        self._coroutine: Coroutine[Any, Any, object] | None = None
        self.error: BaseException | None = None
        self._asked = False
        self._left = False
        self.task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def cancel(self) -> None:
        """Asks it to end, once: cancels a task, sets `is_ending` for a thread."""
        self._subject.end()
        if not self._asked:
            self._asked = True
            self.task.cancel()

    def leave(self) -> None:
        """Waits for it no longer. A thread goes on until it looks at `is_ending`, or the process ends."""
        self._left = True
        self.cancel()
        if self._coroutine is not None:
            # It was cancelled and did not end. Closed, it ends at the place where it waits.
            with contextlib.suppress(RuntimeError, ValueError):
                self._coroutine.close()
        self.task.cancel()

    def stack(self) -> str:
        """Where it stands, as the lines of a traceback."""
        if self._thread is not None:
            frame = sys._current_frames().get(self._thread.ident or 0)
            stack = traceback.extract_stack(frame) if frame else traceback.StackSummary()
            ours = [i for i, entry in enumerate(stack) if entry.filename == __file__]
            stack = traceback.StackSummary(stack[ours[-1] + 1 :] if ours else stack)
        else:
            frames = ((frame, frame.f_lineno) for frame in _frames_of(self._coroutine))
            stack = traceback.StackSummary.extract(frames)
        return "".join(stack.format()).rstrip() or "  it is just beginning"

    async def _run(self) -> None:
        try:
            await self._call()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a task that raises SystemExit would end the loop
            self.error = error

    async def _call(self) -> None:
        if is_async(self._work):
            await self._await(cast(Awaitable[object], self._work(self._subject)))
            return
        blocking = self._subject.for_thread(asyncio.get_running_loop())
        result = await self._in_thread(blocking)
        if not inspect.isawaitable(result):
            return
        # It was made with this object, and its body has not begun.
        blocking.turn_async()
        if self._subject.is_ending:
            if inspect.iscoroutine(result):
                result.close()
            raise asyncio.CancelledError
        await self._await(result)

    async def _await(self, result: Awaitable[object]) -> None:
        self._coroutine = result if inspect.iscoroutine(result) else _awaited(result)
        try:
            await self._coroutine
        finally:
            self._coroutine = None

    async def _in_thread(self, blocking: InThread) -> object:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()

        def run() -> None:
            error: BaseException | None = None
            result: object = None
            try:
                result = self._work(blocking)
            except BaseException as raised:  # else SystemExit would end the thread without a word
                error = raised
            # The loop is gone if the program did not wait for this thread.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_finish, done, result, error)

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        time = current()
        time.thread_runs()
        done.add_done_callback(lambda _: time.thread_rests())
        self._thread.start()
        try:
            while not done.done():
                try:
                    await asyncio.wait((done,))
                except asyncio.CancelledError:
                    # A thread cannot be cancelled, only asked to end. Who cancels twice does not wait for it.
                    if blocking.is_ending or self._left:
                        raise
                    blocking.end()
            return done.result()
        finally:
            self._thread = None


def is_async(work: Callable[[Any], object]) -> bool:
    """Whether calling it only makes a coroutine."""
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(type(work).__call__)


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _finish(done: "asyncio.Future[object]", result: object, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _frames_of(coroutine: Any) -> list[FrameType]:
    """The frames of a coroutine and of those that it awaits, outermost first."""
    frames: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        frames.append(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames
