"""Which user of the log's nodes metadata logs in as, and what others may do there."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from muster_metadata.nodes.addresses import place_of, split_urls
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.reply import Status
from muster_runtime.addresses import parse_address

from muster_server.doctor.findings import CheckResult, Finding

ANSWER_S = 3.0
PREFIX = b"~muster:"
"""Keys of the log begin so."""

_DEFAULT = "default"
_FIX = 'make the user of docs/security.md, "The log\'s nodes", and put it into MUSTER_METADATA_REDIS_URL_FILE'


@dataclass(frozen=True, slots=True)
class Login:
    """What is known of a node of the log.

    Attributes:
        address: `host:port`.
        tls: whether metadata reaches it by TLS.
        user: name of the user; `default` without one.
        open: whether it answers who has no password; None: it is not reached, or speaks TLS.
        commands: what the user may do, as `ACL GETUSER` says; None: that is not known.
        keys: which keys, the same way.
    """

    address: str
    tls: bool
    user: str
    open: bool | None = None
    commands: bytes | None = None
    keys: bytes | None = None


async def logins(urls: str) -> list[Login]:
    """Asks each node of a log.

    Raises:
        BadUrlsError: the address is invalid.
    """
    return list(await asyncio.gather(*map(_login, split_urls(urls), range(1, 1 + len(split_urls(urls))))))


async def _login(url: str, index: int) -> Login:
    parts = urlsplit(url)
    tls = parts.scheme == "rediss"
    user = unquote(parts.username or "") or _DEFAULT
    place = place_of(url)
    found = await _rights(Node(index, url, int(ANSWER_S * 1000)), user)
    return Login(
        place, tls, user, None if tls else await _open(place), found.get(b"commands"), found.get(b"keys")
    )


async def _rights(node: Node, user: str) -> Mapping[bytes, bytes]:
    node.start()
    try:
        async with asyncio.timeout(ANSWER_S):
            while True:
                reply = await node.ask("ACL", "GETUSER", user)
                if reply.status is Status.OK and isinstance(reply.values[0], list):
                    flat = reply.values[0]
                    return {
                        name: b" ".join(value) if isinstance(value, list) else value
                        for name, value in zip(flat[::2], flat[1::2], strict=True)
                    }
                await asyncio.sleep(0.05)
    except TimeoutError:
        return {}
    finally:
        await node.stop()


async def _open(place: str) -> bool | None:
    """Whether a node answers a stranger; None: it is not reached."""
    address = parse_address(place)
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(b"PING\r\n")
                answer = await reader.readline()
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return None
    return answer.startswith(b"+PONG")


def judge_logins(found: Sequence[Login]) -> Iterator[Finding]:
    """Judges the users of the log's nodes."""
    for one in found:
        where = f"redis {one.address}"
        if not one.tls:
            yield Finding(
                "tls", where, CheckResult.WARNING, "metadata reaches it in plain text, its password included",
                "give the nodes certificates, and metadata an address that begins with rediss://",
            )  # fmt: skip
        else:
            yield Finding("tls", where, CheckResult.OK, "metadata reaches it by TLS")
        if one.open:
            yield Finding(
                "log user", where, CheckResult.FAILED,
                "it answers whoever reaches it without a password",
                "`ACL SETUSER default off`, its rights left as they are, and the same in its file of users",
            )  # fmt: skip
        yield _judge_user(one, where)


def _judge_user(one: Login, where: str) -> Finding:
    if one.user == _DEFAULT:
        return Finding(
            "log user",
            where,
            CheckResult.FAILED,
            "metadata logs in as `default`, who may do everything",
            _FIX,
        )
    if one.commands is None or one.keys is None:
        return Finding(
            "log user", where, CheckResult.SKIPPED, f"what {one.user} may do cannot be read",
            "give the user the right `+acl|getuser`",
        )  # fmt: skip
    words = one.commands.split()
    wide = [word for word in (b"+@all", b"+@dangerous", b"+@admin") if word in words]
    foreign = [key for key in one.keys.split() if not key.startswith(PREFIX)]
    if wide or foreign:
        much = b", ".join([*wide, *foreign]).decode("utf-8", "replace")
        return Finding(
            "log user", where, CheckResult.FAILED, f"{one.user} may do more than it must: {much}", _FIX
        )
    return Finding(
        "log user", where, CheckResult.OK, f"{one.user} has the log's keys, and no dangerous commands"
    )
