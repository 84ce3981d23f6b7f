"""Histories: what processes asked for and what they were told, on one clock, as JSON lines.

A line is one event. Operations have an `invoke` and at most one end: `ok` (it took place), `fail` (it did
not), `info` (nobody knows; so does an operation without an end, e.g. of a process that was killed). A `note`
stands alone. Times are of the monotonic clock, which all processes of a machine share.

What is told (`f`): `commit`, `fetch`, `heartbeat`, `sync`, `assigned`, `revoked`, `lost`, `refused` (a write
that the sink refused), `silenced` and `heard` (the nemesis took a coordinator's renewals away, and gave them
back). Keys: `t` time in ns, `e` kind, `op` its id, `s` slot (a member's lasting name), `m` member
id, `g` group, `p` partition, `v` value, `gen` generation, `epoch`, `node` coordinator, `token`.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
"""One line."""


class Recorder:
    """Writes the history of one process: each line is at the system before the next thing happens."""

    def __init__(self, path: Path, process: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._process = process
        self._operations = 0

    def invoke(self, what: str, **fields: object) -> str:
        """An operation begins; gives its id."""
        self._operations += 1
        operation = f"{self._process}-{self._operations}"
        self._write({"t": time.monotonic_ns(), "e": "invoke", "f": what, "op": operation, **fields})
        return operation

    def end(self, kind: str, operation: str, **fields: object) -> None:
        """It ended: `ok`, `fail` or `info`."""
        self._write({"t": time.monotonic_ns(), "e": kind, "op": operation, **fields})

    def note(self, what: str, **fields: object) -> None:
        """Something that is no operation."""
        self._write({"t": time.monotonic_ns(), "e": "note", "f": what, **fields})

    def _write(self, event: Event) -> None:
        os.write(self._file, (json.dumps(event, separators=(",", ":")) + "\n").encode())


class Histories:
    """Follows the files of a folder and gives their events in the order of their times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._rest: list[Event] = []

    def until(self, at_ns: int) -> list[Event]:
        """All further events up to a moment, which must be so long ago that all of them are written."""
        events = self._rest
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            events += map(json.loads, whole.splitlines())
        events.sort(key=_time)
        self._rest = [event for event in events if event["t"] > at_ns]
        return [event for event in events if event["t"] <= at_ns]


def _time(event: Event) -> int:
    return int(event["t"])


def with_ends(events: Iterable[Event]) -> list[tuple[Event, Event | None]]:
    """Operations with their ends; None: there is none (yet)."""
    begun: dict[str, tuple[Event, Event | None]] = {}
    for event in events:
        if event["e"] == "invoke":
            begun[event["op"]] = (event, None)
        elif event["e"] != "note" and event["op"] in begun:
            begun[event["op"]] = (begun[event["op"]][0], event)
    return list(begun.values())
