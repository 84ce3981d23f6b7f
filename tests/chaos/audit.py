"""The audit with Spark of what a cluster under faults left, with what its clients were told."""

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checkers import Violation
from chaos.history import Event
from chaos.logs import CommitPlace
from kit.waiting import killed

_TIMEOUT_S = 900


def installed() -> bool:
    """Whether the environment has Spark."""
    return importlib.util.find_spec("pyspark") is not None


@dataclass
class Noted:
    """What clients were told, by one clock: acknowledged commits and answered fetches."""

    _open: dict[str, Event] = field(default_factory=dict)
    _acknowledged: list[tuple[Event, int]] = field(default_factory=list)
    _read: list[tuple[Event, Event]] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        """Takes the next event."""
        if event["e"] == "invoke" and event["f"] in ("commit", "fetch"):
            self._open[event["op"]] = event
        elif (begun := self._open.pop(event.get("op", ""), None)) is not None and event["e"] == "ok":
            if begun["f"] == "commit":
                self._acknowledged.append((begun, event["t"]))
            else:
                self._read.append((begun, event))

    def acknowledgements(self, places: dict[tuple[str, int, int], CommitPlace]) -> list[dict[str, Any]]:
        """As `--acks` wants them; commits that are trimmed by now are left out."""
        return [
            {"shard": place.shard, "epoch": place.epoch, "offset": place.offset, "at_ms": at_ns // 1_000_000}
            for begun, at_ns in self._acknowledged
            if (place := places.get((begun["g"], begun["p"], begun["v"]))) is not None
        ]

    def reads(self, topics: dict[tuple[str, int], str]) -> list[dict[str, Any]]:
        """As `--reads` wants them."""
        return [
            {
                "group_id": begun["g"],
                "topic": topics[begun["g"], partition],
                "partition": partition,
                "offset": end["vs"].get(str(partition), -1),
                "began_at_ms": begun["t"] // 1_000_000,
            }
            for begun, end in self._read
            for partition in begun["ps"]
            if (begun["g"], partition) in topics
        ]


async def audit(
    url: str, folder: Path, noted: Noted, places: Sequence[CommitPlace]
) -> tuple[list[Violation], str]:
    """Runs `muster-audit check`; gives what it found, and what it looked at as text.

    Args:
        url: nodes of the log.
        folder: for its files.
        noted: what clients were told.
        places: every commit that the log has.
    """
    first = {(place.group_id, place.partition, place.value): place for place in reversed(places)}
    topics = {(place.group_id, place.partition): place.topic for place in places}
    acks, reads = noted.acknowledgements(first), noted.reads(topics)
    command = [
        sys.executable, "-m", "muster_audit", "check", url, "--nodes", "all", "-o", "json",
        "--spark-log", str(folder / "spark.log"),
        "--acks", str(_lines(folder / "acks.jsonl", acks)),
        "--reads", str(_lines(folder / "reads.jsonl", reads)),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            told, errors = await process.communicate()
    except TimeoutError:
        await killed(process)
        return [Violation("audit", 0, f"no end within {_TIMEOUT_S} s")], "no audit"
    if process.returncode not in (0, 1):
        return [Violation("audit", 0, errors.decode().strip()[-500:])], "no audit"
    result = json.loads(told)
    violations = [
        Violation(row["invariant"], 0, f"audit: {row['log']}: {row['detail']}")
        for row in result["violations"]
    ]
    return violations, (
        f"audit of {result['entries']} entries on {result['nodes']} nodes, {len(acks)} acknowledgements and "
        f"{len(reads)} reads in {result['seconds']:.0f} s"
    )


def _lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
