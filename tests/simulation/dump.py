"""What is left of a cluster, for others to judge: its nodes' data and what clients were answered."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from simulation.cluster import Cluster
from simulation.ledger import Ledger, log_key
from simulation.redis_node import encoded
from simulation.redis_store import Id, Stream
from simulation.servers import SHARDS

_SHARD_OF = {log_key(shard): shard for shard in range(SHARDS)}


def dump(cluster: Cluster, ledger: Ledger, folder: Path) -> None:
    """Writes what the nodes hold, and what was acknowledged and read.

    Args:
        cluster: at rest.
        ledger: where commits are in the log.
        folder: takes `redis-1.resp`, …, the commands that fill a real server each, and `acks.jsonl` and
            `reads.jsonl`, as `muster-audit check` takes them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for node in cluster.nodes:
        commands = b"".join(encoded(list(command)) for command in node.store.commands())
        (folder / f"{node.name}.resp").write_bytes(commands)
    _write(folder / "acks.jsonl", _acknowledgements(cluster, ledger))
    _write(folder / "reads.jsonl", _reads(cluster))


def _acknowledgements(cluster: Cluster, ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Those of commits that the log still has."""
    begins = {key: max(_first(node.store.keys.get(key)) for node in cluster.nodes) for key in _SHARD_OF}
    for commit in cluster.history.commits.values():
        if commit.outcome != "ok":
            continue
        for key, (epoch, offset), hash_ in ledger.commits.get(commit.id, ()):
            if ledger.on_chain((key, (epoch, offset), hash_)) and (epoch, offset) >= begins[key]:
                at_ms = int(commit.ended_s * 1_000)
                yield {"shard": _SHARD_OF[key], "epoch": epoch, "offset": offset, "at_ms": at_ms}


def _first(log: object) -> Id:
    """The id of the first entry that a node still has."""
    return log.ids[0] if isinstance(log, Stream) and log.ids else (0, 0)


def _reads(cluster: Cluster) -> Iterator[dict[str, Any]]:
    commits = cluster.history.commits
    for fetch in cluster.history.fetches:
        yield {
            "group_id": fetch.group_id,
            "topic": fetch.partition.topic,
            "partition": fetch.partition.number,
            "offset": commits[fetch.id].offset if fetch.id else -1,
            "began_at_ms": int(fetch.began_s * 1_000),
        }


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
