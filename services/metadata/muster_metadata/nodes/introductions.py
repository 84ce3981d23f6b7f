"""Asks the nodes which log they belong to."""

import asyncio
from collections.abc import Sequence

from muster_metadata.nodes import keys
from muster_metadata.nodes.configuration import Introduction
from muster_metadata.nodes.connection import fields
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.reply import NodeReply, Status


async def introductions(nodes: Sequence[Node], timeout_ms: int) -> list[Introduction | None]:
    """What each node says about itself; None: it does not answer in time."""
    answers = [(_identity(node), node.ask("INFO", "server")) for node in nodes]
    await asyncio.wait([one for pair in answers for one in pair], timeout=timeout_ms / 1000)
    return [_introduction(_done(identity), _done(server)) for identity, server in answers]


async def introduction(node: Node) -> Introduction | None:
    """What one node says about itself; None: it does not answer."""
    return _introduction(await _identity(node), await node.ask("INFO", "server"))


def _identity(node: Node) -> "asyncio.Future[NodeReply]":
    return node.ask("HMGET", keys.NODE, "identity", "created_at_ms", "nodes")


def _done(answer: "asyncio.Future[NodeReply]") -> NodeReply | None:
    return answer.result() if answer.done() else None


def _introduction(identity: NodeReply | None, server: NodeReply | None) -> Introduction | None:
    if identity is None or identity.status is not Status.OK:
        return None
    text, created, addresses = ((value or b"").decode("utf-8", "replace") for value in identity.values[0])
    # INFO may be forbidden: it only serves to detect one server under two names.
    about = fields(server.values[0]) if server is not None and server.status is Status.OK else {}
    return Introduction(
        identity=text,
        created_at_ms=int(created) if created.isdecimal() else 0,
        addresses=tuple(addresses.split(",")) if addresses else (),
        run_id=about.get("run_id", ""),
    )
