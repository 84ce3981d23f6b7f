"""Whether a stream broke because its client died or because of the network."""

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

import structlog

log = structlog.get_logger()

MASS_MIN = 3
"""Fewer streams than this never count as most of them."""


class Stream(Protocol):
    """What has to be known of a stream."""

    @property
    def attached(self) -> bool:
        """Whether it has members."""
        ...

    def silent(self, now_ms: int) -> bool:
        """Whether its client missed several beats."""
        ...

    def broken(self, *, suspect: bool, ago_ms: int = 0) -> None:
        """Notifies the shards of its members that it broke, and how long ago."""
        ...


class Breaks:
    """Gathers streams that break at about the same time, and judges them together.

    If most streams break, it is the network, and nobody becomes suspect; nor for a while after. Most: at
    least three, and more than half of those that were open before the first of them broke. One whose client
    fell silent counts as broken, since a network that is cut breaks its connections one by one; one without
    members does not count at all. If it is not most of them, their members become suspect (docs/safety.md,
    "Session and disconnect grace").

    Args:
        streams: those that are open.
        window_ms: how long breaks are gathered; their members' grace has begun with the break (SES-07).
        hold_ms: how long later breaks are put down to the network that was found guilty.
        boot_ms: the boot clock.
    """

    def __init__(
        self, streams: Collection[Stream], window_ms: int, hold_ms: int, boot_ms: Callable[[], int]
    ) -> None:
        self._streams = streams
        self._window_s = window_ms / 1000
        self._hold_ms = hold_ms
        self._boot_ms = boot_ms
        self._gathered: list[tuple[Stream, int]] = []
        self._open_before = 0
        self._network_until_ms = 0
        self._timer: asyncio.TimerHandle | None = None

    def broke(self, stream: Stream) -> None:
        """A stream with members broke; it is not among the open ones any more."""
        if self._timer is None:
            if self._boot_ms() < self._network_until_ms:
                stream.broken(suspect=False)
                return
            self._open_before = 1 + sum(stream.attached for stream in self._streams)
            if self._open_before < MASS_MIN:
                stream.broken(suspect=True)
                return
            self._timer = asyncio.get_running_loop().call_later(self._window_s, self._judge)
        self._gathered.append((stream, self._boot_ms()))

    def stop(self) -> None:
        """Forgets what is gathered: the process ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _judge(self) -> None:
        self._timer = None
        gathered, self._gathered = self._gathered, []
        now_ms = self._boot_ms()
        lost = len(gathered) + sum(stream.attached and stream.silent(now_ms) for stream in self._streams)
        network = lost >= MASS_MIN and 2 * lost > self._open_before
        if network:
            self._network_until_ms = now_ms + self._hold_ms
            log.warning("most_streams_broke", broken=len(gathered), lost=lost, open_before=self._open_before)
        for stream, broke_ms in gathered:
            stream.broken(suspect=not network, ago_ms=now_ms - broke_ms)
