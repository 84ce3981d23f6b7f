"""What a program does that runs until a signal comes."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

from muster._backoff import Backoff, Waiting
from muster._cluster.cluster import Cluster
from muster._errors import ClusterUnavailable
from muster._values import Topic

log = logging.getLogger("muster")

_replaced: dict[int, Any] = {}
"""The handlers of signals as they were before ours, while ours are in force."""


def run_until_signal(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine in an event loop of its own; SIGINT and SIGTERM set its event.

    Raises:
        KeyboardInterrupt: a second signal came before it had ended.
    """

    async def with_signals() -> None:
        stop = asyncio.Event()
        with _signals(stop):
            if early:
                stop.set()
            await main(stop)

    with _early_signals() as early:
        try:
            asyncio.run(with_signals())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def ensure_topic(cluster: Cluster, topic: str, partitions: int | Sequence[str] | None) -> Topic:
    """Returns the topic, created or grown; waits for a server, and for a topic of which nothing is given."""
    backoff, waiting, unanswered = Backoff(), Waiting(), Waiting()
    while True:
        try:
            if partitions is not None:
                return await cluster.ensure_topic(topic, partitions)
            if found := await cluster.topics([topic]):
                return found[0]
        except ClusterUnavailable as error:
            if unanswered.is_worth_a_line:
                log.warning("%s; still trying", error)
            continue
        if not backoff.attempts or waiting.is_worth_a_line:
            log.warning(
                "there is no topic %r: waiting for `muster topics create %s PARTITIONS`, or for a worker "
                "that says which partitions it has",
                topic,
                topic,
            )
        await backoff.pause()


async def first(main: Coroutine[Any, Any, object], *events: asyncio.Event) -> None:
    """Waits for a coroutine or an event, whichever comes first; raises the coroutine's exception."""
    task = asyncio.ensure_future(main)
    watches = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait((task, *watches), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for future in (task, *watches):
            future.cancel()
        await asyncio.wait((task, *watches))


@contextlib.contextmanager
def _early_signals() -> Iterator[list[int]]:
    """Collects a SIGINT or SIGTERM that comes before the loop handles them; a second one ends the process."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    outer = dict(_replaced)
    _replaced.update(before | outer)
    try:
        yield came
    finally:
        _replaced.clear()
        _replaced.update(outer)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class _Mask(threading.local):
    """Which signals a thread had blocked before it forks."""

    before: Iterable[int] = ()


_mask = _Mask()


def _about_to_fork() -> None:
    """A signal to the child waits until that has its handlers."""
    if _replaced:
        _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _replaced)


def _forked(*, child: bool) -> None:
    """Gives a forked process the handlers back that there were before.

    It has the event loop's socket for signals: one that is meant for the child, such as that of
    `multiprocessing.Pool.terminate`, would stop the parent, and not the child.
    """
    if not _replaced:
        return
    if child:
        signal.set_wakeup_fd(-1)
        for number, handler in _replaced.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_about_to_fork,
        after_in_parent=partial(_forked, child=False),
        after_in_child=partial(_forked, child=True),
    )


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets `stop`, the second cancels the task; restores handlers at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def heed() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        try:
            loop.add_signal_handler(number, heed)
        except NotImplementedError:  # on Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(heed))
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)
