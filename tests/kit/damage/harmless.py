"""The rules of docs/audit.md by which a damage is harmless, so that nothing needs to be found."""

from typing import Any

from kit.damage.target import Entry, Target, place
from kit.damage.undamaged import Undamaged
from muster_core.position import Position


def is_judged(key: bytes) -> bool:
    """Whether a key is of a log; leases and servers are hints that no check reads."""
    return (
        key == b"muster:node"
        or key == b"muster:owners"
        or (b"{" in key and not key.endswith((b":copy", b":vacant")))
    )


def harmless_everywhere(undamaged: Undamaged, target: Target) -> str:
    """The rules that say why nothing needs to be found, of each key that is another one."""
    rules = set[str]()
    for key in sorted({key for keys in undamaged.whole for key in keys if is_judged(key)}):
        pairs = zip(undamaged.nodes, undamaged.whole, strict=True)
        nodes = [node for node, whole in pairs if node.dump(key) != whole.get(key)]
        if nodes:
            rules.add(harmless(undamaged, Target(nodes, key, target.draw, (), undamaged.nodes, target.bases)))
    return "" if "" in rules else " and ".join(sorted(rules)) or "nothing changed"


def harmless(undamaged: Undamaged, target: Target) -> str:
    """The rule of docs/audit.md that says why nothing needs to be found; empty: none does."""
    base, _, name = target.key.rpartition(b":")
    if not undamaged.changed():
        return "nothing changed"
    if name in (b"acknowledged", b"exported", b"owners", b"snapshots"):
        return "a hint that says less"
    if name == b"node" and all(node.hget(target.key, "identity") for node in target.nodes):
        return "when the cluster was made, and where"
    if name == b"promise":
        return _in_promise(undamaged, target, base)
    if b":snapshot:" in target.key:
        return _in_snapshot(undamaged, target, name)
    if name == b"log":
        return _in_log(undamaged, target, base)
    return ""


def _in_snapshot(undamaged: Undamaged, target: Target, upto: bytes) -> str:
    lists = target.base + b":snapshots"
    for node in target.nodes:
        before, after = undamaged.hash(lists, node), node.hgetall(lists)
        if not after.items() <= before.items():
            return ""
        if node.exists(target.key) and before.get(upto):
            stored, whole = node.hgetall(target.key), undamaged.hash(target.key, node)
            if any(stored.get(field) != whole[field] for field in whole) or any(
                field.isdigit() and field not in whole for field in stored
            ):
                return ""
    return "a copy of a snapshot that is gone or has no marker, or fields beside its parts"


def _in_promise(undamaged: Undamaged, target: Target, base: bytes) -> str:
    for node in target.nodes:
        promise = undamaged.hash(target.key, node)
        before = [promise.get(b"epoch"), promise.get(b"nonce")]
        now = node.hmget(target.key, "epoch", "nonce")
        end = node.xrevrange(base + b":log", count=1)
        first = node.xrange(base + b":log", count=1)
        if now[0] == before[0] and first and place(first[0][0]).offset > 1:
            continue  # the Claim may be trimmed
        if now != before and int(now[0]) <= place(end[0][0]).epoch and now[0] != b"0":
            return ""
    return "a promise above the log, or its floor, tag or run"


def _in_log(undamaged: Undamaged, target: Target, base: bytes) -> str:
    if all(undamaged.entries(target.key, node) == node.xrange(target.key) for node in target.nodes):
        return "what a server keeps of a stream beside its entries"
    acknowledged = undamaged.acknowledged[base].stream_id
    if _differs_after(target, acknowledged):
        return ""
    if all(
        _upto(undamaged.entries(target.key, node), acknowledged)
        == _upto(list(node.xrange(target.key)), acknowledged)
        for node in target.nodes
    ):
        return "entries after the acknowledged position"
    ends = [node.xrevrange(target.key, count=1) for node in target.nodes]
    if len(target.nodes) <= len(undamaged.nodes) // 2 and all(
        not end or place(end[0][0]) <= Position.parse(acknowledged) for end in ends
    ):
        return "a node that lags"
    if all(_is_covered_rest(undamaged, node, target.key, base) for node in target.nodes):
        return "a beginning that a snapshot on the node covers"
    firsts = [node.xrange(target.key, count=1) for node in target.nodes]
    whole = [node for node in undamaged.nodes if node not in target.nodes]
    trimmed = all(first and place(first[0][0]).offset > 1 for first in firsts)
    rest = [
        node.xrange(target.key, "(" + first[0][0].decode())
        for node, first in zip(target.nodes, firsts, strict=True)
    ]
    if trimmed and not whole and all(undamaged.entries(target.key)[-len(one) :] == one for one in rest):
        return "the first entry of a trimmed log"
    return ""


def _differs_after(target: Target, acknowledged: str) -> bool:
    """Whether nodes hold different entries of one claim at one place after the acknowledged position."""
    held: dict[tuple[bytes, int, Any], set[tuple[Any, Any]]] = {}
    for node in target.every:
        claim = Position.parse(acknowledged).epoch, b""
        for id_, fields in node.xrange(target.key, f"({acknowledged}"):
            content = fields.get(b"n"), fields.get(b"r")
            if place(id_).epoch != claim[0]:
                claim = place(id_).epoch, content[0]
            held.setdefault((id_, *claim), set()).add(content)
    return any(len(contents) > 1 for contents in held.values())


def _is_covered_rest(undamaged: Undamaged, node: Any, key: bytes, base: bytes) -> bool:
    """Whether a node has the end of its log, and lists a snapshot that reaches its first entry."""
    rest = node.xrange(key)
    listed = [upto for upto, marker in node.hgetall(base + b":snapshots").items() if marker]
    return (
        bool(rest)
        and undamaged.entries(key)[-len(rest) :] == rest
        and any(place(upto).offset >= place(rest[0][0]).offset for upto in listed)
    )


def _upto(entries: list[Entry], acknowledged: str) -> list[Entry]:
    """Those that are acknowledged."""
    return [entry for entry in entries if place(entry[0]) <= Position.parse(acknowledged)]
