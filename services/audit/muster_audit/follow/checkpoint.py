"""What `muster-audit follow` has checked so far, in a file that survives it."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from muster_core.position import NOWHERE, Position

from muster_audit.reading.durable import replace_file


class CheckpointUnusable(Exception):
    """The check cannot be continued from it; the message says why and what to do."""


@dataclass(slots=True)
class LogProgress:
    """How far one log was checked.

    Attributes:
        position: the last entry that was checked.
        end_hash: its chain hash.
        entries: how many entries were checked, each counted once.
        broken: how often each promise was broken.
        raised: the violations that were raised: promise and place.
    """

    position: Position = NOWHERE
    end_hash: bytes = b""
    entries: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    raised: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True)
class Checkpoint:
    """How far the logs of a cluster were checked.

    Attributes:
        cluster_id: identity of the cluster; empty: nothing was checked yet.
        logs: by number.
    """

    cluster_id: str = ""
    logs: dict[int, LogProgress] = field(default_factory=dict)

    @property
    def broken(self) -> Counter[str]:
        """How often each promise was broken, in all logs."""
        return sum((log.broken for log in self.logs.values()), Counter())

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Reads a checkpoint; a new one where there is no file.

        Raises:
            CheckpointUnusable: the file holds something else.
        """
        try:
            stored = json.loads(path.read_bytes())
            logs = {
                int(number): LogProgress(
                    Position.parse(log["position"]),
                    bytes.fromhex(log["end_hash"]),
                    int(log["entries"]),
                    Counter({str(name): int(count) for name, count in log["broken"].items()}),
                    {(str(name), str(place)) for name, place in log["raised"]},
                )
                for number, log in stored["logs"].items()
            }
            return cls(str(stored["cluster_id"]), logs)
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointUnusable(f"{path} holds no checkpoint: {error!r}") from error

    def save(self, path: Path) -> None:
        """Writes it; a crash leaves the old file or the new one."""
        logs = {
            str(number): {
                "position": log.position.stream_id,
                "end_hash": log.end_hash.hex(),
                "entries": log.entries,
                "broken": dict(log.broken),
                "raised": sorted(log.raised),
            }
            for number, log in self.logs.items()
        }
        replace_file(path, json.dumps({"cluster_id": self.cluster_id, "logs": logs}))
