"""What the configuration of a node makes of the promise that nothing acknowledged is lost."""

from collections.abc import Mapping

from muster_metadata.node import Node
from muster_metadata.reply import Status

_ASKED = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")


async def weaknesses(node: Node) -> list[str]:
    """Sentences about a node's configuration; none if it is as recommended, or cannot be read."""
    found: dict[str, str] = {}
    for name in _ASKED:
        reply = await node.ask("CONFIG", "GET", name)
        if reply.status is not Status.OK or len(reply.values[0]) != 2:
            return await default_user(node)
        found[name] = reply.values[0][1].decode("utf-8", "replace")
    return judge(found) + await default_user(node)


async def default_user(node: Node) -> list[str]:
    """A sentence if the user `default` may not write: the server reads its append-only file with its rights.

    Redis 8.0 then leaves out every transaction at a restart, and a script that writes twice is one. Nothing
    is said if the users cannot be read.
    """
    reply = await node.ask("ACL", "GETUSER", "default")
    if reply.status is not Status.OK or not isinstance(reply.values[0], list):
        return []
    told = reply.values[0]
    user = dict(zip(told[::2], told[1::2], strict=True))
    if b"+@all" in user.get(b"commands", b"") and b"~*" in (user.get(b"keys") or b""):
        return []
    return [
        "the user `default` has too few rights: the server reads its append-only file with them and may lose "
        "what they do not allow when it restarts; use `user default off ~* &* +@all`"
    ]


def judge(configuration: Mapping[str, str]) -> list[str]:
    """What a configuration gives up."""
    sentences = []
    if configuration.get("appendonly") != "yes":
        sentences.append("appendonly is off: the node forgets its logs when it restarts")
    elif configuration.get("appendfsync") == "no":
        sentences.append("appendfsync is `no`: a crash of the machine may take more than its last second")
    elif configuration.get("appendfsync") == "everysec":
        sentences.append("appendfsync is `everysec`: a crash of a majority of machines may take a second")
    if configuration.get("maxmemory-policy") != "noeviction":
        sentences.append("maxmemory-policy is not `noeviction`: the node may drop logs when memory is short")
    if configuration.get("no-appendfsync-on-rewrite") == "yes":
        sentences.append("no-appendfsync-on-rewrite is on: during a rewrite nothing is synced")
    return sentences
