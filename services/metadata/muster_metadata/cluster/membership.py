"""Finds out which servers are the nodes of the log, and follows the replacement of one."""

import asyncio
from contextlib import suppress

import structlog

from muster_metadata.log.repairs.repair import Repairer
from muster_metadata.nodes import keys
from muster_metadata.nodes.configuration import (
    Configuration,
    Introduction,
    Unusable,
    agreed_configuration,
    newest_of,
)
from muster_metadata.nodes.introductions import introductions
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.problem import NOT_REACHED_YET
from muster_metadata.nodes.quorum import Quorum

log = structlog.get_logger()

_PAUSE_S = 0.01


class Membership:
    """Keeps the nodes of a quorum at the newest configuration of the log.

    A newer configuration is adopted as soon as any node has it: it was decided before the first node got it,
    and every majority of it contains nodes that refuse the one before (docs/decisions/replacing-a-node.md).

    Args:
        quorum: the nodes.
        repairer: gets what it needs to give a node its identity again.
        timeout_ms: how long to wait for the nodes' introductions.
    """

    def __init__(self, quorum: Quorum, repairer: Repairer, timeout_ms: int) -> None:
        self._quorum = quorum
        self._repairer = repairer
        self._timeout_ms = timeout_ms
        self._following = asyncio.Lock()
        self.configuration: Configuration | None = None

    async def discover(self) -> Configuration | Unusable:
        """Asks the nodes which log they are, adopts the configuration that they agree on, and returns it."""
        await self._tried()
        found = agreed_configuration(
            [node.place for node in self._quorum.nodes],
            await introductions(self._quorum.nodes, self._timeout_ms),
        )
        if isinstance(found, Configuration):
            self.adopt(found)
        return found

    async def _tried(self) -> None:
        """Waits until each node was reached or could not be.

        Two that connect first are a majority, and the third may be a server that was replaced.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_ms / 1000):
                for node in self._quorum.nodes:
                    while node.tables.problem is NOT_REACHED_YET:  # noqa: ASYNC110  a plain field
                        await asyncio.sleep(_PAUSE_S)

    def adopt(self, configuration: Configuration) -> None:
        """Makes every script name this configuration from now on."""
        self.configuration = configuration
        self._quorum.configuration = configuration.number
        self._repairer.identify(configuration.created_at_ms, configuration.addresses)
        for node in self._quorum.nodes:
            node.belongs_to(
                configuration.cluster_id,
                configuration.shard_count,
                len(self._quorum.nodes),
                configuration.number,
                configuration.addresses,
            )

    async def follow(self) -> None:
        """Resolves a difference in configuration: adopts a newer one, or brings ours to lagging nodes."""
        if self._following.locked():
            return
        async with self._following:
            said = await introductions(self._quorum.nodes, self._timeout_ms)
            await self._move(newest_of([one for one in said if one is not None and self._is_ours(one)]))
            await self._bring(said)

    def _is_ours(self, said: Introduction) -> bool:
        """Returns whether a node of this log says this; a wrong address may lead to one of another."""
        found, current = said.parsed, self.configuration
        return found is not None and current is not None and found.same_log(current.identity(1))

    async def _move(self, newest: Configuration | None) -> None:
        current = self.configuration
        if current is None or newest is None or newest.number <= current.number:
            return
        moved = [
            (node, there)
            for node, here, there in zip(self._quorum.nodes, current.addresses, newest.addresses, strict=True)
            if here != there
        ]
        # This comes first: answers of the old configuration must not be added to those of the new one.
        self._quorum.configuration = newest.number
        await asyncio.gather(*(node.move(there) for node, there in moved))
        self.adopt(newest)
        log.warning(
            "log_configuration_changed",
            configuration=newest.number,
            nodes=",".join(newest.addresses),
            replaced=",".join(str(node.index) for node, _ in moved),
        )

    async def _bring(self, said: list[Introduction | None]) -> None:
        """Brings the configuration to nodes that were away when it changed: they refuse it until then."""
        configuration = self.configuration
        if configuration is None:
            return
        await asyncio.gather(
            *(
                reconfigure(node, configuration)
                for node, one in zip(self._quorum.nodes, said, strict=True)
                if one is not None and configuration.keeps(node.index, one) and one.identity != node.identity
            )
        )


async def reconfigure(node: Node, configuration: Configuration) -> bool:
    """Brings a node into a later configuration; returns whether it is in it now."""
    identity = configuration.identity(node.index)
    reply = await node.table("configure", (keys.NODE,), *_change(identity, str(identity), configuration))
    return reply.done


async def retire(node: Node, configuration: Configuration) -> bool:
    """Marks a server as replaced in this configuration; returns whether it is marked now."""
    identity = configuration.identity(node.index)
    reply = await node.table("configure", (keys.NODE,), *_change(identity, identity.replaced, configuration))
    return reply.done


def _change(identity: keys.Identity, text: str, configuration: Configuration) -> tuple[str | int, ...]:
    begins_with = str(identity).removesuffix(str(identity.configuration))
    return begins_with, identity.configuration, text, ",".join(configuration.addresses)
