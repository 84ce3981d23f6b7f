"""Which settings of a node weaken the promise that nothing acknowledged is lost."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from muster_runtime.logs import alarm

from muster_metadata.nodes.node import Node
from muster_metadata.nodes.reply import Status

log = structlog.get_logger()

_PAUSE_S = 10.0

ASKED = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")
"""The settings of a server that matter for durability."""


@dataclass(frozen=True, slots=True)
class Weakness:
    """A setting of a server that weakens durability.

    Attributes:
        setting: its name.
        sentence: its value and the consequence.
        remedy: what to do.
        forgets: whether the node can lose logs without a crash of its machine; if not, it is a choice that a
            cluster can live with.
    """

    setting: str
    sentence: str
    remedy: str
    forgets: bool

    def __str__(self) -> str:
        return self.sentence


_NO_APPEND_ONLY = Weakness(
    "appendonly",
    "appendonly is off: the node forgets its logs when it restarts",
    "`CONFIG SET appendonly yes`, and the same in its configuration file",
    forgets=True,
)
_NO_SYNC = Weakness(
    "appendfsync",
    "appendfsync is `no`: a crash of the machine may take more than its last second",
    "`CONFIG SET appendfsync always`, and the same in its configuration file",
    forgets=False,
)
_SYNC_EACH_SECOND = Weakness(
    "appendfsync",
    "appendfsync is `everysec`: a crash of a majority of machines may take a second",
    "`CONFIG SET appendfsync always` where that second counts",
    forgets=False,
)
_EVICTION = Weakness(
    "maxmemory-policy",
    "maxmemory-policy is not `noeviction`: the node may drop logs when memory is short",
    "`CONFIG SET maxmemory-policy noeviction`, and the same in its configuration file",
    forgets=True,
)
_NO_SYNC_ON_REWRITE = Weakness(
    "no-appendfsync-on-rewrite",
    "no-appendfsync-on-rewrite is on: during a rewrite nothing is synced",
    "`CONFIG SET no-appendfsync-on-rewrite no`, and the same in its configuration file",
    forgets=False,
)
_DEFAULT_USER = Weakness(
    "user default",
    "the user `default` has too few rights: the server reads its append-only file with them and may lose "
    "what they do not allow when it restarts",
    "`ACL SETUSER default off ~* &* +@all`, and the same in its file of users",
    forgets=True,
)


async def configuration_of(node: Node) -> dict[str, str]:
    """Reads the settings in `ASKED` from a server; empty if they cannot be read."""
    found: dict[str, str] = {}
    for name in ASKED:
        reply = await node.ask("CONFIG", "GET", name)
        if reply.status is not Status.OK or len(reply.values[0]) != 2:
            return {}
        found[name] = reply.values[0][1].decode("utf-8", "replace")
    return found


async def weaknesses(node: Node) -> list[Weakness] | None:
    """The weaknesses of a node's configuration; None: it cannot be read."""
    found = await configuration_of(node)
    return weaknesses_in(found) + await default_user(node) if found else None


async def default_user(node: Node) -> list[Weakness]:
    """A weakness if the user `default` lacks rights; none if the users cannot be read.

    The server reads its append-only file with this user's rights: Redis 8.0 otherwise drops every
    transaction at a restart, and a script that writes twice is one.
    """
    reply = await node.ask("ACL", "GETUSER", "default")
    if reply.status is not Status.OK or not isinstance(reply.values[0], list):
        return []
    flat = reply.values[0]
    user = dict(zip(flat[::2], flat[1::2], strict=True))
    if b"+@all" in user.get(b"commands", b"") and b"~*" in (user.get(b"keys") or b""):
        return []
    return [_DEFAULT_USER]


def weaknesses_in(configuration: Mapping[str, str]) -> list[Weakness]:
    """The weaknesses of a configuration that was read."""
    found = []
    if configuration.get("appendonly") != "yes":
        found.append(_NO_APPEND_ONLY)
    elif configuration.get("appendfsync") == "no":
        found.append(_NO_SYNC)
    elif configuration.get("appendfsync") == "everysec":
        found.append(_SYNC_EACH_SECOND)
    if configuration.get("maxmemory-policy") != "noeviction":
        found.append(_EVICTION)
    if configuration.get("no-appendfsync-on-rewrite") == "yes":
        found.append(_NO_SYNC_ON_REWRITE)
    return found


class DurabilityWatch:
    """Says which nodes have settings that weaken durability, also settings that are changed while they run.

    A node whose append-only file was switched off comes back with the file of that moment, which may say that
    the node synced each write, as it did until then: `doubts.py` has the others know better.

    Args:
        nodes: all of them.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._known: dict[Node, frozenset[Weakness]] = {}

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            for node in self._nodes:
                await self._look(node)
            await asyncio.sleep(_PAUSE_S)

    async def _look(self, node: Node) -> None:
        found = await weaknesses(node)
        if found is None:
            return  # what is not known has not changed
        before = self._known.get(node)
        self._known[node] = frozenset(found)
        for weakness in found:
            if weakness in (before or ()):
                continue
            fields = {"node": node.index, "weakness": str(weakness), "remedy": weakness.remedy}
            if before is not None and weakness.forgets:
                alarm("log_node_weakened", address=node.place, **fields)
            else:
                log.warning("log_node_weak", **fields)
