"""The demo's output while it runs."""

import time

from muster_protos.muster.v1 import coordinator_pb2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

_PLAIN_SECONDS = 5.0
_WIDE = 130


def wide_console() -> Console:
    """The terminal; where there is none, lines may be wide."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=_WIDE)


class Show:
    """Lines of what happens, and a bar on a terminal.

    Args:
        total: lines to count.
    """

    def __init__(self, total: int = 0) -> None:
        self.console = wide_console()
        self._started = time.monotonic()
        self._bar: Bar | None = None
        self._total = total
        self._last_plain = 0.0

    def say(self, text: str, style: str = "") -> None:
        """One line, with the time since the start."""
        seconds = time.monotonic() - self._started
        self.console.print(f"[{seconds:5.1f} s] {text}", style=style or None, markup=False)

    def begin(self, total: int) -> None:
        """Starts the progress bar."""
        self._total = total
        if self.console.is_terminal:
            columns = (
                TextColumn("counting"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("lines"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[rate]}"),
            )
            self._bar = Bar(*columns, console=self.console, transient=True)
            self._bar.add_task("lines", total=total, rate="")
            self._bar.start()

    def progress(self, done: int, commits: int) -> None:
        """Shows the progress."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, rate=f"{commits} commits")
            return
        now = time.monotonic()
        if now - self._last_plain >= _PLAIN_SECONDS:
            self._last_plain = now
            self.say(f"{done} of {self._total} lines counted, {commits} commits")

    def end(self) -> None:
        """Removes the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def timeline(
        self, group: str, generations: list[coordinator_pb2.GroupHistoryResponse.Generation]
    ) -> None:
        """Prints the generations of a group with the cause of each."""
        self.console.print(
            f"\nTimeline of the group {group}: every generation and why it began", style="bold"
        )
        for generation in generations:
            clock = time.strftime("%H:%M:%S", time.localtime(generation.started_at_ms / 1000))
            milliseconds = generation.started_at_ms % 1000
            self.console.print(
                f"  {clock}.{milliseconds:03d}  generation {generation.generation}, "
                f"{len(generation.members)} members: {generation.cause.sentence}",
                markup=False,
            )
